"""How far a training has come, and all that a checkpoint has to hold so that it can go on from there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from interbasin.training.checkpoint import Checkpoint
from interbasin.training.descent import Descent

COUNTS = ("step", "epoch", "position", "best")


@dataclass
class Run:
    """How far a training has come.

    Attributes:
        step: Steps of the optimiser that are done.
        epoch: Passes over the data that are done.
        position: Batches of the present pass that are done.
        best: The number of the best look, counted from 1; 0 where there is none.
        values: The losses of the batches since the last look.
        losses, scores: One of each per look.
        bar: What a score has to be below to be the best.
        best_tensors: What was trained, as it was at the best look; empty without a checkpoint.
        stopped_early: Whether patience ran out.
        seconds: Spent before this process took it up.
        resumed_from: The step at which this process took it up.
        pass_randomness: The states of torch's generators when the present pass began; a loader may draw its order.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    best: int = 0
    values: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    bar: float = math.inf
    best_tensors: list[Tensor] = field(default_factory=list)
    stopped_early: bool = False
    seconds: float = 0.0
    resumed_from: int = 0
    pass_randomness: list[Tensor] = field(default_factory=list)


# ---------------------------------------------------------------------- randomness


@contextlib.contextmanager
def hold_randomness(tensors: Sequence[Tensor], seed: int | None, *, is_apart: bool) -> Iterator[None]:
    """Start torch's generators at a seed, and give them back as they were where the training ``is_apart``."""
    if not is_apart:
        yield
        return
    devices = _generator_devices(tensors)
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        yield


def read_randomness(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The states of the generators that a training of these tensors may draw from."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _generator_devices(tensors))]


def write_randomness(tensors: Sequence[Tensor], states: Sequence[Tensor]) -> None:
    """The inverse of `read_randomness`."""
    torch.set_rng_state(states[0])
    for device, state in zip(_generator_devices(tensors), states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)


def _generator_devices(tensors: Sequence[Tensor]) -> list[int]:
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    return sorted(torch.cuda.current_device() if device.index is None else device.index for device in devices)


# ---------------------------------------------------------------------- on disk


def save_run(
    run: Run,
    checkpoint: Checkpoint,
    request: Mapping[str, Any],
    descent: Descent,
    tensors: Sequence[Tensor],
    seconds: float,
) -> None:
    """Write a run to its checkpoint. All processes take part, and the main one writes.

    Args:
        run: How far it has come.
        checkpoint: Where to.
        request: What was asked for.
        descent: The optimiser.
        tensors: What training changes: parameters, then buffers.
        seconds: Spent so far.
    """
    randomness = descent.processes.gather((read_randomness(tensors), run.pass_randomness))
    if not descent.processes.is_main:
        return
    document, held = descent.pack()
    held |= {f"tensor.{number}": tensor for number, tensor in enumerate(tensors)}
    held |= {f"best.{number}": tensor for number, tensor in enumerate(run.best_tensors)}
    for process, (now, before) in enumerate(randomness):
        held |= {f"random.{process}.{number}": state for number, state in enumerate(now)}
        held |= {f"pass.{process}.{number}": state for number, state in enumerate(before)}
    # As tensors, for JSON has no infinity.
    for name in ("values", "losses", "scores"):
        held[name] = torch.tensor(getattr(run, name), dtype=torch.float64)
    held["bar"] = torch.tensor(run.bar, dtype=torch.float64)
    counts = {name: getattr(run, name) for name in COUNTS}
    ends = {"stopped_early": run.stopped_early, "seconds": seconds}
    checkpoint.write(request, {**document, **counts, **ends}, held)


def load_run(
    checkpoint: Checkpoint,
    request: Mapping[str, Any],
    descent: Descent,
    tensors: Sequence[Tensor],
    keep: Callable[[], object] | None,
) -> Run | None:
    """The run that a checkpoint holds, with its tensors and generators in place; None if it holds none yet.

    The arguments are those of `save_run`; ``keep`` is called while the best tensors are in place.

    Raises:
        FileError: if the checkpoint is of another run, or damaged.
    """
    record = checkpoint.read(request)
    if record is None:
        return None
    document, held = record
    try:
        step, epoch, position, best = (int(document[name]) for name in COUNTS)
        run = Run(step, epoch, position, best, resumed_from=step)
        run.values, run.losses, run.scores = (held[name].tolist() for name in ("values", "losses", "scores"))
        run.bar, run.seconds = float(held["bar"]), float(document["seconds"])
        run.stopped_early = bool(document["stopped_early"])
        current = [held[f"tensor.{number}"] for number in range(len(tensors))]
        run.best_tensors = [held[f"best.{number}"] for number in range(len(tensors) if run.best else 0)]
        process = descent.processes.index
        randomness = _list_states(held, f"random.{process}.")
        run.pass_randomness = _list_states(held, f"pass.{process}.")
        descent.restore(document, held)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise checkpoint.damage_error(f"{type(error).__name__}: {error}") from error
    if run.best and keep is not None:
        copy_tensors(run.best_tensors, tensors)
        keep()
    copy_tensors(current, tensors)
    write_randomness(tensors, randomness)
    return run


def copy_tensors(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Give tensors these values, in place."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _list_states(held: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    names = [f"{prefix}{number}" for number in range(sum(name.startswith(prefix) for name in held))]
    return [held[name] for name in names]
