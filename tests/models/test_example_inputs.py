"""Inputs made from a configuration alone are inputs that the network takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.test_storage import refused

from interbasin.errors import DataError
from interbasin.extras import import_extra
from interbasin.models.example_inputs import example_inputs, token_ids

TOKENS = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {**TOKENS, **SMALL, "max_position_embeddings": 32}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 8, "num_channels": 1}
PAIR = {"text_config": TEXT, "vision_config": {**IMAGE, "num_channels": 3}, "projection_dim": 8}
SEQ2SEQ = {
    **TOKENS,
    "decoder_start_token_id": 2,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}
SOUND = {"num_mel_bins": 6, "max_source_positions": 9, "max_target_positions": 12}
WAVES = {
    **TOKENS,
    **SMALL,
    "conv_dim": (8, 8),
    "conv_stride": (4, 3),
    "conv_kernel": (8, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
TOKEN_INPUTS = {"input_ids": (2, 16)}

CASES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "BertForMaskedLM": (TEXT, TOKEN_INPUTS),
    "RobertaForSequenceClassification": ({**TEXT, "max_position_embeddings": 10}, {"input_ids": (2, 8)}),
    "LlamaForCausalLM": (TEXT, TOKEN_INPUTS),
    "LlamaForSequenceClassification": ({**TEXT, "pad_token_id": None}, {"input_ids": (1, 16)}),
    "BartForConditionalGeneration": (SEQ2SEQ, {"input_ids": (2, 16), "decoder_input_ids": (2, 8)}),
    "BartForSequenceClassification": (SEQ2SEQ, {"input_ids": (2, 16), "decoder_input_ids": (2, 16)}),
    "WhisperForConditionalGeneration": (
        {**SEQ2SEQ, **SOUND},
        {"input_features": (2, 6, 18), "decoder_input_ids": (2, 8)},
    ),
    "Wav2Vec2ForCTC": (WAVES, {"input_values": (2, 292)}),
    "ASTForAudioClassification": (
        {**SMALL, "max_length": 24, "num_mel_bins": 16, "patch_size": 8},
        {"input_values": (2, 24, 16)},
    ),
    "ViTForImageClassification": (IMAGE, {"pixel_values": (2, 1, 16, 16)}),
    "VideoMAEForVideoClassification": (
        {**IMAGE, "num_frames": 4, "tubelet_size": 2},
        {"pixel_values": (2, 4, 1, 16, 16)},
    ),
    "ResNetForImageClassification": (
        {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_channels": 2},
        {"pixel_values": (2, 2, 224, 224)},
    ),
    "CLIPModel": (PAIR, {"input_ids": (2, 16), "pixel_values": (2, 3, 16, 16)}),
    "CLIPForImageClassification": (PAIR, {"pixel_values": (2, 3, 16, 16)}),
    "PatchTSTForPrediction": (
        {"context_length": 24, "num_input_channels": 3, "prediction_length": 4, "d_model": 8, "patch_length": 4},
        {"past_values": (2, 24, 3)},
    ),
}


@pytest.fixture(scope="module")
def transformers():
    return import_extra("transformers", "A network of transformers", "hf")


def made(transformers, name: str, settings: dict[str, Any]) -> Any:
    kind = getattr(transformers, name)
    with torch.random.fork_rng(devices=[]):
        return kind(kind.config_class(**settings)).eval()


def drawn(model: Any, **options: Any) -> dict[str, Any] | None:
    return example_inputs(model, torch.Generator().manual_seed(0), **options)


@pytest.mark.parametrize("name", CASES)
def test_a_network_takes_the_inputs_that_its_configuration_tells_of(name, transformers):
    settings, expected = CASES[name]
    model = made(transformers, name, settings)
    inputs = drawn(model)
    assert inputs is not None
    assert {key: tuple(value.shape) for key, value in inputs.items() if key != "use_cache"} == expected
    assert inputs.get("use_cache", False) is False
    with torch.no_grad():
        model(**inputs)
    again = drawn(model)
    assert all(torch.equal(again[key], inputs[key]) for key in expected)


def test_tokens_are_ordinary_but_for_the_last(transformers):
    model = made(transformers, "LlamaForCausalLM", {**TEXT, "vocab_size": 5})
    ids = token_ids(model, (100, 4), torch.Generator().manual_seed(0))
    assert set(ids[:, :-1].flatten().tolist()) == {3, 4} and set(ids[:, -1].tolist()) == {2}
    model.config.vocab_size = 2  # nothing but special tokens
    assert set(token_ids(model, (100,), torch.Generator()).tolist()) <= {0, 1}


def test_floats_come_in_the_dtype_of_the_network(transformers):
    model = made(transformers, "ViTForImageClassification", IMAGE).to(torch.bfloat16)
    assert drawn(model)["pixel_values"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("preprocessor", "sides"),
    [
        ({"crop_size": {"height": 48, "width": 64}}, (48, 64)),
        ({"size": {"shortest_edge": 96}}, (96, 96)),
        ({"size": 32}, (32, 32)),
        ({"size": {"longest_edge": 7}}, (224, 224)),
        (None, (224, 224)),
    ],
)
def test_the_size_of_images_may_be_in_the_preprocessors_configuration_only(preprocessor, sides, transformers):
    model = made(transformers, *("ResNetForImageClassification", CASES["ResNetForImageClassification"][0]))
    assert drawn(model, preprocessor=preprocessor)["pixel_values"].shape[2:] == sides


def test_sides_may_differ(transformers):
    model = made(transformers, "ViTForImageClassification", IMAGE)
    model.config.image_size = [8, 24]
    assert drawn(model)["pixel_values"].shape[2:] == (8, 24)


def test_where_the_configuration_does_not_tell_there_are_no_inputs(transformers):
    model = made(transformers, "ViTForImageClassification", IMAGE)
    for main in ("something_else", "input_ids", "input_features", "input_values", "past_values"):
        model.main_input_name = main
        assert drawn(model) is None
    refused(lambda: token_ids(model, (1,), torch.Generator()), DataError, ("no vocab_size",))


def test_a_network_that_reads_images_as_tokens_needs_none(transformers):
    model = made(transformers, "CLIPModel", PAIR)
    model.config.image_token_id = 7
    assert "pixel_values" not in drawn(model)
