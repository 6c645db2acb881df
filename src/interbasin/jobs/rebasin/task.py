"""What a method of re-basin is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from interbasin.fit.matching import FreeSpace
from interbasin.maps import Map
from interbasin.wiring.wiring import Wiring


@dataclass(frozen=True)
class Options:
    """How thorough a method is. Each method reads the ones that concern it; `rebasin` explains them."""

    restarts: int = 1
    sweeps: int = 100
    tolerance: float = 1e-6
    centered: bool = True
    epochs: int = 5
    rate: float = 1e-3  # learning rate of the straight-through method


@dataclass(frozen=True)
class Task:
    """Two networks of one wiring, and what else a method may look at."""

    source: nn.Module  # the network to move
    target: nn.Module  # the network to come close to
    wiring: Wiring  # of both
    free: tuple[FreeSpace, ...]  # the spaces whose maps are sought, each with the group to seek in
    data: Any = None  # batches, for methods that need them
    loss: Callable[[Any, Any], Tensor] | None = None  # of outputs and labels; None for cross-entropy
    seed: int = 0  # of all that is drawn at random
    options: Options = field(default_factory=Options)
    report: Callable[[str], object] = field(default=lambda text: None)  # called with a line of text on the way


@dataclass(frozen=True)
class Match:
    """The maps that a method found."""

    maps: Mapping[str, Map]  # by space
    objective: float  # what the method minimises, at the end
    path: tuple[float, ...] = ()  # the objective on the way, the first before anything moved
    converged: bool = True  # whether the method stopped by itself, before its limit
    runs: tuple[float, ...] = ()  # the objective of every run, where there were several
    notes: tuple[str, ...] = ()  # what a user should know: spaces that were not seen, limits that were met
