r"""Many networks in common coordinates.

To one *reference*, each network is aligned by itself. To a shared *universe*, each is aligned to the mean of the others
as they stand, in turn, until nothing changes: generalised Procrustes for orthogonal maps, and what Git Re-Basin calls
merging many models for permutations [ainsworth:23, section 5.2]. Every network then has one map, to the universe; the
way from one to another is there and back, so that any cycle of them is the identity by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, UnknownNameError, WiringError
from interbasin.jobs.rebasin.comparing import common_wiring, require_same_tensors
from interbasin.jobs.rebasin.descent import start, sweep_until_still
from interbasin.jobs.rebasin.numbers import require_counts, require_sizes
from interbasin.jobs.rebasin.problem import Unknown
from interbasin.jobs.rebasin.reach import kept_exact, nothing_moves, unknowns
from interbasin.jobs.rebasin.task import Options, Task
from interbasin.randomness import generator_of
from interbasin.text import plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry
from interbasin.wiring.trace.copying import copied
from interbasin.wiring.wiring import Wiring

__all__ = ["Together", "rebasin_many"]

METHODS = ("permutation-weights", "procrustes-weights")


@dataclass(frozen=True)
class Together:
    """Many networks in common coordinates.

    Attributes:
        models: The networks, each carried.
        alignments: Their maps to the common coordinates.
        spread: Squared distance of the models to their mean, after each round; the first before anything moved.
        converged: Whether it came to rest.
        reference: Which network's coordinates they are; None for the universe.
        notes: What a user should know.
    """

    models: tuple[nn.Module, ...]
    alignments: tuple[Alignment, ...]
    spread: tuple[float, ...]
    converged: bool
    reference: int | None
    notes: tuple[str, ...] = ()

    def between(self, source: int, target: int) -> Alignment:
        """The maps from one network to another, through the common coordinates."""
        return self.alignments[target].inverse() @ self.alignments[source]

    @property
    def metrics(self) -> dict[str, float]:
        """``spread_before``, ``spread_after``, ``exact`` (whether all compute what they did), ``converged``."""
        return {
            "spread_before": self.spread[0],
            "spread_after": self.spread[-1],
            "exact": float(all(one.is_exact for one in self.alignments)),
            "converged": float(self.converged),
        }

    def __repr__(self) -> str:
        kind = "exact" if self.metrics["exact"] else "approximate"
        where = "their universe" if self.reference is None else f"the coordinates of network {self.reference}"
        figures = f"spread_before={self.spread[0]:.4g}, spread_after={self.spread[-1]:.4g}"
        notes = f", {plural(len(self.notes), 'note')}" if self.notes else ""
        network = type(self.models[0]).__name__
        return f"Together({len(self.models)} x {network} in {where}, {kind}, {figures}{notes})"


def rebasin_many(
    networks: Sequence[nn.Module],
    inputs: Any,
    method: str = "permutation-weights",
    reference: int | None = None,
    seed: int = 0,
    *,
    reach: str = "auto",
    rounds: int = 50,
    sweeps: int = 100,
    tolerance: float = 1e-6,
    progress: Callable[[str], object] | None = None,
) -> Together:
    """Put two or more networks into common coordinates.

    Args:
        networks: Of one architecture. They stay as they are.
        inputs: One batch to trace with.
        method: ``"permutation-weights"`` (exact maps) or ``"procrustes-weights"`` (orthogonal ones).
        reference: Align each to this one; by default all to a shared universe.
        seed: Of all that is drawn at random.
        reach: As in `rebasin`.
        rounds: Rounds over all networks at most.
        sweeps: Sweeps over all spaces at most, for each network in each round.
        tolerance: A round that gains less than this share of the spread is the last.
        progress: Called with a line of text as the work goes on.

    Raises:
        WiringError, ShapeError: if they are not of one architecture.
        DataError: if there are fewer than two, no such reference, or a number is none that can be used.
        UnknownNameError: for a method that does not exist.

    Example:
        >>> from interbasin import wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> batch = torch.randn(5, 4)
        >>> others = [carry(net, wire(net, batch).sample(seed=seed)) for seed in (1, 2)]
        >>> rebasin_many([net, *others], batch).metrics["spread_after"]
        0.0
    """
    if method not in METHODS:
        raise UnknownNameError.of("method for many networks", method, METHODS)
    require_counts(rounds=rounds, sweeps=sweeps)
    require_sizes(tolerance=tolerance)
    wiring = _common(networks, inputs)
    known = isinstance(reference, int) and not isinstance(reference, bool) and 0 <= reference < len(networks)
    if reference is not None and not known:
        raise DataError(f"The reference is one of {len(networks)} networks, counted from 0, found {reference!r}.")
    if method == "permutation-weights" and reach == "auto":
        reach = "exact"
    sought = unknowns(wiring, reach)
    options = Options(reach=reach, sweeps=sweeps, tolerance=tolerance)
    anchor = 0 if reference is None else reference
    alignments = [Alignment(wiring, {}) for _ in networks]
    models = [carry(network, one) for network, one in zip(networks, alignments, strict=True)]
    spread = [_spread(models)]
    for place in range(len(networks)):
        if place != anchor:
            _align(place, models[anchor], True, networks, models, alignments, sought, options, seed)
    spread.append(_spread(models))
    converged = reference is not None
    for turn in range(0 if reference is not None else rounds):
        order = torch.randperm(len(networks), generator=generator_of(seed + turn)).tolist()
        for place in order:
            others = [model for other, model in enumerate(models) if other != place]
            _align(place, _mean(others), False, networks, models, alignments, sought, options, seed + turn)
        spread.append(_spread(models))
        if progress is not None:
            progress(f"round {turn + 1}: spread {spread[-1]:.4g}")
        if spread[-2] - spread[-1] <= tolerance * spread[-2]:
            converged = True
            break
    notes = [*(kept_exact(wiring, reach) if method == "procrustes-weights" else ()), *nothing_moves(wiring)]
    if not all(one.is_exact for one in alignments):
        notes.append("The maps are approximate: the aligned networks are not the same functions as those given.")
    if not converged:
        notes.append(f"The spread was still falling after {plural(rounds, 'round')}; more (rounds=) may bring closer.")
    return Together(tuple(models), tuple(alignments), tuple(spread), converged, reference, tuple(notes))


def _align(
    place: int,
    goal: nn.Module,
    fresh: bool,
    networks: Sequence[nn.Module],
    models: list[nn.Module],
    alignments: list[Alignment],
    sought: list[Unknown],
    options: Options,
    seed: int,
) -> None:
    """Bring one network nearer to ``goal``, from where it stands; keep that only if it did."""
    wiring = alignments[place].wiring
    problem = Task(models[place], goal, wiring, options=options).problem(sought)
    before = problem.objective()
    if fresh:
        start(problem)
    sweep_until_still(problem, generator=generator_of(seed), tolerance=options.tolerance, most=options.sweeps)
    if problem.objective() < before:
        alignments[place] = Alignment(wiring, problem.maps()) @ alignments[place]
        models[place] = carry(networks[place], alignments[place])


def _common(networks: Sequence[nn.Module], inputs: Any) -> Wiring:
    if not isinstance(networks, Sequence | nn.ModuleList):
        raise DataError(f"Common coordinates are for a list of networks, found a {type(networks).__name__}.")
    if len(networks) < 2:
        raise DataError(f"Common coordinates are for two networks or more, found {len(networks)}.")
    for network in networks:
        if not isinstance(network, nn.Module):
            raise WiringError(f"Re-basin takes networks, found a {type(network).__name__}; give modules.")
    wiring = None
    for other in networks[1:]:
        require_same_tensors(networks[0], other)
        wiring = common_wiring(networks[0], other, inputs, wiring)
    assert wiring is not None
    return wiring


def _mean(networks: Sequence[nn.Module]) -> nn.Module:
    made = copied(networks[0])
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            stacked = [_parameter(network, name).double() for network in networks]
            parameter.copy_(sum(stacked[1:], stacked[0]) / len(stacked))
    return made


def _parameter(network: nn.Module, name: str) -> Tensor:
    return network.get_parameter(name).detach()


def _spread(networks: Sequence[nn.Module]) -> float:
    """Squared distance of all parameters to their mean."""
    total = 0.0
    for name, _ in networks[0].named_parameters():
        stacked = torch.stack([_parameter(network, name).double() for network in networks])
        total += float((stacked - stacked.mean(0)).square().sum())
    return total
