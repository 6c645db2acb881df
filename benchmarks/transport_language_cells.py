"""The cells of the language benchmark of transport: one method, on one task of one pair of networks, with some texts.

They are cells as `transport_cells` has them, with other figures:

- of an encoder: per cent right on the test with a linear probe on its frozen states, fitted to the labels of the same
  texts that the method saw (``probe``); with tuned A's head, carried through the map of the last space (``reused``);
  with a head fitted without labels, by ridge regression, to what tuned A answers to these texts (``ridge``);
- of a decoder: nats a piece, and per cent of pieces that it foresees, on the task's test and on English captions;
- of a writer: ROUGE-L of what it writes to the test's captions, greedily, and nats a piece of the right answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import interbasin as ib
from interbasin.jobs.transport.bases import Bases, relate
from interbasin.jobs.transport.choice import ALPHAS, Referee, try_method
from interbasin.jobs.transport.held_out import Part
from interbasin.jobs.transport.judge import Judge
from interbasin.jobs.transport.regression.ridge import Sums
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.updates.update import Update
from interbasin.training import train
from interbasin.wiring.trace.copying import copied
from transport_cells import Work, clocked
from transport_language_workload import BATCH, GENERIC_BATCHES, Workload, cut, pooled, workload_of
from transport_rows import LABEL_FREE, ONE, VALIDATED, Row
from transport_texts import END, PAD, Batch, headline

STRENGTHS = (0.1, 1.0, 10.0)  # of probes: the inverse of their ridge, chosen on validation texts
WRITTEN = 300  # captions of the test that a writer answers
STEPS, STEP_ROWS = 200, 32  # of distillation, and of training on the few texts alone


@dataclass(frozen=True)
class TextRow(Row):
    """A line of the tables; ``"few-texts"`` is B trained on the texts of the calibration alone."""

    @property
    def needs_data(self) -> bool:
        return self.method == "few-texts" or super().needs_data

    @property
    def needs_shapes(self) -> bool:
        return self.method != "few-texts" and super().needs_shapes


# ---------------------------------------------------------------------- what a cell is run on


@dataclass(frozen=True, eq=False)
class Case:
    """A task of a pair of networks with its texts.

    Attributes:
        workload: The texts and networks.
        family, seed, task: Which of them.
        tuned: A's fine-tune, an encoder with its head.
        inputs: Batches of calibration, without labels.
        labels: Theirs, for the probes of encoders.
    """

    workload: Workload
    family: str
    seed: int
    task: str
    source: nn.Module
    tuned: nn.Module
    target: nn.Module
    inputs: list[Any]
    labels: Tensor | None

    @property
    def tuned_network(self) -> nn.Module:
        return self.tuned.encoder if self.family == "encoder" else self.tuned

    @property
    def outputs(self) -> str:
        return "own" if self.family == "encoder" else "auto"

    def generic(self) -> list[Tensor]:
        """English captions of B's half, as decoders learnt them."""
        rows = self.workload.pieces.packed(self.workload.task_texts("captions", "B"))
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(70_000 + self.seed))
        count = BATCH[self.family]
        return list(rows[order[: GENERIC_BATCHES * count]].split(count))

    def given_to(self, row: TextRow, bases: Bases) -> Task:
        update = Update.of(self.tuned_network, self.source)
        generic = self.generic() if row.generic else None
        options = Options(**row.options, seed=self.seed)
        return Task(bases, update, self.tuned_network, self.inputs, generic, None, options)

    # ------------------------------------------------------------------ figures

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Of a network in the place of B, on test data."""
        if self.family == "encoder":
            return self._measure_encoder(model)
        if self.family == "writer":
            return self._measure_writer(model, min(self.workload.tests, WRITTEN))
        return self._measure_decoder(model)

    def score(self, model: nn.Module) -> float:
        """The figure that counts, on validation data; more is better."""
        texts, labels = self.validation
        if self.family == "encoder":
            assert labels is not None
            return self._probe(model, cut(texts, slice(None)), labels)
        if self.family == "writer":
            return -self._loss_of_answers(model, texts, labels)
        return -_continued(model, texts)[0]

    @property
    def validation(self) -> tuple[Any, Any]:
        return _pool(self.workload, self.family, self.task, self.seed, "validation")

    def _measure_decoder(self, model: nn.Module) -> dict[str, float]:
        figures = {}
        for name, task in (("", self.task), ("original_", "captions")):
            rows = self.workload.pieces.packed(self.workload.task_texts(task, None))[: self.workload.tests]
            figures[f"{name}loss"], figures[f"{name}accuracy"] = _continued(model, rows)
        return figures

    def _measure_encoder(self, model: nn.Module) -> dict[str, float]:
        items = self.workload.texts.labelled(self.task, None)
        texts, labels = (
            self.workload.pieces.padded([text for text, _ in items]),
            torch.tensor([each for _, each in items]),
        )
        figures = {"probe": self._probe(model, texts, labels)}
        states = _states(model, texts)
        if states.shape[1] == self.target.config.hidden_size and self.inputs:
            for name, (weight, bias) in (("reused", self._carried_head()), ("ridge", self._ridge_head(model))):
                figures[name] = _right(states @ weight.mT + bias, labels)
        return figures

    def _probe(self, model: nn.Module, texts: Batch, labels: Tensor) -> float:
        """Per cent right of a probe on the calibration texts, with the ridge that is best on validation texts."""
        assert self.labels is not None
        known = torch.cat([_states(model, batch) for batch in self.inputs])
        mean, spread = known.mean(0), known.std(0).clamp(min=1e-6)
        validation, truth = self.validation
        best: tuple[float, LogisticRegression] | None = None
        for strength in STRENGTHS:
            probe = LogisticRegression(C=strength, max_iter=300)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # 300 steps are what every probe gets
                probe.fit(((known - mean) / spread).numpy(), self.labels.numpy())
            right = probe.score(((_states(model, validation) - mean) / spread).numpy(), truth.numpy())
            best = (right, probe) if best is None or right > best[0] else best
        assert best is not None
        return 100 * best[1].score(((_states(model, texts) - mean) / spread).numpy(), labels.numpy())

    def _carried_head(self) -> tuple[Tensor, Tensor]:
        """Tuned A's head, for the target's states."""
        prepared = ib.prepare_transport(self.source, self.target, self.inputs, outputs="own", scale="rms")
        head = self.tuned.head
        return ib.carry_probe(head.weight, head.bias, prepared, last_space(prepared))

    def _ridge_head(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """A head for a network's states that answers as tuned A does, fitted without labels."""
        sums = Sums()
        for batch in self.inputs:
            with torch.no_grad():
                sums.add(_states(model, batch), self.tuned(batch))
        weight = torch.zeros(self.tuned.head.out_features, self.target.config.hidden_size)
        found = sums.solve(weight, torch.zeros(len(weight)), ridge=None)
        assert found.bias is not None
        return found.weight.float(), found.bias.float()

    def _measure_writer(self, model: nn.Module, most: int) -> dict[str, float]:
        captions = self.workload.texts.test_captions[:most]
        wanted = [headline(caption) for caption in captions]
        texts, answers = self.workload.pieces.padded(captions), self.workload.pieces.answers(wanted)
        written = self.workload.pieces.texts(write(model, texts, self.workload.length))
        scores = [ib.evaluate.rouge_l(*both) for both in zip(written, wanted, strict=True)]
        return {"rouge": sum(scores) / len(scores), "loss": self._loss_of_answers(model, texts, answers)}

    @torch.no_grad()
    def _loss_of_answers(self, model: nn.Module, texts: Batch, answers: Batch) -> float:
        given = {name: tensor for name, tensor in answers.items() if name != "labels"}
        logits = model(**texts, **given).logits
        return float(cross_entropy(logits.flatten(0, 1), answers["labels"].flatten(), ignore_index=PAD))


def last_space(prepared: Any) -> str:
    """The space of the source that its last states lie in."""
    spaces = prepared.bases.correspondence.source.spaces
    (name,) = (name for name, space in spaces.items() if space.because is not None and space.because.kind == "output")
    return str(name)


@torch.no_grad()
def _states(encoder: nn.Module, batch: Batch) -> Tensor:
    return pooled(encoder, batch)


def _right(logits: Tensor, labels: Tensor) -> float:
    return 100 * float((logits.argmax(1) == labels).float().mean())


@torch.no_grad()
def _continued(model: nn.Module, rows: Tensor) -> tuple[float, float]:
    """Nats a piece, and per cent of the pieces that a decoder foresees."""
    losses, right, count = 0.0, 0, 0
    for ids in rows.split(100):
        logits, truth = model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        losses += float(cross_entropy(logits, truth, reduction="sum"))
        right += int((logits.argmax(1) == truth).sum())
        count += len(truth)
    return losses / count, 100 * right / count


@torch.no_grad()
def write(model: nn.Module, texts: Batch, length: int) -> Tensor:
    """What an encoder-decoder answers, the likeliest piece each time, without the start."""
    encoded = model.encoder(input_ids=texts["input_ids"], attention_mask=texts["attention_mask"])
    ids = torch.full((len(texts["input_ids"]), 1), PAD)
    ended = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(length - 1):
        logits = model(encoder_outputs=encoded, attention_mask=texts["attention_mask"], decoder_input_ids=ids).logits
        piece = logits[:, -1].argmax(1).masked_fill(ended, PAD)
        ids = torch.cat([ids, piece[:, None]], 1)
        ended |= piece == END
        if bool(ended.all()):
            break
    return ids[:, 1:]


# ---------------------------------------------------------------------- texts of calibration and validation


@lru_cache(maxsize=8)
def _pool(workload: Workload, family: str, task: str, seed: int, part: str) -> tuple[Any, Any]:
    """Texts of B's half, shuffled, with labels where there are some: for calibration, or the rest for validation."""
    held = workload.validation
    pieces = workload.pieces

    def chosen(count: int) -> Tensor:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(60_000 + seed))
        return order[held:] if part == "calibration" else order[:held]

    if family == "encoder":
        items = workload.texts.labelled(task, "B")
        rows = chosen(len(items))
        labels = torch.tensor([label for _, label in items])[rows]
        return cut(pieces.padded([text for text, _ in items]), rows), labels
    if family == "writer":
        captions = [workload.texts.captions["B"][place] for place in chosen(len(workload.texts.captions["B"]))[:1_000]]
        return pieces.padded(captions), pieces.answers([headline(caption) for caption in captions])
    rows = pieces.packed(workload.task_texts(task, "B"))
    return rows[chosen(len(rows))], None


@lru_cache(maxsize=2)
def case_of(pair: str, seed: int, task: str, batches: int) -> Case:
    """With so many batches; with none a single one, for the trace."""
    name, _, family = pair.rpartition("-")
    workload = workload_of(name)
    networks = (
        workload.base(family, "A", seed),
        workload.tuned(family, "A", task, seed),
        workload.foreign(seed) if name == "foreign" else workload.base(family, "B", seed),
    )
    texts, labels = _pool(workload, family, task, seed, "calibration")
    size, count = BATCH[family], (batches or 1) * BATCH[family]
    if isinstance(texts, Tensor):
        return Case(workload, family, seed, task, *networks, list(texts[:count].split(size)), None)
    texts = cut(texts, slice(0, count))
    if family == "writer":
        # Nobody has the answers: the decoders are shown what tuned A writes.
        written = workload.pieces.texts(write(networks[1], texts, workload.length))
        answers = workload.pieces.answers(written)
        texts |= {name: tensor for name, tensor in answers.items() if name != "labels"}
    inputs = [cut(texts, slice(start, start + size)) for start in range(0, len(texts["input_ids"]), size)]
    return Case(workload, family, seed, task, *networks, inputs, None if family == "writer" else labels[:count])


@lru_cache(maxsize=4)
def bases_of(pair: str, seed: int, task: str, batches: int, heads: str) -> Bases:
    case = case_of(pair, seed, task, batches)
    return relate(case.source, case.target, case.inputs, heads=heads, outputs=case.outputs)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- running one


class TextWork(Work):
    """Cells to be run in one go: a row on a case, with every rule for alpha."""

    row: TextRow

    def _run(self) -> Iterator[dict[str, Any]]:
        case = case_of(self.pair, self.seed, self.task, self.batches)
        if self.row.method == "auto":
            yield self._cell(ONE, **_run_auto(case, self.row))
        elif self.row.method == "tuned-target":
            tuned = case.workload.tuned(case.family, "B", self.task, self.seed)
            network = tuned.encoder if case.family == "encoder" else tuned
            own = _own_head(tuned, case) if case.family == "encoder" else {}
            yield self._cell(ONE, alpha=1.0, seconds=None, **(case.measure(network) | own))
        elif self.row.method == "few-texts":
            network, seconds = clocked(lambda: _train_on(case, **self.row.settings))
            yield self._cell(ONE, alpha=1.0, seconds=seconds, **case.measure(network))
        else:
            yield from self._run_texts(case)

    def _run_texts(self, case: Case) -> Iterator[dict[str, Any]]:
        bases = bases_of(self.pair, self.seed, self.task, self.batches, self.row.heads)
        task = case.given_to(self.row, bases)
        transported, seconds = clocked(lambda: self.row(task))
        norm_error = None if transported.model is not None else transported.update.norm() / task.update.norm() - 1
        measured: dict[float, dict[str, float]] = {}
        for rule in self.rules:
            alpha, extra = 1.0, 0.0
            if rule == LABEL_FREE:
                alpha, extra = clocked(lambda: _alpha_without_labels(task, self.row))
            elif rule == VALIDATED:
                alpha, extra = clocked(lambda: _alpha_by_labels(transported, case))
            else:
                alpha = float(rule)
            if alpha not in measured:
                measured[alpha] = case.measure(transported.applied_to(case.target, alpha))
                if self.row.method == "tuned-source" and case.family == "encoder":
                    measured[alpha] |= _own_head(case.tuned, case)
            yield self._cell(rule, alpha=alpha, seconds=seconds + extra, norm_error=norm_error, **measured[alpha])


def _own_head(classifier: nn.Module, case: Case) -> dict[str, float]:
    items = case.workload.texts.labelled(case.task, None)
    texts, labels = case.workload.pieces.padded([text for text, _ in items]), torch.tensor([each for _, each in items])
    with torch.no_grad():
        return {"reused": _right(classifier(texts), labels)}


def _alpha_without_labels(task: Task, row: TextRow) -> float:
    """By what is explained of tuned A's effect on a quarter of the inputs, with the method fitted on the others."""
    trial = task.on(Part(task.data, held=False))
    referee = Referee(Judge(trial, Part(task.data, held=True)))
    return try_method(trial, referee, row.method, "", ALPHAS, row).alpha


def _alpha_by_labels(transported: Transported, case: Case) -> float:
    scores = {alpha: case.score(transported.applied_to(case.target, alpha)) for alpha in ALPHAS}
    return max(ALPHAS, key=lambda alpha: (scores[alpha], -abs(alpha - 1)))


def _train_on(case: Case, rate: float) -> nn.Module:
    """B trained on the few texts of the calibration as a decoder is trained: what one would do without tuned A."""
    network, rows = copied(case.target).requires_grad_(True), torch.cat(case.inputs)
    generator = torch.Generator().manual_seed(case.seed)

    def loss(step: Any, index: int) -> Tensor:
        ids = rows[torch.randint(len(rows), (STEP_ROWS,), generator=generator)]
        return cross_entropy(network(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    train(network.parameters(), range(STEPS), loss, epochs=1, rate=rate, one_cycle=STEPS, what="B on the few texts")
    return network.requires_grad_(False)


def _run_auto(case: Case, row: TextRow) -> dict[str, Any]:
    generic = case.generic() if row.generic else None
    result, seconds = clocked(
        lambda: ib.transport(
            case.source,
            case.tuned_network,
            case.target,
            case.inputs,
            outputs=case.outputs,  # type: ignore[arg-type]
            generic=generic,
            seed=case.seed,
        )
    )
    return {
        "alpha": result.metrics["alpha"],
        "chosen": result.method,
        "choice": result.verdict.choice,
        "verdict": str(result.verdict),
        "explained": {name: figures["effect_explained"] for name, figures in result.candidates.items()},
        "seconds": seconds,
        "norm_error": result.metrics["norm_ratio"] - 1,
        **case.measure(result.model),
    }
