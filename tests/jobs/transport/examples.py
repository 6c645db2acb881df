"""Small networks to fine-tune, and LoRAs of PEFT on them, whose numbers are drawn."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tests.laws.strategies import gaussian, generator
from torch import Tensor, nn

from interbasin.extras import import_extra

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
PARTS = ("up", "down", "square")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 8)
        self.up, self.down, self.square = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.conv = nn.Conv2d(8, 6, (1, 3), padding=(0, 1))
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = self.norm(x + self.square(self.down(torch.relu(self.up(x)))))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.head(self.conv(x.mT[:, :, None])[:, :, 0].mT)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mid, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.table(ids))))


def small() -> Small:
    return Small().double().eval()


def tokens() -> Tensor:
    return torch.randint(0, 9, (2, 5), generator=generator(0))


def randomise(network: nn.Module, scale: float = 1.0) -> nn.Module:
    """Another network like this one: every parameter moved."""
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for place, parameter in enumerate(moved.parameters()):
            parameter += scale * gaussian(place, *parameter.shape).to(parameter)
    return moved


def adapted(base: nn.Module, **settings: Any) -> Any:
    """``base`` with a LoRA of PEFT, whose numbers are drawn."""
    peft = import_extra("peft", "This test", "hf")
    settings = {"r": 2, "lora_alpha": 3, "target_modules": [*PARTS], **settings}
    dtype = next(base.parameters()).dtype
    network = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**settings)).to(dtype).eval()
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if tensor.requires_grad and not name.endswith("in_proj_bias"):  # which PEFT trains, and does not save
                tensor.copy_(0.3 * gaussian(len(name), *tensor.shape))
    return network


def transformers_base(family: str) -> tuple[nn.Module, dict[str, Any]]:
    transformers = import_extra("transformers", "This test", "hf")
    torch.manual_seed(0)
    if family == "llama":
        config = transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=11,
            max_position_embeddings=16,
        )
        settings = {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head", "norm"]}
        return transformers.LlamaForCausalLM(config).eval(), settings
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=16)
        settings = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "bias": "all"}
        return transformers.GPT2LMHeadModel(config).eval(), settings
    config = transformers.BertConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=11,
        max_position_embeddings=16,
    )
    settings = {"target_modules": ["query", "word_embeddings", "dense"], "modules_to_save": ["classifier"]}
    return transformers.BertForSequenceClassification(config).eval(), settings | {"bias": "lora_only"}


class Stem(nn.Module):
    """Tensors that belong to a module with layers in it, as those of a vision transformer do."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Linear(4, 6), nn.Parameter(torch.zeros(6))
        self.list = nn.ParameterList([nn.Parameter(torch.zeros(6))])

    def forward(self, x: Tensor) -> Tensor:
        return self.patch(x) + self.token + self.list[0]


class _Named(nn.Module):
    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, module in parts.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


def stemmed() -> nn.Module:
    torch.manual_seed(0)
    parts = {"stem": Stem(), "mid": nn.Linear(6, 6), "overstem": nn.Linear(6, 6), "norm": nn.LayerNorm(6)}
    return _Named(parts).double().eval()


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fc = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale
