"""The algebra of axes: making one, cutting, factoring, and what may depend on what."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from interbasin.wiring.axes.axes import Axes
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Atom, Each, Grid, In, Reason, Role, Row, Same, Still, Term
from interbasin.wiring.axes.terms import common_factors

WHY = Reason("operator", "a test")
PLACE = Reason("position", "a position")


def fresh(axes: Axes, size: int) -> Term:
    return axes.parameter([size])[0]


@st.composite
def terms(draw: st.DrawFn, axes: Axes, size: int, depth: int = 2) -> Term:
    """A term of that size: an atom, something that does not move, or made of smaller ones."""
    divisors = [one for one in range(2, size) if size % one == 0]
    kinds = ["leaf", "leaf", "plain", "same"]
    if depth:
        kinds += ["sum"] * (size > 1) + ["product"] * bool(divisors)
    kind = draw(st.sampled_from(kinds))
    if size == 1 or kind == "same":
        return Same(size)
    if kind == "leaf":
        return fresh(axes, size)
    if kind == "plain":
        return Still(size, PLACE)
    if kind == "sum":
        first = draw(st.integers(1, size - 1))
        parts = [draw(terms(axes, one, depth - 1)) for one in (first, size - first)]
        return axes.resolve(Row(tuple(part if part.size > 1 else Still(1, PLACE) for part in parts)))
    outer = draw(st.sampled_from(divisors))
    return axes.resolve(Grid((draw(terms(axes, outer, depth - 1)), draw(terms(axes, size // outer, depth - 1)))))


sizes = st.sampled_from([2, 3, 4, 6, 8, 12])


def groups_of(axes: Axes, term: Term) -> list[Group]:
    return [leaf.space.group for leaf in axes.leaves(term)]


# ---------------------------------------------------------------------- making one


@given(st.data(), sizes)
def test_a_term_resolved_twice_is_the_term_resolved_once(data: st.DataObject, size: int) -> None:
    axes = Axes()
    term = axes.resolve(data.draw(terms(axes, size)))
    assert axes.resolve(term) == term
    assert term.size == size


@given(st.data(), sizes)
def test_what_was_made_one_is_made_one_again_without_change(data: st.DataObject, size: int) -> None:
    axes = Axes()
    one, other = (data.draw(terms(axes, size)) for _ in range(2))
    axes.unify(one, other, WHY)
    first, second = axes.resolve(one), axes.resolve(other)
    groups = groups_of(axes, first), groups_of(axes, second)
    axes.unify(one, other, WHY)
    assert (axes.resolve(one), axes.resolve(other)) == (first, second)
    assert (groups_of(axes, first), groups_of(axes, second)) == groups


@given(st.data(), sizes, st.sampled_from(Role))
def test_what_is_made_one_moves_together_or_not_at_all(data: st.DataObject, size: int, role: Role) -> None:
    axes = Axes()
    one, other = (data.draw(terms(axes, size)) for _ in range(2))
    found = axes.unify(one, other, WHY, role=role, same=Group.FIXED)
    assert found.size == size
    for leaf in axes.leaves(one):
        followed = [again for again in axes.leaves(other) if again.space is leaf.space]
        assert followed or leaf.space.group is Group.FIXED


@given(st.data(), sizes)
def test_a_term_is_one_with_itself_at_no_cost(data: st.DataObject, size: int) -> None:
    axes = Axes()
    term = axes.resolve(data.draw(terms(axes, size)))
    groups = groups_of(axes, term)
    assert axes.unify(term, term, WHY) == term
    assert groups_of(axes, term) == groups


def test_a_term_that_follows_its_own_dual_is_orthogonal() -> None:
    axes = Axes()
    term = fresh(axes, 4)
    axes.unify(term, term, WHY, role=Role.READ)
    assert groups_of(axes, term) == [Group.ORTHOGONAL]


def test_a_gain_makes_a_signed_permutation_and_follows_without_the_signs() -> None:
    axes = Axes()
    gain, units = fresh(axes, 4), fresh(axes, 4)
    axes.unify(gain, units, WHY, role=Role.SCALE, pair=Group.SIGNED)
    (leaf,) = axes.leaves(gain)
    (unit,) = axes.leaves(units)
    assert leaf.space is unit.space and leaf.role is Role.SCALE and unit.role is Role.WRITE
    assert unit.space.group is Group.SIGNED


def test_structures_that_do_not_fit_are_given_up_with_a_reason() -> None:
    axes = Axes()
    axes.context = Reason("operator", "axes of different structure meet")
    one = axes.resolve(Grid((fresh(axes, 2), fresh(axes, 3))))
    other = axes.resolve(Grid((fresh(axes, 3), fresh(axes, 2))))
    found = axes.unify(one, other, WHY)
    assert isinstance(found, Still) and found.why == axes.context
    assert {*groups_of(axes, one), *groups_of(axes, other)} == {Group.FIXED}


def test_what_meets_positions_is_nowhere_the_same_any_more() -> None:
    axes = Axes()
    found = axes.unify(Still(6, PLACE), Grid((Still(3, PLACE), Same(2))), WHY)
    assert not any(isinstance(part, Same) for part in (found, *getattr(found, "parts", ())))


# ---------------------------------------------------------------------- cutting and factoring


@given(st.data(), sizes)
def test_the_pieces_of_a_cut_side_by_side_are_the_term(data: st.DataObject, size: int) -> None:
    axes = Axes()
    term = data.draw(terms(axes, size))
    first = data.draw(st.integers(1, size - 1))
    pieces = axes.cut(term, [first, size - first])
    assume(pieces is not None)
    assert [piece.size for piece in pieces] == [first, size - first]
    whole, joined = axes.resolve(term), axes.resolve(Row(tuple(pieces)))
    assert set(axes.leaves(joined)) == set(axes.leaves(whole))
    again = axes.cut(term, [first, size - first])
    assert [list(axes.leaves(piece)) for piece in again] == [list(axes.leaves(piece)) for piece in pieces]


@given(st.data(), sizes)
def test_the_factors_of_a_term_multiplied_are_the_term(data: st.DataObject, size: int) -> None:
    axes = Axes()
    term = data.draw(terms(axes, size))
    outer = data.draw(st.sampled_from([one for one in range(1, size + 1) if size % one == 0]))
    factors = axes.split(term, [outer, size // outer])
    assume(factors is not None)
    assert [factor.size for factor in factors] == [outer, size // outer]
    product, whole = axes.resolve(Grid(tuple(factors))), axes.resolve(term)
    # However often: segments that are all alike come back as one beside the positions.
    assert list(dict.fromkeys(axes.leaves(product))) == list(dict.fromkeys(axes.leaves(whole)))
    again = axes.split(term, [outer, size // outer])
    assert [list(axes.leaves(one)) for one in again] == [list(axes.leaves(one)) for one in factors]


def test_segments_that_are_all_alike_are_factored_into_their_positions_and_one_of_them() -> None:
    axes = Axes()
    unit = fresh(axes, 2)
    term = axes.resolve(Grid((Row((Same(2), Same(2))), unit)))
    assert term == Row((Grid((Same(2), unit)), Grid((Same(2), unit))))
    outer, inner = axes.split(term, [2, 4]) or []
    assert inner == Grid((Same(2), unit)) and not list(axes.leaves(outer))
    assert [type(part) for part in axes.resolve(Grid((outer, inner))).parts] == [Still, Same, In]


def test_a_product_is_cut_along_its_outer_factor_only() -> None:
    axes = Axes()
    term = axes.resolve(Grid((fresh(axes, 4), fresh(axes, 3))))
    assert axes.cut(term, [2, 10]) is None
    pieces = axes.cut(term, [3, 9])
    assert pieces is not None and [piece.size for piece in pieces] == [3, 9]


def test_segments_that_end_inside_a_block_are_not_factored() -> None:
    axes = Axes()
    assert axes.split(axes.resolve(Row((fresh(axes, 3), fresh(axes, 5)))), [2, 4]) is None
    assert axes.split(axes.resolve(Row((fresh(axes, 3), fresh(axes, 5)))), [4, 2]) is None


@given(st.lists(st.sampled_from([2, 3, 4, 5]), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_common_factors_refine_both_lists(one: list[int], random) -> None:
    other = list(one)
    random.shuffle(other)
    found = common_factors(one, other)
    if found is None:
        assert one != other
        return
    assert math.prod(found) == math.prod(one)
    marks = set(accumulate(reversed(found), lambda a, b: a * b))
    for listed in (one, other):
        assert set(accumulate(reversed(listed), lambda a, b: a * b)) <= marks
    assert len(found) <= len(one) + len(other)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [([4, 6], [4, 6], [4, 6]), ([12], [3, 4], [3, 4]), ([4, 6], [2, 12], [2, 2, 6]), ([2, 3], [3, 2], None)],
)
def test_common_factors_are_the_coarsest(one: list[int], other: list[int], found: list[int] | None) -> None:
    assert common_factors(one, other) == found


# ---------------------------------------------------------------------- dependence


def atoms(axes: Axes, *dims: Term):
    return [leaf.space for term in dims for leaf in axes.leaves(term)]


def test_the_axes_of_a_tensor_may_depend_on_each_other_until_a_tensor_has_one_alone() -> None:
    axes = Axes()
    dims = axes.parameter([3, 4])
    heads, channels = atoms(axes, *dims)
    assert axes.allowed(channels) == {heads}
    axes.settle(dims)
    assert axes.allowed(channels) == {heads}
    axes.settle([dims[1]])
    assert axes.allowed(channels) == set()
    assert axes.allowed(heads) == {channels}


def test_what_stands_beside_two_of_its_blocks_depends_on_neither() -> None:
    axes = Axes()
    heads, channels = axes.parameter([3, 4])
    axes.settle([heads, heads, channels])
    assert axes.allowed(*atoms(axes, channels)) == set()


def test_what_has_its_blocks_on_its_own_axis_may_have_them_on_another_too() -> None:
    axes = Axes()
    heads, channels = axes.parameter([3, 4])
    axes.settle([Grid((heads, channels)), Grid((heads, channels))])
    assert axes.allowed(*atoms(axes, channels)) == set(atoms(axes, heads))
    axes.settle([heads, channels, heads, channels])
    assert axes.allowed(*atoms(axes, channels)) == set()


def test_what_shares_its_axis_with_the_blocks_of_another_depends_on_neither() -> None:
    axes = Axes()
    heads, channels = axes.parameter([3, 4])
    axes.settle([heads, Grid((channels, heads, channels))])
    assert axes.allowed(*atoms(axes, channels)) == set()
    heads, channels = axes.parameter([3, 4])
    axes.settle([heads, Grid((channels, heads))])
    assert axes.allowed(*atoms(axes, channels)) == set()


def test_what_stands_beside_only_some_segments_of_a_row_does_not_depend_on_them() -> None:
    axes = Axes()
    heads, channels = axes.parameter([3, 4])
    axes.settle([Row((heads, Still(2, PLACE))), channels])
    assert axes.allowed(*atoms(axes, channels)) == set()


def test_an_axis_that_is_cut_takes_what_depends_on_it_apart() -> None:
    axes = Axes()
    row, beside = axes.parameter([6, 4])
    pieces = axes.cut(row, [2, 4])
    family = axes.resolve(beside)
    assert pieces is not None and isinstance(family, Each)
    taken = axes.take([row, beside], 0, 0, 2)
    assert taken is not None and taken[1] == family.parts[0]


def test_a_tensor_without_the_row_makes_the_members_of_a_family_one() -> None:
    axes = Axes()
    row, beside = axes.parameter([6, 4])
    axes.cut(row, [2, 4])
    (found,) = axes.settle([beside])
    assert isinstance(found, In)
    assert isinstance(axes.resolve(beside), In)


def test_a_tensor_with_the_row_twice_makes_the_members_of_a_family_one() -> None:
    axes = Axes()
    row, beside = axes.parameter([6, 4])
    axes.cut(row, [2, 4])
    assert isinstance(axes.settle([row, beside])[1], Each)
    assert isinstance(axes.settle([row, row, beside])[2], In)


def test_factors_may_depend_on_each_other() -> None:
    axes = Axes()
    term = fresh(axes, 6)
    outer, inner = axes.split(term, [2, 3]) or []
    assert axes.allowed(*atoms(axes, inner)) == set(atoms(axes, outer))
    assert axes.allowed(*atoms(axes, outer)) == set(atoms(axes, inner))


@given(st.lists(st.sampled_from(list(Role)), max_size=6), st.data())
def test_the_root_of_an_atom_and_its_role_stay_whoever_asked_before(steps: list[Role], data: st.DataObject) -> None:
    axes, chain = Axes(), [Atom(3) for _ in range(len(steps) + 1)]
    for first, second, step in zip(chain, chain[1:], steps, strict=False):
        first.link = (second, step)
    expected = []
    for place in range(len(chain)):
        role = Role.WRITE
        for step in steps[place:]:
            role = role.of(step)
        expected.append((chain[-1], role))
    asked = data.draw(st.permutations(range(len(chain))))
    for _ in range(2):  # links are shortened on the way
        assert {place: axes.find(chain[place]) for place in asked} == dict(enumerate(expected))
