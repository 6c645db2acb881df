"""Widths that are none."""

from __future__ import annotations

import pytest
from tests.test_storage import refused

from interbasin.errors import ShapeError
from interbasin.maps import Identity


@pytest.mark.parametrize("width", [0, -1, 2.0, "2", None, True, [2]], ids=repr)
def test_a_width_is_a_whole_number_of_at_least_one(width):
    refused(lambda: Identity(width), ShapeError, ("Identity", "at least 1", repr(width)))


def test_a_space_may_be_one_wide():
    assert Identity(1).matrix.tolist() == [[1.0]]
