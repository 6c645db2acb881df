from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.networks.recording.places import Place, is_place, module_at, width_axis
from interbasin.networks.recording.readings import ModuleReading


def test_a_module_alone_means_its_output():
    assert Place.of("blocks.0.fc1") == Place("blocks.0.fc1", "output", 0, None)
    assert Place.of(":input") == Place("", "input")
    assert Place.of("conv:output:2[1]") == Place("conv", "output", 2, 1)
    assert Place.of("act[-1]") == Place("act", "output", 0, -1)


@given(
    st.lists(st.sampled_from(["blocks", "0", "mlp", "fc1", "q_norm"]), max_size=4),
    st.sampled_from(["input", "output"]),
    st.integers(0, 9),
)
def test_a_place_is_what_its_text_says(parts, side, call):
    place = Place(".".join(parts), side, call)
    assert Place.of(str(place)) == place
    assert is_place(str(place))


@pytest.mark.parametrize("text", ["fc1:weight", "fc1:output:x", "fc1:3", "fc1[a]", "fc1[0][1]"])
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
    with pytest.raises(ShapeError, match=r"axis 4 at act:output:0, found an activation of shape \(2, 3\)"):
        ModuleReading(Place.of("act[4]")).rows(torch.randn(2, 3), nn.ReLU())
    with pytest.raises(ShapeError, match="name an axis that it has"):
        ModuleReading(Place.of("act")).rows(torch.randn(3), nn.ReLU())
