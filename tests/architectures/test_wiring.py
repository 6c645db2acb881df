"""Every architecture of the zoo is wired, nearly all of it, and exactly.

`selection` says which of them `make test` runs, in some twenty seconds on one core; all 322 take about five minutes,
and `make check` runs them.

The bars: of what could move at least nine tenths do; carried through random exact maps, outputs change by less than
1e-4 in float32 and 1e-10 in float64. What misses a bar stands in `shortfalls`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.selection import FAMILIES, FAMILY_NETWORKS, OFTEN_USED, parameters
from tests.architectures.shortfalls import SHORTFALLS
from tests.architectures.zoo import ARCHITECTURES
from torch import Tensor

from interbasin.errors import WiringError
from interbasin.wiring import interpret, operators, wire

# Warnings that networks of other packages raise while they are made, traced and run are not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

COVERAGE, SINGLE, DOUBLE = 0.9, 1e-4, 1e-10
# Round-off near the bar differs from machine to machine: this far below it an entry still counts as short of it.
NEAR = 0.2

TRACEABLE = [name for name, architecture in ARCHITECTURES.items() if architecture.traceable]
UNTRACEABLE = [name for name in ARCHITECTURES if name not in TRACEABLE]


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


@pytest.mark.parametrize("name", parameters(TRACEABLE))
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
    assert set(TRACEABLE) >= OFTEN_USED | FAMILY_NETWORKS
    assert set(FAMILIES) == set(operators.__all__)


@pytest.mark.parametrize(
    ("family", "operator"), [(family, operator) for family, networks in FAMILIES.items() for operator in networks]
)
def test_every_family_of_operators_is_met_by_the_networks_that_stand_for_it(
    family: str, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: set[str] = set()

    class Rules(dict[str, interpret.Entry]):
        def get(self, name: str, default: Any = None) -> Any:
            met.add(name)
            return super().get(name, default)

    monkeypatch.setattr(interpret, "RULES", Rules(interpret.RULES))
    wire(*ARCHITECTURES[FAMILIES[family][operator]](0))
    assert operator in met
    assert interpret.RULES[operator].apply.__module__ == f"{operators.__name__}.{family}"


@pytest.mark.parametrize("name", parameters(UNTRACEABLE))
def test_an_architecture_that_cannot_be_traced_is_refused_with_the_line(name: str) -> None:
    network, inputs = ARCHITECTURES[name](0)
    with pytest.raises(WiringError, match=r"cannot be traced.* at modeling_\w+\.py:\d+ \(.+\)"), torch.no_grad():
        wire(network, inputs)
