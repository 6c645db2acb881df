"""Where a space is recorded when nobody said, and what is taken there."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.activations.examples import (
    assert_moments,
    by_hand,
    cnn,
    llama,
    mlp,
    numbers,
    rows_of,
    texts,
    vit,
)
from torch import nn

from interbasin.activations import record, standing
from interbasin.activations.places import Place, choose_reading, find_reading
from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import In, Reason, Role, Space, Still
from interbasin.wiring.wire import wire
from interbasin.wiring.wiring import TensorWiring, Wiring

WHY = Reason("input", "it is given")
BATCH, TOKENS = Still(5, WHY), Still(7, WHY)


def space(name, size, *, within=(), blocks=1, group=Group.PERMUTATION, writes=(), reads=(), scales=()):
    return Space(name, size, tuple(within), blocks, group, tuple(writes), tuple(reads), tuple(scales))


def place_of(wiring, name, at="post"):
    return str(choose_reading(wiring, name, at).place)


@cache
def wired(make):
    """The wiring of one of the small networks, which all tests that read it share."""
    data = {mlp: numbers(2, 5), cnn: numbers(2, 3, 8, 8), vit: numbers(2, 3, 32, 32), llama: texts(1)[0]}
    return wire(make(), data[make])


def reader(wiring, axis):
    """The name of the space that an axis of a tensor reads."""
    return next(name for name, one in wiring.spaces.items() if axis in one.reads)


@pytest.mark.slow
def test_a_hidden_layer_is_taken_before_its_reader_or_behind_its_writer():
    wiring = wired(mlp)
    name = reader(wiring, "2.weight[1]")
    assert place_of(wiring, name) == "2:input:0"
    assert place_of(wiring, name, "pre") == "0:output:0"


def test_channels_are_taken_before_the_convolution_that_reads_them_and_before_a_flattened_layer():
    wiring = wired(cnn)
    assert place_of(wiring, reader(wiring, "4.weight[1]")) == "4:input:0"
    assert place_of(wiring, reader(wiring, "4.weight[1]"), "pre") == "0:output:0"
    flattened = choose_reading(wiring, reader(wiring, "7.weight[1]"))
    assert (str(flattened.place), flattened.width) == ("7:input:0", 16)
    x = numbers(5, 16, 2, 2)
    torch.testing.assert_close(flattened.rows(x.flatten(1), nn.Linear(64, 10)), x.flatten(2).mT)


@pytest.mark.slow
def test_the_residual_stream_is_taken_where_the_last_norm_sees_all_of_it():
    wiring = wired(vit)
    stream = reader(wiring, "blocks.0.mlp.fc1.weight[1]")
    for at in ("post", "pre"):
        assert place_of(wiring, stream, at) == "norm:input:0"
    wiring = wired(llama)
    assert place_of(wiring, reader(wiring, "lm_head.weight[1]")) == "model.norm:input:0"


def test_the_stream_of_a_network_whose_norms_stand_in_its_branches_is_taken_before_a_reader():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(4, 4)

        def forward(self, x):
            return torch.relu(x + self.norm(self.conv(x)))

    net = nn.Sequential(nn.Conv2d(3, 4, 1), Block(), Block(), nn.Conv2d(4, 2, 1))
    wiring = wire(net, torch.randn(2, 3, 6, 6))
    assert place_of(wiring, reader(wiring, "3.weight[1]")) == "3:input:0"


@pytest.mark.slow
def test_gates_and_heads_are_taken_where_their_reader_reads_them():
    wiring = wired(llama)
    assert place_of(wiring, reader(wiring, "model.layers.0.mlp.down_proj.weight[1]")).endswith("down_proj:input:0")
    wiring = wired(vit)
    values = next(n for n, s in wiring.spaces.items() if s.within and "blocks.1.attn.proj.weight[1]" in s.reads)
    reading = choose_reading(wiring, values)
    assert (str(reading.place), reading.width) == ("blocks.1.attn.proj:input:0", 24)
    fused = choose_reading(wiring, values, "pre")
    assert str(fused.place) == "blocks.1.attn.qkv:output:0"
    assert any(part.segment is not None for part in fused.parts)
    x = numbers(2, 17, 72)
    torch.testing.assert_close(fused.rows(x, nn.Linear(1, 1)), x[..., 48:])


def test_every_space_that_moves_and_stands_alone_has_a_place():
    wiring = wired(vit)
    found = standing(wiring)
    assert len(found) == 1 + 2 * 3
    assert all(choose_reading(wiring, name).width == wiring.spaces[name].width for name in found)


def test_a_space_that_stands_nowhere_alone_says_where_it_is_nearest_and_can_be_had_there():
    wiring = wired(llama)
    shared = next(name for name, one in wiring.spaces.items() if not one.is_fixed and name not in standing(wiring))
    with pytest.raises(WiringError, match=r"stands nowhere alone and whole.*name a place.*\(beside "):
        choose_reading(wiring, shared)
    place = next(place for place in wiring.activations if _reads_at(wiring, shared, place))
    reading = choose_reading(wiring, shared, place=place)
    assert reading.beside and reading.width == wiring.spaces[shared].width


def _reads_at(wiring, name, place):
    return find_reading(Place.of(place), wiring.activations[place], wiring.spaces[name], wiring.spaces) is not None


def test_unknown_names_and_places_are_refused_with_the_nearest():
    wiring = wired(mlp)
    with pytest.raises(UnknownNameError, match="no space named 'hiden'"):
        choose_reading(wiring, "hiden")
    with pytest.raises(UnknownNameError, match="no place that the wiring follows named '5:input:0'; try one of"):
        choose_reading(wiring, reader(wiring, "2.weight[1]"), place="5:input")
    with pytest.raises(WiringError, match=r"does not stand whole at 4:input:0; it does at: 0:output:0"):
        choose_reading(wiring, reader(wiring, "2.weight[1]"), place="4:input")
    with pytest.raises(WiringError, match="at='post' or at='pre', found 'middle'"):
        choose_reading(wiring, reader(wiring, "2.weight[1]"), "middle")


def test_a_space_that_no_activation_holds_says_so():
    lonely = space("w", 3)
    with pytest.raises(WiringError, match="no activation at the boundary of a module holds it"):
        choose_reading(Wiring({"w": lonely}, {}, {}), "w")
    partly = Wiring({"w": lonely}, {}, {"fc:output:0": (Still(2, WHY), In("w", Role.READ, 3))})
    with pytest.raises(WiringError, match=r"record one of these places itself.*fc:output:0"):
        choose_reading(partly, "w")


def test_norms_of_a_stream_without_gains_leave_the_last_reader():
    stream = space(
        "s", 4, writes=["a.weight[0]", "b.weight[0]"], reads=["p.weight[1]", "q.weight[1]", "head.weight[1]"]
    )
    seen = (BATCH, TOKENS, In("s", Role.WRITE, 4))
    wiring = Wiring(
        {"s": stream},
        {name: TensorWiring((4, 4), ()) for name in ("a.weight", "b.weight")},
        {
            "a:output:0": seen,
            "b:output:0": seen,
            "n:input:0": seen,
            "p:input:0": seen,
            "q:input:0": seen,
            "head:input:0": (BATCH, In("s", Role.WRITE, 4)),
        },
    )
    assert place_of(wiring, "s") == "q:input:0"


@pytest.mark.parametrize(("name", "place"), [("input", "0:input"), ("output", "4:output")])
def test_the_ends_of_a_network_are_recorded_by_name_in_a_pair_of_other_widths(name, place):
    models, data = (mlp(), mlp(1, 9)), [numbers(6, 5)]
    assert place_of(wire(models[0], data[0]), name) == f"{place}:0"
    wanted = record(models, data, [place]).moments[place, place]
    for spaces in ([name], {name: place}):
        found = record(models, data, spaces)
        assert found.places[name, name] == (f"{place}:0",) * 2
        assert torch.equal(found.moments[name, name].cross(centered=False), wanted.cross(centered=False))


def test_the_input_of_a_convolution_is_its_channels_however_large_the_image():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    data = numbers(5, 3, 3, 3)
    found = record(net, data, ["input", "output"]).moments
    for name, rows in (("input", data), ("output", net(data).detach())):
        rows = rows.movedim(1, -1).flatten(0, -2)
        assert_moments(found[name, name], rows, rows)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 7), nn.Linear(7, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def headless(width, last):
    """A stream that is returned, after a last norm or without."""
    norm = [nn.LayerNorm(width)] if last else []
    return nn.Sequential(nn.Linear(5, width), Residual(width), Residual(width), *norm).double()


@pytest.mark.parametrize(("last", "module"), [(True, "3"), (False, "2.norm")])
def test_a_stream_that_is_the_output_as_well_is_recorded_by_name(last, module):
    torch.manual_seed(0)
    models, data = [headless(width, last) for width in (6, 8)], [numbers(4, 3, 5)]
    assert wire(models[0], data[0]).spaces["output"].is_fixed
    found = record(models, data, ["output", "1.up"])
    assert found.places["output", "output"] == (f"{module}:input:0",) * 2
    assert_moments(found.moments["output", "output"], *(rows_of(by_hand(m, data, module, "input")) for m in models))


def test_a_fixed_space_without_modules_says_so():
    with pytest.raises(WiringError, match=r"is fixed .* record a place near what reads it"):
        choose_reading(Wiring({"w": space("w", 3, group=Group.FIXED)}, {}, {}), "w")


def test_only_wirings_have_spaces_that_stand_somewhere():
    with pytest.raises(WiringError, match="found a NoneType; find one with"):
        standing(None)
    with pytest.raises(WiringError, match="found 'mid'"):
        standing(wired(mlp), at="mid")


def test_a_space_is_taken_behind_an_activation_function_that_was_named():
    net, data = mlp(), [numbers(6, 5)]
    wanted = record(net, data, ["2:input"]).moments["2:input", "2:input"]
    for place in ("1", "1:output"):
        found = record(net, data, {"0": place})
        assert found.places["0", "0"] == ("1:output:0",) * 2
        assert torch.equal(found.moments["0", "0"].cross(centered=False), wanted.cross(centered=False))


def test_a_space_of_channels_is_taken_on_the_axis_that_is_as_wide():
    net, data = cnn(), numbers(4, 3, 8, 8)
    wiring = wire(net, data)
    deep = reader(wiring, "7.weight[1]")
    assert record(net, data, {deep: "5:output"}).moments[deep, deep].source_width == 16
    # Eight channels of eight by eight: only the user knows.
    wide = reader(wiring, "4.weight[1]")
    with pytest.raises(ShapeError, match=r"In batch 0: Space .* is 8 wide.*\(4, 8, 8, 8\); name.*'2:output:0\[1\]'"):
        record(net, data, {wide: "2:output"})
    found = record(net, data, {wide: "2:output[1]"}).moments[wide, wide]
    wanted = record(net, data, ["3:input[1]"]).moments["3:input[1]", "3:input[1]"]
    assert torch.equal(found.cross(centered=False), wanted.cross(centered=False))


def test_a_place_of_another_width_is_refused():
    with pytest.raises(ShapeError, match=r"Space '0' is 8 wide and was to be taken at 3:output:0"):
        record(mlp(), [numbers(4, 5)], {"0": "3:output"})
    with pytest.raises(ShapeError, match="Space '0' is 8 wide"):
        record(mlp(), [numbers(4, 5)], {"0": "3:output[1]"})
    with pytest.raises(UnknownNameError, match="no module of Sequential named '9'"):
        record(mlp(), [numbers(4, 5)], {"0": "9"})
    # The wiring follows linear layers: what moves does not stand there.
    with pytest.raises(UnknownNameError, match="no place that the wiring follows"):
        record(mlp(), [numbers(4, 5)], {"0": "0:input"})
