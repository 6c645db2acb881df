from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.activations.examples import numbers
from torch import nn

from interbasin.activations.places import ModuleReading, Place, find_reading, module_at, width_axis
from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Each, Grid, In, Reason, Role, Row, Space, Still


def test_a_module_alone_means_its_output():
    assert Place.of("blocks.0.fc1") == Place("blocks.0.fc1", "output", 0, None)
    assert Place.of(":input") == Place("", "input")
    assert Place.of("conv:output:2[1]") == Place("conv", "output", 2, 1)
    assert Place.of("act[-1]") == Place("act", "output", 0, -1)


@given(
    st.lists(st.sampled_from(["blocks", "0", "mlp", "fc1", "q_norm"]), max_size=4),
    st.sampled_from(["input", "output", "q", "k", "v"]),
    st.integers(0, 9),
)
def test_a_place_is_what_its_text_says(parts, side, call):
    place = Place(".".join(parts), side, call)
    assert Place.of(str(place)) == place


@pytest.mark.parametrize("text", ["fc1:weight", "fc1:output:x", "fc1:3", "fc1[a]", "fc1[0][1]", "attn:q[1]"])
def test_what_is_no_place_is_refused_with_how_to_write_one(text):
    with pytest.raises(WiringError, match="names no place; write a module's path"):
        Place.of(text)


def test_an_unknown_module_lists_the_nearest_first():
    with pytest.raises(UnknownNameError, match=r"no module of Sequential named 'o'; try one of: 0"):
        module_at(nn.Sequential(nn.Linear(1, 1)), Place("o", "input"))


def test_convolutions_and_what_goes_with_them_have_their_width_on_axis_one():
    for module in (nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)):
        assert width_axis(module, 4) == 1
    assert width_axis(nn.BatchNorm1d(4), 2) == 1
    assert width_axis(nn.Linear(3, 3), 4) == 3
    assert width_axis(nn.ReLU(), 4) == 3


def test_an_axis_can_be_named():
    x = torch.randn(2, 5, 3, 3)
    assert ModuleReading(Place.of("act[1]")).rows(x, nn.ReLU()).shape == (2, 3, 3, 5)
    assert ModuleReading(Place.of("act")).rows(x, nn.Conv2d(1, 1, 1)).shape == (2, 3, 3, 5)


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(ShapeError, match=r"axis 4 at act:output:0, found shape \(2, 3\)"):
        ModuleReading(Place.of("act[4]")).rows(torch.randn(2, 3), nn.ReLU())
    with pytest.raises(ShapeError, match="name its axis"):
        ModuleReading(Place.of("act")).rows(torch.randn(3), nn.ReLU())


# ---------------------------------------------------------------------- what is taken of a space


WHY = Reason("input", "it is given")


def space(name, size, *, within=(), blocks=1, group=Group.PERMUTATION, writes=(), reads=(), scales=()):
    return Space(name, size, tuple(within), blocks, group, tuple(writes), tuple(reads), tuple(scales))


HEADS, CHANNELS = space("h", 2), space("c", 3, within=["h"], blocks=2)
SPACES = {"h": HEADS, "c": CHANNELS, "f": space("f", 2, group=Group.FIXED), "o": space("o", 4)}
BATCH, TOKENS = Still(5, WHY), Still(7, WHY)


def reading_of(*axes, one=CHANNELS):
    return find_reading(Place.of("m"), axes, one, SPACES)


def test_heads_by_channels_come_side_by_side_however_they_stand():
    h, c = In("h", Role.WRITE, 2), In("c", Role.WRITE, 3)
    x = numbers(4, 9, 2, 3)
    wanted = x.flatten(2)
    for axes, seen in (
        ((BATCH, TOKENS, Grid((h, c))), x.flatten(2)),
        ((BATCH, h, TOKENS, c), x.transpose(1, 2)),
        ((BATCH, TOKENS, c, h), x.transpose(2, 3)),
        ((BATCH, TOKENS, Grid((c, h))), x.transpose(2, 3).flatten(2)),
    ):
        torch.testing.assert_close(reading_of(*axes).rows(seen, nn.Identity()), wanted)


def test_positions_and_fixed_spaces_become_rows_and_movable_ones_stand_beside():
    h, c = In("h", Role.WRITE, 2), In("c", Role.WRITE, 3)
    assert reading_of(BATCH, Grid((h, In("f", Role.WRITE, 2), c))).beside == ()
    assert reading_of(BATCH, Grid((h, In("o", Role.WRITE, 4), c))).beside == ("o",)
    reading = reading_of(BATCH, Grid((h, c, Still(4, WHY))))
    assert reading.rows(numbers(6, 2 * 3 * 5), nn.Identity()).shape == (6, 5, 6)


def test_a_stretch_of_a_fused_axis_is_cut_out():
    h, c = In("h", Role.WRITE, 2), In("c", Role.WRITE, 3)
    fused = Row((Grid((h, In("c", Role.READ, 3))), Grid((h, c)), In("o", Role.WRITE, 4)))
    reading = reading_of(BATCH, fused)
    x = numbers(5, 16)
    torch.testing.assert_close(reading.rows(x, nn.Identity()), x[:, 6:12])
    assert any(part.segment is not None for part in reading.parts)


def test_tokens_that_could_change_places_are_left_out_where_others_cannot():
    c, registers = In("o", Role.WRITE, 4), In("c", Role.WRITE, 3)
    x = numbers(5, 11, 4)
    for row, kept in (
        (Row((Still(1, WHY), registers, Still(6, WHY))), [0, *range(4, 11)]),
        (Row((Still(1, WHY), Still(6, WHY), registers)), range(8)),
        (Row((registers, Still(6, WHY), registers)), range(3, 8)),
    ):
        reading = reading_of(BATCH, row, c, one=SPACES["o"])
        assert reading.beside == ()
        torch.testing.assert_close(reading.rows(x, nn.Identity()), x[:, list(kept)])
    assert reading_of(BATCH, registers, c, one=SPACES["o"]).beside == ("c",)


def test_duals_parts_and_families_are_not_taken():
    h, c = In("h", Role.WRITE, 2), In("c", Role.WRITE, 3)
    assert reading_of(BATCH, Grid((h, In("c", Role.READ, 3)))) is None
    assert reading_of(BATCH, c) is None  # the heads are missing
    assert reading_of(BATCH, c, Grid((h, c))) is None  # twice
    assert reading_of(BATCH, h, Each(0, (c, In("o", Role.WRITE, 3)))) is None
    assert reading_of(BATCH, Grid((h, Row((c, TOKENS))))) is None


def test_activations_of_another_rank_than_the_example_are_refused():
    reading = reading_of(BATCH, In("h", Role.WRITE, 2), In("c", Role.WRITE, 3))
    with pytest.raises(ShapeError, match=r"activation of 3 axes, and now it has 2"):
        reading.rows(numbers(4, 6), nn.Identity())
