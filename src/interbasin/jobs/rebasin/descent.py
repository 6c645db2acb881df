"""How weights are matched: a start that only uses what is already known, then sweeps over all spaces.

**Start.** The inputs' and outputs' spaces are known: they are the same in both networks. Spaces are taken one after
the other, each time the one of which most is seen through tensors whose other spaces are known; nothing that is still
wrong has a say in it. Two networks that differ by a symmetry only are told apart by this alone.

**Sweeps.** Then each space in turn, in random order, gets the best element for all its tensors, the others as they
stand, until nothing changes. The squared distance never rises.

Blocks (heads, groups) are matched together with what is inside them: every block of the source is brought as near as
it can be to every block of the target, and the distances that remain are assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from interbasin.jobs.rebasin.elements import Element, Moves, best, picked
from interbasin.jobs.rebasin.pieces import Piece
from interbasin.jobs.rebasin.problem import Problem, Unknown, distance_of
from interbasin.wiring.axes.spaces import Role

__all__ = ["Sweeps", "everything", "match_each", "start", "sweep_until_still"]

Admit = Callable[[Piece, int], bool]
Report = Callable[[int, float], object]

# Blocks are matched anew in so many sweeps; later ones refine what is inside the blocks as they are matched.
_BLOCK_SWEEPS = 2
# Two sweeps inside a pair of blocks: one to meet, one to settle.
_PAIR_SWEEPS = 2


def everything(piece: Piece, place: int) -> bool:
    """Admit every piece."""
    return True


@dataclass(frozen=True)
class Sweeps:
    """How a descent went: the objective after each sweep, the first before any, and whether it came to rest."""

    path: tuple[float, ...]
    converged: bool


def start(
    problem: Problem,
    *,
    written_only: bool = False,
    generator: torch.Generator | None = None,
    solve: Callable[[str, Tensor], Element] | None = None,
) -> list[str]:
    """Match every space once, each by what is known of it by then. Gives the order in which they were taken.

    Args:
        problem: Moved in place.
        written_only: Only look at tensors that write a space, as the papers' sequential Procrustes does.
        generator: Choose at random among the spaces of which enough is seen, instead of the one of which most is.
        solve: Find the element of a space without blocks from its correlation, instead of in closed form.
    """
    known: set[str | None] = {None}
    waiting = problem.roots
    taken = []
    while waiting:
        seen = {name: _share_seen(problem, name, known, written_only) for name in waiting}
        name = max(waiting, key=lambda one: seen[one])
        if generator is not None:
            enough = [one for one in waiting if seen[one] >= 1] or [name]
            name = enough[int(torch.randint(len(enough), (), generator=generator))]
        cluster = {name, *problem.inside(name)}
        trusted = known | cluster

        def admit(piece: Piece, place: int, trusted: set[str | None] = trusted) -> bool:
            return _is_seen(problem, piece, place, trusted, written_only)

        # A space of which nothing is known yet can only be matched as if the others were right.
        allowed = admit if seen[name] > 0 else everything
        if solve is not None:
            along = problem.evidence(name, allowed).along()
            if along is not None:
                problem.apply(name, solve(name, along[0]))
        elif cluster == {name}:
            _match_units(problem, name, allowed)
        else:
            _match_blocks(problem, name, allowed, generator, fresh=True)
        known |= cluster
        taken.append(name)
        waiting = [one for one in waiting if one != name]
    return taken


def match_each(problem: Problem) -> None:
    """Match every space by what writes it, as if no other had moved: the papers' formula read literally."""

    def written(piece: Piece, place: int) -> bool:
        return piece.dims[place].role is not Role.READ

    plain = [name for name in problem.roots if not problem.inside(name)]
    steps = {name: best(problem.unknowns[name].kind, problem.evidence(name, written)) for name in plain}
    for name in problem.roots:
        if problem.inside(name):
            _match_blocks(problem, name, written, None, fresh=True)
    for name, step in steps.items():
        if step is not None:
            problem.apply(name, step)


def _is_seen(problem: Problem, piece: Piece, place: int, trusted: set[str | None], written_only: bool) -> bool:
    if written_only and piece.dims[place].role is Role.READ:
        return False
    return all(dim.space in trusted or dim.space not in problem.unknowns for dim in piece.dims)


def _share_seen(problem: Problem, name: str, known: set[str | None], written_only: bool) -> float:
    """How many vectors are seen of a space through tensors whose other spaces are known, relative to its size.

    Of blocks, that is how many are seen of what is inside them; the least that is seen of anything there counts.
    """
    inner = problem.inside(name)
    trusted = known | {name, *inner}
    shares = []
    for one in inner or [name]:
        unknown = problem.unknowns[one]
        pieces = (pair for pair in problem.touching[one] if _is_seen(problem, *pair, trusted, written_only))
        entries = sum(piece.source.numel() for piece, _ in pieces)
        shares.append(entries / (problem.blocks(unknown) * unknown.size) / unknown.size)
    return min(shares)


def sweep_until_still(
    problem: Problem,
    *,
    generator: torch.Generator,
    tolerance: float,
    most: int,
    report: Report | None = None,
) -> Sweeps:
    """Sweep over all spaces in random order until nothing moves, or the objective falls by less than ``tolerance``.

    Args:
        problem: Moved in place.
        generator: Of the order of spaces in each sweep.
        tolerance: Relative to the objective.
        most: Sweeps at most.
        report: Called after each sweep with its number and the objective.
    """
    path = [problem.objective()]
    # Nearer than a checkpoint's own rounding there is nothing to gain.
    rounding = torch.finfo(torch.float32).eps ** 2 * problem.energy()
    if path[0] <= rounding:
        return Sweeps(tuple(path), True)
    for sweep in range(most):
        moved = sweep_once(problem, generator, blocks=sweep < _BLOCK_SWEEPS)
        path.append(problem.objective())
        if report is not None:
            report(sweep + 1, path[-1])
        # Blocks are looked at anew for as long as that can pay, whatever else has come to rest.
        settled = sweep + 1 >= _BLOCK_SWEEPS or not any(problem.inside(name) for name in problem.roots)
        if settled and (not moved or path[-2] - path[-1] <= max(tolerance * path[-2], rounding)):
            return Sweeps(tuple(path), True)
    return Sweeps(tuple(path), False)


def sweep_once(problem: Problem, generator: torch.Generator | None, *, blocks: bool = True) -> bool:
    """One visit to every space. Gives whether anything moved."""
    names = list(problem.unknowns)
    order = range(len(names)) if generator is None else torch.randperm(len(names), generator=generator).tolist()
    moved = False
    for position in order:
        name = names[position]
        if problem.inside(name):
            if blocks and not any(outer in problem.unknowns for outer in problem.unknowns[name].within):
                moved |= _match_blocks(problem, name, everything, generator, fresh=False)
        else:
            moved |= _match_units(problem, name, everything)
    return moved


def _match_units(problem: Problem, name: str, admit: Admit) -> bool:
    step = best(problem.unknowns[name].kind, problem.evidence(name, admit))
    if step is None or step.changes_nothing:
        return False
    if any(len(piece.places(name)) > 1 for piece, _ in problem.touching[name]):
        return _apply_if_nearer(problem, name, step)
    problem.apply(name, step)
    return True


def _apply_if_nearer(problem: Problem, name: str, step: Element) -> bool:
    """Where a tensor lies in a space on both sides the best step is a guess: take it back if it leads away."""
    touched = list({id(piece): piece for piece, _ in problem.touching[name]}.values())
    kept = [(piece, piece.source) for piece in touched]
    element = problem.elements[name]
    before = distance_of(touched)
    problem.apply(name, step)
    if distance_of(touched) < before:
        return True
    for piece, source in kept:
        piece.source = source
    problem.elements[name] = element
    problem.forget(piece for piece, _ in kept)
    return False


def _match_blocks(problem: Problem, name: str, admit: Admit, generator: torch.Generator | None, *, fresh: bool) -> bool:
    """Assign blocks by the distance that is left when what is inside them has been matched."""
    unknown = problem.unknowns[name]
    size, grids = unknown.size, problem.blocks(unknown)
    costs = torch.empty(grids, size, size, dtype=torch.float64)
    found: list[dict[str, Element]] = []
    for target in range(size):
        row = problem.against(name, target, admit)
        start(row)
        costs[:, target] = _settled(row, unknown, generator, already=1)
        found.append(row.elements)
    stayed: dict[str, Element] = {}
    if not fresh:
        # From where the blocks stand, too, so that their distance cannot rise.
        here = problem.against(name, None, admit)
        remaining = _settled(here, unknown, generator, already=0)
        stays = remaining <= costs.diagonal(dim1=1, dim2=2)
        costs.diagonal(dim1=1, dim2=2).copy_(torch.where(stays, remaining, costs.diagonal(dim1=1, dim2=2)))
        stayed = here.elements
    index = torch.stack([torch.from_numpy(linear_sum_assignment(one)[1]).long() for one in costs.numpy()])
    back = index.argsort(1)  # which block of the target each block of the source goes to
    moved = False
    # Inside first, while the blocks stand where they were; then the blocks change places.
    for child in problem.inside(name):
        grid, block = problem.whereabouts(child, name)
        chosen = back[grid, block]
        step = picked([one[child] for one in found], chosen)
        if stayed:
            kept = stays[grid, block] & (chosen == block)
            step = picked([step, stayed[child]], kept.long())
        moved |= not step.changes_nothing
        problem.apply(child, step)
    order = Moves(index)
    problem.apply(name, order)
    return moved or not order.changes_nothing


def _settled(pairs: Problem, unknown: Unknown, generator: torch.Generator | None, already: int) -> Tensor:
    """Sweep inside pairs of blocks; what distance is left of each, ``(blocks outside, blocks)``."""
    # Where no tensor lies in two of the spaces, each is at its best after one visit, and a start is one.
    entangled = any(sum(space in pairs.unknowns for space in piece.spaces) > 1 for piece in pairs.pieces)
    for _ in range(_PAIR_SWEEPS if entangled else 1 - already):
        sweep_once(pairs, generator)
    return pairs.remaining(unknown)
