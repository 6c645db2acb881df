r"""Matching by activations: what the two networks show on the same inputs.

For isometries the best map makes :math:`\langle M, C \rangle` largest, with :math:`C` the cross-covariance (or the
correlation) of a space's activations, streamed. That is the question of weight matching about the piece whose source is
the identity and whose target is :math:`C`, so heads are matched by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from interbasin.activations import record, standing
from interbasin.jobs.rebasin.descent import start
from interbasin.jobs.rebasin.pieces import Dim, Piece
from interbasin.jobs.rebasin.problem import Unknown
from interbasin.jobs.rebasin.reach import isometric, unknowns
from interbasin.jobs.rebasin.task import Matched, Task
from interbasin.jobs.rebasin.weights import procrustes_weights
from interbasin.statistics import PairedMoments
from interbasin.text import list_names, plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.axes.spaces import Role
from interbasin.wiring.carry import carry

__all__ = ["permutation_activations", "procrustes_activations", "weights_then_activations"]


def permutation_activations(task: Task, variant: str) -> Matched:
    """Exact maps by the correlation of units [ainsworth:23, section 3.1]."""
    reach = "exact" if task.options.reach == "auto" else task.options.reach
    return _matched(task, unknowns(task.wiring, reach), variant, normalised=True)


def procrustes_activations(task: Task, variant: str) -> Matched:
    """Orthogonal maps by the cross-covariance of activations, before or behind the non-linearity."""
    return _matched(task, unknowns(task.wiring, task.options.reach), variant, normalised=False)


def weights_then_activations(task: Task, variant: str) -> Matched:
    """Weights first; then the activations of the aligned network against the target's."""
    by_weights = procrustes_weights(task, "coordinate")
    first = Alignment(task.wiring, by_weights.maps)
    aligned = Task(
        carry(task.source, first),
        task.target,
        task.wiring,
        data=task.data,
        labelled=task.labelled,
        seed=task.seed,
        options=task.options,
        report=task.report,
    )
    then = procrustes_activations(aligned, variant)
    both = Alignment(task.wiring, then.maps) @ first
    return Matched(
        both.maps,
        then.objective,
        (*by_weights.path, *then.path),
        by_weights.converged,
        (),
        (*by_weights.notes, *then.notes),
    )


def _matched(task: Task, sought: list[Unknown], variant: str, *, normalised: bool) -> Matched:
    sought = [isometric(unknown) for unknown in sought]
    places = standing(task.wiring, at="pre" if variant == "pre" else "post")
    seen = [unknown.name for unknown in sought if unknown.name in places]
    # Blocks have no activations of their own: they are seen through what is inside them.
    divided = {outer for unknown in sought if unknown.name in places for outer in unknown.within}
    kept = [unknown for unknown in sought if unknown.name in places or unknown.name in divided]
    unseen = [unknown.name for unknown in sought if unknown not in kept]
    notes = [f"No activation shows the whole of {', '.join(unseen)}: left as they were."] if unseen else []
    if not seen:
        return Matched({}, 0.0, notes=tuple(notes))
    task.tell(f"recording {plural(len(seen), 'space')}")
    recorded = record(
        (task.source, task.target),
        task.data,
        seen,
        wirings=(task.wiring, task.wiring),
        at="pre" if variant == "pre" else "post",
        grams=normalised,
        labelled=task.labelled,
    )
    pieces = [
        _piece(task, unknown, recorded.moments[unknown.name, unknown.name], normalised)
        for unknown in sought
        if unknown.name in places
    ]
    problem = task.posed(pieces, kept)
    before = problem.objective()
    start(problem)
    notes += _about_few_rows(
        {name: recorded.moments[name, name].count for name in seen},
        {name: task.wiring.spaces[name].width for name in seen},
    )
    after = problem.objective()
    return Matched(problem.maps(), after, (before, after), notes=tuple(notes))


def _about_few_rows(rows: Mapping[str, int], widths: Mapping[str, int]) -> tuple[str, ...]:
    """A sentence, where activations span less than a space."""
    few = [name for name in rows if rows[name] <= widths[name]]
    if not few:
        return ()
    least = min(rows[name] for name in few)
    return (
        f"Only {plural(least, 'row')} of activations {'was' if least == 1 else 'were'} seen in {list_names(few)}, no "
        "more than there are units: maps from so few are partly arbitrary; give more data.",
    )


def _piece(task: Task, unknown: Unknown, moments: PairedMoments, normalised: bool) -> Piece:
    cross = moments.cross(centered=task.options.centered)
    if normalised:
        spread = [
            gram(centered=task.options.centered).diagonal().clamp(min=0).sqrt()
            for gram in (moments.gram_target, moments.gram_source)
        ]
        cross = cross / _nonzero(spread[0])[:, None] / _nonzero(spread[1])
    else:
        cross = cross / (float(cross.abs().max()) or 1.0)
    sizes = [*(task.wiring.spaces[name].size for name in unknown.within), unknown.size]
    width = cross.shape[0]
    dims = tuple(Dim(name, Role.WRITE, 0) for name in (*unknown.within, unknown.name))
    return Piece(
        unknown.name,
        torch.eye(width, dtype=torch.float64).reshape(*sizes, width),
        cross.double().reshape(*sizes, width),
        (*dims, Dim(None, Role.WRITE, 1)),
    )


def _nonzero(spread: Tensor) -> Tensor:
    """Units that never change correlate with nothing."""
    return torch.where(spread > 0, spread, torch.inf)
