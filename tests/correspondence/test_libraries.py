"""Networks of transformers and timm, built small from configurations and matched by role."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from interbasin.correspondence import Correspondence
from interbasin.extras import import_extra
from interbasin.wiring import Wiring, wire

pytestmark = pytest.mark.slow
TOKENS = torch.arange(18).reshape(2, 9)
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXT = {"vocab_size": 60, "max_position_embeddings": 64}


def build(
    name: str, width: int = 32, heads: int = 4, depth: int = 3, **options: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """A network and its inputs."""
    timm = import_extra("timm", "This test", "timm")
    transformers = import_extra("transformers", "This test", "hf")
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": depth}
    if name == "timm":
        vit = timm.models.vision_transformer.VisionTransformer
        options = {"mlp_ratio": 2.0, **options}
        model = vit(img_size=32, patch_size=8, embed_dim=width, depth=depth, num_heads=heads, num_classes=10, **options)
        return model.eval(), {"x": IMAGES}
    if name.startswith("resnet"):
        return timm.create_model(name, num_classes=10).eval(), {"x": IMAGES}
    inputs: dict[str, Any] = {"input_ids": TOKENS}
    if name == "ViTForImageClassification":
        inputs, options = {"pixel_values": IMAGES}, {"image_size": 32, "patch_size": 8, "num_labels": 10, **options}
    elif name.startswith("GPT2"):
        sizes = {"n_embd": width, "n_head": heads, "n_layer": depth}
        options = {"vocab_size": 60, "n_positions": 64, **options}
    elif name.startswith("T5"):
        sizes = {"d_model": width, "d_kv": width // heads, "num_heads": heads, "num_layers": depth}
        options = {"vocab_size": 60, "d_ff": 2 * width, **options}
        inputs = {"input_ids": TOKENS, "decoder_input_ids": TOKENS}
    else:
        options = {**TEXT, **options}
    if name.startswith(("Bert", "Roberta", "ViT", "Llama", "Phi3", "Qwen3")):
        sizes["intermediate_size"] = 2 * width
    if "LM" in name or "Generation" in name:
        inputs["use_cache"] = False
    config = name.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    model = getattr(transformers, name)(getattr(transformers, f"{config}Config")(**sizes, **options))
    return model.eval(), inputs


def wired(name: str, *sizes: int, **options: Any) -> Wiring:
    return wire(*build(name, *sizes, **options))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (("ViTForImageClassification", {}), ("timm", {})),
        (
            ("LlamaForCausalLM", {"num_key_value_heads": 2, "rms_norm_eps": 1e-5}),
            ("Phi3ForCausalLM", {"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "pad_token_id": 0}),
        ),
    ],
    ids=["from transformers to timm", "into fused projections"],
)
def test_one_network_computes_what_another_does_with_the_weights_of_their_partners(
    source: tuple[str, dict[str, Any]], target: tuple[str, dict[str, Any]]
) -> None:
    (ours, inputs), (theirs, other_inputs) = (build(name, **options) for name, options in (source, target))
    with torch.no_grad():
        for parameter in ours.parameters():  # biases and gains that are neither zero nor one
            parameter.add_(0.1 * torch.randn_like(parameter))
    found = Correspondence.by_role(wire(ours, inputs), wire(theirs, other_inputs))
    assert not found.unmatched_source and not found.unmatched_target
    tensors = theirs.state_dict()
    for pair in found.tensors:
        tensors[pair.target] = pair.paste(tensors[pair.target], pair.cut(ours.state_dict()[pair.source]))
    theirs.load_state_dict(tensors)
    logits = [getattr(outputs, "logits", outputs) for outputs in (ours(**inputs), theirs(**other_inputs))]
    assert torch.allclose(*logits, rtol=1e-4, atol=1e-4)


EXPECTED = {
    "bert to roberta": (
        (("BertModel", 32, 4, 3), ("RobertaModel", 48, 6, 4)),
        {
            "embeddings.token_type_embeddings.weight": ["embeddings.token_type_embeddings.weight"],
            "encoder.layer.1.attention.self.query.bias": [
                f"encoder.layer.{layer}.attention.self.query.bias" for layer in (1, 2)
            ],
            "encoder.layer.2.output.dense.weight": ["encoder.layer.3.output.dense.weight"],
            "pooler.dense.weight": ["pooler.dense.weight"],
        },
        set(),
    ),
    "bert to gpt2": (
        (("BertModel", 32, 4, 3), ("GPT2LMHeadModel", 48, 6, 5)),
        {
            "embeddings.word_embeddings.weight": ["transformer.wte.weight"],
            "embeddings.position_embeddings.weight": ["transformer.wpe.weight"],
            "encoder.layer.0.attention.self.key.weight": [
                f"transformer.h.{layer}.attn.c_attn.weight[:, 48:96]" for layer in (0, 1)
            ],
            "encoder.layer.1.attention.output.dense.weight": ["transformer.h.2.attn.c_proj.weight"],
            "encoder.layer.1.intermediate.dense.bias": ["transformer.h.2.mlp.c_fc.bias"],
            "encoder.layer.1.output.LayerNorm.weight": ["transformer.h.2.ln_2.weight"],
        },
        {"output.2", "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm.weight"}
        | {"embeddings.LayerNorm.bias", "pooler.dense.weight", "pooler.dense.bias"},
    ),
    "gpt2 to llama": (
        (("GPT2LMHeadModel", 32, 4, 2), ("LlamaForCausalLM", 48, 6, 2, {"num_key_value_heads": 2})),
        {
            "transformer.h.0.attn.c_attn.weight[:, 0:32]": ["model.layers.0.self_attn.q_proj.weight"],
            "transformer.h.0.attn.c_attn.weight[:, 32:64]": ["model.layers.0.self_attn.k_proj.weight"],
            "transformer.h.0.attn.c_attn.weight[:, 64:96]": ["model.layers.0.self_attn.v_proj.weight"],
            "transformer.h.1.mlp.c_proj.weight": ["model.layers.1.mlp.down_proj.weight"],
            "transformer.h.1.ln_2.weight": ["model.layers.1.post_attention_layernorm.weight"],
            "transformer.ln_f.weight": ["model.norm.weight"],
            "lm_head.weight": ["lm_head.weight"],
        },
        {"transformer.wpe.weight", "transformer.ln_f.bias"}
        | {
            f"transformer.h.{layer}.{module}.bias"
            for layer in range(2)
            for module in ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        },
    ),
    "llama to qwen3": (
        (("LlamaForCausalLM", 32, 4, 2), ("Qwen3ForCausalLM", 32, 4, 2, {"num_key_value_heads": 2, "head_dim": 8})),
        {
            f"model.layers.1.{module}.weight": [f"model.layers.1.{module}.weight"]
            for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "input_layernorm")
        },
        {f"model.layers.{layer}.self_attn.q_proj.heads.2" for layer in range(2)},  # the angles of the rotary positions
    ),
    "vit to a deeper one of timm": (
        (("ViTForImageClassification", 32, 4, 2), ("timm", 48, 6, 3)),
        {
            "vit.embeddings.cls_token": ["cls_token"],
            "vit.embeddings.position_embeddings": ["pos_embed"],
            "vit.layers.1.attention.v_proj.weight": [f"blocks.{block}.attn.qkv.weight[96:144]" for block in (1, 2)],
            "vit.layers.0.layernorm_after.bias": ["blocks.0.norm2.bias"],
            "classifier.weight": ["head.weight"],
        },
        set(),
    ),
    "t5 to gated t5": (
        (
            ("T5ForConditionalGeneration", 32, 4, 2),
            ("T5ForConditionalGeneration", 48, 6, 2, {"feed_forward_proj": "gated-gelu"}),
        ),
        {
            "decoder.block.1.layer.1.EncDecAttention.q.weight": ["decoder.block.1.layer.1.EncDecAttention.q.weight"],
            "encoder.block.1.layer.1.DenseReluDense.wi.weight": ["encoder.block.1.layer.1.DenseReluDense.wi_0.weight"],
            "encoder.final_layer_norm.weight": ["encoder.final_layer_norm.weight"],
        },
        set(),
    ),
    "resnet18 to resnet34": (
        (("resnet18",), ("resnet34",)),
        {
            "layer2.0.downsample.0.weight": ["layer2.0.downsample.0.weight"],
            "layer2.1.conv2.weight": [f"layer2.{block}.conv2.weight" for block in (1, 2, 3)],
            "layer4.0.bn1.running_var": ["layer4.0.bn1.running_var"],
        },
        set(),
    ),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_families_correspond_as_their_users_would_say(case: str) -> None:
    networks, expected, unmatched = EXPECTED[case]
    wirings = [
        wired(*(size for size in network if not isinstance(size, dict)), **(network[4] if len(network) > 4 else {}))
        for network in networks
    ]
    found = Correspondence.by_role(*wirings)
    pairs: dict[str, list[str]] = {}
    for pair in found.tensors:
        pairs.setdefault(str(pair.parts[0]), []).append(str(pair.parts[1]))
    assert {name: pairs.get(name) for name in expected} == expected
    assert {str(one.part) for one in found.unmatched_source} == unmatched
    assert found.inverse().inverse() == found
    assert Correspondence.by_role(wirings[0], wirings[0]) == Correspondence.identity(wirings[0])
