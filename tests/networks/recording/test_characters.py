"""Two tokenisations of the same text, aligned by the characters their tokens cover."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.networks.recording.examples import numbers

from interbasin.errors import DataError, ShapeError
from interbasin.networks.recording.characters import pieces, pooled_pieces


@st.composite
def tokenisations(draw):
    """The ends of the tokens of one text, cut in two ways."""
    length = draw(st.integers(2, 12))
    cuts = [sorted({*draw(st.lists(st.integers(1, length), max_size=6)), length}) for _ in range(2)]
    return [torch.tensor([[[a, b] for a, b in zip([0, *ends], ends, strict=False)]]) for ends in cuts]


@given(tokenisations())
def test_pieces_end_where_tokens_of_both_end_and_each_token_is_in_one(both):
    source, target = both
    one, other, count = pieces(source, target)
    ends = [set(side[0, :, 1].tolist()) for side in both]
    assert count == len(ends[0] & ends[1])
    for side, belongs in zip(both, (one, other), strict=True):
        assert belongs.min() == 0 and belongs.max() == count - 1
        shared = sorted(ends[0] & ends[1])
        for token, piece in zip(side[0].tolist(), belongs[0].tolist(), strict=True):
            assert token[1] <= shared[piece] and (piece == 0 or token[0] >= shared[piece - 1])


def test_special_tokens_padding_and_unfinished_pieces_are_left_out():
    # "new york" as [CLS] new york [PAD] and as new-yo-r (cut off), with the space on the other side.
    source = torch.tensor([[[0, 0], [0, 3], [4, 8], [0, 0]]])
    target = torch.tensor([[[0, 3], [3, 6], [6, 7]]])
    one, other, count = pieces(source, target)
    assert (one.tolist(), other.tolist(), count) == ([[-1, 0, -1, -1]], [[0, -1, -1]], 1)
    masked = torch.tensor([[True, False, True, True]])
    assert pieces(source, torch.tensor([[[0, 3], [3, 8]]]), (masked, None))[2] == 1


def test_several_texts_are_counted_on_and_rows_are_means():
    source = torch.tensor([[[0, 2], [2, 4]], [[0, 1], [1, 3]]])
    target = torch.tensor([[[0, 1], [1, 4]], [[0, 1], [1, 3]]])
    one, other, count = pieces(source, target)
    assert (one.tolist(), other.tolist(), count) == ([[0, 0], [1, 2]], [[0, 0], [1, 2]], 3)
    x = numbers(2, 2, 3)
    torch.testing.assert_close(pooled_pieces(x, one, count), torch.stack([x[0].mean(0), x[1, 0], x[1, 1]]))


def test_what_cannot_be_aligned_is_refused():
    good = torch.tensor([[[0, 2], [2, 4]]])
    with pytest.raises(ShapeError, match=r"shape \(batch, tokens, 2\), found \(1, 2\)"):
        pieces(good[..., 0], good)
    with pytest.raises(ShapeError, match="Offsets of 2 and 1 texts are not paired"):
        pieces(good.repeat(2, 1, 1), good)
    one, _, count = pieces(good, torch.tensor([[[0, 1], [1, 3]]]))
    assert count == 0
    with pytest.raises(DataError, match="end no token at the same character"):
        pooled_pieces(numbers(1, 2, 3), one, count)
    with pytest.raises(ShapeError, match=r"tokens of shape \(1, 2\), the activation has rows of shape \(1, 5\)"):
        pooled_pieces(numbers(1, 5, 3), one, 1)
