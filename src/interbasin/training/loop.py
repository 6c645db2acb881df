"""The loop of training: which batches a step sees, when it is looked at, what is kept and when it ends.

The caller says what the loss of a batch is, so a whole network, an adapter or free weights that a network follows are
trained alike. Modes such as evaluation, and which tensors require gradients, are for the caller to set.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from interbasin.batches import BATCH_SIZE, as_batches, as_trainable, require_reiterable
from interbasin.checks import require_choice, require_flag, require_whole
from interbasin.errors import DataError, DivergedError
from interbasin.training.checkpoint import Checkpoint
from interbasin.training.descent import Descent, Loss, group_parameters
from interbasin.training.monitor import Monitor, Progress, open_monitor
from interbasin.training.rows import ShuffledRows
from interbasin.training.run import Run, hold_randomness, load_run, read_randomness, save_run, write_randomness

PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True)
class Training:
    """How a training went.

    A look is what happens at the end of each epoch, or every so many steps: losses are averaged, and a score is taken.

    Attributes:
        losses: The mean loss over the batches up to each look.
        scores: What ``evaluate`` returned at each look; empty without it.
        best: The number of the look with the lowest score, counted from 1; 0 where none was below the bar.
        stopped_early: Whether patience ran out before the last look.
        steps: How many steps the optimiser took.
        seconds: How long it took, without the time between an interrupt and what went on from it.
        resumed_from: The step that a checkpoint was taken up at; 0 without one.
    """

    losses: tuple[float, ...]
    scores: tuple[float, ...]
    best: int
    stopped_early: bool
    steps: int = 0
    seconds: float = field(default=0.0, compare=False)
    resumed_from: int = field(default=0, compare=False)


@torch.inference_mode(False)  # callers may have switched gradients off
@torch.enable_grad()
def train(
    parameters: Iterable[Tensor] | Iterable[Mapping[str, Any]],
    data: Any,
    loss: Loss,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    every: int | None = None,
    rate: float | None = None,
    decay: float | None = None,
    optimiser: str | None = None,
    schedule: str = "constant",
    accumulate: int = 1,
    batch_size: int = BATCH_SIZE,
    evaluate: Callable[[], float] | None = None,
    bar: float = math.inf,
    keep: Callable[[], object] | None = None,
    patience: int | None = None,
    one_cycle: int | None = None,
    seed: int | None = None,
    buffers: Iterable[Tensor] = (),
    checkpoint: Checkpoint | None = None,
    precision: str | None = None,
    processes: bool = False,
    what: str = "training",
    report: Callable[[str], object] | None = None,
    progress: Progress = None,
    tensorboard: str | os.PathLike[str] | None = None,
) -> Training:
    """Change ``parameters`` in place by gradient descent, in the order in which the batches come.

    With a checkpoint, a run that was killed goes on where it was last written, and ends with the same bits as one that
    was not. The loss may draw from torch's generators, and the data may draw their order from them, as a `DataLoader`
    does. Apart from that, ``data`` have to hold the same batches in the same order in every pass, or be `ShuffledRows`.

    With ``processes=True``, processes that ``accelerate launch`` or torchrun started train together. All of them are
    given the same data, in an order that does not depend on torch's generators. Each takes its share of the rows of
    every batch, and gradients are averaged: for a loss that is a mean over rows, that is what one process does with
    whole batches. Only the main one writes and reports.

    Args:
        parameters: Leaf tensors that require gradients; or groups of them, ``{"params": [...], "rate": 1e-3}``, with
            rates (and ``"decay"``) of their own.
        data: Batches to iterate over once per epoch.
        loss: The loss of a batch, given the batch and its number in the epoch, to be differentiated.
        epochs: Passes over the data, each with a look at its end.
        steps: In place of epochs, the number of steps; the data are repeated as often as that takes.
        every: Steps between two looks, for ``steps``; None looks at the end alone.
        rate: Learning rate of tensors whose group has none of its own.
        decay: Weight decay; None is what the optimiser has by itself: 0.01 for AdamW, else nothing.
        optimiser: "adam" (default), "adamw", or "sgd", which has a momentum of 0.9.
        schedule: How the rate goes on: "constant"; "one-cycle" rises to it and falls to nothing; "cosine" falls.
        accumulate: Batches per step, whose mean loss it descends. A step never mixes batches of two epochs.
        batch_size: For data that are one tensor.
        evaluate: What looks are judged by; the smaller the better. It runs at full precision.
        bar: What the first score has to be below to count as better, such as the score before training.
        keep: Called at each look that is better than all before it: the moment to copy or save weights. A run that is
            taken up calls it once, with the best weights so far in place.
        patience: Stop after this many looks in a row without a better score; None never stops early.
        one_cycle: Short for AdamW in one cycle of so many steps, all that there are.
        seed: Start torch's generators here, and leave them as they were; None draws from their present state.
        buffers: Other tensors that change, such as running statistics of batch norms: checkpoints hold them, and all
            processes have the main one's.
        checkpoint: Where the run is kept, and how often. With one, torch's generators are left as they were.
        precision: None for that of the tensors; "bf16" or "fp16" for mixed precision.
        processes: Whether processes that were started together train together.
        what: What is going on, for messages.
        report: Called with a line of text after each look.
        progress: True for a bar on stderr, with the loss, the score and the time left; or a function of the step, the
            number of all steps (None where it is not known) and the loss.
        tensorboard: A folder for TensorBoard's files, with loss, score and rate per step.

    Raises:
        DataError: if there is nothing to train, there are no batches, or an argument cannot be used.
        DivergedError: if a loss is not finite.
        FileError: if the checkpoint is of another run or damaged.
        MissingExtraError: if several processes, mixed precision or TensorBoard lack their packages.

    Example:
        >>> weight = torch.zeros(1, requires_grad=True)
        >>> data = [torch.tensor([1.0])]
        >>> training = train([weight], data, lambda x, _: (weight - x).square().sum(), epochs=9, rate=0.1)
        >>> training.losses[0], training.losses[-1] < 0.1
        (1.0, True)
    """
    began = time.perf_counter()
    if (epochs is None) == (steps is None):
        raise DataError("A training lasts for epochs= or for steps=; give one of the two.")
    if epochs is not None and every is not None:
        raise DataError("With epochs= each epoch ends with a look; give steps= to look every so many steps.")
    # As plain numbers, for the checkpoint's JSON.
    epochs, steps, every, patience, one_cycle = (
        None if count is None else require_whole(name, count, least=least)
        for name, count, least in (
            ("epochs", epochs, 0),
            ("steps", steps, 0),
            ("every", every, 1),
            ("patience", patience, 0),
            ("one_cycle", one_cycle, 1),
        )
    )
    accumulate = require_whole("accumulate", accumulate, least=1)
    if one_cycle is not None and schedule not in ("constant", "one-cycle"):
        raise DataError(f"one_cycle= is a schedule, and schedule={schedule!r} is another; give one of the two.")
    if precision is not None:
        require_choice("precision", precision, PRECISIONS)
    if checkpoint is not None:
        require_reiterable(data, "A training with a checkpoint")
    groups = group_parameters(parameters, rate, decay)
    batches = as_batches(data, batch_size)
    total = steps if epochs is None else _count_steps(batches, epochs, accumulate)
    if one_cycle is not None:
        optimiser, schedule = optimiser or "adamw", "one-cycle"
    descent = Descent(
        groups,
        optimiser or "adam",
        schedule,
        one_cycle or total,
        precision=precision,
        together=require_flag("processes", processes),
    )
    tensors = [*descent.parameters, *buffers]
    request = {
        "epochs": epochs,
        "steps": steps,
        "every": every,
        "accumulate": accumulate,
        "optimiser": optimiser or "adam",
        "schedule": schedule,
        "one_cycle": one_cycle,
        "rates": [group["lr"] for group in groups],
        "decays": [group.get("weight_decay") for group in groups],
        "shapes": [[str(tensor.dtype), *tensor.shape] for tensor in tensors],
        "bar": str(bar),
        "patience": patience,
        "seed": None if seed is None else require_whole("seed", seed, 0, 2**63 - 1),
        "precision": precision,
        "processes": descent.processes.count,
    }
    own_seed = None if seed is None else (int(seed) + descent.processes.index) % 2**63  # dropout of its own
    with hold_randomness(tensors, own_seed, is_apart=seed is not None or checkpoint is not None):
        run = None if checkpoint is None else load_run(checkpoint, request, descent, tensors, keep)
        run = run or Run(bar=bar)
        is_main = descent.processes.is_main
        with open_monitor(
            progress if is_main else None, tensorboard if is_main else None, what, total, run.step
        ) as monitor:
            loop = _Loop(
                run=run,
                descent=descent,
                batches=batches,
                loss=loss,
                epochs=epochs,
                steps=steps,
                every=every,
                accumulate=accumulate,
                evaluate=evaluate,
                keep=keep,
                patience=patience,
                tensors=tensors,
                request=request,
                checkpoint=checkpoint,
                monitor=monitor,
                what=what,
                report=report if is_main else None,
                began=began,
            )
            loop.go()
    return Training(
        tuple(run.losses),
        tuple(run.scores),
        run.best,
        run.stopped_early,
        run.step,
        run.seconds + time.perf_counter() - began,
        run.resumed_from,
    )


def _count_steps(batches: Iterable[Any], epochs: int, accumulate: int) -> int | None:
    try:
        return epochs * -(-len(batches) // accumulate) if isinstance(batches, Sized) else None
    except TypeError:  # a loader of an iterable data set has a length in name only
        return None


@dataclass(frozen=True)
class _Loop:
    """A training that is set up. Names are those of `train`; ``tensors`` are parameters, then buffers."""

    run: Run
    descent: Descent
    batches: Iterable[Any]
    loss: Loss
    epochs: int | None
    steps: int | None
    every: int | None
    accumulate: int
    evaluate: Callable[[], float] | None
    keep: Callable[[], object] | None
    patience: int | None
    tensors: list[Tensor]
    request: Mapping[str, Any]
    checkpoint: Checkpoint | None
    monitor: Monitor
    what: str
    report: Callable[[str], object] | None
    began: float

    def go(self) -> None:
        """Train to the end, from wherever the run is."""
        if self._is_over():
            return
        if self.checkpoint is not None:
            self.checkpoint.start(self.run.step)
        while not self._is_over():
            self._pass_over_data()
        if self.checkpoint is not None:
            self._save(self.checkpoint)

    def _is_over(self) -> bool:
        run = self.run
        done, whole = (run.step, self.steps) if self.epochs is None else (run.epoch, self.epochs)
        return run.stopped_early or (whole is not None and done >= whole)

    def _pass_over_data(self) -> None:
        """Take the steps of one pass, or what is left of it; the last pass may end in the middle."""
        run = self.run
        buffers = self.tensors[len(self.descent.parameters) :]
        for batches in self._batches_of_steps():
            rates = self.descent.rates
            values = self.descent.step(batches, run.position, self.loss, self._fail)
            self.descent.processes.copy_from_main(buffers)
            run.step += 1
            run.position += len(batches)
            run.values += values
            self.monitor.report_step(run.step, sum(values) / len(values), rates)
            if self.steps is not None and (run.step == self.steps or (self.every and run.step % self.every == 0)):
                self._look(f"step {run.step}")
            if self._is_over():
                return
            self._save_if_due()
        if not run.position:
            raise DataError(f"The data of {self.what} hold no batch at all; give some.")
        run.epoch += 1
        run.position = 0
        if self.epochs is not None:
            self._look(f"epoch {run.epoch}")
            if not self._is_over():
                self._save_if_due()

    def _batches_of_steps(self) -> Iterator[list[Any]]:
        """The batches of each step of this pass, without those that an earlier run has seen."""
        run, skip = self.run, self.run.position
        if isinstance(self.batches, ShuffledRows):
            self.batches.epoch = run.epoch
        randomness: list[Tensor] = []
        if skip:  # a loader draws its order when the pass begins: let it draw the same again
            randomness = read_randomness(self.tensors)
            write_randomness(self.tensors, run.pass_randomness)
        elif self.checkpoint is not None:
            run.pass_randomness = read_randomness(self.tensors)
        stream = iter(self.batches)
        if sum(1 for _ in itertools.islice(stream, skip)) < skip:
            raise DataError(
                f"The checkpoint of {self.what} has seen {skip} batches of epoch {run.epoch + 1}, and now the data "
                "hold fewer; give the same data, or remove the checkpoint."
            )
        if skip:
            write_randomness(self.tensors, randomness)
        while batches := list(itertools.islice(stream, self.accumulate)):
            yield [as_trainable(batch) for batch in batches]

    def _fail(self, value: float, index: int) -> DivergedError:
        return DivergedError(
            f"The loss of {self.what} is {value} in batch {index} of epoch {self.run.epoch + 1}; check the data and "
            "the networks, or lower the learning rate."
        )

    def _look(self, where: str) -> None:
        run = self.run
        run.losses.append(sum(run.values) / len(run.values))
        run.values = []
        words = f"{self.what}, {where}: loss {run.losses[-1]:.4g}"
        if self.evaluate is not None:
            score = self.descent.processes.agree(self.evaluate())
            run.scores.append(score)
            self.monitor.report_score(run.step, score)
            words += f", score {score:.4g}"
            if score < run.bar:
                run.best, run.bar = len(run.scores), score
                if self.checkpoint is not None:
                    run.best_tensors = [tensor.detach().clone() for tensor in self.tensors]
                if self.keep is not None:
                    self.keep()
        if self.report is not None:
            self.report(words)
        if self.patience is not None and self.evaluate is not None and len(run.scores) - run.best >= self.patience:
            run.stopped_early = not self._is_over()

    def _save_if_due(self) -> None:
        # Processes have clocks of their own, and all of them take part.
        if self.checkpoint is not None and self.descent.processes.agree(self.checkpoint.is_due(self.run.step)):
            self._save(self.checkpoint)

    def _save(self, checkpoint: Checkpoint) -> None:
        self.monitor.flush()
        seconds = self.run.seconds + time.perf_counter() - self.began
        save_run(self.run, checkpoint, self.request, self.descent, self.tensors, seconds)
        checkpoint.start(self.run.step)
