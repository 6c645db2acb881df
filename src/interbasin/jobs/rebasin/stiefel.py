r"""Orthogonal maps by descent along Cayley curves.

The second paper minimises :math:`\sum_l \|W^A_l - X_l W^B_l X_{l-1}^\top\|_F^2` over orthogonal :math:`X_l`, which are
the maps from B to A; ours are their transposes. ``layerwise`` descends one space after the other, given those before;
``joint`` descends in all of them at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interbasin.errors import WiringError
from interbasin.fit.matching import Problem
from interbasin.fit.stiefel import descend, descend_together
from interbasin.jobs.rebasin.task import Match, Task
from interbasin.jobs.rebasin.weights import pose, start
from interbasin.maps.base import Group
from interbasin.maps.batched import BatchedLinear

TOLERANCE = 1e-6


def descend_on_stiefel(task: Task, variant: str) -> Match:
    """Orthogonal maps by curvilinear search with monotone steps [tagare:11; wen:13]."""
    other = [space for space in task.free if space.group is not Group.ORTHOGONAL or space.within]
    if other:
        raise WiringError(
            f"Descent along Cayley curves needs orthogonal maps in every space, but {other[0].name!r} moves by "
            f"{other[0].group} maps; use procrustes-weights, or reach='orthogonal' for approximate maps."
        )
    problem = pose(task)
    search = _descend_layerwise if variant == "layerwise" else _descend_jointly
    path, converged = search(task, problem, 10 * task.options.sweeps)
    notes = () if converged else ("The descent met its limit of steps; more (sweeps=) may match closer.",)
    return Match(problem.maps(), path[-1], tuple(path), converged, notes=notes)


def _descend_layerwise(task: Task, problem: Problem, steps: int) -> tuple[list[float], bool]:
    """From the input to the output, each space by what writes it."""
    before = problem.distance()
    statuses: list[str] = []

    def find_rotation(name: str, cross: Tensor) -> BatchedLinear:
        scaled = cross / (float(cross.abs().max()) or 1.0)
        descents = [
            descend(lambda q: (-2 * (q * scaled).sum(), -2 * scaled), begin, tolerance=TOLERANCE, steps=steps)
            for begin in _both_sides(len(scaled))
        ]
        best = min(descents, key=lambda descent: descent.value)
        statuses.append(best.status)
        task.report(f"{name}: {best.status} after {best.steps} steps")
        return BatchedLinear(best.point[None])

    start(problem, written_only=True, solver=find_rotation)
    return [before, problem.distance()], all(status == "converged" for status in statuses)


def _descend_jointly(task: Task, problem: Problem, steps: int) -> tuple[list[float], bool]:
    """From the layerwise start, all spaces downhill together."""
    before = problem.distance()
    start(problem, written_only=True)
    names = list(problem.free)
    here = {name: torch.eye(problem.free[name].size, dtype=torch.float64) for name in names}

    def objective(points: tuple[Tensor, ...]) -> tuple[float, list[Tensor]]:
        for name, point in zip(names, points, strict=True):
            problem.apply(name, BatchedLinear((point @ here[name].mT)[None]))
            here[name] = point
        gradients = []
        for name, point in zip(names, points, strict=True):
            cross = problem.correlations(name).without_gains
            assert cross is not None
            # The problem stands at the point: there the gradient by a further turn is -2 C, by the point -2 C X.
            gradients.append(-2 * cross[0] @ point)
        return problem.distance(), gradients

    descent = descend_together(
        objective,
        [here[name] for name in names],
        tolerance=TOLERANCE,
        steps=steps,
        report=lambda step, value: task.report(f"step {step}: distance {value**0.5:.4g}") if step % 10 == 0 else None,
    )
    objective(descent.points)  # the search may have looked last at a point that it did not take
    return [before, *descent.path], descent.status == "converged"


def _both_sides(size: int) -> list[Tensor]:
    """A descent keeps the sign of the determinant: one start of each sign."""
    mirrored = torch.eye(size, dtype=torch.float64)
    mirrored[0, 0] = -1
    return [torch.eye(size, dtype=torch.float64), mirrored]
