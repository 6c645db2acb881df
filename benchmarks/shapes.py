"""The networks that weight matching is measured on: their shapes, random weights for all of them, and quick training.

A fresh network hides what matching needs: its biases are zero and its gains one. So everything that is learned gets a
value of its own (`tests/architectures/randomise.py`). The trained ones are trained as they come, on the embedded digits
or on a made-up language in which each token allows four to follow it.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from interbasin.datasets.digits import load_digits  # isort: skip
from interbasin.extras import import_extra  # isort: skip
from tests.architectures.randomise import randomise  # isort: skip

VOCABULARY, CONTEXT = 256, 64
WIDTH, LAYERS, HEADS, KEY_VALUE_HEADS = 192, 4, 6, 2

torchvision = import_extra("torchvision", "A network of torchvision", "timm")
transformers = import_extra("transformers", "A network of transformers", "hf")
transformers.logging.set_verbosity_error()


def perceptron(hidden: int = 512, layers: int = 3) -> nn.Module:
    widths = [64, *[hidden] * layers]
    made: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        made += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(hidden, 10))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    network: nn.Module = transformers.GPT2LMHeadModel(config)
    return network


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        use_cache=False,
    )
    network: nn.Module = transformers.LlamaForCausalLM(config)
    return network


def resnet18() -> nn.Module:
    network: nn.Module = torchvision.models.resnet18()
    return network


def _rows(generator: torch.Generator) -> Tensor:
    return torch.randn(16, 64, generator=generator)


def _tokens(generator: torch.Generator) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(VOCABULARY, (2, 24), generator=generator)}


def _images(generator: torch.Generator) -> Tensor:
    return torch.randn(2, 3, 64, 64, generator=generator)


@dataclass(frozen=True)
class Shape:
    name: str
    build: Callable[[], nn.Module]
    draw_inputs: Callable[[torch.Generator], Any]

    def inputs(self, seed: int = 0) -> Any:
        return self.draw_inputs(torch.Generator().manual_seed(seed))

    def random(self, seed: int) -> nn.Module:
        """A network in which everything has a random value: weights, gains, biases and running statistics."""
        torch.manual_seed(seed)
        return randomise(self.build().eval(), seed, self.inputs()).eval()


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("MLP 3x512", perceptron, _rows),
        Shape("GPT-2", gpt2, _tokens),
        Shape("Llama", llama, _tokens),
        Shape("ResNet-18", resnet18, _images),
    )
}


def output(network: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        made = network(**inputs) if isinstance(inputs, dict) else network(inputs)
    return made if isinstance(made, Tensor) else made.logits


# ---------------------------------------------------------------------- trained ones

_embedded = functools.cache(load_digits)


def trained(name: str, seed: int, steps: int) -> tuple[nn.Module, float]:
    """A network trained from its own initialisation, and its loss at the end."""
    torch.manual_seed(seed)
    network = SHAPES[name].build().train()
    generator = torch.Generator().manual_seed(seed)
    draw = _digits if name.startswith("MLP") else _language
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3)
    loss = torch.tensor(float("nan"))
    for _ in range(steps):
        inputs, labels = draw(generator)
        made = network(**inputs) if isinstance(inputs, dict) else network(inputs)
        logits = made if isinstance(made, Tensor) else made.logits[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval(), float(loss.detach())


def _digits(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    digits = _embedded()
    chosen = torch.randint(len(digits.train_labels), (64,), generator=generator)
    return digits.train_images[chosen].flatten(1), digits.train_labels[chosen]


def _language(generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Each token is one of four that the one before it allows."""
    tokens = torch.randint(VOCABULARY, (16, 32), generator=generator)
    for place in range(1, 32):
        choice = torch.randint(4, (16,), generator=generator)
        tokens[:, place] = (31 * tokens[:, place - 1] + 7 * choice) % VOCABULARY
    return {"input_ids": tokens}, tokens[:, 1:].flatten()
