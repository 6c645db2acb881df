"""The best map of one space is found again when it was planted, and no other map of its group is nearer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, gaussian, generator, orthonormal, well_conditioned
from torch import Tensor

from interbasin.fit.matching import Correlations, Dim, FreeSpace, Piece, Problem, assign, solve
from interbasin.maps.base import Group, Role
from interbasin.maps.batched import BatchedLinear, BatchedMap, BatchedPermutation

GROUPS = [group for group in Group if group is not Group.FIXED]
every_group = pytest.mark.parametrize("group", GROUPS)
BLOCKS = 3


def element(group: Group, seed: int, size: int) -> BatchedMap:
    """A random element of the group for each of the blocks."""
    drawn = generator(seed)
    if group in (Group.PERMUTATION, Group.SIGNED):
        index = torch.stack([torch.randperm(size, generator=drawn) for _ in range(BLOCKS)])
        signs = torch.randint(0, 2, index.shape, generator=drawn, dtype=torch.int8) * 2 - 1
        return BatchedPermutation(index, signs if group is Group.SIGNED else None)
    if group in (Group.ROTATION, Group.SIMILARITY):
        angle = 2 * math.pi * torch.rand(BLOCKS, generator=drawn, dtype=torch.float64)
        rows = [torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)]
        turn = torch.stack(rows, -2)
        return BatchedLinear(turn) if group is Group.ROTATION else BatchedLinear(1.5 * turn, turn / 1.5)
    make = orthonormal if group is Group.ORTHOGONAL else well_conditioned
    matrix = torch.stack([make(seed + block, size, size) for block in range(BLOCKS)])
    return BatchedLinear(matrix, None if group is Group.ORTHOGONAL else torch.linalg.inv(matrix).mT)


def problem(group: Group, size: int, sides: dict[Role, tuple[Tensor, Tensor]]) -> Problem:
    """A space of heads by channels, seen through one piece per role: source and target, ``(blocks, size, rest)``."""
    space = FreeSpace("channel", size, ("head",), BLOCKS, group)
    heads = FreeSpace("head", BLOCKS, (), 1, Group.FIXED)
    pieces = [
        Piece(role, source, target, (Dim("head", role, 0), Dim("channel", role, 0), Dim(None, Role.WRITE, 1)))
        for role, (source, target) in sides.items()
    ]
    return Problem(pieces, [space], {"channel": space, "head": heads})


def sizes_of(group: Group) -> st.SearchStrategy[int]:
    return st.just(2) if group in (Group.ROTATION, Group.SIMILARITY) else st.integers(2, 5)


@every_group
@given(data=st.data(), seed=SEEDS)
def test_a_planted_map_is_found_from_both_sides(group: Group, data: st.DataObject, seed: int) -> None:
    size = data.draw(sizes_of(group))
    planted = element(group, seed, size)
    sources = {role: gaussian(seed + number, BLOCKS, size, 2 * size) for number, role in enumerate(Role)}
    if group not in (Group.PERMUTATION, Group.SIGNED):
        del sources[Role.SCALE]
    posed = problem(group, size, {role: (x, planted.side(role)(x)) for role, x in sources.items()})
    before = posed.distance()
    step = solve(group, posed.correlations("channel"))
    assert step is not None
    posed.apply("channel", step)
    assert posed.distance() <= 1e-16 * before + 1e-16
    for one, other in zip(posed.maps()["channel"].maps, planted.to_map().maps, strict=True):
        torch.testing.assert_close(one.matrix, other.matrix, rtol=1e-7, atol=1e-7)


@every_group
@given(data=st.data(), seed=SEEDS)
def test_no_other_map_of_the_group_is_nearer(group: Group, data: st.DataObject, seed: int) -> None:
    size = data.draw(sizes_of(group))
    pair = gaussian(seed, BLOCKS, size, 4), gaussian(seed + 1, BLOCKS, size, 4)
    best, other, still = (problem(group, size, {Role.WRITE: pair}) for _ in range(3))
    best.apply("channel", solve(group, best.correlations("channel")))
    other.apply("channel", element(group, seed + 2, size))
    assert best.distance() <= min(other.distance(), still.distance()) * (1 + 1e-9)


@given(seed=SEEDS)
def test_correlations_that_are_kept_are_those_of_the_moved_source(seed: int) -> None:
    pair = gaussian(seed, BLOCKS, 4, 30), gaussian(seed + 1, BLOCKS, 4, 30)
    for group in (Group.PERMUTATION, Group.SIGNED, Group.ORTHOGONAL):
        posed = problem(group, 4, {Role.WRITE: pair, Role.READ: pair})
        posed.correlations("channel")
        posed.apply("channel", element(group, seed, 4))
        fresh = Problem(posed.pieces, posed.free.values(), posed.spaces)
        for role in (Role.WRITE, Role.READ):
            kept, wanted = (one.correlations("channel").cross[role] for one in (posed, fresh))
            torch.testing.assert_close(kept, wanted, rtol=1e-9, atol=1e-9)


def test_a_step_can_be_taken_back() -> None:
    pair = gaussian(0, BLOCKS, 4, 5), gaussian(1, BLOCKS, 4, 5)
    posed = problem(Group.ORTHOGONAL, 4, {Role.WRITE: pair})
    before, current, cross = posed.distance(), posed.current["channel"], posed.correlations("channel").cross[Role.WRITE]
    sources = {piece: piece.source for piece in posed.pieces}
    posed.apply("channel", element(Group.ORTHOGONAL, 3, 4))
    assert posed.distance() != before
    posed.restore("channel", current, sources)
    assert posed.distance() == before and posed.current["channel"] is current
    assert torch.equal(posed.correlations("channel").cross[Role.WRITE], cross)


def test_gains_have_a_say_in_permutations_only() -> None:
    gains = torch.tensor([[[3.0], [1.0]]]).repeat(BLOCKS, 1, 1), torch.tensor([[[1.0], [3.0]]]).repeat(BLOCKS, 1, 1)
    swapped = problem(Group.SIGNED, 2, {Role.SCALE: gains})
    assert solve(Group.SIGNED, swapped.correlations("channel")).index.tolist() == [[1, 0]] * BLOCKS
    assert not problem(Group.ORTHOGONAL, 2, {Role.SCALE: gains}).pieces


@every_group
def test_nothing_seen_gives_no_map(group: Group) -> None:
    assert solve(group, Correlations()) is None


def test_an_unseen_direction_keeps_to_the_identity() -> None:
    source = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]], dtype=torch.float64).repeat(BLOCKS, 1, 1)
    posed = problem(Group.INVERTIBLE, 2, {Role.WRITE: (source, 3 * source)})
    matrix = solve(Group.INVERTIBLE, posed.correlations("channel")).matrix
    torch.testing.assert_close(matrix[0], torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64))


def test_an_assignment_is_the_largest_sum_of_each_matrix() -> None:
    scores = torch.tensor([[[1.0, 2.0], [3.0, 1.0]], [[5.0, 1.0], [1.0, 0.0]]])
    assert assign(scores).tolist() == [[1, 0], [0, 1]]


def test_isometries_are_sought_where_lengths_cannot_be_told() -> None:
    groups = {Group.INVERTIBLE: Group.ORTHOGONAL, Group.SIMILARITY: Group.ROTATION, Group.SIGNED: Group.SIGNED}
    for group, isometries in groups.items():
        assert FreeSpace("s", 4, (), 1, group).isometric().group is isometries
