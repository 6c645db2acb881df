"""What a method of re-basin is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.jobs.rebasin.pieces import Piece, cut
from interbasin.jobs.rebasin.problem import Problem, Unknown
from interbasin.maps import Map
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.wiring import Wiring

__all__ = ["Matched", "Options", "Task"]

Report = Callable[[str], object]


@dataclass(frozen=True)
class Options:
    """How thorough a method is. Each reads the ones that concern it.

    Attributes:
        reach: Which maps are sought; see `interbasin.jobs.rebasin.reach`.
        restarts: Runs in all, from different starts; the best is kept.
        sweeps: Sweeps over all spaces at most, and steps of a descent in tens.
        tolerance: A sweep that gains less than this share of the objective is the last.
        centered: Whether activations are taken about their means.
        epochs: Passes over the data of the straight-through method.
        rate: Its learning rate.
    """

    reach: str = "auto"
    restarts: int = 1
    sweeps: int = 100
    tolerance: float = 1e-6
    centered: bool = True
    epochs: int = 5
    rate: float = 1e-3


@dataclass(frozen=True)
class Task:
    """Two networks of one wiring, and what else a method may look at."""

    source: nn.Module
    target: nn.Module
    wiring: Wiring
    data: Any = None
    labelled: bool = False
    loss: Callable[[Any, Any], Tensor] | None = None
    seed: int = 0
    options: Options = field(default_factory=Options)
    report: Report | None = None

    def problem(self, unknowns: list[Unknown]) -> Problem:
        """The match of the networks' parameters as pieces."""
        source, target = (dict(network.named_parameters()) for network in (self.source, self.target))
        names = [name for name in self.wiring.tensors if name in source]
        movable = {unknown.name for unknown in unknowns}
        # Entries that only change places lose nothing in single precision.
        moves = all(unknown.kind in (Group.PERMUTATION, Group.SIGNED) for unknown in unknowns)
        dtype = torch.float32 if moves else torch.float64
        return self.posed(cut(self.wiring, source, target, names, movable, dtype), unknowns)

    def posed(self, pieces: list[Piece], unknowns: list[Unknown]) -> Problem:
        sizes = {name: space.size for name, space in self.wiring.spaces.items()}
        return Problem(pieces, unknowns, sizes)

    def tell(self, text: str) -> None:
        if self.report is not None:
            self.report(text)


@dataclass(frozen=True)
class Matched:
    """The maps that a method found.

    Attributes:
        maps: By space.
        objective: What was made small, at the end.
        path: The same on the way there.
        converged: Whether it came to rest.
        runs: The objective of every run, where there were several.
        notes: What a user should know: spaces that were not seen, limits that were met.
    """

    maps: Mapping[str, Map]
    objective: float
    path: tuple[float, ...] = ()
    converged: bool = True
    runs: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
