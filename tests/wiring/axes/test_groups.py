"""Groups of maps: how two demands combine, what is drawn from them, and what belongs to them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.strategies import SEEDS, generator, well_conditioned

from interbasin.maps import Blocks, Identity, Linear, Orthogonal, Permutation
from interbasin.wiring.axes.groups import CONDITION, Group, belongs, contains, meet, sample

groups = st.sampled_from(Group)
PLANE = (Group.SIMILARITY, Group.ROTATION)


def drawn(group: Group, seed: int, size: int = 5, blocks: int = 1):
    return sample(group, 2 if group in PLANE else size, blocks, generator(seed))


@given(groups, groups, groups)
def test_meeting_is_idempotent_commutative_and_associative(a: Group, b: Group, c: Group) -> None:
    assert meet(a, a) is a
    assert meet(a, b) is meet(b, a)
    assert meet(meet(a, b), c) is meet(a, meet(b, c))


@given(groups, groups)
def test_what_two_groups_have_in_common_lies_in_both(a: Group, b: Group) -> None:
    assert contains(a, meet(a, b)) and contains(b, meet(a, b))


def test_every_group_lies_between_nothing_and_everything() -> None:
    for group in Group:
        assert contains(Group.INVERTIBLE, group) and contains(group, Group.FIXED)


@given(groups, SEEDS, st.integers(1, 3))
def test_what_is_drawn_from_a_group_belongs_to_it_and_to_all_larger_ones(group: Group, seed: int, blocks: int) -> None:
    one = drawn(group, seed, blocks=blocks)
    assert one.source_width == one.target_width == (2 if group in PLANE else 5) * blocks
    for larger in Group:
        if contains(larger, group):
            assert belongs(one, larger, blocks), larger


@given(groups, SEEDS)
def test_the_product_and_the_inverse_of_elements_belong_to_the_group(group: Group, seed: int) -> None:
    one, other = drawn(group, seed), drawn(group, seed + 1)
    assert belongs(one.inverse(), group, 1)
    assert belongs(one @ other, group, 1)


@pytest.mark.parametrize(("larger", "smaller"), [
    pair for pair in itertools.permutations(Group, 2) if contains(*pair) and pair[1] is not Group.FIXED
])  # fmt: skip
def test_an_element_of_a_larger_group_does_not_belong_to_a_smaller_one(larger: Group, smaller: Group) -> None:
    size = 2 if smaller in PLANE else 5
    one = sample(larger, 2 if larger in PLANE else size, 1, generator(3))
    if one.source_width == size:
        assert not belongs(one, smaller, 1)


@given(SEEDS)
def test_random_invertible_maps_lose_few_digits(seed: int) -> None:
    values = torch.linalg.svdvals(drawn(Group.INVERTIBLE, seed).matrix)
    assert values.max() / values.min() <= CONDITION * (1 + 1e-9)


@given(SEEDS)
def test_rotations_with_scale_commute_with_every_rotation_of_the_plane(seed: int) -> None:
    one, turn = drawn(Group.SIMILARITY, seed).matrix, drawn(Group.ROTATION, seed + 1).matrix
    torch.testing.assert_close(one @ turn, turn @ one)


@given(groups, SEEDS)
def test_the_same_seed_draws_the_same_map(group: Group, seed: int) -> None:
    assert torch.equal(drawn(group, seed).matrix, drawn(group, seed).matrix)


def test_a_fixed_space_has_the_identity_alone() -> None:
    assert isinstance(sample(Group.FIXED, 4, 3, generator(0)), Identity)
    assert belongs(Identity(4), Group.FIXED, 1)
    assert not belongs(Permutation(torch.tensor([1, 0])), Group.FIXED, 1)


def test_blocks_that_change_places_do_not_belong_to_maps_block_by_block() -> None:
    parts = [Orthogonal(torch.eye(2, dtype=torch.float64)) for _ in range(2)]
    assert belongs(Blocks(parts), Group.ORTHOGONAL, 2)
    assert not belongs(Blocks(parts, order=torch.tensor([1, 0])), Group.ORTHOGONAL, 2)
    assert not belongs(Orthogonal(torch.eye(4, dtype=torch.float64)), Group.ORTHOGONAL, 2)


def test_a_map_between_different_widths_belongs_to_no_group() -> None:
    wide = Linear(well_conditioned(0, 4, 3))
    assert not any(belongs(wide, group, 1) for group in Group)
