"""What every correspondence keeps to, and correspondences as text and on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.correspondence.networks import attention, flat_attention, mlp, residual
from tests.profiles import at_most
from tests.records import seal_document
from tests.wiring.random_networks import network

from interbasin.correspondence import Correspondence, Segment, SpacePair, TensorPair, Unmatched
from interbasin.correspondence.pairs import Part, split
from interbasin.errors import FileError, InterbasinError, UnknownNameError, WiringError
from interbasin.storage import read_record
from interbasin.wiring import Wiring, wire

# Wirings of one family differ in depth, and in names and layout where a family has two forms of them.
FAMILIES: tuple[Callable[[int, bool], Wiring], ...] = (
    lambda depth, form: mlp(depth, "layer" if form else "fc"),
    lambda depth, form: residual(depth, "h", "fc1", "fc2", bias=False) if form else residual(depth),
    lambda depth, form: flat_attention(depth, grouped=form),
    lambda depth, form: attention(depth, fused=form),
)


@st.composite
def wirings(draw: st.DrawFn, count: int) -> list[Wiring]:
    family = draw(st.sampled_from(FAMILIES))
    return [family(draw(st.integers(1, 5)), draw(st.booleans())) for _ in range(count)]


@given(wirings(1))
def test_a_network_corresponds_to_itself_as_the_identity(one: list[Wiring]) -> None:
    identity = Correspondence.identity(one[0])
    assert Correspondence.by_role(one[0], one[0]) == identity == Correspondence.by_name(one[0], one[0])
    assert identity.inverse() == identity == identity @ identity
    assert identity.is_one_to_one and not identity.unmatched_source and not identity.unmatched_target


@pytest.mark.slow
@at_most(15)
@given(st.data())
def test_whatever_a_network_computes_it_corresponds_to_itself(data: st.DataObject) -> None:
    program = network(lambda count: data.draw(st.integers(0, count - 1)), data.draw(st.integers(1, 8)))
    wiring = wire(program, program.example)
    if wiring.tensors:
        assert Correspondence.by_role(wiring, wiring) == Correspondence.identity(wiring)


@given(wirings(2))
def test_the_shares_of_each_source_sum_to_one_or_it_is_listed(both: list[Wiring]) -> None:
    found = Correspondence.by_role(*both)
    unmatched = {("space", one.part) if one.kind == "space" else one.part for one in found.unmatched_source}
    for name in both[0].spaces:
        total = sum(pair.share for pair in found.space_pairs(source=name))
        assert total == (0 if ("space", Part(name)) in unmatched else pytest.approx(1))
    shares: dict[Part, float] = {}
    for pair in found.tensors:
        shares[pair.parts[0]] = shares.get(pair.parts[0], 0) + pair.share
    assert all(total == pytest.approx(1) for total in shares.values())
    for name, tensor in both[0].tensors.items():
        parts = {Part(name, segment) for segment, _ in split(tensor)}
        assert Part(name) in {*shares, *unmatched} or parts == {
            part for part in (*shares, *unmatched) if part[0] == name
        }
    assert all(one.reason for one in (*found.unmatched_source, *found.unmatched_target))


def bare(unmatched: tuple[Unmatched, ...]) -> set[Unmatched]:
    return {Unmatched(one.kind, one.name, "", one.segment) for one in unmatched}


@given(wirings(2))
def test_the_way_back_is_the_inverse_and_its_inverse_the_way_there(pair: list[Wiring]) -> None:
    found = Correspondence.by_role(*pair)
    assert found.inverse() == Correspondence.by_role(pair[1], pair[0])
    assert found.inverse().inverse() == found


@given(wirings(2))
def test_there_and_back_is_the_identity_where_both_are_one_to_one(pair: list[Wiring]) -> None:
    found = Correspondence.by_role(*pair)
    back = found.inverse() @ found
    if found.is_one_to_one:
        identity = Correspondence.identity(pair[0])
        lost = {one.name for one in found.unmatched_source}
        assert back.spaces == tuple(one for one in identity.spaces if one.source not in lost)
        assert back.tensors == tuple(one for one in identity.tensors if one.source not in lost)
        assert bare(back.unmatched_source) == bare(found.unmatched_source)


@given(wirings(3))
def test_composition_goes_the_way_of_both(three: list[Wiring]) -> None:
    first, second = Correspondence.by_role(*three[:2]), Correspondence.by_role(*three[1:])
    both = second @ first
    ways = {(a.source, b.target) for a in first.spaces for b in second.spaces if a.target == b.source}
    assert {(pair.source, pair.target) for pair in both.spaces} == ways
    back = first.inverse() @ second.inverse()
    assert {(pair.target, pair.source) for pair in back.spaces} == ways
    alike = Correspondence.identity(three[2]) @ both
    assert (alike.spaces, alike.tensors) == (both.spaces, both.tensors)


@given(wirings(2))
def test_what_was_saved_is_loaded_exactly(tmp_path_factory: pytest.TempPathFactory, pair: list[Wiring]) -> None:
    folder = tmp_path_factory.mktemp("saved") / "correspondence"
    found = Correspondence.by_role(*pair)
    found.save(folder)
    assert Correspondence.load(folder) == found
    assert str(Correspondence.load(folder)) == str(found)


def test_segments_survive_composition() -> None:
    there = Correspondence.by_role(attention(2, fused=True), attention(2))
    assert [str(pair.parts[0]) for pair in there.tensor_pairs(source="h.0.qkv.weight")] == [
        f"h.0.qkv.weight[:, {4 * part}:{4 * part + 4}]" for part in range(3)
    ]
    back = there.inverse() @ there
    assert back == Correspondence.identity(attention(2, fused=True))
    assert back.tensor_pairs(source="h.0.qkv.weight") == [TensorPair("h.0.qkv.weight", "h.0.qkv.weight")]


# ---------------------------------------------------------------------- pairs of one's own


def test_pairs_of_ones_own_are_sorted_and_what_is_missing_is_found() -> None:
    why = Unmatched("tensor", "fc3.bias", "it is not wanted")
    pairs = [TensorPair("fc2.weight", "fc1.weight"), TensorPair("fc1.weight", "fc1.weight")]
    found = Correspondence(mlp(2), mlp(1), (SpacePair("fc1", "fc1"),), tuple(pairs), (why,))
    assert found.tensors == (pairs[1], pairs[0])
    reasons = {(one.kind, one.name): one.reason for one in found.unmatched_source}
    assert reasons["tensor", "fc3.bias"] == "it is not wanted" and reasons["space", "fc2"] == "no pair names it"
    assert ("tensor", "fc2.weight") not in reasons
    assert found == Correspondence(mlp(2), mlp(1), (SpacePair("fc1", "fc1"),), tuple(pairs[::-1]), (why,))
    assert found != Correspondence(mlp(2), mlp(1), (SpacePair("fc1", "fc1"),), (pairs[1],), (why,))


def half(source: str, target: str, share: float = 0.5) -> TensorPair:
    return TensorPair(source, target, share)


FUSED, QKV = attention(1, fused=True), "h.0.qkv.weight"


@pytest.mark.parametrize(
    ("spaces", "tensors", "error", "words"),
    [
        ([("fc9", "fc1")], [], UnknownNameError, ["space of the source named 'fc9'"]),
        ([("fc1", "fc9")], [], UnknownNameError, ["space of the target named 'fc9'"]),
        ([], [half("fc1", "fc1.weight", 1)], UnknownNameError, ["tensor of the source named 'fc1'", "fc1.weight"]),
        ([], [half("fc1.weight", "fc1.weight")], WiringError, ["'fc1.weight' sum to 0.5", "sum to 1"]),
        ([], [half("fc1.bias", "fc1.bias"), half("fc1.bias", "fc1.bias")], WiringError, ["paired twice"]),
        ([], [half("fc1.bias", "fc1.bias", 0)], WiringError, ["is 0", "from 0 to 1"]),
        ([], [half("fc1.bias", "fc1.bias", 2.0)], WiringError, ["is 2.0"]),
    ],
)
def test_pairs_that_contradict_each_other_are_refused(
    spaces: list[tuple[str, str]], tensors: list[TensorPair], error: type[InterbasinError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        Correspondence(mlp(2), mlp(2), tuple(SpacePair(*pair) for pair in spaces), tuple(tensors))
    assert all(word in str(caught.value) for word in words)


def test_a_tensor_is_not_paired_both_whole_and_in_part() -> None:
    pairs = (TensorPair(QKV, QKV), TensorPair(QKV, QKV, 1.0, Segment(1, 0, 4), Segment(1, 0, 4)))
    with pytest.raises(WiringError, match="is paired whole, and so is its segment"):
        Correspondence(FUSED, FUSED, (), pairs)
    with pytest.raises(WiringError, match=r"no segment .*\[:, 0:99\]: the tensor has shape \(4, 12\)"):
        Correspondence(FUSED, FUSED, (), (replace(pairs[1], source_segment=Segment(1, 0, 99)),))


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda: Correspondence.by_role(mlp(1), 3), WiringError, ["by_role", "found int", "wire(model, inputs)"]),
        (lambda: Correspondence.by_name(None, mlp(1)), WiringError, ["by_name", "found NoneType"]),
        (lambda: Correspondence.by_depth(mlp(1), "x", [[1]]), WiringError, ["by_depth", "found str"]),
        (lambda: Correspondence(mlp(1), {}, (), ()), WiringError, ["A correspondence needs", "found dict"]),
        (lambda: Correspondence.identity(mlp(1)).space_pairs("fc9"), UnknownNameError, ["space of the source", "fc1"]),
        (lambda: Correspondence.identity(mlp(1)).tensor_pairs(target="x"), UnknownNameError, ["tensor of the target"]),
        (
            lambda: Correspondence.identity(mlp(1)) @ Correspondence.identity(mlp(2)),
            WiringError,
            ["the target of the first is not the source of the second", "b @ a does a first"],
        ),
    ],
)
def test_misuse_is_told(ask: Callable[[], object], error: type[InterbasinError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        ask()
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(TypeError):
        Correspondence.identity(mlp(1)) @ 3  # type: ignore[operator]


# ---------------------------------------------------------------------- text and files


def test_the_text_folds_blocks_and_lists_what_has_no_partner() -> None:
    text = str(Correspondence.by_role(residual(2), residual(4, "layers", "fc1", "fc2", bias=False)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "Correspondence(5 of 5 spaces, 12 of 16 tensors)"
    assert "blocks -> layers 0 -> 0, 1; 1 -> 2, 3" in lines
    assert "blocks.{0,1}.up -> layers.{0..3}.fc1 share 0.5" in lines
    assert "stem.weight -> stem.weight" in lines
    assert "tensors of the source without a partner:" in lines
    assert "blocks.{0,1}.up.bias the partner of its module has no 'bias'" in lines
    assert len(text.splitlines()) < 30


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("tensors"),
        lambda document: document["spaces"][0].__setitem__(2, 0.3),
        lambda document: document["spaces"][0].__setitem__(0, "nowhere"),
        lambda document: document["tensors"][0].pop(),
        lambda document: document["source"].pop("spaces"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    Correspondence.by_role(mlp(1), mlp(2)).save(tmp_path / "it")
    path = tmp_path / "it" / "correspondence.json"
    document = json.loads(path.read_text())
    change(document)
    seal_document(path, document)
    with pytest.raises(FileError, match=r"correspondence in .* is damaged"):
        Correspondence.load(tmp_path / "it")


def test_nothing_is_overwritten_unless_it_is_asked_for(tmp_path: Path) -> None:
    found = Correspondence.by_role(mlp(1), mlp(2))
    found.save(tmp_path / "it")
    with pytest.raises(FileError, match="exists already"):
        found.save(tmp_path / "it")
    found.inverse().save(tmp_path / "it", force=True)
    assert Correspondence.load(tmp_path / "it") == found.inverse()
    with pytest.raises(FileError, match="not a saved wiring"):
        read_record(tmp_path / "it", "correspondence", "wiring", 1)
