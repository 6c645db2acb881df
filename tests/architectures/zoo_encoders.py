"""Text encoders of transformers."""

from __future__ import annotations

from tests.architectures.architecture import VOCABULARY, Architecture, tokens
from tests.architectures.from_transformers import ENCODER, SPECIAL, transformers

DEBERTA = {**ENCODER, "relative_attention": True, "pos_att_type": "c2p|p2c"}

ARCHITECTURES: dict[str, Architecture] = {
    "transformers/bert": transformers("BertForSequenceClassification", tokens(masked=True), **ENCODER, listed=True),
    "transformers/bert-lm": transformers("BertForMaskedLM", tokens(), **ENCODER, attention="eager"),
    "transformers/roberta": transformers("RobertaForSequenceClassification", tokens(), **ENCODER, listed=True),
    "transformers/roberta-prenorm": transformers("RobertaPreLayerNormForMaskedLM", tokens(), **ENCODER),
    "transformers/xlm-roberta": transformers(
        "XLMRobertaForTokenClassification", tokens(), **ENCODER, attention="eager"
    ),
    "transformers/camembert": transformers("CamembertForMaskedLM", tokens(masked=True), **ENCODER),
    "transformers/distilbert": transformers(
        "DistilBertForMaskedLM",
        tokens(),
        vocab_size=VOCABULARY,
        dim=32,
        hidden_dim=56,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=24,
        listed=True,
    ),
    "transformers/albert": transformers("AlbertForMaskedLM", tokens(), **ENCODER, embedding_size=20, listed=True),
    "transformers/electra": transformers(
        "ElectraForSequenceClassification", tokens(), **ENCODER, embedding_size=20, listed=True
    ),
    "transformers/deberta": transformers(
        "DebertaForMaskedLM", tokens(), **DEBERTA, max_relative_positions=6, attention="eager", listed=True
    ),
    "transformers/deberta-v2": transformers(
        "DebertaV2ForMaskedLM",
        tokens(),
        **DEBERTA,
        position_buckets=4,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        attention="eager",
        listed=True,
    ),
    "transformers/deberta-v2-conv": transformers(
        "DebertaV2ForSequenceClassification",
        tokens(),
        **DEBERTA,
        conv_kernel_size=3,
        share_att_key=False,
        attention="eager",
    ),
    "transformers/mpnet": transformers("MPNetForMaskedLM", tokens(), **ENCODER, attention="eager"),
    "transformers/modernbert": transformers(
        "ModernBertForMaskedLM",
        tokens(),
        **ENCODER,
        **SPECIAL,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=4,
        global_attn_every_n_layers=2,
    ),
    "transformers/esm": transformers(
        "EsmForMaskedLM",
        tokens(),
        **ENCODER,
        **{"pad_token_id": 0, "mask_token_id": 1},
        position_embedding_type="rotary",
    ),
    "transformers/longformer": transformers(
        "LongformerForMaskedLM", tokens(8), **ENCODER, attention_window=4, attention="eager", traceable=False
    ),
    "transformers/big-bird": transformers(
        "BigBirdForMaskedLM", tokens(), **ENCODER, attention_type="original_full", attention="eager"
    ),
    "transformers/fnet": transformers("FNetForMaskedLM", tokens(), **ENCODER, attention="eager"),
    "transformers/funnel": transformers(
        "FunnelForMaskedLM",
        tokens(8),
        vocab_size=VOCABULARY,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        d_model=32,
        n_head=4,
        d_head=6,
        d_inner=56,
        attention="eager",
    ),
    "transformers/convbert": transformers(
        "ConvBertForMaskedLM",
        tokens(),
        **ENCODER,
        embedding_size=20,
        head_ratio=2,
        conv_kernel_size=3,
        attention="eager",
    ),
    "transformers/squeezebert": transformers(
        "SqueezeBertForMaskedLM",
        tokens(),
        **ENCODER,
        embedding_size=32,
        q_groups=2,
        k_groups=2,
        v_groups=2,
        intermediate_groups=2,
        attention="eager",
    ),
    "transformers/roformer": transformers(
        "RoFormerForMaskedLM", tokens(), **ENCODER, embedding_size=20, attention="eager"
    ),
    "transformers/xlnet": transformers(
        "XLNetLMHeadModel",
        tokens(),
        vocab_size=VOCABULARY,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=56,
        attention="eager",
        answers=("logits",),
    ),
    "transformers/xlm": transformers(
        "XLMWithLMHeadModel",
        tokens(),
        vocab_size=VOCABULARY,
        n_words=VOCABULARY,
        emb_dim=32,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=24,
        attention="eager",
    ),
    "transformers/mobilebert": transformers(
        "MobileBertForMaskedLM",
        tokens(),
        **ENCODER,
        embedding_size=20,
        intra_bottleneck_size=24,
        true_hidden_size=24,
        num_feedforward_networks=2,
        attention="eager",
    ),
    "transformers/nystromformer": transformers(
        "NystromformerForMaskedLM",
        tokens(8),
        **ENCODER,
        num_landmarks=4,
        segment_means_seq_len=8,
        conv_kernel_size=3,
        attention="eager",
        traceable=False,
    ),
    "transformers/yoso": transformers(
        "YosoForMaskedLM", tokens(8), **ENCODER, use_expectation=True, conv_window=3, attention="eager"
    ),
    "transformers/ernie": transformers("ErnieForMaskedLM", tokens(), **ENCODER, attention="eager"),
    "transformers/megatron-bert": transformers("MegatronBertForMaskedLM", tokens(), **ENCODER, attention="eager"),
    "transformers/data2vec-text": transformers("Data2VecTextForMaskedLM", tokens(), **ENCODER),
    "transformers/rembert": transformers(
        "RemBertForMaskedLM", tokens(), **ENCODER, input_embedding_size=20, output_embedding_size=24, attention="eager"
    ),
    "transformers/eurobert": transformers(
        "EuroBertForMaskedLM", tokens(), **{**ENCODER, "num_key_value_heads": 2}, **SPECIAL
    ),
}
