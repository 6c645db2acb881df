"""Segments of tensors, and the pieces that fused tensors fall into."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.correspondence.networks import Fused, traced, wiring

from interbasin.correspondence import Segment, TensorPair
from interbasin.correspondence.pairs import Part, expand, merge, split
from interbasin.wiring import Role, TensorWiring
from interbasin.wiring.axes.spaces import Each, Grid, In, Row


@st.composite
def segments(draw: st.DrawFn) -> tuple[Segment, torch.Tensor]:
    """A segment, and a tensor that has it."""
    blocks, length = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    start = draw(st.integers(0, length - 1))
    axis, stop = draw(st.integers(0, 2)), draw(st.integers(start + 1, length))
    sizes = [2, 3, 4]
    sizes[axis] = blocks * length
    return Segment(axis, start, stop, blocks), torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)


@given(segments())
def test_a_segment_holds_the_entries_that_it_names(case: tuple[Segment, torch.Tensor]) -> None:
    segment, tensor = case
    length = tensor.shape[segment.axis] // segment.blocks
    index = [block * length + entry for block in range(segment.blocks) for entry in range(segment.start, segment.stop)]
    assert torch.equal(segment.cut(tensor), tensor.index_select(segment.axis, torch.tensor(index)))


@given(segments())
def test_what_was_cut_and_pasted_is_there_and_nothing_else_changed(case: tuple[Segment, torch.Tensor]) -> None:
    segment, tensor = case
    assert torch.equal(segment.paste(tensor, segment.cut(tensor)), tensor)
    part = -torch.ones_like(segment.cut(tensor))
    pasted = segment.paste(tensor, part)
    assert torch.equal(segment.cut(pasted), part)
    assert int((pasted != tensor).sum()) == part.numel()


@given(segments())
def test_a_transposed_tensor_is_cut_and_pasted_as_any_other(case: tuple[Segment, torch.Tensor]) -> None:
    segment, tensor = case
    turned = tensor.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(segment.cut(turned), segment.cut(tensor))
    assert torch.equal(segment.paste(turned, segment.cut(tensor)), tensor)


@given(segments(), st.from_regex(r"[a-z]+(\.[a-z0-9]+)*", fullmatch=True))
def test_a_part_is_what_its_text_says(case: tuple[Segment, torch.Tensor], name: str) -> None:
    assert Part.parse(str(Part(name, case[0]))) == Part(name, case[0])
    assert Part.parse(name) == Part(name)


def test_segments_are_written_as_slices() -> None:
    assert str(Part("qkv.weight", Segment(0, 0, 8))) == "qkv.weight[0:8]"
    assert str(Part("qkv.weight", Segment(1, 8, 16))) == "qkv.weight[:, 8:16]"
    assert str(Part("qkv.weight", Segment(1, 8, 16, blocks=4))) == "qkv.weight[:, 4 x 8:16]"


def test_axes_come_in_the_order_of_the_target() -> None:
    tensor = torch.randn(2, 3)
    assert torch.equal(TensorPair("a", "b", order=(1, 0)).cut(tensor), tensor.T)
    assert TensorPair("a", "b", order=(None, 0, 1)).cut(tensor).shape == (1, 2, 3)
    assert TensorPair("a", "b", order=(1, 2)).cut(tensor[None]).shape == (2, 3)
    pair = TensorPair("a", "b", source_segment=Segment(1, 0, 1), target_segment=Segment(0, 2, 3), order=(1, 0))
    pasted = pair.paste(torch.zeros(4, 2), pair.cut(tensor))
    assert torch.equal(pasted[2], tensor[:, 0]) and not pasted[[0, 1, 3]].any()


def test_a_fused_projection_falls_into_its_segments() -> None:
    tensors = traced(Fused).tensors
    pieces = split(tensors["encoder.layers.0.self_attn.in_proj_weight"])
    assert [segment for segment, _ in pieces] == [Segment(0, 0, 8), Segment(0, 8, 16), Segment(0, 16, 24)]
    assert split(tensors["stem.weight"]) == [(None, tensors["stem.weight"].axes)]


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_fused_within_each_head_falls_into_segments_with_a_slice_per_head(inside: bool) -> None:
    heads, q, v = (In(name, Role.WRITE, 2) for name in ("heads", "q", "v"))
    stay = wiring({"x": "1"}).tensors["x"].axes[0]
    row = (Row((q, v)),) if inside else (Row((stay, stay), key=0), Each(0, (q, v)))
    pieces = split(TensorWiring((8, 4), (Grid((heads, *row)), In("stream", Role.READ, 4))))
    assert [segment for segment, _ in pieces] == [Segment(0, 0, 2, blocks=2), Segment(0, 2, 4, blocks=2)]
    leaves = [axes[0].parts[-1] for _, axes in pieces if isinstance(axes[0], Grid)]
    assert leaves == [q, v]


def test_pairs_of_fused_tensors_expand_and_merge() -> None:
    one = traced(Fused)
    pairs = [TensorPair(name, name) for name in one.tensors]
    expanded = expand(pairs, one, one)
    assert len(expanded) == len(pairs) + 2 * 2 * 2  # weight and bias of two layers fall into three
    assert sorted(merge(expanded, one, one), key=lambda pair: pairs.index(pair)) == pairs
    part = [pair for pair in expanded if pair.source_segment != Segment(0, 0, 8)]
    assert all(pair in merge(part, one, one) for pair in part if pair.source_segment is not None)
