"""How networks of transformers are made, and what their configurations call the same things."""

from __future__ import annotations

from typing import Any

from tests.architectures.architecture import CLASSES, VOCABULARY, Architecture, Sample
from torch import nn

from interbasin.extras import import_extra

ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
    "num_labels": CLASSES,
}
DECODER = {**ENCODER, "hidden_size": 40, "head_dim": 8, "num_key_value_heads": 2}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_inner": 56, "n_layer": 2, "n_head": 4, "n_positions": 24}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 24,
    "num_labels": CLASSES,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 40,
    "d_kv": 8,
    "d_ff": 56,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 10,
}
IMAGE = {"image_size": 32, "patch_size": 8}
# Token ids that must lie in the small vocabulary, and must not be among the sampled ones.
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def transformers(
    name: str,
    sample: Sample,
    *,
    attention: str = "sdpa",
    answers: tuple[str, ...] = (),
    listed: bool = False,
    traceable: bool = True,
    **options: Any,
) -> Architecture:
    """The class ``name`` of transformers, made from its configuration with ``options``."""

    def network() -> nn.Module:
        model = getattr(import_extra("transformers", f"The architecture {name}", "hf"), name)
        config = model.config_class(**options)
        config.use_cache = False
        config._attn_implementation = attention
        config._experts_implementation = "batched_mm"  # the default one knows no float64
        return model(config)

    return Architecture(network, sample, answers, listed, traceable)
