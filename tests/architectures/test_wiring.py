"""Every architecture of the zoo is wired, nearly all of it, and exactly.

In the ordinary run these are the architectures that must be wired and a varied selection of the others, about a minute
and a half on one core. All 322 take some ten minutes::

    INTERBASIN_ALL_ARCHITECTURES=1 pytest tests/architectures/test_wiring.py

The bars: of what could move at least nine tenths do; carried through random exact maps, outputs change by less than
1e-4 in float32 and 1e-10 in float64. What misses a bar stands in `shortfalls`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.shortfalls import SHORTFALLS
from tests.architectures.zoo import ARCHITECTURES
from torch import Tensor

from interbasin.errors import WiringError
from interbasin.wiring import wire

# Warnings that networks of other packages raise while they are made, traced and run are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

COVERAGE, SINGLE, DOUBLE = 0.9, 1e-4, 1e-10
# Round-off near the bar differs from machine to machine: this far below it an entry still counts as short of it.
NEAR = 0.2

# Beside the listed ones: one of each kind of structure, of those that take little time.
SELECTED = {
    "torch/mlp-relu",
    "torch/mlp-tanh",
    "torch/mlp-linear",
    "torch/mlp-rms-norm",
    "torch/mlp-batch-norm",
    "torch/tied",
    "torch/gated",
    "torch/unet",
    "torch/attention",
    "torch/attention-other-width",
    "torch/grouped",
    "torch/two-towers",
    "torch/film",
    "torch/folding",
    "torch/video",
    "torch/super-resolution",
    "torch/weight-norm",
    "torch/spectral-norm",
    "torch/bilinear",
    "torch/encoder-pre-norm",
    "torch/lstm",
    "torch/lstm-bidirectional",
    "torch/gru",
    "torch/rnn",
    "torchvision/densenet",
    "torchvision/shufflenet",
    "timm/convmixer",
    "timm/gmlp",
    "timm/vit-parallel",
    "timm/resnext",
    "timm/xcit",
    "timm/hiera",
    "timm/sequencer",
    "timm/focalnet",
    "transformers/gpt-bigcode",
    "transformers/mpt",
    "transformers/fnet",
    "transformers/ctrl",
    "timm/beit",
    "timm/resnet-blur",
    "transformers/gptj",
    "transformers/stablelm",
    "transformers/mixtral",
    "transformers/xlnet",
    "transformers/bloom",
    "transformers/roformer",
    "transformers/glm",
    "transformers/mobilebert",
    "transformers/modernbert",
    "transformers/segformer",
}

ALL = os.environ.get("INTERBASIN_ALL_ARCHITECTURES") == "1"
TRACEABLE = [name for name, one in ARCHITECTURES.items() if one.traceable]
ORDINARY = [name for name in TRACEABLE if ARCHITECTURES[name].listed or name in SELECTED]
REST = [pytest.param(name, marks=pytest.mark.slow) for name in TRACEABLE if name not in ORDINARY]


@dataclass(frozen=True)
class Figures:
    coverage: float
    single: float
    double: float


def in_double(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: in_double(part) for name, part in inputs.items()}
    return tuple(in_double(part) for part in inputs)


def measured(name: str) -> Figures:
    network, inputs = ARCHITECTURES[name](0)
    randomise(network, 0, inputs)
    wiring = wire(network, inputs)
    single = wiring.check(network, inputs)
    return Figures(wiring.coverage, single, wiring.check(network.double(), in_double(inputs)))


@pytest.mark.parametrize("name", [*ORDINARY, *(REST if ALL else [])])
def test_an_architecture_is_wired_exactly_and_nearly_all_of_it(name: str) -> None:
    figures = measured(name)
    known = SHORTFALLS.get(name)
    short = known.figure if known else ""
    assert figures.coverage >= COVERAGE if short != "coverage" else figures.coverage < COVERAGE
    assert figures.single < SINGLE if short != "single" else NEAR * SINGLE < figures.single < 10 * SINGLE
    assert figures.double < DOUBLE if short != "double" else figures.double > NEAR * DOUBLE


def test_the_table_of_shortfalls_names_architectures_and_figures_that_exist() -> None:
    for name, shortfall in SHORTFALLS.items():
        assert name in TRACEABLE
        assert shortfall.figure in Figures.__dataclass_fields__
        assert shortfall.reason


def test_the_selection_names_architectures_that_exist() -> None:
    assert set(TRACEABLE) >= SELECTED
    assert len(ORDINARY) >= 75


@pytest.mark.parametrize("name", [name for name, one in ARCHITECTURES.items() if not one.traceable])
def test_an_architecture_that_cannot_be_traced_is_refused_with_the_line(name: str) -> None:
    network, inputs = ARCHITECTURES[name](0)
    with pytest.raises(WiringError, match=r"cannot be traced.* at modeling_\w+\.py:\d+ \(.+\)"), torch.no_grad():
        wire(network, inputs)
