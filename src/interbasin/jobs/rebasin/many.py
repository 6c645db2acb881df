r"""Many networks in common coordinates.

To one *reference*, each network is aligned by itself. To a shared *universe*, each network in turn is aligned to the
mean of the others as they stand, until nothing changes: generalised Procrustes for orthogonal maps, and what Git
Re-Basin calls merging many models for permutations [ainsworth:23, section 5.2]. From one network to another the way
leads through the universe, so that any cycle of them is the identity by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.checks import require_choice, require_finite, require_whole
from interbasin.errors import DataError
from interbasin.jobs.rebasin.job import free_spaces, notes_on_reach
from interbasin.jobs.rebasin.result import JointRebasin
from interbasin.jobs.rebasin.task import Options, Task
from interbasin.jobs.rebasin.weights import pose, start, sweep_until_converged
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.text import plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry
from interbasin.wiring.compatibility import common_wiring, require_same_tensors
from interbasin.wiring.trace.copying import copied
from interbasin.wiring.wiring import Wiring


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
) -> JointRebasin:
    """Put two or more networks into common coordinates.

    Args:
        networks: Of one architecture. They stay as they are.
        inputs: One batch to trace with.
        method: ``"permutation-weights"`` (exact maps) or ``"procrustes-weights"`` (orthogonal ones).
        reference: Align each network to this one; by default all to a shared universe.
        seed: Of all that is drawn at random.
        reach: As in `rebasin`.
        rounds: The limit of rounds over all networks.
        sweeps: The limit of sweeps over all spaces, per network and round.
        tolerance: A round that gains less than this share of the spread is the last.
        progress: Called with a line of text as the work goes on.

    Raises:
        WiringError, ShapeError: if they are not of one architecture.
        DataError: if there are fewer than two networks, no such reference, or a number is out of range.
        UnknownNameError: for a method that does not exist.

    Example:
        >>> from interbasin import wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> batch = torch.randn(5, 4)
        >>> others = [carry(net, wire(net, batch).sample(seed=seed)) for seed in (1, 2)]
        >>> rebasin_many([net, *others], batch).metrics["spread_after"]
        0.0
    """
    method = require_choice("method for many networks", method, ("permutation-weights", "procrustes-weights"))
    turns = method == "procrustes-weights"
    for name, limit in (("rounds", rounds), ("sweeps", sweeps)):
        require_whole(name, limit, least=1)
    require_finite("tolerance", tolerance, least=0)
    generator_of(seed)  # which refuses a bad seed before long work
    watch = Stopwatch()
    with watch("wire"):
        wiring = _common_wiring(networks, inputs)
    if reference is not None:
        require_whole("reference (counted from 0)", reference, 0, len(networks) - 1)
    free = free_spaces(wiring, reach, turns=turns)
    options = Options(sweeps=sweeps, tolerance=tolerance)
    anchor = 0 if reference is None else reference
    aligned = _Networks(networks, Task(networks[0], networks[anchor], wiring, free, seed=seed, options=options))
    spread = [aligned.spread()]
    with watch("match"):
        for number in range(len(networks)):
            if number != anchor:
                aligned.align(number, aligned.models[anchor], seed, fresh=True)
        spread.append(aligned.spread())
        converged = reference is not None
        for turn in range(0 if reference is not None else rounds):
            for number in torch.randperm(len(networks), generator=generator_of(seed + turn)).tolist():
                aligned.align(number, aligned.mean_without(number), seed + turn, fresh=False)
            spread.append(aligned.spread())
            if progress is not None:
                progress(f"round {turn + 1}: spread {spread[-1]:.4g}")
            if spread[-2] - spread[-1] <= tolerance * spread[-2]:
                converged = True
                break
    exact = all(alignment.is_exact for alignment in aligned.alignments)
    notes = notes_on_reach(wiring, reach, turns=turns)
    if not exact:
        notes.append("The maps are approximate: the aligned networks are not the same functions as those given.")
    if not converged:
        notes.append(f"The spread was still falling after {plural(rounds, 'round')}; more (rounds=) may bring closer.")
    return JointRebasin(
        models=tuple(aligned.models),
        alignments=tuple(aligned.alignments),
        spread=tuple(spread),
        reference=reference,
        metrics={
            "spread_before": spread[0],
            "spread_after": spread[-1],
            "exact": float(exact),
            "converged": float(converged),
        },
        notes=tuple(notes),
        timings=watch.timings,
        request={
            "method": method,
            "reference": reference,
            "reach": reach,
            "rounds": rounds,
            "sweeps": sweeps,
            "tolerance": tolerance,
            "seed": seed,
        },
    )


class _Networks:
    """Networks on their way to common coordinates: where each stands, and the maps that brought it there."""

    def __init__(self, networks: Sequence[nn.Module], task: Task) -> None:
        self.networks, self.task = networks, task
        self.alignments = [Alignment(task.wiring, {}) for _ in networks]
        self.models = [carry(*pair) for pair in zip(networks, self.alignments, strict=True)]

    def align(self, number: int, goal: nn.Module, seed: int, *, fresh: bool) -> None:
        """Bring one network nearer to ``goal``, from where it stands or from a start; keep that only if it did."""
        problem = pose(replace(self.task, source=self.models[number], target=goal))
        options = self.task.options
        before = problem.distance()
        if fresh:
            start(problem)
        sweep_until_converged(problem, generator=generator_of(seed), tolerance=options.tolerance, limit=options.sweeps)
        if problem.distance() < before:
            self.alignments[number] = Alignment(self.task.wiring, problem.maps()) @ self.alignments[number]
            self.models[number] = carry(self.networks[number], self.alignments[number])

    def mean_without(self, number: int) -> nn.Module:
        """A network whose parameters are the mean of all the others'."""
        others = [model for other, model in enumerate(self.models) if other != number]
        mean = copied(others[0])
        with torch.no_grad():
            for name, parameter in mean.named_parameters():
                parameter.copy_(_stack(others, name).sum(0) / len(others))
        return mean

    def spread(self) -> float:
        """Squared distance of all parameters to their mean."""
        stacks = (_stack(self.models, name) for name, _ in self.models[0].named_parameters())
        return sum(float((stack - stack.mean(0)).square().sum()) for stack in stacks)


def _stack(networks: Sequence[nn.Module], name: str) -> Tensor:
    return torch.stack([network.get_parameter(name).detach().double() for network in networks])


def _common_wiring(networks: Sequence[nn.Module], inputs: Any) -> Wiring:
    if not isinstance(networks, Sequence | nn.ModuleList):
        raise DataError(f"Common coordinates are for a list of networks, got a {type(networks).__name__}.")
    if len(networks) < 2:
        raise DataError(f"Common coordinates are for two networks or more, found {len(networks)}.")
    wiring = None
    for other in networks[1:]:
        require_same_tensors(networks[0], other)
        wiring = common_wiring(networks[0], other, inputs, wiring)
    assert wiring is not None
    return wiring
