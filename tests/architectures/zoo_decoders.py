"""Language models of transformers that predict the next token: attention, state spaces, recurrences, experts."""

from __future__ import annotations

from tests.architectures.architecture import VOCABULARY, Architecture, tokens
from tests.architectures.from_transformers import DECODER, ENCODER, GPT, SPECIAL, transformers

GROUPED = {**ENCODER, "num_key_value_heads": 2}  # heads share keys and values; their width is not free
FALCON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 56,
}
MAMBA = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "state_size": 5, "conv_kernel": 3, "expand": 2}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}

ARCHITECTURES: dict[str, Architecture] = {
    # learned or linear positions
    "transformers/gpt2": transformers("GPT2LMHeadModel", tokens(), **GPT, listed=True),
    "transformers/gpt2-eager": transformers(
        "GPT2LMHeadModel", tokens(masked=True), **GPT, attention="eager", scale_attn_by_inverse_layer_idx=True
    ),
    "transformers/openai-gpt": transformers("OpenAIGPTLMHeadModel", tokens(), **GPT, attention="eager"),
    "transformers/gpt-neo": transformers(
        "GPTNeoForCausalLM",
        tokens(),
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=56,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=24,
        attention="eager",
    ),
    "transformers/gpt-bigcode": transformers("GPTBigCodeForCausalLM", tokens(), **GPT, multi_query=True),
    "transformers/opt": transformers(
        "OPTForCausalLM",
        tokens(),
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=20,
        ffn_dim=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=24,
        listed=True,
    ),
    "transformers/biogpt": transformers("BioGptForCausalLM", tokens(masked=True), **ENCODER),
    "transformers/bloom": transformers(
        "BloomForCausalLM",
        tokens(masked=True),
        vocab_size=VOCABULARY,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        attention="eager",
    ),
    "transformers/mpt": transformers(
        "MptForCausalLM",
        tokens(),
        vocab_size=VOCABULARY,
        d_model=32,
        n_layers=2,
        n_heads=4,
        max_seq_len=24,
        attention="eager",
    ),
    "transformers/ctrl": transformers(
        "CTRLLMHeadModel",
        tokens(),
        vocab_size=VOCABULARY,
        n_embd=32,
        dff=56,
        n_layer=2,
        n_head=4,
        n_positions=24,
        attention="eager",
    ),
    # rotations
    "transformers/gpt-neox": transformers("GPTNeoXForCausalLM", tokens(), **ENCODER, listed=True),
    "transformers/gpt-neox-sequential": transformers(
        "GPTNeoXForCausalLM", tokens(), **ENCODER, use_parallel_residual=False, attention="eager"
    ),
    "transformers/gptj": transformers("GPTJForCausalLM", tokens(), **GPT, rotary_dim=4, attention="eager"),
    "transformers/codegen": transformers("CodeGenForCausalLM", tokens(), **GPT, rotary_dim=4, attention="eager"),
    "transformers/llama": transformers("LlamaForCausalLM", tokens(), **DECODER, listed=True),
    "transformers/llama-eager": transformers(
        "LlamaForCausalLM", tokens(masked=True), **DECODER, attention="eager", tie_word_embeddings=True
    ),
    "transformers/llama-classifier": transformers(
        "LlamaForSequenceClassification", tokens(), **DECODER, pad_token_id=0
    ),
    "transformers/mistral": transformers("MistralForCausalLM", tokens(), **DECODER, sliding_window=4, listed=True),
    "transformers/qwen2": transformers("Qwen2ForCausalLM", tokens(), **DECODER, listed=True),
    "transformers/qwen3": transformers("Qwen3ForCausalLM", tokens(), **DECODER, listed=True),
    "transformers/gemma": transformers("GemmaForCausalLM", tokens(), **DECODER, listed=True),
    "transformers/gemma2": transformers(
        "Gemma2ForCausalLM",
        tokens(),
        **DECODER,
        sliding_window=4,
        query_pre_attn_scalar=8,
        attention="eager",
        listed=True,
    ),
    "transformers/gemma3": transformers(
        "Gemma3ForCausalLM", tokens(), **DECODER, sliding_window=4, query_pre_attn_scalar=8, listed=True
    ),
    "transformers/gemma3n": transformers(
        "Gemma3nForCausalLM",
        tokens(),
        **DECODER,
        sliding_window=4,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=12,
        laurel_rank=6,
        altup_num_inputs=2,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.5, 0.0],
    ),
    "transformers/phi": transformers("PhiForCausalLM", tokens(), **ENCODER, listed=True),
    "transformers/phi-qk-norm": transformers(
        "PhiForCausalLM", tokens(), **GROUPED, qk_layernorm=True, attention="eager"
    ),
    "transformers/phi3": transformers("Phi3ForCausalLM", tokens(), **GROUPED, **SPECIAL),
    "transformers/falcon": transformers("FalconForCausalLM", tokens(), **FALCON, listed=True),
    "transformers/falcon-alibi": transformers(
        "FalconForCausalLM",
        tokens(masked=True),
        **FALCON,
        alibi=True,
        bias=True,
        multi_query=False,
        parallel_attn=False,
    ),
    "transformers/falcon-new": transformers(
        "FalconForCausalLM", tokens(), **FALCON, new_decoder_architecture=True, num_kv_heads=2, attention="eager"
    ),
    "transformers/stablelm": transformers(
        "StableLmForCausalLM", tokens(), **GROUPED, qk_layernorm=True, use_qkv_bias=True
    ),
    "transformers/stablelm-parallel": transformers(
        "StableLmForCausalLM", tokens(), **GROUPED, use_parallel_residual=True, attention="eager"
    ),
    "transformers/cohere": transformers("CohereForCausalLM", tokens(), **GROUPED, use_qk_norm=True, **SPECIAL),
    "transformers/cohere2": transformers("Cohere2ForCausalLM", tokens(), **DECODER, sliding_window=4, **SPECIAL),
    "transformers/olmo": transformers("OlmoForCausalLM", tokens(), **GROUPED, clip_qkv=2.0, **SPECIAL),
    "transformers/olmo2": transformers("Olmo2ForCausalLM", tokens(), **GROUPED, **SPECIAL),
    "transformers/olmo3": transformers("Olmo3ForCausalLM", tokens(), **GROUPED, sliding_window=4, **SPECIAL),
    "transformers/granite": transformers(
        "GraniteForCausalLM",
        tokens(),
        **GROUPED,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        logits_scaling=2.0,
    ),
    "transformers/starcoder2": transformers("Starcoder2ForCausalLM", tokens(), **GROUPED, **SPECIAL),
    "transformers/persimmon": transformers("PersimmonForCausalLM", tokens(), **ENCODER, attention="eager"),
    "transformers/nemotron": transformers("NemotronForCausalLM", tokens(), **DECODER, attention="eager"),
    "transformers/glm": transformers("GlmForCausalLM", tokens(), **DECODER, pad_token_id=0, attention="eager"),
    "transformers/glm4": transformers("Glm4ForCausalLM", tokens(), **DECODER, pad_token_id=0),
    "transformers/smollm3": transformers(
        "SmolLM3ForCausalLM", tokens(), **GROUPED, no_rope_layers=[1, 0], pad_token_id=0
    ),
    "transformers/exaone4": transformers("Exaone4ForCausalLM", tokens(), **DECODER, sliding_window=4),
    "transformers/helium": transformers("HeliumForCausalLM", tokens(), **GROUPED, head_dim=8, pad_token_id=0),
    "transformers/apertus": transformers("ApertusForCausalLM", tokens(), **GROUPED, pad_token_id=0),
    "transformers/seed-oss": transformers("SeedOssForCausalLM", tokens(), **DECODER),
    "transformers/diffllama": transformers("DiffLlamaForCausalLM", tokens(), **GROUPED, attention="eager"),
    "transformers/bitnet": transformers("BitNetForCausalLM", tokens(), **GROUPED, pad_token_id=0),
    "transformers/deepseek-v3": transformers(
        "DeepseekV3ForCausalLM",
        tokens(),
        **ENCODER,
        q_lora_rank=18,
        kv_lora_rank=14,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        moe_intermediate_size=20,
        first_k_dense_replace=1,
    ),
    # experts
    "transformers/mixtral": transformers(
        "MixtralForCausalLM", tokens(), **DECODER, num_local_experts=3, num_experts_per_tok=2
    ),
    "transformers/qwen2-moe": transformers(
        "Qwen2MoeForCausalLM", tokens(), **GROUPED, **EXPERTS, shared_expert_intermediate_size=24
    ),
    "transformers/qwen3-moe": transformers("Qwen3MoeForCausalLM", tokens(), **DECODER, **EXPERTS),
    "transformers/olmoe": transformers(
        "OlmoeForCausalLM", tokens(), **GROUPED, num_experts=3, num_experts_per_tok=2, **SPECIAL
    ),
    "transformers/phimoe": transformers(
        "PhimoeForCausalLM", tokens(), **GROUPED, num_local_experts=3, num_experts_per_tok=2
    ),
    "transformers/granite-moe": transformers(
        "GraniteMoeForCausalLM", tokens(), **GROUPED, num_local_experts=3, num_experts_per_tok=2
    ),
    "transformers/gpt-oss": transformers(
        "GptOssForCausalLM",
        tokens(),
        **DECODER,
        num_local_experts=3,
        num_experts_per_tok=2,
        sliding_window=4,
        pad_token_id=0,
        attention="eager",
    ),
    # state spaces and recurrences
    "transformers/mamba": transformers(
        "MambaForCausalLM", tokens(), **MAMBA, hidden_size=24, time_step_rank=3, attention="eager", listed=True
    ),
    "transformers/mamba2": transformers(
        "Mamba2ForCausalLM",
        tokens(),
        **MAMBA,
        hidden_size=32,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
        attention="eager",
    ),
    "transformers/falcon-mamba": transformers(
        "FalconMambaForCausalLM", tokens(), **MAMBA, hidden_size=24, time_step_rank=3, attention="eager"
    ),
    "transformers/rwkv": transformers(
        "RwkvForCausalLM",
        tokens(),
        vocab_size=VOCABULARY,
        hidden_size=32,
        attention_hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=2,
        context_length=24,
        attention="eager",
    ),
    "transformers/recurrent-gemma": transformers(
        "RecurrentGemmaForCausalLM",
        tokens(),
        **{**GROUPED, "num_hidden_layers": 3},
        lru_width=32,
        attention_window_size=4,
        conv1d_width=3,
        logits_soft_cap=5.0,
    ),
    "transformers/jamba": transformers(
        "JambaForCausalLM",
        tokens(),
        **GROUPED,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=3,
        num_experts_per_tok=2,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_expand=2,
        mamba_dt_rank=3,
        use_mamba_kernels=False,
        pad_token_id=0,
    ),
    "transformers/bamba": transformers(
        "BambaForCausalLM",
        tokens(),
        **GROUPED,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_n_groups=1,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_chunk_size=4,
        pad_token_id=0,
    ),
    "transformers/qwen3-next": transformers(
        "Qwen3NextForCausalLM",
        tokens(),
        **DECODER,
        **EXPERTS,
        shared_expert_intermediate_size=24,
        linear_key_head_dim=6,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_conv_kernel_dim=3,
        layer_types=["linear_attention", "full_attention"],
    ),
    "transformers/lfm2": transformers(
        "Lfm2ForCausalLM",
        tokens(),
        **GROUPED,
        layer_types=["conv", "full_attention"],
        conv_L_cache=3,
        block_multiple_of=4,
    ),
    "transformers/xlstm": transformers(
        "xLSTMForCausalLM",
        tokens(),
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=4,
        chunk_size=4,
        attention="eager",
    ),
}
