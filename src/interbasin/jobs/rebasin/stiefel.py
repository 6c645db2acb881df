r"""Orthogonal maps by descent along Cayley curves.

The second paper minimises :math:`\sum_l \|W^A_l - X_l W^B_l X_{l-1}^\top\|_F^2` over orthogonal :math:`X_l`, which are
the maps from B to A; ours are their transposes. ``layerwise`` descends one space after the other, given those before;
``joint`` descends in all of them at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from interbasin.errors import WiringError
from interbasin.fit.curvilinear import descend, descend_together
from interbasin.jobs.rebasin.descent import everything, start
from interbasin.jobs.rebasin.elements import Turns
from interbasin.jobs.rebasin.problem import Problem
from interbasin.jobs.rebasin.reach import unknowns
from interbasin.jobs.rebasin.task import Matched, Task
from interbasin.wiring.axes.groups import Group

__all__ = ["stiefel"]

TOLERANCE = 1e-6


def stiefel(task: Task, variant: str) -> Matched:
    """Orthogonal maps by curvilinear search with monotone steps [tagare:11; wen:13]."""
    sought = unknowns(task.wiring, task.options.reach)
    other = [unknown for unknown in sought if unknown.kind is not Group.ORTHOGONAL or unknown.within]
    if other:
        raise WiringError(
            f"Descent along Cayley curves needs orthogonal maps in every space, but {other[0].name!r} moves by "
            f"{other[0].kind} maps; use procrustes-weights, or reach='orthogonal' for approximate maps."
        )
    problem = task.problem(sought)
    before = problem.objective()
    steps = 10 * task.options.sweeps
    if variant == "layerwise":
        statuses: list[str] = []
        path = [before]

        def solve(name: str, cross: Tensor) -> Turns:
            unit = float(cross.abs().max()) or 1.0
            scaled = cross / unit
            found = min(
                (
                    descend(lambda q: (-2 * (q * scaled).sum(), -2 * scaled), begin, tolerance=TOLERANCE, steps=steps)
                    for begin in _both_sides(len(scaled))
                ),
                key=lambda descent: descent.value,
            )
            statuses.append(found.status)
            task.tell(f"{name}: {found.status} after {found.steps} steps")
            return Turns.isometric(found.point)

        start(problem, written_only=True, solve=solve)
        path.append(problem.objective())
        converged = all(status == "converged" for status in statuses)
    else:
        path, converged = _joint(task, problem, steps)
    notes = () if converged else ("The descent met its limit of steps; more (sweeps=) may match closer.",)
    return Matched(problem.maps(), path[-1], tuple(path), converged, (), notes)


def _joint(task: Task, problem: Problem, steps: int) -> tuple[list[float], bool]:
    """From the layerwise start, all spaces downhill together."""
    first = problem.objective()
    start(problem, written_only=True)
    names = list(problem.unknowns)
    here = {name: torch.eye(problem.unknowns[name].size, dtype=torch.float64) for name in names}

    def objective(points: tuple[Tensor, ...]) -> tuple[float, list[Tensor]]:
        for name, point in zip(names, points, strict=True):
            problem.apply(name, Turns.isometric((point @ here[name].mT)[None]))
            here[name] = point
        gradients = []
        for name, point in zip(names, points, strict=True):
            cross = problem.evidence(name, everything).along()
            assert cross is not None
            # The problem stands at the point: there the gradient by a further turn is -2 C, by the point -2 C X.
            gradients.append(-2 * cross[0] @ point)
        return problem.objective(), gradients

    found = descend_together(
        objective,
        [here[name] for name in names],
        tolerance=TOLERANCE,
        steps=steps,
        report=lambda step, value: task.tell(f"step {step}: distance {value**0.5:.4g}") if step % 10 == 0 else None,
    )
    objective(found.points)  # the last point looked at may be one that was not taken
    return [first, *found.path], found.status == "converged"


def _both_sides(size: int) -> list[Tensor]:
    """A descent keeps the sign of the determinant: one start of each."""
    mirrored = torch.eye(size, dtype=torch.float64)
    mirrored[0, 0] = -1
    return [torch.eye(size, dtype=torch.float64), mirrored]
