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
    """Two networks of one wiring, and what else a method may look at.

    Attributes:
        source: The network to move.
        target: The network to come close to.
        wiring: Of both.
        free: The spaces whose maps are sought, each with the group to seek in.
        data: Batches, for methods that need them.
        loss: Of outputs and labels; None for cross-entropy.
        seed: Of all that is drawn at random.
        options: How thorough to be.
        report: Called with a line of text as the work goes on.
    """

    source: nn.Module
    target: nn.Module
    wiring: Wiring
    free: tuple[FreeSpace, ...]
    data: Any = None
    loss: Callable[[Any, Any], Tensor] | None = None
    seed: int = 0
    options: Options = field(default_factory=Options)
    report: Callable[[str], object] = field(default=lambda text: None)


@dataclass(frozen=True)
class Match:
    """The maps that a method found.

    Attributes:
        maps: By space.
        objective: What the method minimises, at the end.
        path: The objective on the way, the first before anything moved.
        converged: Whether the method stopped by itself, before its limit.
        runs: The objective of every run, where there were several.
        notes: What a user should know: spaces that were not seen, limits that were met.
    """

    maps: Mapping[str, Map]
    objective: float
    path: tuple[float, ...] = ()
    converged: bool = True
    runs: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
