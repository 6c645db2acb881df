"""Matching by weights: permutations and Procrustes maps, each space by every tensor that touches it."""

from __future__ import annotations

from interbasin.jobs.rebasin.descent import Sweeps, match_each, start, sweep_until_still
from interbasin.jobs.rebasin.problem import Problem, Unknown
from interbasin.jobs.rebasin.reach import unknowns
from interbasin.jobs.rebasin.task import Matched, Task
from interbasin.randomness import generator_of
from interbasin.text import plural

__all__ = ["permutation_weights", "procrustes_weights"]


def permutation_weights(task: Task, variant: str) -> Matched:
    """Exact maps by coordinate descent on the weights [ainsworth:23, algorithm 1]: assignments where units may only
    change places, and in heads and folded streams whatever leaves the function as it is."""
    reach = "exact" if task.options.reach == "auto" else task.options.reach
    return _descended(task, unknowns(task.wiring, reach))


def procrustes_weights(task: Task, variant: str) -> Matched:
    """Orthogonal maps from the weights, in three readings of the papers.

    ``layerwise`` takes every layer as if the layer before had not been turned; ``sequential`` goes from the input to
    the output and turns what each layer reads first; ``coordinate`` goes on from there, with everything that touches a
    space, until nothing changes.
    """
    sought = unknowns(task.wiring, task.options.reach)
    if variant == "coordinate":
        return _descended(task, sought)
    problem = task.problem(sought)
    before = problem.objective()
    if variant == "layerwise":
        match_each(problem)
    else:
        start(problem, written_only=True)
    after = problem.objective()
    return Matched(problem.maps(), after, (before, after))


def _descended(task: Task, sought: list[Unknown]) -> Matched:
    """The best of the runs: the first from the start that uses most of what is known, the others in random order."""
    best: tuple[Problem, Sweeps] | None = None
    ends: list[float] = []
    for run in range(task.options.restarts):
        generator = generator_of(task.seed + run)
        problem = task.problem(sought)
        before = problem.objective()
        start(problem, generator=generator if run else None)
        label = f"run {run + 1} of {task.options.restarts}, " if task.options.restarts > 1 else ""

        def report(sweep: int, value: float, label: str = label) -> None:
            task.tell(f"{label}sweep {sweep}: distance {value**0.5:.4g}")

        sweeps = sweep_until_still(
            problem,
            generator=generator,
            tolerance=task.options.tolerance,
            most=task.options.sweeps,
            report=report,
        )
        sweeps = Sweeps((before, *sweeps.path), sweeps.converged)
        ends.append(sweeps.path[-1])
        if best is None or sweeps.path[-1] < best[1].path[-1]:
            best = (problem, sweeps)
    assert best is not None
    problem, sweeps = best
    notes = () if sweeps.converged else (_unfinished(sweeps),)
    return Matched(problem.maps(), sweeps.path[-1], sweeps.path, sweeps.converged, tuple(ends), notes)


def _unfinished(sweeps: Sweeps) -> str:
    done = plural(len(sweeps.path) - 2, "sweep")
    return f"The objective was still falling after {done}; more (sweeps=) may match closer."
