"""The steps of stage 1: seen while they are taken, and kept, so that a run that was killed goes on from them.

Methods that align draw what a step needs from a generator of their own, and take torch's plain Adam: their steps are
not those of `interbasin.training.train`. The bar, TensorBoard's files and checkpoints are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from interbasin.training import Checkpoint
from interbasin.training.descent import pack_optimiser, restore_optimiser
from interbasin.training.monitor import Progress, open_monitor
from interbasin.training.processes import count_processes
from interbasin.training.run import copy_tensors, read_randomness, write_randomness


@dataclass(frozen=True)
class Places:
    """Where the steps of one stage 1 are seen and kept; the fields are arguments of `train`.

    Attributes:
        progress: A bar, or what is called after each step.
        tensorboard: A folder for loss, rate, and the gap at each look.
        checkpoint: What to go on from.
    """

    progress: Progress = None
    tensorboard: Path | None = None
    checkpoint: Checkpoint | None = None


class Memory(Protocol):
    """What steps leave behind beside what they train."""

    def pack(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `pack`."""


def take_steps(
    step: Callable[[int], float],
    count: int,
    *,
    optimiser: torch.optim.Optimizer,
    trained: Mapping[str, Tensor],
    generator: torch.Generator,
    look: Callable[[int], float] | None = None,
    every: int = 1,
    memory: Memory | None = None,
    what: str = "stage 1",
    places: Places | None = None,
) -> None:
    """Take steps from 1 to ``count``, or those that are left behind a checkpoint, to the same bits.

    Of several processes, which all take the same steps, the first one is seen, and nothing is kept.

    Args:
        step: Takes one, given its number, and returns its loss.
        count: How many.
        optimiser: Its state is kept.
        trained: All tensors that change, by name; they are changed in place when a run goes on.
        generator: Steps draw from it and from torch's own, from nothing else.
        look: Called after every so many steps and after the last one; returns the score.
        every: Steps between two looks.
        memory: What looks gather.
        what: Stands beside the bar.
        places: Where steps are seen and kept.

    Raises:
        FileError: if the checkpoint is of another run, or damaged.
    """
    places = places or Places()
    is_alone = count_processes() == 1
    is_first = is_alone or os.environ.get("RANK", "0") == "0"
    checkpoint = places.checkpoint if is_alone else None
    request = {
        "steps": count,
        "every": every,
        "looks": look is not None,
        "shapes": {name: [str(tensor.dtype), *tensor.shape] for name, tensor in trained.items()},
    }
    everything = list(trained.values())
    done = 0

    def keep(number: int) -> None:
        assert checkpoint is not None
        document, tensors = pack_optimiser(optimiser)
        tensors |= {f"trained.{name}": tensor for name, tensor in trained.items()}
        tensors |= {f"random.{place}": state for place, state in enumerate(read_randomness(everything))}
        tensors |= {"generator": generator.get_state()}
        tensors |= {f"memory.{name}": tensor for name, tensor in (memory.pack() if memory else {}).items()}
        checkpoint.write(request, {**document, "step": number}, tensors)
        checkpoint.start(number)

    if checkpoint is not None and (record := checkpoint.read(request)) is not None:
        done = _go_on(checkpoint, *record, optimiser=optimiser, trained=trained, generator=generator, memory=memory)
    seen = (places.progress, places.tensorboard) if is_first else (None, None)
    with open_monitor(*seen, what, count, done) as monitor:
        if checkpoint is not None:
            checkpoint.start(done)
        for number in range(done + 1, count + 1):
            loss = step(number)
            monitor.report_step(number, loss, [float(group["lr"]) for group in optimiser.param_groups])
            if look is not None and (number % every == 0 or number == count):
                monitor.report_score(number, look(number))
            if checkpoint is not None and (number == count or checkpoint.is_due(number)):
                monitor.flush()
                keep(number)


def _go_on(
    checkpoint: Checkpoint,
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    optimiser: torch.optim.Optimizer,
    trained: Mapping[str, Tensor],
    generator: torch.Generator,
    memory: Memory | None,
) -> int:
    """The number of steps that are done, with all that they left in place."""
    try:
        done = int(document["step"])
        copy_tensors([tensors[f"trained.{name}"] for name in trained], list(trained.values()))
        restore_optimiser(optimiser, document, tensors)
        if memory is not None:
            prefix = "memory."
            memory.restore({name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)})
        count = sum(name.startswith("random.") for name in tensors)
        write_randomness(list(trained.values()), [tensors[f"random.{place}"] for place in range(count)])
        generator.set_state(tensors["generator"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise checkpoint.damage_error(f"{type(error).__name__}: {error}") from error
    return done
