"""What a transport returns: the update for the target with its account, the verdict, and the folder of it all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import nn

from interbasin.checkpoints.folded import describe_folder
from interbasin.checkpoints.write import notes_on_companions, write_into
from interbasin.errors import DataError
from interbasin.jobs.transport.theseus.carrier import Moved, table_of
from interbasin.jobs.transport.updates.ties import names_apart
from interbasin.jobs.transport.updates.update import Update
from interbasin.jobs.transport.verdict import Verdict
from interbasin.jobs.transport.warm_start import WarmStart, train_on
from interbasin.outcome import Draft, Result, Stopwatch
from interbasin.outcome.plots import bar_chart, line_chart
from interbasin.text import list_names, plural, printable

LOWEST_BAR = -1.0  # in the plot of a comparison; what explains less would squeeze all others


@dataclass(frozen=True)
class SpaceRow:
    """What was seen of one pair of spaces.

    Attributes:
        source, target: The spaces.
        widths: Of source and target.
        seen: How many directions were observed, of ``full``.
        cosine_before, cosine_after: Of the two networks' activations on held-out inputs, without and with the map.
        explained: The share of the target's variance there that the map explains.
    """

    source: str
    target: str
    widths: tuple[int, int]
    seen: int
    full: int
    cosine_before: float
    cosine_after: float
    explained: float


@dataclass(frozen=True)
class ComparedRow:
    """One method of the comparison, on held-out inputs."""

    method: str
    needs: tuple[str, ...]
    effect: float
    low: float
    high: float
    norm_ratio: float | None
    seconds: float
    loss: float | None = None
    accuracy: float | None = None
    forgotten: float | None = None
    note: str = ""


@dataclass(frozen=True)
class FrontRow:
    """One point of the front, on held-out inputs.

    Attributes:
        point: ``"regression"``, or what stands beside it: the target, the tuned source, what was chosen.
        generic_weight: Of a regression.
        effect, low, high: The share of the tuned source's effect that it explains, with its interval.
        forgotten: How far its answers to generic inputs are from the target's own.
        loss, accuracy: On labelled data, where there are some.
        seconds: That a regression took; 0 where it was known already.
    """

    point: str
    generic_weight: float | None
    effect: float
    low: float
    high: float
    forgotten: float
    loss: float | None = None
    accuracy: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Transport(Result):
    """The fine-tune of one network, for another.

    ``metrics`` hold ``share_moved``, ``share_skipped`` and ``share_unobserved`` (of the squared norm of the source's
    update), ``norm_ratio`` (of the update after and before), ``cosine_before`` and ``cosine_after`` (of activations,
    mean over spaces, on held-out inputs), ``alpha`` and ``effect_explained``; with generic inputs ``forgotten`` and
    ``forgotten_source``; with labels ``loss`` and ``accuracy`` of what is asked about.

    Attributes:
        delta: For the target, alpha included: a mapping of names to tensors; low-rank updates have ``factors``.
        model: The target with it.
        moved: One row for each tensor of the source's update.
        verdict: What to do.
        method, variant: What was chosen.
        spaces: One row for each pair of spaces.
        candidates: Of ``method="auto"``, what each method explains.
        sweep: Alpha -> score on held-out inputs, where alpha was searched for.
        compared: The table of the comparison, where one was asked for.
        front: What is learned and what is forgotten over several weights of generic inputs, where that was asked for.
        unit: What distances of answers are measured in: nats, or squares of outputs.
        trained: What became of training from there, beside a cold start, where that was done: see `with_training`.
    """

    job: ClassVar[str] = "transport"
    headline: ClassVar[tuple[str, ...]] = ("effect_explained", "alpha", "share_moved", "norm_ratio")

    delta: Update
    model: nn.Module
    target: nn.Module
    moved: tuple[Moved, ...]
    verdict: Verdict
    method: str
    variant: str
    spaces: tuple[SpaceRow, ...] = ()
    candidates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sweep: Sequence[tuple[float, float]] = ()
    compared: tuple[ComparedRow, ...] = ()
    front: tuple[FrontRow, ...] = ()
    unit: str = "nats"
    trained: WarmStart | None = None

    def with_training(self, data: Any, valid: Any, **options: Any) -> Transport:
        """The same with what becomes of training on labelled data, from here and from the target as it was.

        The arguments are those of `train_on`: pairs to train on, pairs to measure on, ``steps``, ``rate`` and so on.
        """
        with (watch := Stopwatch())("train"):
            trained = train_on(self.model, self.target, data, valid, **options)
        return replace(self, trained=trained, timings={**self.timings, **watch.timings})

    def write(self, draft: Draft, *, model: bool = False, like: Any = None, base: str | None = None) -> None:
        """Add ``adapter/`` (PEFT's layout) or ``update.safetensors``, the verdict, the tables and the plots.

        ``model`` also writes the target with the update; ``like`` is the checkpoint whose configuration and tokenizer
        are copied along, ``base`` the MODEL that the update belongs to.
        """
        if self.delta.is_low_rank:
            with draft.filled("adapter", "file", place="adapter") as folder:
                draft.notes.extend(self.delta.write(folder, base=base, model=self.target))
        else:
            with draft.filled("update", "file") as folder:
                draft.notes.extend(self.delta.write(folder, base=base, model=self.target))
        if model:
            self._write_network(draft, self.model, "model", like)
        if self.trained is not None:
            self._write_network(draft, self.trained.warm.model, "trained", like)
            self.trained.write(draft)
            draft.metrics.update(self.trained.metrics)
        notes = "".join(f"\n- {printable(note)}" for note in self.notes)
        draft.text("verdict.txt", f"{self.verdict.choice}\n\n{self.verdict}\n" + (f"{notes}\n" if notes else ""))
        self._write_tables(draft)

    def _write_network(self, draft: Draft, network: nn.Module, place: str, like: Any) -> None:
        apart = names_apart(self.delta, self.target)
        config: Any = getattr(network, "config", None)
        if apart and getattr(config, "tie_word_embeddings", False):
            raise DataError(
                f"The network cannot be written: {list_names(apart)} is a tensor of its own in it, and the "
                "configuration of such a network ties it to another; leave out model=, and load the update with PEFT."
            )
        if not apart or config is None:
            draft.write_checkpoint(network, name=place, place=place, like=like)
            return
        with draft.filled(place, "checkpoint", place=place) as folder:
            folder.mkdir(exist_ok=True)
            write_into(folder, network.state_dict(), like=like)
            about = describe_folder(folder, f"The network in {place}")
            draft.notes.extend([*([about] if about else []), *notes_on_companions(like)])
            document = folder / "config.json"
            if document.is_file():  # which is the target's, in which the two are one tensor
                written = json.loads(document.read_text("utf-8")) | {"tie_word_embeddings": False}
                if hasattr(config, "scale_decoder_outputs"):  # which T5 derives from the other, unless it is set
                    written["scale_decoder_outputs"] = config.scale_decoder_outputs
                document.write_text(json.dumps(written, indent=2) + "\n", "utf-8")

    def _write_tables(self, draft: Draft) -> None:
        draft.table("moved", table_of(self.moved))
        if self.spaces:
            draft.table(
                "spaces",
                {
                    "source": [row.source for row in self.spaces],
                    "target": [row.target for row in self.spaces],
                    "seen": [row.seen for row in self.spaces],
                    "full": [row.full for row in self.spaces],
                    "cosine_before": [row.cosine_before for row in self.spaces],
                    "cosine_after": [row.cosine_after for row in self.spaces],
                    "explained": [row.explained for row in self.spaces],
                },
            )
            cosines = {
                "as they are": {row.source: row.cosine_before for row in self.spaces},
                "mapped": {row.source: row.cosine_after for row in self.spaces},
            }
            chart = bar_chart(cosines, title="Activations of source and target", x_label="cosine, held-out inputs")
            draft.plot("cosines", chart)
        if len(self.sweep) > 1:
            alphas, scores = [alpha for alpha, _ in self.sweep], [score for _, score in self.sweep]
            draft.table("alpha-values", {"alpha": alphas, "score": scores})
            series = {self.method: (alphas, scores)}
            draft.plot(
                "alpha",
                line_chart(
                    series,
                    title="How much of the update",
                    note=f"alpha {self.metrics['alpha']:g} was taken; by {self._score}, the lower the better",
                    x_label="alpha",
                    y_label="score",
                ),
            )
        if self.compared:
            self._write_compared(draft)
        if self.front:
            self._write_front(draft)

    def _write_compared(self, draft: Draft) -> None:
        """All rows, also those that could not be tried, with the reason; and a plot of those that could."""
        words = {
            "method": [row.method for row in self.compared],
            "needs": [" ".join(row.needs) or "-" for row in self.compared],
        }
        figures = ("effect", "low", "high", "norm_ratio", "loss", "accuracy", "forgotten", "seconds")
        notes = {"note": [row.note for row in self.compared]}
        draft.table("compared", {**words, **_columns(self.compared, figures), **notes})
        ends = tuple(self.metrics[f"effect_explained{end}"] for end in ("", "_low", "_high"))
        chosen = f"chosen: {self.method}"
        rows = {chosen: ends} | {row.method: (row.effect, row.low, row.high) for row in self.compared}
        shown = {name: row for name, row in rows.items() if row[0] >= LOWEST_BAR}  # nor NaN
        if not shown:
            return
        below = sum(row[0] < LOWEST_BAR for row in rows.values())
        unseen = f"; {plural(below, 'row')} below {LOWEST_BAR:g} left out" if below else ""
        svg = bar_chart(
            {name: row[0] for name, row in shown.items()},
            title="Effect explained",
            note=f"0: the target as it was; 1: the tuned source{unseen}",
            x_label="share, held-out inputs",
            whiskers={name: (low, high) for name, (_, low, high) in shown.items()},
            baseline=chosen if chosen in shown else None,
        )
        draft.plot("compared-plot", svg)

    @property
    def _score(self) -> str:
        if "loss" in self.metrics:
            return "the loss on the labels given"
        return f"distance to the tuned source in {self.unit}"

    def _write_front(self, draft: Draft) -> None:
        figures = ("generic_weight", "effect", "low", "high", "forgotten", "loss", "accuracy", "seconds")
        draft.table("front", {"point": [row.point for row in self.front], **_columns(self.front, figures)})
        curve = [row for row in self.front if row.generic_weight is not None]
        series = {"regression, by generic weight": curve} | {
            row.point: [row] for row in self.front if row.generic_weight is None and row.point != "target"
        }
        svg = line_chart(
            {name: ([row.forgotten for row in rows], [row.effect for row in rows]) for name, rows in series.items()},
            title="What the target learns and what it forgets",
            note="held-out inputs; the target as it was learns nothing and forgets nothing",
            x_label=f"forgotten: distance on generic inputs, {self.unit} (logarithmic)",
            y_label="learned: effect explained",
            log_x=True,
            labels={next(iter(series)): [f"{row.generic_weight:g}" for row in curve]},
        )
        (draft.folder / "front.svg").write_text(svg, encoding="utf-8")
        draft.add("front-plot", "plot", "front.svg")

    def __str__(self) -> str:
        """The account as text: shares, what was left out and why, and the verdict."""
        lines = []
        for status in ("moved", "kept", "skipped"):
            rows = [row for row in self.moved if row.status == status]
            if rows:
                share = sum(row.share for row in rows)
                lines.append(f"{status:8}{plural(len(rows), 'tensor'):>14}  {share:6.1%} of the update's norm")
        reasons: dict[str, list[str]] = {}
        for row in self.moved:
            if row.status == "skipped":
                reasons.setdefault(row.reason, []).append(row.source)
        lines += [f"  skipped: {list_names(names)} ({why})" for why, names in reasons.items()]
        return "\n".join(map(printable, [*lines, str(self.verdict)]))


def _columns(rows: Sequence[Any], names: Sequence[str]) -> dict[str, list[float]]:
    """Figures as columns of a table, without those that no row has; NaN where one has none."""
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return {
        name: [math.nan if value is None else value for value in values]
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
