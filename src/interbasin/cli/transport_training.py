"""``interbasin transport --then-train``: training from where a transport ends, beside a cold start."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from interbasin.cli.options import InputOptions
from interbasin.cli.output import Terminal, foreign_code
from interbasin.cli.paired_data import open_for_both, require_tokens_of_both

if TYPE_CHECKING:
    from interbasin.jobs.transport import Transport

RATE = 5e-4


@dataclass(frozen=True)
class TrainOptions:
    """Training from where the transport ends."""

    then_train: Annotated[
        int | None,
        Option(
            min=1,
            metavar="STEPS",
            help="Then train so many steps on --train-data, beside a cold start, with the curves on --validate.",
        ),
    ] = None
    train_data: Annotated[str | None, Option(help="Labelled DATA to train on; never those of --validate.")] = None
    rate: Annotated[float, Option(help="Learning rate of --then-train, above 0.")] = RATE


def require_train_data(options: TrainOptions, validate: str | None) -> None:
    """Refuse training without data of its own, before long work."""
    if options.then_train is None:
        for option, is_given in (("--train-data", options.train_data is not None), ("--rate", options.rate != RATE)):
            if is_given:
                raise typer.BadParameter("is for --then-train STEPS; give both.", param_hint=option)
        return
    if not 0 < options.rate < math.inf:
        raise typer.BadParameter(f"is a number above 0, and got {options.rate:g}.", param_hint="--rate")
    for option, value in (("--train-data", options.train_data), ("--validate", validate)):
        if value is None:
            raise typer.BadParameter(
                f"needs labelled DATA to train on and others to measure on; give {option} too.",
                param_hint="--then-train",
            )
    if _is_same(options.train_data, validate):
        raise typer.BadParameter(
            "are those of --validate, on which the curves would mean nothing; give others.", param_hint="--train-data"
        )


def _is_same(data: str | None, other: str | None) -> bool:
    """Whether two DATA are one: the same words, or two paths to the same place."""
    if data == other:
        return True
    first, second = (os.path.realpath(os.path.expanduser(text or "")) for text in (data, other))
    return first == second and os.path.exists(first)


def read_training(
    options: TrainOptions, input_options: InputOptions, source: str, target: str, like: Any, seed: int
) -> Any:
    """Labelled batches to train on, in random order, or None."""
    from interbasin.datasets import open_data
    from interbasin.errors import DataError

    if options.then_train is None or options.train_data is None:
        return None
    reader = open_for_both(options.train_data, input_options, source, target, like, seed)
    batches = open_data(reader.data, split=reader.part_if_any("train"), shuffle=True, **reader.options)
    require_tokens_of_both(batches, source, target)
    if not batches.labelled and not batches.tokens_as_labels:
        raise DataError(f"{options.train_data} has no labels to train on; give labelled data as train_data=.")
    return batches


def train(
    terminal: Terminal, result: Transport, data: Any, valid: Any, options: TrainOptions, readout: Any, seed: int
) -> Transport:
    """The result with training from it, beside a cold start; a bar for each shows the losses and the time left."""
    steps = options.then_train
    assert steps is not None
    bars: dict[str, Any] = {}

    def report(start: str, done: int, words: str) -> None:
        if start not in bars:
            stack.close()
            bars[start] = stack.enter_context(terminal.progress(f"training, {start} start", steps))
        bars[start](done, f"{start} start, {words}")

    loss = None
    if readout is not None:
        from torch.nn.functional import cross_entropy

        def loss(outputs: Any, labels: Any) -> Any:
            return cross_entropy(readout(outputs), labels)

    with contextlib.ExitStack() as stack, foreign_code():
        return result.with_training(data, valid, steps=steps, rate=options.rate, loss=loss, seed=seed, progress=report)
