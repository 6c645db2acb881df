"""Which architectures of the zoo `make test` runs; the others are slow tests, which `make check` runs.

Those of plain torch are wired in a fifth of a second each, and all run. Beside them run one network for every family of
operators that they do not meet (a folder of `wiring` has a file for each), and those that people use most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

# For each family of operators, the networks that meet operators of it.
FAMILIES = {
    "contraction": {"linear": "torch/mlp-linear", "scaled_dot_product_attention": "torch/attention"},
    "convolution": {"conv2d": "torch/lenet", "fft_fftn": "transformers/fnet"},
    "elementwise": {"relu": "torch/mlp-relu"},
    "indexing": {"embedding": "torch/tied", "scatter": "transformers/phimoe"},
    "layout": {"channel_shuffle": "torch/grouped", "zeros": "torch/lstm"},
    "recurrent": {"gru": "torch/gru", "lstm": "torch/lstm"},
    "reduction": {"amax": "torch/film", "batch_norm": "torch/mlp-batch-norm"},
    "slicing": {"chunk": "torch/gated"},
}
FAMILY_NETWORKS = frozenset(network for networks in FAMILIES.values() for network in networks.values())
# A residual network, a vision transformer, an encoder, decoders (with rotary positions), and both.
OFTEN_USED = {
    "timm/resnet",
    "timm/vit",
    "transformers/bert",
    "transformers/gpt2",
    "transformers/llama",
    "transformers/t5",
}


def is_ordinary(name: str) -> bool:
    return name.startswith("torch/") or name in OFTEN_USED or name in FAMILY_NETWORKS


def parameters(names: Iterable[str]) -> list[Any]:
    """``names`` for `pytest.mark.parametrize`, those that `make test` leaves out marked as slow."""
    return [pytest.param(name, marks=[] if is_ordinary(name) else [pytest.mark.slow]) for name in names]
