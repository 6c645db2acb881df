"""Fine-tuning from where a transport ends: the loss on the way, to be laid beside that of a cold start."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from interbasin.activations.recording import digest_of
from interbasin.batches import BATCH_SIZE, as_batches, outputs_of, reporter_of, require_reiterable, split_batch
from interbasin.checks import require_finite, require_whole
from interbasin.errors import DataError
from interbasin.evaluate.performance import Loss, mean_loss, measure_performance
from interbasin.jobs.transport.held_out import COMPARED_ON, Steady
from interbasin.jobs.transport.networks import require_network
from interbasin.outcome import Draft, Result, Stopwatch
from interbasin.outcome.plots import line_chart
from interbasin.randomness import generator_of
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


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Two networks after the same training: one that began with a transported update, and the target as it was.

    Attributes:
        warm, cold: How each of them went.
        reached: The first step that was measured at which the warm start was as good as the cold one at its end, by
            the loss on validation data; None if it never was.
    """

    warm: Finetuned
    cold: Finetuned

    @property
    def reached(self) -> int | None:
        goal = self.cold.losses_valid[-1]
        pairs = zip(self.warm.steps, self.warm.losses_valid, strict=True)
        return next((step for step, loss in pairs if loss <= goal), None)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of both at the end, and the step at which the warm start had caught up."""
        figures = {
            f"{name}_{start}": run.metrics[f"{name}_valid"]
            for start, run in (("warm", self.warm), ("cold", self.cold))
            for name in ("loss", "accuracy")
            if f"{name}_valid" in run.metrics
        }
        return figures if self.reached is None else {**figures, "step_reached": float(self.reached)}

    def summarize(self) -> dict[str, Any]:
        """Both curves and the step, fit for JSON."""
        curves = {
            name: {"loss": list(run.losses_valid), "accuracy": list(run.accuracies_valid)}
            for name, run in (("warm", self.warm), ("cold", self.cold))
        }
        return {"steps": list(self.warm.steps), **curves, "reached": self.reached, "text": str(self)}

    def __str__(self) -> str:
        end, loss = self.cold.steps[-1], self.cold.losses_valid[-1]
        if self.reached is None:
            return (
                f"After {end} steps the cold start has a loss of {loss:.4g}; the warm start has "
                f"{self.warm.losses_valid[-1]:.4g} and never came below."
            )
        return (
            f"After {end} steps the cold start has a loss of {loss:.4g}; the warm start has reached it at step "
            f"{self.reached}."
        )

    def write(self, draft: Draft) -> None:
        """Add both curves, as a table and a plot."""
        columns: dict[str, list[Any]] = {"step": list(self.warm.steps)}
        for name, values in (("loss", "losses_valid"), ("accuracy", "accuracies_valid")):
            for start, run in (("warm", self.warm), ("cold", self.cold)):
                if len(getattr(run, values)) == len(run.steps):
                    columns[f"{name}_{start}"] = list(getattr(run, values))
        draft.table("warm-start", columns)
        steps = [float(step) for step in self.warm.steps]
        series = {
            "from the transported update": (steps, list(self.warm.losses_valid)),
            "from the target as it was": (steps, list(self.cold.losses_valid)),
        }
        svg = line_chart(
            series,
            title="Fine-tuning, warm and cold",
            note=str(self),
            x_label="step",
            y_label="loss on validation data (logarithmic)",
            log=True,
        )
        (draft.folder / "warm-start.svg").write_text(svg, encoding="utf-8")
        draft.add("warm-start-plot", "plot", "warm-start.svg")


def train_on(
    model: nn.Module,
    target: nn.Module,
    data: Any,
    valid: Any,
    *,
    steps: int = 300,
    rate: float = 5e-4,
    loss: Loss | None = None,
    every: int | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    progress: Callable[[str, int, str], object] | None = None,
) -> WarmStart:
    """Train a network that began with a transported update, and beside it the target as it was, in the same way.

    Args:
        model: ``result.model`` of `interbasin.transport`. It stays as it is.
        target: The network that the update was transported to. It stays as it is.
        data: Pairs (inputs, labels) to train on.
        valid: Pairs to measure on; not the same.
        every: Steps between two measurements; by default there are about thirty.
        progress: Called with the start (``"warm"`` or ``"cold"``), the steps that are done and a line of text.
        steps, rate, loss, batch_size, seed: As for `finetune`.

    Raises:
        DataError: if there are no labels, a batch to measure on is one to train on, the loss is not finite, or
            ``valid`` comes in another order each time.

    Example:
        >>> pairs = [(torch.randn(8, 2), torch.randint(0, 2, (8,))) for _ in range(2)]
        >>> train_on(nn.Linear(2, 2), nn.Linear(2, 2), pairs[:1], pairs[1:], steps=4, every=2).warm.steps
        (0, 2, 4)
    """
    require_whole("steps", steps, least=1)
    every = max(1, steps // 30) if every is None else every
    if valid is None:
        raise DataError("Two starts are compared on validation data, and there are none; give some.")
    for name, batches in (("data", data), ("valid", valid)):
        require_reiterable(batches, f"Fine-tuning with {name}=")
    _refuse_same_batches(data, valid, steps, batch_size)
    valid = Steady(valid, "validation data", COMPARED_ON, labelled=True, batch_size=BATCH_SIZE)
    options: dict[str, Any] = {"steps": steps, "rate": rate, "loss": loss, "every": every, "batch_size": batch_size}
    runs = []
    for start, network in (("warm", model), ("cold", target)):
        report = None
        if progress is not None:
            done = itertools.count(1)

            def report(text: str, start: str = start, done: Iterator[int] = done) -> None:
                progress(start, min(next(done) * every, steps), text)

        runs.append(finetune(network, data, valid, seed=seed, progress=report, **options))
    return WarmStart(*runs)


def _refuse_same_batches(data: Any, valid: Any, steps: int, batch_size: int) -> None:
    """Refuse validation data of which a batch is trained on: curves on such data mean nothing."""
    nothing = digest_of(())  # of batches that hold no tensors and no plain values, nothing is known
    with torch.random.fork_rng(devices=[]):  # a loader may draw its order
        digests = {digest_of(batch) for batch in itertools.islice(as_batches(data, batch_size), steps)} - {nothing}
        for number, batch in enumerate(as_batches(valid, batch_size)):
            if digest_of(batch) in digests:
                raise DataError(
                    f"Batch {number} of the validation data is trained on, so that the curves would mean nothing; "
                    "give others to measure on."
                )


@torch.inference_mode(False)  # callers may have switched gradients off
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
    progress: Callable[[str], object] | bool | None = None,
) -> Finetuned:
    """A copy of a network after some steps of Adam on labelled data, with the loss on the way.

    Batch norms and dropout are as in training. Batches come in the order of the data, from the start again when they
    are used up. Parameters that require no gradient stay as they are, unless none does, as `load_model` leaves
    networks: then all are trained.

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
        progress: Called with a line of text as the work goes on; True for lines on stderr.

    Raises:
        DataError: if there are no labels and no loss that works without, or a loss is not finite.

    Example:
        >>> net = nn.Linear(2, 2)
        >>> pairs = [(torch.randn(8, 2), torch.randint(0, 2, (8,))) for _ in range(3)]
        >>> finetune(net, pairs, pairs, steps=4, every=2).steps
        (0, 2, 4)
    """
    require_network(model, "network to train")
    require_whole("steps", steps, least=1)
    require_whole("every", every, least=1)
    require_finite("rate", rate, above=0)
    generator_of(seed)
    report = reporter_of(progress)
    require_reiterable(data, "Fine-tuning")
    require_reiterable(valid, "Fine-tuning with valid=")
    network = copied(model).train()
    free = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not free:
        free = [parameter for parameter in network.parameters() if parameter.is_floating_point()]
        for parameter in free:
            parameter.requires_grad_(True)
    curve: list[tuple[int, float, float | None]] = []
    recent: list[float] = []

    def measure(step: int) -> float:
        network.eval()
        performance = measure_performance(network, valid, loss)
        network.train()
        if not math.isfinite(performance.loss):
            raise DataError(
                f"The loss on the validation data is {performance.loss} at step {step} of fine-tuning; check these "
                "data, or lower the learning rate."
            )
        curve.append((step, performance.loss, performance.accuracy))
        return performance.loss

    def batch_loss(batch: Any, index: int) -> Tensor:
        inputs, labels = split_batch(batch)
        value = mean_loss(outputs_of(network, inputs, index), labels, inputs, index, loss)
        recent.append(float(value.detach()))
        return value

    def tell(epoch: str) -> None:
        step = min(next(reports) * every, steps)
        valid_loss = f", {curve[-1][1]:.4g} on validation data" if curve else ""
        report(f"step {step} of {steps}: loss {sum(recent) / len(recent):.4g}{valid_loss}")
        recent.clear()

    done, reports = itertools.count(1), itertools.count(1)
    watch = Stopwatch()
    with watch("train"), torch.random.fork_rng():
        torch.manual_seed(seed)
        if valid is not None:
            measure(0)
        trained = train(
            free,
            _Rounds(data, steps, every, batch_size),
            batch_loss,
            epochs=-(-steps // every),
            rate=rate,
            evaluate=None if valid is None else lambda: measure(min(next(done) * every, steps)),
            what="fine-tuning",
            report=tell,
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
    """Data in rounds of so many batches, and so many in all: each round goes on where the last one stopped."""

    def __init__(self, data: Any, total: int, size: int, batch_size: int) -> None:
        self._data, self._left, self._size, self._batch_size = data, total, size, batch_size
        self._stream: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        for _ in range(min(self._size, self._left)):
            self._left -= 1
            yield self._next()

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._stream:
                return batch
            batches: Iterable[Any] = as_batches(self._data, self._batch_size)
            self._stream = iter(batches)
        raise DataError("The data of fine-tuning hold no batch at all; give some.")
