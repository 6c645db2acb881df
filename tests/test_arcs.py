"""The shares of a point on an arc."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interbasin.arcs import PARALLEL, shares_on_arc


@given(cosine=st.floats(-PARALLEL, PARALLEL), t=st.floats(0, 1))
def test_a_point_between_two_of_length_one_has_length_one(cosine, t):
    a, b = shares_on_arc(cosine, t)
    assert a * a + b * b + 2 * a * b * cosine == pytest.approx(1, abs=1e-9)


@given(cosine=st.floats(-PARALLEL, PARALLEL), t=st.floats(0, 1))
def test_angles_go_evenly(cosine, t):
    a, b = shares_on_arc(cosine, t)
    angle = math.acos(cosine)
    assert math.atan2(b * math.sin(angle), a + b * cosine) == pytest.approx(t * angle, abs=1e-7)


@given(cosine=st.floats(-1, 1))
def test_the_ends_are_the_ends(cosine):
    assert shares_on_arc(cosine, 0) == (1, 0) and shares_on_arc(cosine, 1) == (0, 1)


@pytest.mark.parametrize("cosine", [1.0, 0.99999, -0.99999, -1.0, math.nan])
def test_without_a_single_arc_the_line_is_taken(cosine):
    assert shares_on_arc(cosine, 0.25) == (0.75, 0.25)
