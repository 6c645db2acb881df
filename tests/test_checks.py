"""Arguments are checked in one place, and the message names the argument and what was found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from interbasin.checks import require_choice, require_finite, require_flag, require_fraction, require_whole
from interbasin.errors import DataError, UnknownNameError


def test_what_fits_comes_back_in_its_plain_type():
    assert require_whole("steps", np.int64(3), least=1) == 3 and type(require_whole("steps", np.int64(3))) is int
    assert require_finite("rate", 2) == 2.0 and type(require_finite("rate", np.float32(0.5))) is float
    assert require_fraction("share", 1) == 1.0 and require_fraction("share", 0) == 0.0
    assert require_flag("fast", np.True_) is True
    assert require_choice("path", "a_b", ["a-b"]) == "a-b" and require_choice("path", "a_b", ["a_b"]) == "a_b"


@pytest.mark.parametrize(
    "check",
    [
        lambda: require_whole("steps", 1.0),
        lambda: require_whole("steps", True),
        lambda: require_whole("steps", "3"),
        lambda: require_whole("steps", 0, least=1),
        lambda: require_whole("steps", 9, most=8),
        lambda: require_finite("steps", math.nan),
        lambda: require_finite("steps", math.inf),
        lambda: require_finite("steps", "1"),
        lambda: require_finite("steps", -1, least=0),
        lambda: require_fraction("steps", 1.5),
        lambda: require_fraction("steps", 0, zero=False),
        lambda: require_flag("steps", 1),
        lambda: require_flag("steps", "yes"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(check):
    with pytest.raises(DataError, match=r"^steps must be .*, got "):
        check()


@pytest.mark.parametrize("value", ["lepr", None, 3])
def test_an_unknown_name_lists_the_known_ones(value):
    with pytest.raises(UnknownNameError, match=r"There is no path named .* try one of"):
        require_choice("path", value, ["lerp", "slerp"])


def test_the_bounds_are_said():
    with pytest.raises(DataError, match="from 1 to 8"):
        require_whole("steps", 9, 1, 8)
    with pytest.raises(DataError, match="of at most 2"):
        require_finite("steps", 3, most=2)
