"""Matching by weights: the squared distance of all parameters is made small, one space at a time.

**Start.** The spaces of the inputs and outputs are known: they are the same in both networks. Free spaces are taken one
after the other, each time the one of which most is seen through tensors whose other spaces are known; what is still
wrong has no say. For two networks that differ by a symmetry only, the start alone finds it.

**Sweeps.** Then each space in turn, in random order, gets the best map for all its tensors while the others stay, until
nothing changes. The squared distance never rises [ainsworth:23, algorithm 1].

**Blocks** (heads, groups) are matched together with what is inside them: every block of the source is brought as near
as it can be to every block of the target, and blocks are assigned by the distances that remain.

The best map of one space is found by `interbasin.fit.matching.solve`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from interbasin.fit.matching import Admit, Dim, FreeSpace, Piece, Problem, assign, solve
from interbasin.jobs.rebasin.task import Match, Task
from interbasin.maps.base import Group, Role
from interbasin.maps.batched import BatchedMap, BatchedPermutation, choose_blocks
from interbasin.randomness import generator_of
from interbasin.wiring.axes.spaces import In
from interbasin.wiring.mover import HomedAxes, map_pieces
from interbasin.wiring.wiring import Wiring

# Blocks are matched anew in this many sweeps; later ones refine what is inside the blocks as they are matched.
_BLOCK_SWEEPS = 2
# Two sweeps inside a pair of blocks: one to meet, one to settle.
_PAIR_SWEEPS = 2


def match_weights(task: Task, variant: str) -> Match:
    """Maps from the weights alone: ``permutation-weights`` and ``procrustes-weights``.

    ``coordinate`` is the start and the sweeps above, repeated from other starts if asked. The papers' Procrustes maps
    have two more readings: ``layerwise`` takes every layer as if the layer before had not moved; ``sequential`` goes
    from the input to the output, and moves what each layer reads first.
    """
    if variant == "coordinate":
        return _best_run(task)
    problem = pose(task)
    before = problem.distance()
    if variant == "layerwise":
        _match_each(problem)
    else:
        start(problem, written_only=True)
    after = problem.distance()
    return Match(problem.maps(), after, (before, after))


def _best_run(task: Task) -> Match:
    """The best of the runs: the first from the start that uses most of what is known, the others in random order."""
    options, best, ends = task.options, None, []
    note = f"The objective was still falling after sweep {options.sweeps}; more (sweeps=) may match closer."
    for run in range(options.restarts):
        generator = generator_of(task.seed + run)
        problem = pose(task)
        before = problem.distance()
        start(problem, generator=generator if run else None)
        label = f"run {run + 1} of {options.restarts}, " if options.restarts > 1 else ""
        sweeps = sweep_until_converged(
            problem,
            generator=generator,
            tolerance=options.tolerance,
            limit=options.sweeps,
            report=lambda text, label=label: task.report(label + text),  # type: ignore[misc]
        )
        ends.append(sweeps.path[-1])
        if best is None or ends[-1] < best.objective:
            notes = () if sweeps.converged else (note,)
            best = Match(problem.maps(), ends[-1], (before, *sweeps.path), sweeps.converged, notes=notes)
    assert best is not None
    return replace(best, runs=tuple(ends))


# ---------------------------------------------------------------------- two networks as a problem


def pose(task: Task) -> Problem:
    """The match of the networks' parameters."""
    # Entries that only change places lose nothing in single precision.
    permuting = all(space.group in (Group.PERMUTATION, Group.SIGNED) for space in task.free)
    movable = {space.name for space in task.free}
    pieces = cut(task.wiring, task.source, task.target, movable, torch.float32 if permuting else torch.float64)
    return Problem(pieces, task.free, task.wiring.spaces)


def cut(
    wiring: Wiring, source: nn.Module, target: nn.Module, movable: set[str], dtype: torch.dtype = torch.float32
) -> list[Piece]:
    """The pieces of the networks' parameters that touch a ``movable`` space."""
    pieces: list[Piece] = []
    parameters, targets = (dict(network.named_parameters()) for network in (source, target))

    def collect(name: str, pair: tuple[Tensor, ...], axes: HomedAxes) -> Tensor:
        dims = tuple(
            Dim(axis.space, axis.role, home) if isinstance(axis, In) else Dim(None, Role.WRITE, home)
            for home, axis in axes
        )
        if any(dim.space in movable for dim in dims):
            pieces.append(Piece(name, pair[0], pair[1], dims))
        return pair[0]

    for name, tensor in wiring.tensors.items():
        if name in parameters:
            pair = parameters[name].detach().to(dtype), targets[name].detach().to(dtype)
            map_pieces(pair, list(enumerate(tensor.axes)), partial(collect, name))
    return pieces


# ---------------------------------------------------------------------- the start


def start(
    problem: Problem,
    *,
    written_only: bool = False,
    generator: torch.Generator | None = None,
    solver: Callable[[str, Tensor], BatchedMap] | None = None,
) -> None:
    """Match every space once, each by what is known of it by then.

    Args:
        problem: Moved in place.
        written_only: Only look at tensors that write a space, as the papers' sequential Procrustes does.
        generator: Choose at random among the spaces of which enough is seen.
        solver: Finds the map of a space without blocks from its correlation, instead of the closed form.
    """
    known: set[str | None] = {None}
    waiting = list(problem.roots)
    while waiting:
        shares = {name: _share_seen(problem, name, known, written_only) for name in waiting}
        name = max(waiting, key=lambda candidate: shares[candidate])
        if generator is not None:
            enough = [candidate for candidate in waiting if shares[candidate] >= 1] or [name]
            name = enough[int(torch.randint(len(enough), (), generator=generator))]
        cluster = {name, *problem.inside[name]}
        # A space of which nothing is known yet can only be matched as if the others were right.
        admit = partial(_is_seen, problem, known | cluster, written_only) if shares[name] > 0 else None
        if solver is not None:
            cross = problem.correlations(name, admit).without_gains
            if cross is not None:
                problem.apply(name, solver(name, cross[0]))
        elif problem.inside[name]:
            _match_blocks(problem, name, admit, generator, fresh=True)
        else:
            _match_units(problem, name, admit)
        known |= cluster
        waiting.remove(name)


def _is_seen(problem: Problem, trusted: set[str | None], written_only: bool, piece: Piece, place: int) -> bool:
    if written_only and piece.dims[place].role is Role.READ:
        return False
    return all(dim.space in trusted or dim.space not in problem.free for dim in piece.dims)


def _share_seen(problem: Problem, name: str, known: set[str | None], written_only: bool) -> float:
    """How many vectors are seen of a space through tensors whose other spaces are known, relative to its size.

    For blocks: of what is inside them, whichever is seen least.
    """
    inner = problem.inside[name]
    trusted = known | {name, *inner}
    shares = []
    for part in inner or [name]:
        space = problem.free[part]
        pieces = (pair[0] for pair in problem.touching[part] if _is_seen(problem, trusted, written_only, *pair))
        shares.append(sum(piece.source.numel() for piece in pieces) / (space.blocks * space.size) / space.size)
    return min(shares)


def _match_each(problem: Problem) -> None:
    """Match every space by what writes it, as if no other had moved: the papers' formula read literally."""

    def is_written(piece: Piece, place: int) -> bool:
        return piece.dims[place].role is not Role.READ

    plain = [name for name in problem.roots if not problem.inside[name]]
    steps = {name: solve(problem.free[name].group, problem.correlations(name, is_written)) for name in plain}
    for name in problem.roots:
        if problem.inside[name]:
            _match_blocks(problem, name, is_written, None, fresh=True)
    for name, step in steps.items():
        if step is not None:
            problem.apply(name, step)


# ---------------------------------------------------------------------- the sweeps


@dataclass(frozen=True)
class Sweeps:
    """How the sweeps went: the objective after each, the first before any, and whether they converged."""

    path: tuple[float, ...]
    converged: bool


def sweep_until_converged(
    problem: Problem,
    *,
    generator: torch.Generator,
    tolerance: float,
    limit: int,
    report: Callable[[str], object] | None = None,
) -> Sweeps:
    """Sweep over all spaces in random order until nothing moves, or the objective falls by less than ``tolerance``.

    The problem is moved in place. ``tolerance`` is relative to the objective, ``limit`` that of sweeps.
    """
    path = [problem.distance()]
    # Nearer than a checkpoint's own rounding there is nothing to gain.
    energy = sum(float(piece.target.square().sum(dtype=torch.float64)) for piece in problem.pieces)
    rounding = torch.finfo(torch.float32).eps ** 2 * energy
    if path[0] <= rounding:
        return Sweeps(tuple(path), True)
    has_blocks = any(problem.inside.values())
    for sweep in range(limit):
        moved = _sweep(problem, generator, blocks=sweep < _BLOCK_SWEEPS)
        path.append(problem.distance())
        if report is not None:
            report(f"sweep {sweep + 1}: distance {path[-1] ** 0.5:.4g}")
        # Blocks are looked at anew for as long as that can pay, whatever else has come to rest.
        settled = sweep + 1 >= _BLOCK_SWEEPS or not has_blocks
        if settled and (not moved or path[-2] - path[-1] <= max(tolerance * path[-2], rounding)):
            return Sweeps(tuple(path), True)
    return Sweeps(tuple(path), False)


def _sweep(problem: Problem, generator: torch.Generator | None, *, blocks: bool = True) -> bool:
    """Visit every space once. Returns whether anything moved."""
    names = list(problem.free)
    order = range(len(names)) if generator is None else torch.randperm(len(names), generator=generator).tolist()
    moved = False
    for position in order:
        name = names[position]
        if not problem.inside[name]:
            moved |= _match_units(problem, name, None)
        elif blocks and name in problem.roots:
            moved |= _match_blocks(problem, name, None, generator, fresh=False)
    return moved


def _match_units(problem: Problem, name: str, admit: Admit | None) -> bool:
    """Give a space without blocks its best map. Returns whether it moved."""
    step = solve(problem.free[name].group, problem.correlations(name, admit))
    if step is None or step.is_identity:
        return False
    if any(len(piece.places(name)) > 1 for piece, _ in problem.touching[name]):
        return _apply_if_nearer(problem, name, step)
    problem.apply(name, step)
    return True


def _apply_if_nearer(problem: Problem, name: str, step: BatchedMap) -> bool:
    """Where both sides of a tensor lie in a space, the best step is a guess: take it back if it leads away."""
    before = {piece: piece.source for piece, _ in problem.touching[name]}
    current = problem.current[name]
    distance = problem.distance(before)
    problem.apply(name, step)
    if problem.distance(before) < distance:
        return True
    problem.restore(name, current, before)
    return False


# ---------------------------------------------------------------------- blocks


def _match_blocks(
    problem: Problem, name: str, admit: Admit | None, generator: torch.Generator | None, *, fresh: bool
) -> bool:
    """Assign blocks by the distance that is left when what is inside them has been matched.

    Returns whether anything moved. Unless ``fresh``, blocks are also matched from where they stand, so that their
    distance cannot rise.
    """
    blocks = problem.free[name]
    costs = torch.empty(blocks.blocks, blocks.size, blocks.size, dtype=torch.float64)
    candidates: list[dict[str, BatchedMap]] = []
    for target in range(blocks.size):
        pairs = problem.against_block(name, target, admit)
        start(pairs)
        costs[:, target] = _settle(pairs, blocks, generator, visits=1)
        candidates.append(pairs.current)
    in_place = None
    if not fresh:
        in_place = problem.against_block(name, None, admit)
        remaining = _settle(in_place, blocks, generator, visits=0)
        diagonal = costs.diagonal(dim1=1, dim2=2)
        stays = remaining <= diagonal
        diagonal.copy_(torch.where(stays, remaining, diagonal))
    index = assign(-costs)
    goes_to = index.argsort(1)  # which block of the target each block of the source goes to
    moved = False
    # Inside first, while the blocks stand where they were; then the blocks change places.
    for child in problem.inside[name]:
        outside, block = problem.block_positions(child, name)
        choice = goes_to[outside, block]
        step = choose_blocks([maps[child] for maps in candidates], choice)
        if in_place is not None:
            kept = stays[outside, block] & (choice == block)
            step = choose_blocks([step, in_place.current[child]], kept.long())
        moved |= not step.is_identity
        problem.apply(child, step)
    order = BatchedPermutation(index)
    problem.apply(name, order)
    return moved or not order.is_identity


def _settle(pairs: Problem, blocks: FreeSpace, generator: torch.Generator | None, visits: int) -> Tensor:
    """Sweep inside pairs of blocks. Returns the distance that is left of each, ``(blocks outside, blocks)``.

    ``visits`` says how often each space was visited before.
    """
    # Where no tensor lies in two of the spaces, each is at its best after one visit.
    entangled = any(len({dim.space for dim in piece.dims if dim.space in pairs.free}) > 1 for piece in pairs.pieces)
    for _ in range(_PAIR_SWEEPS if entangled else 1 - visits):
        _sweep(pairs, generator)
    return pairs.distance_per_block(blocks)
