"""Fine-tuning from where a transport ends: the loss on the way, to be laid beside that of a cold start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from interbasin.batches import BATCH_SIZE, as_batches, outputs_of, require_reiterable, split_batch
from interbasin.checks import require_finite, require_whole
from interbasin.errors import DataError
from interbasin.evaluate.performance import Loss, mean_loss, measure_performance
from interbasin.outcome import Draft, Result, Stopwatch
from interbasin.outcome.plots import line_chart
from interbasin.training import train
from interbasin.wiring.trace.copying import copied


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Finetuned(Result):
    """A network after fine-tuning, and how it went.

    ``metrics`` hold ``loss`` (the mean over the last steps) and, with data to validate on, ``loss_valid`` and
    ``accuracy_valid`` at the end.

    Attributes:
        model: The network.
        steps: After how many steps the figures were taken, from 0 on.
        losses_valid, accuracies_valid: The figures, on validation data; empty without.
    """

    job: ClassVar[str] = "finetune"
    headline: ClassVar[tuple[str, ...]] = ("loss", "loss_valid", "accuracy_valid")

    model: nn.Module
    steps: tuple[int, ...] = ()
    losses_valid: tuple[float, ...] = ()
    accuracies_valid: tuple[float, ...] = field(default=())

    def write(self, draft: Draft) -> None:
        """Add the network, and the curve where there is one."""
        draft.write_checkpoint(self.model)
        if self.losses_valid:
            draft.table("curve", {"step": list(self.steps), "loss": list(self.losses_valid)})
            series = {"fine-tuning": ([float(step) for step in self.steps], list(self.losses_valid))}
            draft.plot("curve-plot", line_chart(series, title="On validation data", x_label="step", y_label="loss"))


def finetune(
    model: nn.Module,
    data: Any,
    valid: Any = None,
    *,
    steps: int = 300,
    rate: float = 5e-4,
    loss: Loss | None = None,
    every: int = 10,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> Finetuned:
    """A copy of a network after some steps of Adam on labelled data, with the loss on the way.

    Batch norms and dropout are as in training. Batches come in the order of the data, from the start again when they
    are used up.

    Args:
        model: The network, for example ``result.model`` of `interbasin.transport`. It stays as it is.
        data: Pairs (inputs, labels), to be read more than once.
        valid: Pairs to measure on, at the beginning, every few steps and at the end.
        steps: How many.
        rate: Learning rate.
        loss: Of outputs and labels; by default cross-entropy of the logits.
        every: Steps between two measurements.
        batch_size: For data that are one tensor.
        seed: Of dropout.
        progress: Called with a line of text as the work goes on.

    Raises:
        DataError: if there are no labels and no loss that works without, or the loss is not finite.

    Example:
        >>> net = nn.Linear(2, 2)
        >>> pairs = [(torch.randn(8, 2), torch.randint(0, 2, (8,))) for _ in range(3)]
        >>> finetune(net, pairs, pairs, steps=4, every=2).steps
        (0, 2, 4)
    """
    require_whole("steps", steps, least=1)
    require_whole("every", every, least=1)
    require_finite("rate", rate, above=0)
    require_reiterable(data, "Fine-tuning")
    require_reiterable(valid, "Fine-tuning with valid=")
    network = copied(model)
    network.requires_grad_(True).train()
    curve: list[tuple[int, float, float | None]] = []

    def measure(step: int) -> float:
        network.eval()
        found = measure_performance(network, valid, loss)
        network.train()
        curve.append((step, found.loss, found.accuracy))
        return found.loss

    def batch_loss(batch: Any, index: int) -> Tensor:
        inputs, labels = split_batch(batch)
        return mean_loss(outputs_of(network, inputs, index), labels, inputs, index, loss)

    done = itertools.count(1)
    watch = Stopwatch()
    with watch("train"), torch.random.fork_rng():
        torch.manual_seed(seed)
        if valid is not None:
            measure(0)
        trained = train(
            [parameter for parameter in network.parameters() if parameter.is_floating_point()],
            _Rounds(data, every, batch_size),
            batch_loss,
            epochs=-(-steps // every),
            rate=rate,
            evaluate=None if valid is None else lambda: measure(min(next(done) * every, steps)),
            what="fine-tuning",
            report=progress,
        )
    network.eval()
    for name, parameter in model.named_parameters():
        own = network.get_parameter(name)
        own.requires_grad_(parameter.requires_grad)
        own.grad = None
    metrics: dict[str, float] = {"loss": trained.losses[-1]}
    if curve:
        metrics["loss_valid"] = curve[-1][1]
        if curve[-1][2] is not None:
            metrics["accuracy_valid"] = curve[-1][2]
    return Finetuned(
        model=network,
        steps=tuple(step for step, _, _ in curve),
        losses_valid=tuple(value for _, value, _ in curve),
        accuracies_valid=tuple(value for _, _, value in curve if value is not None),
        metrics=metrics,
        timings=watch.timings,
        request={"steps": steps, "rate": rate, "every": every, "seed": seed},
    )


class _Rounds:
    """Data in rounds of so many batches: each time it is iterated over it goes on where it stopped."""

    def __init__(self, data: Any, size: int, batch_size: int) -> None:
        self._data, self._size, self._batch_size = data, size, batch_size
        self._stream: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._size):
            yield self._next()

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._stream:
                return batch
            batches: Iterable[Any] = as_batches(self._data, self._batch_size)
            self._stream = iter(batches)
        raise DataError("The data of fine-tuning hold no batch at all; give some.")
