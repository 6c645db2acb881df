"""Batches of maps obey the laws of the maps that they become, and blocks of blocks are counted in one way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, gaussian, generator, orthonormal, well_conditioned

from interbasin import maps
from interbasin.maps.base import Group, Role
from interbasin.maps.batched import (
    BatchedLinear,
    BatchedMap,
    BatchedPermutation,
    batched_identity,
    block_numbers,
    block_order,
    block_places,
    choose_blocks,
)
from interbasin.wiring.axes.spaces import In, Reason, Space, Still
from interbasin.wiring.mover import Mover

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SIZES = st.integers(1, 5)


def permutation(seed: int, blocks: int, size: int) -> BatchedMap:
    drawn = generator(seed)
    return BatchedPermutation(torch.stack([torch.randperm(size, generator=drawn) for _ in range(blocks)]))


def signed_permutation(seed: int, blocks: int, size: int) -> BatchedMap:
    signs = torch.randint(0, 2, (blocks, size), generator=generator(seed + 1), dtype=torch.int8) * 2 - 1
    return BatchedPermutation(permutation(seed, blocks, size).index, signs)


def isometry(seed: int, blocks: int, size: int) -> BatchedMap:
    return BatchedLinear(torch.stack([orthonormal(seed + block, size, size) for block in range(blocks)]))


def invertible(seed: int, blocks: int, size: int) -> BatchedMap:
    matrix = torch.stack([well_conditioned(seed + block, size, size) for block in range(blocks)])
    return BatchedLinear(matrix, torch.linalg.inv(matrix).mT)


BATCHES: dict[str, Callable[[int, int, int], BatchedMap]] = {
    "permutation": permutation,
    "signed permutation": signed_permutation,
    "isometry": isometry,
    "invertible": invertible,
}
every_batch = pytest.mark.parametrize("name", BATCHES)


def each(batch: BatchedMap, blocks: int) -> tuple[maps.Map, ...]:
    """The map of each block."""
    whole = batch.to_map()
    if blocks == 1:
        return (whole,)
    assert isinstance(whole, maps.Blocks)
    return whole.maps


@every_batch
@given(seed=SEEDS, blocks=SIZES, size=SIZES)
def test_a_batch_acts_as_its_maps_do(name: str, seed: int, blocks: int, size: int) -> None:
    batch, columns = BATCHES[name](seed, blocks, size), gaussian(seed, blocks, size, 3)
    moved = torch.stack([one(x.mT).mT for one, x in zip(each(batch, blocks), columns, strict=True)])
    torch.testing.assert_close(batch(columns), moved, **CLOSE)


@every_batch
@given(seed=SEEDS, blocks=SIZES, size=SIZES)
def test_every_role_has_the_side_that_carrying_gives_it(name: str, seed: int, blocks: int, size: int) -> None:
    batch, columns = BATCHES[name](seed, blocks, size), gaussian(seed, blocks, size, 3)
    for role in Role:
        for block, one in enumerate(each(batch, blocks)):
            space = Space("s", size, (), 1, Group.INVERTIBLE, (), (), ())
            carried = Mover({"s": space}, {"s": one}).move(
                columns[block], [In("s", role, size), Still(3, Reason("kernel", "no space"))]
            )
            torch.testing.assert_close(batch.side(role)(columns)[block], carried, **CLOSE)


@every_batch
@given(seed=SEEDS, blocks=SIZES, size=SIZES)
def test_composing_is_acting_one_after_the_other(name: str, seed: int, blocks: int, size: int) -> None:
    first, then = (BATCHES[name](seed + shift, blocks, size) for shift in (0, 10))
    columns = gaussian(seed, blocks, size, 3)
    for role in (Role.WRITE, Role.READ):
        wanted = then.side(role)(first.side(role)(columns))
        torch.testing.assert_close((then @ first).side(role)(columns), wanted, **CLOSE)


@every_batch
@given(seed=SEEDS, blocks=SIZES, size=SIZES)
def test_blocks_are_taken_and_chosen_by_number(name: str, seed: int, blocks: int, size: int) -> None:
    one, other = (BATCHES[name](seed + shift, blocks, size) for shift in (0, 10))
    columns = gaussian(seed, blocks, size, 3)
    order = torch.randperm(blocks, generator=generator(seed))
    torch.testing.assert_close(one.take(order)(columns[order]), one(columns)[order], **CLOSE)
    choice = torch.randint(0, 2, (blocks,), generator=generator(seed))
    for role in Role:
        both = torch.stack([one.side(role)(columns), other.side(role)(columns)])
        wanted = both[choice, torch.arange(blocks)]
        torch.testing.assert_close(choose_blocks([one, other], choice).side(role)(columns), wanted, **CLOSE)


@pytest.mark.parametrize("group", [group for group in Group if group is not Group.FIXED])
def test_the_identity_moves_nothing_and_permutations_know_it(group: Group) -> None:
    identity = batched_identity(group, 3, 2)
    columns = gaussian(0, 3, 2, 4)
    assert torch.equal(identity(columns), columns)
    assert identity.is_identity is isinstance(identity, BatchedPermutation)


def test_a_sign_alone_is_no_identity() -> None:
    assert not BatchedPermutation(torch.tensor([[0, 1]]), torch.tensor([[1, -1]], dtype=torch.int8)).is_identity


def test_a_batch_of_isometries_becomes_orthogonal_to_the_last_digit() -> None:
    drifted = orthonormal(3, 6, 6) * (1 + 1e-7)
    matrix = BatchedLinear(drifted[None]).to_map().matrix
    assert float((matrix @ matrix.mT - torch.eye(6)).abs().max()) < 1e-12


# ---------------------------------------------------------------------- blocks of blocks


@given(seed=SEEDS, groups=SIZES, heads=SIZES)
def test_blocks_of_blocks_come_from_where_their_maps_took_them(seed: int, groups: int, heads: int) -> None:
    spaces = {
        "group": Space("group", groups, (), 1, Group.PERMUTATION, (), (), ()),
        "head": Space("head", heads, ("group",), groups, Group.PERMUTATION, (), (), ()),
    }
    within = ("group", "head")
    moves = {"group": permutation(seed, 1, groups), "head": permutation(seed + 1, groups, heads)}
    order = block_order(spaces, within, moves)
    for number, (group, head) in enumerate(product(range(groups), range(heads))):
        from_group = int(moves["group"].index[0, group])
        assert int(order[number]) == from_group * heads + int(moves["head"].index[from_group, head])
    assert sorted(order.tolist()) == list(range(groups * heads))
    places = block_places(spaces, within)
    assert torch.equal(block_numbers(spaces, within, places), torch.arange(groups * heads))
    assert torch.equal(block_order(spaces, within, {}), torch.arange(groups * heads))
