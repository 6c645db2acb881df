"""Which architectures of the zoo `make test` runs; the others are slow tests, which `make check` runs.

Those of plain torch are wired in a fifth of a second each, and all run. Beside them run one network for every family of
operators that they do not meet (a folder of `wiring` has a file for each), and those that people use most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

# For each family of operators, a network that meets it.
FAMILIES = {
    "attention": "torch/attention",
    "contraction": "torch/mlp-linear",
    "convolution": "torch/lenet",
    "creation": "torch/lstm",
    "elementwise": "torch/mlp-relu",
    "indexing": "torch/tied",
    "layout": "torch/grouped",
    "norm": "torch/mlp-batch-norm",
    "recurrent": "torch/gru",
    "reduction": "torch/film",
    "scattering": "transformers/phimoe",
    "slicing": "torch/gated",
    "spectra": "transformers/fnet",
}
# Residual networks, vision transformers (windows; pooled queries), an encoder, decoders (with rotary positions), both,
# a state space and sound.
OFTEN_USED = {
    "timm/resnet",
    "timm/vit",
    "timm/volo",
    "timm/hieradet",
    "transformers/bert",
    "transformers/gpt2",
    "transformers/llama",
    "transformers/gptj",
    "transformers/t5",
    "transformers/mamba",
    "transformers/sew-d",
}


def is_ordinary(name: str) -> bool:
    return name.startswith("torch/") or name in OFTEN_USED or name in FAMILIES.values()


def parameters(names: Iterable[str]) -> list[Any]:
    """``names`` for `pytest.mark.parametrize`, those that `make test` leaves out marked as slow."""
    return [pytest.param(name, marks=[] if is_ordinary(name) else [pytest.mark.slow]) for name in names]
