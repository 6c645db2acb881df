r"""Matching by activations: what the two networks show on the same inputs.

For isometries the best map makes :math:`\langle M, C \rangle` largest, with :math:`C` the cross-covariance (or the
correlation) of a space's activations, streamed. That is weight matching of one piece whose source is the identity and
whose target is :math:`C`, so heads are matched by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from interbasin.activations import record, standing
from interbasin.fit.matching import Dim, FreeSpace, Piece, Problem
from interbasin.jobs.rebasin.task import Match, Task
from interbasin.jobs.rebasin.weights import match_weights, start
from interbasin.maps.base import Role
from interbasin.statistics import PairedMoments
from interbasin.text import list_names, plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry


def match_correlations(task: Task, variant: str) -> Match:
    """Maps by the correlation of units [ainsworth:23, section 3.1], before or behind the non-linearity."""
    return _match(task, variant, normalised=True)


def match_covariances(task: Task, variant: str) -> Match:
    """Maps by the cross-covariance of activations, before or behind the non-linearity."""
    return _match(task, variant, normalised=False)


def match_weights_then_covariances(task: Task, variant: str) -> Match:
    """Weights first; then the activations of the aligned network against the target's."""
    by_weights = match_weights(task, "coordinate")
    first = Alignment(task.wiring, by_weights.maps)
    then = match_covariances(replace(task, source=carry(task.source, first)), variant)
    both = Alignment(task.wiring, then.maps) @ first
    return Match(
        both.maps,
        then.objective,
        (*by_weights.path, *then.path),
        by_weights.converged,
        notes=(*by_weights.notes, *then.notes),
    )


def _match(task: Task, variant: str, *, normalised: bool) -> Match:
    free = [space.isometric() for space in task.free]
    hook_points = standing(task.wiring, at="pre" if variant == "pre" else "post")
    observed = [space for space in free if space.name in hook_points]
    # Blocks have no activations of their own: they are seen through what is inside them.
    divided = {outer for space in observed for outer in space.within}
    unseen = [space.name for space in free if space not in observed and space.name not in divided]
    notes = [f"No activation shows the whole of {', '.join(unseen)}: left as they were."] if unseen else []
    if not observed:
        return Match({}, 0.0, notes=tuple(notes))
    task.report(f"recording {plural(len(observed), 'space')}")
    recorded = record(
        (task.source, task.target),
        task.data,
        [space.name for space in observed],
        wirings=(task.wiring, task.wiring),
        at="pre" if variant == "pre" else "post",
        grams=normalised,
    )
    moments = {space.name: recorded.moments[space.name, space.name] for space in observed}
    pieces = [_piece(task, space, moments[space.name], normalised) for space in observed]
    problem = Problem(pieces, [space for space in free if space.name not in unseen], task.wiring.spaces)
    before = problem.distance()
    start(problem)
    notes += _note_few_rows(
        {name: moment.count for name, moment in moments.items()},
        {name: task.wiring.spaces[name].width for name in moments},
    )
    after = problem.distance()
    return Match(problem.maps(), after, (before, after), notes=tuple(notes))


def _note_few_rows(rows: Mapping[str, int], widths: Mapping[str, int]) -> list[str]:
    """A sentence, where activations span less than a space."""
    few = [name for name in rows if rows[name] <= widths[name]]
    if not few:
        return []
    least = min(rows[name] for name in few)
    return [
        f"Only {plural(least, 'row')} of activations {'was' if least == 1 else 'were'} seen in {list_names(few)}, no "
        "more than there are units: maps from so few are partly arbitrary; give more data."
    ]


def _piece(task: Task, space: FreeSpace, moments: PairedMoments, normalised: bool) -> Piece:
    centered = task.options.centered
    cross = moments.cross(centered=centered)
    if normalised:
        deviations = [
            gram(centered=centered).diagonal().clamp(min=0).sqrt()
            for gram in (moments.gram_target, moments.gram_source)
        ]
        cross = cross / _nonzero(deviations[0])[:, None] / _nonzero(deviations[1])
    else:
        cross = cross / (float(cross.abs().max()) or 1.0)
    sizes = [*(task.wiring.spaces[name].size for name in space.within), space.size]
    width = cross.shape[0]
    dims = tuple(Dim(name, Role.WRITE, 0) for name in (*space.within, space.name))
    return Piece(
        space.name,
        torch.eye(width, dtype=torch.float64).reshape(*sizes, width),
        cross.double().reshape(*sizes, width),
        (*dims, Dim(None, Role.WRITE, 1)),
    )


def _nonzero(deviations: Tensor) -> Tensor:
    """Units that never change correlate with nothing."""
    return torch.where(deviations > 0, deviations, torch.inf)
