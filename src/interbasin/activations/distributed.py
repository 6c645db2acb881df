"""Statistics of several processes, each of which recorded its own share of the data, summed over all of them.

The processes agree on the origins of one of them, move their sums to those, which is exact algebra, and add them up:
what each holds afterwards is what one pass over all the data would have given, to float64 round-off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from interbasin.errors import DataError, InterbasinError, ShapeError
from interbasin.statistics import LayerwiseMoments, PairedMoments
from interbasin.statistics.accumulation import Accumulator, Side


def world_size() -> int:
    """How many processes record together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if world_size() > 1 else 0


def fail_together(error: Exception | None) -> None:
    """Raise in every process if one of them failed, rather than let the others wait for it."""
    messages: list[str | None] = [None] * world_size()
    words = str(error) if isinstance(error, InterbasinError) else f"{type(error).__name__}: {error}"
    dist.all_gather_object(messages, None if error is None else words)
    if error is not None:
        raise error
    for process, message in enumerate(messages):
        if message is not None:
            raise DataError(f"Process {process} of {world_size()} could not record its share, so none can: {message}")


def sum_over_processes(sums: Sequence[PairedMoments | LayerwiseMoments], batches: int) -> int:
    """Put the sums of all processes into those of every one of them; the number of all batches."""
    outlines: list[Any] = [None] * world_size()
    dist.all_gather_object(outlines, ([_outline(moments._state) for moments in sums], batches))
    for position, moments in enumerate(sums):
        moments._state = _sum(moments._state, [outline[0][position] for outline in outlines])
    return sum(outline[1] for outline in outlines)


def _outline(state: Accumulator) -> tuple[int, int, float, dict[str, int], dict[str, int]]:
    sources, targets = ({name: side.width for name, side in sides.items()} for sides in (state.sources, state.targets))
    return state.count, state.batches, state.precision, sources, targets


def _sum(state: Accumulator, outlines: list[Any]) -> Accumulator:
    filled = [process for process, outline in enumerate(outlines) if outline[0]]
    if not filled:
        return state
    root = filled[0]
    sources, targets = outlines[root][3:]
    if any(outlines[process][3:] != (sources, targets) for process in filled):
        raise ShapeError("The processes recorded spaces of different widths; give all of them the same networks.")
    mine = state if state.count else _empty_sums(state.grams, sources, targets)
    # Where the processes can talk about tensors: on the accelerator for NCCL, else in memory.
    nccl = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    shared = _map_tensors(mine, lambda tensor: tensor.to(device, copy=True).contiguous())
    root_origins = _map_tensors(replace(shared, crosses={}), torch.clone)
    for side in (*root_origins.sources.values(), *root_origins.targets.values()):
        dist.broadcast(side.origin, src=root)
    shared = shared.about(root_origins)
    for side in (*shared.sources.values(), *shared.targets.values()):
        dist.all_reduce(side.total)
        dist.all_reduce(side.square)
    for cross in shared.crosses.values():
        dist.all_reduce(cross)
    counted = replace(
        shared,
        count=sum(outline[0] for outline in outlines),
        batches=sum(outline[1] for outline in outlines),
        precision=max(outline[2] for outline in outlines),
    )
    home = next(iter(mine.sources.values())).total.device
    return _map_tensors(counted, lambda tensor: tensor.to(home))


def _empty_sums(grams: bool, sources: dict[str, int], targets: dict[str, int]) -> Accumulator:
    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=torch.float64)

    def side(width: int) -> Side:
        return Side(zeros(width), zeros(width), zeros(width, width) if grams else zeros(width))

    return Accumulator(
        grams=grams,
        sources={name: side(width) for name, width in sources.items()},
        targets={name: side(width) for name, width in targets.items()},
        crosses={(x, y): zeros(targets[y], sources[x]) for x in sources for y in targets},
    )


def _map_tensors(state: Accumulator, function: Callable[[Tensor], Tensor]) -> Accumulator:
    sources, targets = (
        {name: Side(function(side.origin), function(side.total), function(side.square)) for name, side in sides.items()}
        for sides in (state.sources, state.targets)
    )
    crosses = {pair: function(cross) for pair, cross in state.crosses.items()}
    return replace(state, sources=sources, targets=targets, crosses=crosses)
