"""Cells of the transport benchmark that are no line of its tables: verdicts, the warm start, the sweep over alpha.

Each has a ``key``, the ``row`` and ``method`` that it belongs to, and a ``run`` that yields its cell, as `Work` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import interbasin as ib
from interbasin.jobs.transport.updates.update import Update
from transport_cells import bases_of, case_of, clocked, pair_of
from transport_rows import ABLATION_ROWS, BASELINE_ROWS, LABEL_ROWS, METHOD_ROWS, ONE, SAME_SHAPE_ROWS, Row
from transport_workload import BATCH, FULL, PRETRAIN_RATE, TURN, Residual, new_residual

ROWS = {row.name: row for row in (*METHOD_ROWS, *BASELINE_ROWS, *SAME_SHAPE_ROWS, *LABEL_ROWS, *ABLATION_ROWS)}
CASES = 20  # of each kind where the verdict must be "do not"
WORTHLESS_SEEDS = 6  # six models each; not all of them turn out to be worth nothing
SHORT = 300  # steps of networks that are trained only to be unrelated
SWEEP = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
WARM_STEPS, WARM_EVERY, WARM_RATE, WARM_BATCH, WARM_ROWS = 150, 10, 5e-4, 256, 1_000


@dataclass(frozen=True)
class Study:
    """One cell with a key like those of the tables."""

    pair: str
    seed: int
    task: str
    name: str
    batches: int

    row_method = "auto"
    rule = ONE

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        return [(self.pair, self.seed, self.task, self.name, self.batches, 0, self.rule)]

    def run(self) -> Iterator[dict[str, Any]]:
        yield {
            "pair": self.pair,
            "seed": self.seed,
            "task": self.task,
            "row": self.name,
            "method": self.row_method,
            "batches": self.batches,
            "shots": 0,
            "rule": self.rule,
            **self.figures(),
        }

    def figures(self) -> dict[str, Any]:
        raise NotImplementedError


# ---------------------------------------------------------------------- verdicts


class Unrelated(Study):
    """Two networks with outputs of their own that were trained on unrelated data: "do not" is right.

    A knows digits alone, and is fine-tuned on turned ones. B knows clothes alone, or learnt labels without meaning.
    """

    def figures(self) -> dict[str, Any]:
        source = _short("A", "digits", FULL.widths[0], self.seed % 2)
        tuned = _short_tuned(source, self.seed % 2)
        target = _short("B", "clothes" if self.name == "clothes" else "shuffled", FULL.widths[1], self.seed)
        inputs, _ = pair_of("wider", self.seed % 5).calibration("digits", self.batches)
        result, seconds = clocked(
            lambda: ib.transport(source, tuned, target, list(inputs.split(BATCH)), outputs="own", seed=self.seed)
        )
        return _verdict(result) | {"seconds": seconds}


def _short(side: Literal["A", "B"], what: str, width: int, seed: int) -> Residual:
    """A network trained for a short time on one part, or on all with shuffled labels."""
    number = 90_000 + 100 * seed + ("digits", "clothes", "shuffled").index(what)
    model = new_residual(FULL.pixels, width, 3, number)

    def make() -> None:
        data = FULL.seen_by(side, None if what == "shuffled" else what)
        if what == "shuffled":
            mixed = torch.randperm(len(data), generator=torch.Generator().manual_seed(number))
            data = type(data)(data.images, data.labels[mixed])
        FULL.train(model, data, SHORT, PRETRAIN_RATE, number + 10, None)

    return FULL.cached(model, f"short{SHORT}-{side}-{what}-w{width}-s{seed}", make)


def _short_tuned(source: Residual, seed: int) -> Residual:
    model = Residual(FULL.pixels, FULL.widths[0])

    def make() -> None:
        model.load_state_dict(source.state_dict())
        FULL.train(model, FULL.seen_by("A", "digits"), SHORT, 5e-4, 95_000 + seed, TURN)

    return FULL.cached(model, f"short{SHORT}-tuned-A-digits-w{FULL.widths[0]}-s{seed}", make)


class Related(Study):
    """The pair of the tables with outputs of their own: "do not" would be wrong. Without a bar."""

    def figures(self) -> dict[str, Any]:
        both = pair_of("wider", self.seed)
        inputs, _ = both.calibration(self.task, self.batches)
        tuned = both.tuned_source(self.task)
        result, seconds = clocked(
            lambda: ib.transport(
                both.source, tuned, both.target, list(inputs.split(BATCH)), outputs="own", seed=self.seed
            )
        )
        measured = {"accuracy": FULL.accuracy(result.model, FULL.tests[self.task])}
        return _verdict(result) | measured | {"seconds": seconds}


class Worthless(Study):
    """A tuned model that is no better on labelled validation data than its base: "do not" is right.

    It was fine-tuned on the other task (``other-task``), or its update is noise of the same size in every tensor
    (``noise``), or data are images as they are, which it has partly forgotten (``original``). Whether it is no better
    is not taken for granted: ``better`` tells by its loss on the test images, which the verdict does not see. A base
    that is confidently wrong can be bettered by almost anything.
    """

    def figures(self) -> dict[str, Any]:
        both = pair_of("wider", self.seed)
        other = next(task for task in FULL.tasks if task != self.task)
        tuned: nn.Module = both.tuned_source(other if self.name == "other-task" else self.task)
        if self.name == "noise":
            tuned = _noisy(both.source, Update.of(tuned, both.source), 80_000 + self.seed)
        if self.name == "original":
            inputs, labelled = both.generic(self.batches), both.original_validation(250)
            test = FULL.tests[""]
        else:
            inputs, labelled = both.calibration(self.task, self.batches)[0], both.validation(self.task, 500)
            test = FULL.tests[self.task]
        result, seconds = clocked(
            lambda: ib.transport(
                both.source,
                tuned,
                both.target,
                list(inputs.split(BATCH)),
                readout=FULL.readout,
                validate=[labelled],
                seed=self.seed,
            )
        )
        losses = [_loss(network, test) for network in (both.source, tuned)]
        figures = {
            "test_losses": [float(f"{loss:.5g}") for loss in losses],
            "test_accuracies": [FULL.accuracy(network, test) for network in (both.source, tuned)],
            "better": losses[1] < losses[0],
        }
        return _verdict(result) | figures | {"seconds": seconds}


@torch.no_grad()
def _loss(network: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    return float(cross_entropy(FULL.readout(network(data[0])), data[1]))


def _noisy(source: nn.Module, update: Update, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    noise = {}
    for name in update:
        drawn = torch.randn(update.shape(name), generator=generator)
        noise[name] = drawn * (update.norm_of(name) / float(drawn.norm()))
    return Update.of(noise, source).added_to(source)


def _verdict(result: Any) -> dict[str, Any]:
    figures = {name: [each.value, each.low, each.high] for name, each in result.verdict.figures.items()}
    return {
        "choice": result.verdict.choice,
        "verdict": str(result.verdict),
        "chosen": result.method,
        "alpha": result.metrics["alpha"],
        "figures": {name: [float(f"{value:.4g}") for value in values] for name, values in figures.items()},
    }


# ---------------------------------------------------------------------- the warm start, and alpha


class Warm(Study):
    """B fine-tuned with labels, from its base (``warm-none``) or from what a method made of it: loss on the way."""

    @property
    def row_method(self) -> str:  # type: ignore[override]
        return self.row.method if self.row else "none"

    @property
    def row(self) -> Row | None:
        return ROWS.get(self.name.removeprefix("warm-"))

    def figures(self) -> dict[str, Any]:
        case = case_of(self.pair, self.seed, self.task, self.batches, 0)
        start: nn.Module = case.pair.target
        if self.row is not None:
            bases = bases_of(self.pair, self.seed, self.task, self.batches, 0, "auto")
            start = self.row(case.given_to(self.row, bases)).applied_to(start)
        pixels, labels = case.pair.training(self.task)
        mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(85_000 + self.seed))
        train = list(zip(pixels[mixed].split(WARM_BATCH), labels[mixed].split(WARM_BATCH), strict=True))
        result, seconds = clocked(
            lambda: ib.finetune(
                start,
                train,
                [case.pair.validation(self.task, WARM_ROWS)],
                steps=WARM_STEPS,
                every=WARM_EVERY,
                rate=WARM_RATE,
                loss=lambda outputs, truth: cross_entropy(case.workload.readout(outputs), truth),
                seed=self.seed,
            )
        )
        return {
            "steps": list(result.steps),
            "losses": [float(f"{loss:.5g}") for loss in result.losses_valid],
            "accuracy": case.workload.accuracy(result.model, case.workload.tests[self.task]),
            "original": case.workload.accuracy(result.model, case.workload.tests[""]),
            "seconds": seconds,
        }


class Sweep(Study):
    """Accuracy of B with alpha times an update, over alpha."""

    rule = "sweep"

    @property
    def row_method(self) -> str:  # type: ignore[override]
        return ROWS[self.name].method

    def figures(self) -> dict[str, Any]:
        case, row = case_of(self.pair, self.seed, self.task, self.batches, 0), ROWS[self.name]
        bases = bases_of(self.pair, self.seed, self.task, self.batches, 0, "auto")
        transported = row(case.given_to(row, bases))
        test = case.workload.tests[self.task]
        found = [case.workload.accuracy(transported.applied_to(case.pair.target, alpha), test) for alpha in SWEEP]
        return {"alphas": list(SWEEP), "accuracies": found}


def verdicts() -> list[Study]:
    """All cases where the verdict must be "do not", and as many where it must not although outputs are not shared."""
    unrelated: list[Study] = [
        Unrelated("unrelated", number, "digits", "clothes" if number < CASES // 2 else "shuffled", (5, 20)[number % 2])
        for number in range(CASES)
    ]
    worthless: list[Study] = [
        Worthless("worthless", seed, task, kind, (5, 20)[(seed + place) % 2])
        for seed in range(WORTHLESS_SEEDS)
        for place, task in enumerate(FULL.tasks)
        for kind in ("other-task", "noise", "original")
    ]
    related: list[Study] = [
        Related("related", seed, task, "own", batches)
        for seed in range(CASES // 4)
        for task in FULL.tasks
        for batches in (5, 20)
    ]
    return unrelated + worthless + related


def warm_starts(seeds: int) -> list[Study]:
    return [
        Warm("wider", seed, task, f"warm-{name}", 20)
        for seed in range(seeds)
        for task in FULL.tasks
        for name in ("none", "theseus-spaces", "regression")
    ]


def sweeps(seeds: int) -> list[Study]:
    names = ("theseus-modules", "theseus-spaces", "theseus-spaces-rms", "theseus+gradfix")
    wider: list[Study] = [
        Sweep("wider", seed, task, name, 5) for seed in range(seeds) for task in FULL.tasks for name in names
    ]
    same: list[Study] = [
        Sweep("same", seed, task, name, 5)
        for seed in range(seeds)
        for task in FULL.tasks
        for name in (*names, "direct", "transfusion", "gradfix")
    ]
    return wider + same
