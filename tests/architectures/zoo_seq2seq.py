"""Networks of transformers with an encoder and a decoder, for text."""

from __future__ import annotations

from tests.architectures.architecture import VOCABULARY, Architecture, ids, tokens
from tests.architectures.from_transformers import SEQ2SEQ, SPECIAL, T5, transformers

PAIR = tokens(decoder_input_ids=ids(5))
LOGITS = {"answers": ("logits",)}
TOKENS = {**SPECIAL, "forced_eos_token_id": None}

ARCHITECTURES: dict[str, Architecture] = {
    "transformers/t5": transformers("T5ForConditionalGeneration", PAIR, **T5, **LOGITS, attention="eager", listed=True),
    "transformers/t5-gated": transformers(
        "T5ForConditionalGeneration",
        tokens(masked=True, decoder_input_ids=ids(5)),
        **T5,
        **LOGITS,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    ),
    "transformers/mt5": transformers("MT5ForConditionalGeneration", PAIR, **T5, **LOGITS, attention="eager"),
    "transformers/umt5": transformers("UMT5ForConditionalGeneration", PAIR, **T5, **LOGITS, attention="eager"),
    "transformers/long-t5": transformers(
        "LongT5ForConditionalGeneration",
        PAIR,
        **T5,
        **LOGITS,
        local_radius=3,
        encoder_attention_type="local",
        attention="eager",
        traceable=False,
    ),
    "transformers/switch-transformers": transformers(
        "SwitchTransformersForConditionalGeneration",
        PAIR,
        **T5,
        **LOGITS,
        num_experts=3,
        expert_capacity=8,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        attention="eager",
        traceable=False,
    ),
    "transformers/bart": transformers("BartForConditionalGeneration", PAIR, **SEQ2SEQ, **LOGITS, listed=True),
    "transformers/bart-eager": transformers(
        "BartForConditionalGeneration",
        tokens(masked=True, decoder_input_ids=ids(5)),
        **SEQ2SEQ,
        **LOGITS,
        attention="eager",
        scale_embedding=True,
    ),
    "transformers/mbart": transformers("MBartForConditionalGeneration", PAIR, **SEQ2SEQ, **LOGITS),
    "transformers/marian": transformers("MarianMTModel", PAIR, **SEQ2SEQ, **LOGITS, **TOKENS),
    "transformers/pegasus": transformers("PegasusForConditionalGeneration", PAIR, **SEQ2SEQ, **LOGITS, **TOKENS),
    "transformers/blenderbot": transformers(
        "BlenderbotForConditionalGeneration", PAIR, **SEQ2SEQ, **LOGITS, attention="eager"
    ),
    "transformers/m2m-100": transformers("M2M100ForConditionalGeneration", PAIR, **SEQ2SEQ, **LOGITS),
    "transformers/plbart": transformers("PLBartForConditionalGeneration", PAIR, **SEQ2SEQ, **LOGITS),
    "transformers/led": transformers(
        "LEDForConditionalGeneration",
        tokens(8, decoder_input_ids=ids(5)),
        **SEQ2SEQ,
        **LOGITS,
        attention_window=4,
        max_encoder_position_embeddings=24,
        max_decoder_position_embeddings=20,
        attention="eager",
        traceable=False,
    ),
    "transformers/bigbird-pegasus": transformers(
        "BigBirdPegasusForConditionalGeneration",
        PAIR,
        **SEQ2SEQ,
        **LOGITS,
        **TOKENS,
        attention_type="original_full",
        attention="eager",
    ),
    "transformers/prophetnet": transformers(
        "ProphetNetForConditionalGeneration",
        PAIR,
        vocab_size=VOCABULARY,
        hidden_size=32,
        encoder_ffn_dim=56,
        decoder_ffn_dim=44,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        ngram=2,
        num_buckets=6,
        relative_max_distance=8,
        max_position_embeddings=24,
        answers=("logits", "logits_ngram"),
        attention="eager",
    ),
}
