from __future__ import annotations

import pytest
import torch

from interbasin.activations.pairing import Masks, masks_of
from interbasin.errors import DataError, ShapeError, UnknownNameError

MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


def fitted(given, *rows, inputs=None, module="layer"):
    masks = masks_of({"attention_mask": MASK} if inputs is None else inputs, given, None)
    return None if masks is None else masks.fitting(module, torch.Size(rows))


def test_the_attention_mask_is_found_by_itself_and_can_be_declined():
    assert torch.equal(fitted(None, 2, 3), MASK.bool())
    assert fitted(False, 2, 3) is None
    assert fitted(None, 2, 3, inputs=MASK) is None


def test_a_mask_is_fitted_to_flattened_rows_and_further_axes_and_not_to_one_row_an_input():
    assert torch.equal(fitted(None, 6), MASK.bool().flatten())
    assert torch.equal(fitted(None, 2, 3, 4), MASK.bool()[..., None].expand(2, 3, 4))
    assert fitted(None, 2) is None


def test_masks_by_name_by_function_and_for_parts_of_the_network():
    assert torch.equal(fitted("pad", 2, 3, inputs={"pad": MASK}), MASK.bool())
    assert torch.equal(fitted(lambda batch: batch > 0, 2, 3, inputs=MASK), MASK.bool())
    parts = lambda batch: {"text": MASK}  # noqa: E731
    assert torch.equal(fitted(parts, 2, 3, module="text.layer"), MASK.bool())
    assert fitted(parts, 2, 50, module="vision.layer") is None
    assert fitted(parts, 2, 50, module="textual.layer") is None


def test_encoders_and_decoders_have_their_own():
    inputs = {"attention_mask": MASK, "decoder_attention_mask": 1 - MASK}
    assert torch.equal(fitted(None, 2, 3, inputs=inputs, module="decoder.block"), (1 - MASK).bool())
    assert torch.equal(fitted(None, 2, 3, inputs=inputs, module="encoder.block"), MASK.bool())
    # What comes out of an encoder-decoder has the tokens of its decoder, and so has what its head reads.
    assert all(torch.equal(fitted(None, 2, 3, inputs=inputs, module=name), (1 - MASK).bool()) for name in ("", "head"))
    assert torch.equal(fitted(None, 2, 3, inputs=inputs, module="shared"), MASK.bool())
    # Cross-attention asks with the decoder's tokens, and is answered from the encoder's.
    for name in ("decoder.block.0.EncDecAttention.k", "model.decoder.layers.0.encoder_attn.v_proj"):
        assert torch.equal(fitted(None, 2, 3, inputs=inputs, module=name), MASK.bool())
    for name in ("decoder.block.0.EncDecAttention.q", "model.decoder.layers.0.self_attn.v_proj"):
        assert torch.equal(fitted(None, 2, 3, inputs=inputs, module=name), (1 - MASK).bool())
    # A mask of who sees whom is not one of padding.
    assert fitted(None, 2, 3, inputs={"attention_mask": torch.ones(2, 1, 3, 3)}) is None


def test_biases_of_relative_positions_belong_to_no_input_and_all_of_their_rows_count():
    assert fitted(None, 3, 3, module="encoder.relative_attention_bias") is None
    with pytest.raises(ShapeError, match=r"rows of shape \(8, 3\)"):  # heads folded into the batch are not such
        fitted(None, 8, 3)


def test_what_is_no_mask_or_does_not_fit_is_refused():
    with pytest.raises(
        ShapeError, match=r"at 'layer': rows of shape \(2, 4\), found attention_mask \(2, 3\); give one"
    ):
        fitted(None, 2, 4)
    with pytest.raises(UnknownNameError, match="no mask in the batch named 'mask'; try one of: attention_mask"):
        fitted("mask", 2, 3)
    with pytest.raises(DataError, match="needs batches that are mappings, found Tensor"):
        fitted("mask", 2, 3, inputs=MASK)
    with pytest.raises(ShapeError, match=r"tensor of shape \(batch, tokens\), found shape \(3,\) for pad"):
        fitted("pad", 2, 3, inputs={"pad": MASK[0]})
    with pytest.raises(ShapeError, match="found list for mask"):
        fitted(lambda batch: [1], 2, 3)
    with pytest.raises(DataError, match=r"ones .* for what counts and zeros for padding"):
        fitted("pad", 2, 3, inputs={"pad": (1.0 - MASK) * -1e9})
    assert Masks().fitting("layer", torch.Size([4])) is None
