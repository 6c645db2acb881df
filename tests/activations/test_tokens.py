"""The token modes, against plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.activations.examples import numbers

from interbasin.activations.tokens import Tokens, match_texts, match_tokens, pool_pieces, pool_tokens
from interbasin.errors import DataError, ShapeError, UnknownNameError


def weights(few: int, many: int) -> torch.Tensor:
    """Linear resampling as a matrix: the edges of both rows of cells coincide, and ends are held."""
    matrix = torch.zeros(many, few, dtype=torch.float64)
    for i in range(many):
        at = min(max((i + 0.5) * few / many - 0.5, 0.0), few - 1.0)
        left = min(math.floor(at), few - 1)
        right = min(left + 1, few - 1)
        matrix[i, left] += 1 - (at - left)
        matrix[i, right] += at - left
    return matrix


@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 3))
def test_interpolate_is_linear_resampling_of_the_shorter_sequence(few, more, seed):
    many = few + more
    x, y = numbers(2, few, 3, seed=seed), numbers(2, many, 4, seed=seed + 1)
    found, other = match_tokens([x, y], [0, 1], Tokens("interpolate"))
    torch.testing.assert_close(found, weights(few, many) @ x)
    torch.testing.assert_close(other, y)
    other, found = match_tokens([y, x], [0, 1], Tokens("interpolate"))
    torch.testing.assert_close(found, weights(few, many) @ x)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
def test_interpolate2d_is_bilinear_on_the_grid_with_the_first_tokens_kept_apart(few, more, mine, theirs):
    many = few + more
    x, y = numbers(2, mine + few * few, 3), numbers(2, theirs + many * many, 5, seed=1)
    found, other = match_tokens([x, y], [0, 1], Tokens("interpolate2d", prefix=(mine, theirs)))
    w = weights(few, many)
    grid = torch.einsum("ai,bj,nijc->nabc", w, w, x[:, mine:].reshape(2, few, few, 3)).flatten(1, 2)
    kept = min(mine, theirs)
    torch.testing.assert_close(found, torch.cat([x[:, :kept], grid], dim=1))
    torch.testing.assert_close(other, torch.cat([y[:, :kept], y[:, theirs:]], dim=1))


def test_the_number_of_first_tokens_is_what_the_largest_square_leaves_over():
    x, y = numbers(2, 1 + 14 * 14, 3), numbers(2, 5 + 16 * 16, 3)
    found, other = match_tokens([x, y], [0, 1], Tokens("interpolate2d"))
    assert found.shape == other.shape == (2, 1 + 16 * 16, 3)
    torch.testing.assert_close(found[:, 0], x[:, 0])
    torch.testing.assert_close(other[:, 1:], y[:, 5:])


def test_grids_that_are_not_square_are_named():
    x, y = numbers(2, 1 + 2 * 3, 3), numbers(2, 1 + 4 * 6, 3)
    named = Tokens("interpolate2d", grid=((2, 3), (4, 6)))
    found, _ = match_tokens([x, y], [0, 1], named)
    grid = torch.einsum("ai,bj,nijc->nabc", weights(2, 4), weights(3, 6), x[:, 1:].reshape(2, 2, 3, 3))
    torch.testing.assert_close(found[:, 1:], grid.flatten(1, 2))
    with pytest.raises(ShapeError, match=r"7 tokens are not 0 and then 2 x 2 patches; say what they are with tokens="):
        match_tokens([x, y], [0, 1], Tokens("interpolate2d", prefix=(0, 0), grid=((2, 2), (4, 6))))


def test_feature_maps_are_grids_as_they_are():
    x, y = numbers(2, 4, 4, 3), numbers(2, 1 + 6 * 6, 5)
    found, other = match_tokens([x, y], [0, 1], Tokens("interpolate2d"))
    torch.testing.assert_close(found, torch.einsum("ai,bj,nijc->nabc", weights(4, 6), weights(4, 6), x).flatten(1, 2))
    torch.testing.assert_close(other, y[:, 1:])
    with pytest.raises(ShapeError, match="one or two axes of positions"):
        match_tokens([numbers(2, 2, 2, 2, 3), y], [0, 1], Tokens("interpolate2d"))


def test_mean_averages_the_tokens_of_each_input():
    x, y = numbers(3, 4, 2), numbers(3, 5, 5, 2)
    found, other = pool_tokens(x, "mean", None), pool_tokens(y, "mean", None)
    torch.testing.assert_close(found, x.mean(1))
    torch.testing.assert_close(other, y.mean((1, 2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_resampled_in_single(dtype):
    x, y = numbers(2, 4, 3).to(dtype), numbers(2, 9, 3).to(dtype)
    found, _ = match_tokens([x, y], [0, 1], Tokens("interpolate2d"))
    assert found.dtype == torch.float32
    assert pool_tokens(x, "mean", None).dtype == torch.float32


def test_more_than_two_are_brought_to_the_finest():
    shapes = [
        match_tokens([numbers(2, n, 3) for n in (4, 9, 16)], [0, 0, 1], Tokens("interpolate2d"))[i].shape
        for i in (0, 1)
    ]
    assert shapes == [(2, 16, 3)] * 2


def test_pooling_leaves_padding_out():
    x = numbers(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]]).bool()
    torch.testing.assert_close(pool_tokens(x, "mean", mask), torch.stack([x[0, :2].mean(0), x[1, 1:].mean(0)]))
    torch.testing.assert_close(pool_tokens(x, "first", mask), torch.stack([x[0, 0], x[1, 1]]))
    torch.testing.assert_close(pool_tokens(x, "last", mask), torch.stack([x[0, 1], x[1, 3]]))
    torch.testing.assert_close(pool_tokens(x, "first", None), x[:, 0])
    torch.testing.assert_close(pool_tokens(x, "last", None), x[:, -1])
    assert pool_tokens(x[:, 0], "mean", None) is not None


def test_unknown_ways_are_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"no token mode named 'interpolate3d'; try one of: interpolate2d"):
        Tokens("interpolate3d")
    with pytest.raises(UnknownNameError, match="no way to pool named 'cls'"):
        pool_tokens(numbers(2, 3, 4), "cls", None)
    with pytest.raises(ShapeError, match=r"no first token in positions of shape \(3, 3\); use pool='mean'"):
        pool_tokens(numbers(2, 3, 3, 4), "first", None)


# ---------------------------------------------------------------------- texts in two tokenisations


@st.composite
def tokenisations(draw):
    """The ends of the tokens of one text, cut in two ways."""
    length = draw(st.integers(2, 12))
    cuts = [sorted({*draw(st.lists(st.integers(1, length), max_size=6)), length}) for _ in range(2)]
    return [torch.tensor([[[a, b] for a, b in zip([0, *ends], ends, strict=False)]]) for ends in cuts]


@given(tokenisations())
def test_pieces_end_where_tokens_of_both_end_and_each_token_is_in_one(both):
    source, target = both
    one, other, count = match_texts(source, target)
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
    one, other, count = match_texts(source, target)
    assert (one.tolist(), other.tolist(), count) == ([[-1, 0, -1, -1]], [[0, -1, -1]], 1)
    masked = torch.tensor([[True, False, True, True]])
    assert match_texts(source, torch.tensor([[[0, 3], [3, 8]]]), (masked, None))[2] == 1


def test_several_texts_are_counted_on_and_rows_are_means():
    source = torch.tensor([[[0, 2], [2, 4]], [[0, 1], [1, 3]]])
    target = torch.tensor([[[0, 1], [1, 4]], [[0, 1], [1, 3]]])
    one, other, count = match_texts(source, target)
    assert (one.tolist(), other.tolist(), count) == ([[0, 0], [1, 2]], [[0, 0], [1, 2]], 3)
    x = numbers(2, 2, 3)
    torch.testing.assert_close(pool_pieces(x, one, count), torch.stack([x[0].mean(0), x[1, 0], x[1, 1]]))


def test_what_cannot_be_aligned_is_refused():
    good = torch.tensor([[[0, 2], [2, 4]]])
    with pytest.raises(ShapeError, match=r"shape \(batch, tokens, 2\), found \(1, 2\)"):
        match_texts(good[..., 0], good)
    with pytest.raises(ShapeError, match="Offsets of 2 and 1 texts are not paired"):
        match_texts(good.repeat(2, 1, 1), good)
    one, _, count = match_texts(good, torch.tensor([[[0, 1], [1, 3]]]))
    assert count == 0
    with pytest.raises(DataError, match="end no token at the same character"):
        pool_pieces(numbers(1, 2, 3), one, count)
    with pytest.raises(ShapeError, match=r"tokens of shape \(1, 2\), the activation has rows of shape \(1, 5\)"):
        pool_pieces(numbers(1, 5, 3), one, 1)
