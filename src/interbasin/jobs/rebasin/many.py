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
from interbasin.jobs.rebasin.problem import Unknown
from interbasin.jobs.rebasin.reach import unknowns
from interbasin.jobs.rebasin.task import Options, Task
from interbasin.networks.wiring.carrying import carry
from interbasin.networks.wiring.copying import copied
from interbasin.networks.wiring.wiring import Alignment, Wiring
from interbasin.randomness import generator_of

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
    """

    models: tuple[nn.Module, ...]
    alignments: tuple[Alignment, ...]
    spread: tuple[float, ...]
    converged: bool
    reference: int | None

    def between(self, source: int, target: int) -> Alignment:
        """The maps from one network to another, through the common coordinates."""
        return self.alignments[target].inverse() @ self.alignments[source]

    @property
    def metrics(self) -> dict[str, float]:
        """``spread_before``, ``spread_after``, ``converged``."""
        return {
            "spread_before": self.spread[0],
            "spread_after": self.spread[-1],
            "converged": float(self.converged),
        }


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
        DataError: if there are fewer than two, or no such reference.
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
    wiring = _common(networks, inputs)
    if reference is not None and not (isinstance(reference, int) and 0 <= reference < len(networks)):
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
    return Together(tuple(models), tuple(alignments), tuple(spread), converged, reference)


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
