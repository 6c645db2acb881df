"""A wiring in short: what does not move, by reason, in agreement with the coverage; repeated layers grouped."""

from __future__ import annotations

import torch

from interbasin.wiring import wire
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, In, Reason, Role, Row, Space, Still
from interbasin.wiring.summary import SpaceGroup, fixed_axes, group_layers, share_moved
from interbasin.wiring.wiring import TensorWiring, Wiring

CONSTANT = Reason("constant", "a constant of the network lies along it")


def wiring(*axes) -> Wiring:
    hidden = Space("hidden", 4, (), 1, Group.PERMUTATION, ("weight[0]",), (), ())
    stays = Space("stays", 3, (), 1, Group.FIXED, ("weight[0]",), (), (), CONSTANT)
    shape = tuple(axis.size for axis in axes)
    return Wiring({"hidden": hidden, "stays": stays}, {"weight": TensorWiring(shape, axes)})


MOVES, STAYS = In("hidden", Role.WRITE, 4), In("stays", Role.WRITE, 3)


def test_a_constant_factor_of_an_axis_that_moves_lowers_no_coverage() -> None:
    for still in (Still(3, CONSTANT), STAYS):
        found = wiring(Grid((MOVES, still)))
        assert found.coverage == 1.0
        assert [one.lowers_coverage for one in fixed_axes(found, {"weight": 12})] == [False]


def test_a_constant_segment_beside_one_that_moves_does() -> None:
    for still in (Still(3, CONSTANT), STAYS):
        found = wiring(Row((MOVES, still)))
        assert found.coverage < 1.0
        assert [one.lowers_coverage for one in fixed_axes(found, {"weight": 7})] == [True]


def space(name: str, size: int = 4) -> Space:
    return Space(name, size, (), 1, Group.PERMUTATION, (f"{name}.weight[0]",), (), ())


def names(lines: list[SpaceGroup]) -> list[str]:
    return [line.name for line in lines]


def test_layers_are_folded_only_where_they_are_alike():
    layers = [space(f"layers.{place}.fc", size) for place, size in enumerate((4, 4, 4, 8, 4))]
    modules = {f"layers.{place}" for place in range(5)}
    assert names(group_layers(layers, modules)) == ["layers.{0..2,4}.fc", "layers.3.fc"]


def test_numbers_that_do_not_count_layers_are_not_folded():
    parts = [space(f"attention.qkv.{place}") for place in range(3)]
    assert names(group_layers(parts, {"attention", "attention.qkv"})) == [one.name for one in parts]


def test_layers_inside_layers_are_folded_together():
    inner = [space(f"layers.{outer}.experts.{place}.up") for outer in range(3) for place in range(4)]
    modules = {f"layers.{outer}" for outer in range(3)} | {one.name.removesuffix(".up") for one in inner}
    (line,) = group_layers(inner, modules)
    assert line.name == "layers.{0..2}.experts.{0..3}.up" and len(line.spaces) == 12 == len(line.tensors)


def test_nothing_folds_to_nothing():
    assert group_layers([], set()) == []


def test_reasons_are_counted_without_the_module_they_were_met_in():
    class Sorting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).sort(dim=-1).values
            return x

    model = Sorting()
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    wiring = wire(model, torch.randn(2, 6))
    found = fixed_axes(wiring, sizes)
    (sort,) = [one for one in found if one.lowers_coverage]
    assert sort.why.endswith("(aten.sort)") and sort.parameters == 2 * 42 + 42 and "layers" not in sort.why
    assert share_moved(wiring, sizes) == 0.0 and [one.lowers_coverage for one in found] == [True, False, False]


def test_a_reason_that_nobody_noted_is_still_listed():
    still = Space("a", 4, (), 1, Group.FIXED, ("a.weight[0]",), (), (), None)
    wiring = wire(torch.nn.Linear(3, 4), torch.randn(2, 3))
    bare = Wiring({**wiring.spaces, "output": still}, wiring.tensors)
    assert [one.why for one in fixed_axes(bare, {"weight": 12, "bias": 4}) if one.lowers_coverage] == [
        "no reason was noted"
    ]
    assert Reason("unknown", "x").text == "x"
