"""What does not move, by reason: in agreement with the coverage."""

from __future__ import annotations

from interbasin.cli.wirings import fixed
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, In, Reason, Role, Row, Space, Still
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
        assert [one.lowers_coverage for one in fixed(found, {"weight": 12})] == [False]


def test_a_constant_stretch_beside_one_that_moves_does() -> None:
    for still in (Still(3, CONSTANT), STAYS):
        found = wiring(Row((MOVES, still)))
        assert found.coverage < 1.0
        assert [one.lowers_coverage for one in fixed(found, {"weight": 7})] == [True]
