"""Wiring as lines to read and as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interbasin.errors import FileError
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.notation import (
    axis_from_json,
    axis_to_json,
    braces,
    line,
    space_from_json,
    space_to_json,
)
from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Reason, Role, Row, Space, Still, leaves

WHY = Reason("kernel", "a kernel lies along it")


def writes(name: str, size: int = 2) -> In:
    return In(name, Role.WRITE, size)


def reads(name: str, size: int = 2) -> In:
    return In(name, Role.READ, size)


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ((writes("hidden"), reads("input")), "hidden <- input"),
        ((writes("hidden"),), "hidden"),
        ((reads("hidden"),), "~hidden"),
        ((reads("stream"), reads("stream")), "~stream <- stream"),  # written in the dual of a tied table's space
        ((In("stream", Role.SCALE, 4),), "|stream|"),
        ((writes("a"), reads("b"), Still(3, WHY), Still(3, WHY)), "a 3 3 <- b"),
        ((Grid((writes("heads"), writes("value"))), reads("stream")), "(heads value) <- stream"),
        ((Grid((writes("heads"), reads("key"))), reads("stream")), "(heads ~key) <- stream"),
        ((Row((writes("q"), reads("k"), writes("v"))), reads("x")), "(q + ~k + v) <- x"),
        ((Row((writes("q"), writes("v")), 0), Each(0, (reads("x"), reads("y")))), "(q + v) <- (x | y)"),
        ((Still(10, WHY), writes("stream")), "10 stream"),
        ((), ""),
    ],
)
def test_a_tensor_is_a_line(axes: tuple[Axis, ...], text: str) -> None:
    assert line(axes) == text


reasons = st.builds(Reason, st.sampled_from(["input", "operator"]), st.text(max_size=10))
single = st.one_of(
    st.builds(Still, st.integers(1, 5), reasons),
    st.builds(In, st.sampled_from("abc"), st.sampled_from(Role), st.integers(1, 5)),
)
axes = st.recursive(
    single,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Grid(tuple(parts))),
        st.builds(
            lambda parts, key: Row(tuple(parts), key), st.lists(inner, min_size=1, max_size=3), st.none() | st.just(1)
        ),
        st.builds(lambda parts: Each(1, tuple(parts)), st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)


@given(axes)
def test_an_axis_is_told_in_json_and_read_again(axis: Axis) -> None:
    assert axis_from_json(json.loads(json.dumps(axis_to_json(axis)))) == axis


@given(st.lists(single, min_size=1, max_size=4))
def test_the_leaves_of_a_row_share_its_entries(parts: list[Axis]) -> None:
    assert sum(share for _, share in leaves(Row((Row(tuple(parts)), *parts)))) == pytest.approx(1)


@given(st.sampled_from(Group), st.none() | reasons)
def test_a_space_is_told_in_json_and_read_again(group: Group, because: Reason | None) -> None:
    space = Space("name", 4, ("heads",), 3, group, ("w[0]",), ("v[1]", "v[2]"), (), because)
    assert space_from_json("name", json.loads(json.dumps(space_to_json(space)))) == space


def test_an_axis_of_no_known_form_is_refused_by_what_it_holds() -> None:
    with pytest.raises(FileError, match=r"none of the known forms: \['blob'\]"):
        axis_from_json({"blob": 3})


@pytest.mark.parametrize(("blocks", "text"), [(1, "permutation of 4"), (3, "3 x permutation of 4")])
def test_a_space_says_its_group_in_words(blocks: int, text: str) -> None:
    space = Space("name", 4, ("heads",) * (blocks > 1), blocks, Group.PERMUTATION, (), (), ())
    assert space.describe() == text
    assert space.width == 4 * blocks


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ("0 1", "{0,1}"),
        ("2 0 1", "{0..2}"),
        ("0 2 4 6", "{0..6..2}"),
        ("0 1 2 3 5 7 8 9", "{0..3,5,7..9}"),
        ("9 10 11", "{9..11}"),
        ("7", "7"),
    ],
)
def test_numbers_of_layers_are_written_as_a_shell_does(numbers, text):
    assert braces(numbers.split()) == text
