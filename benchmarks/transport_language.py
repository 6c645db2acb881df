"""What is a fine-tune worth that was moved from one language model to another, beside all that one could do instead?

Small encoders, decoders and encoder-decoders, each trained twice, apart, on captions and questions; the narrower one is
fine-tuned, and the wider one is to be given its skill (`transport_language_workload.py`). Encoders: linear probes and
tuned A's head reused (tables 2 and 9 of the paper). Decoders: nats a piece on the new texts and on the old ones.
Encoder-decoders: ROUGE-L over alpha and over the number of texts (table 10).

    python benchmarks/transport_language.py --quick           texts made here, one seed, under a minute
    python benchmarks/transport_language.py                   everything; an hour or two on one thread
    python benchmarks/transport_language.py --only decoders   some stages of it; see STAGES
    python benchmarks/transport_language.py --again regression    drop cells of these rows or methods first
    python benchmarks/transport_language.py --minutes 30      stop after so long; a later run goes on
    python benchmarks/transport_language.py --summary         only make the summary again

Cells are lines of ``results/transport_language/*.jsonl``, the summary is ``results/transport_language.json``. Without
INTERBASIN_DATA only the quick form can be run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from transport_cells import Store
from transport_language_cells import STEP_ROWS, STEPS, TextRow, TextWork
from transport_language_workload import TASKS, data_folder
from transport_rows import LABEL_FREE, ONE, RATES
from transport_stages import QUICK, missing, named, run_command

SEED = 0
VERDICT_SEEDS = (0, 1, 2)
WRITER_BATCHES = (10, 25, 40)  # of 20 texts each
WRITER_ALPHAS = ("0.5", "1", "2", "4")
RULES = (ONE, LABEL_FREE)
FIGURES = (
    "probe",
    "reused",
    "ridge",
    "loss",
    "accuracy",
    "original_loss",
    "original_accuracy",
    "rouge",
    "alpha",
    "norm_error",
    "seconds",
)

REFERENCES = (
    TextRow("none", "none"),
    TextRow("tuned-source", "tuned-source"),
    TextRow("tuned-target", "tuned-target", labels=True),
    TextRow("random", "random"),
)
THESEUS = (
    TextRow("theseus-matched", "theseus", "spaces", heads="matched", rules=RULES),
    TextRow("theseus-free", "theseus", "spaces", heads="free", rules=RULES),
    TextRow("theseus-modules", "theseus", "modules", heads="free", rules=RULES),
)
RMS = TextRow("theseus-rms", "theseus", "spaces", {"scale": "rms"}, heads="matched", rules=RULES)
QUICK_THESEUS = TextRow("theseus-matched", "theseus", "spaces", heads="matched")
NOISE = TextRow("random-through-maps", "random-through-maps")
REGRESSION, AUTO = TextRow("regression", "regression"), TextRow("auto", "auto")
KEEP = (
    TextRow("regression-keep", "regression", generic=True),
    TextRow("head-ridge-keep", "head-ridge", generic=True),
)
HEAD_RIDGE, WRITTEN_IN = TextRow("head-ridge", "head-ridge"), TextRow("written-in", "written-in")
FEW_TEXTS = tuple(
    TextRow(f"few-texts-{rate:g}", "few-texts", settings={"rate": rate}, labels=True) for rate in RATES[:2]
)


def distillations(rates: Sequence[float] = RATES, *, generic: bool = False) -> tuple[TextRow, ...]:
    """Distillation at several rates."""
    settings = {"steps": STEPS, "batch_size": STEP_ROWS * (1 + generic)}
    return tuple(
        TextRow(
            f"distil-keep-{rate:g}" if generic else f"distil-{rate:g}",
            "distil",
            "cold",
            settings={"rate": rate, **settings},
            generic=generic,
        )
        for rate in rates
    )


def table(
    pair: str,
    rows: Sequence[TextRow],
    batches: Sequence[int],
    seeds: Sequence[int] = (0,),
    tasks: Sequence[str] | None = None,
) -> Iterator[TextWork]:
    """The cells of some rows. Those that see no data are run once, as with 0 batches; but probes always see some."""
    family = pair.rpartition("-")[2]
    for seed in seeds:
        for task in tasks or TASKS[family]:
            for count in batches:
                for row in rows:
                    sees = row.needs_data or family == "encoder"
                    if sees or count == batches[0]:
                        yield TextWork(pair, seed, task, row, count if sees else 0, row.rules)


ENCODER_ROWS = (*REFERENCES, NOISE, *THESEUS[:2], REGRESSION, AUTO, THESEUS[2], RMS)
DECODER_ROWS = (*REFERENCES, WRITTEN_IN, NOISE, *THESEUS, RMS, HEAD_RIDGE, REGRESSION, *KEEP)
WRITER_RULES = (*WRITER_ALPHAS, LABEL_FREE)
WRITER_THESEUS = tuple(
    TextRow(row.name, row.method, row.variant, row.options, rules=WRITER_RULES, heads=row.heads)
    for row in (*THESEUS, RMS)
)
WRITER_ROWS = (*REFERENCES, NOISE, WRITER_THESEUS[0], HEAD_RIDGE, REGRESSION)


def encoders() -> Iterator[TextWork]:
    yield from table("encoder", ENCODER_ROWS, (20, 5), tasks=("questions",))


def subjects() -> Iterator[TextWork]:
    yield from table("encoder", ENCODER_ROWS, (20, 5), tasks=("subjects",))


def verdicts() -> Iterator[TextWork]:
    """Encoders that are akin, where "do not" would be wrong, and foreign ones, where it is right."""
    for pair in ("akin-encoder", "foreign-encoder"):
        yield from table(pair, (AUTO,), (20, 5), VERDICT_SEEDS, ("questions",))


def decoders() -> Iterator[TextWork]:
    yield from table("decoder", DECODER_ROWS, (5, 20, 1), tasks=("questions",))
    yield from table("decoder", (AUTO,), (5,), tasks=("questions",))


def german() -> Iterator[TextWork]:
    yield from table("decoder", (*DECODER_ROWS, AUTO), (5,), tasks=("german",))
    yield from table("decoder", DECODER_ROWS, (20,), tasks=("german",))
    yield from table("decoder", (*distillations(RATES[1:]), FEW_TEXTS[1]), (5, 20), tasks=("german",))


def writers() -> Iterator[TextWork]:
    yield from table("writer", WRITER_ROWS, WRITER_BATCHES)
    yield from table("writer", (AUTO,), WRITER_BATCHES[:1])


def decoder_controls() -> Iterator[TextWork]:
    yield from table("decoder", (*distillations(), *FEW_TEXTS), (20,), tasks=("questions",))
    yield from table("decoder", distillations(generic=True), (20,), tasks=("questions",))
    yield from table("decoder", (*distillations(), *FEW_TEXTS), (5,), tasks=("questions",))


def writer_controls() -> Iterator[TextWork]:
    yield from table("writer", distillations((1e-3,)), WRITER_BATCHES)
    yield from table("writer", distillations(RATES[2:]), WRITER_BATCHES[-1:])


def rotary() -> Iterator[TextWork]:
    yield from table("rotary", (*DECODER_ROWS, *distillations((1e-3,)), FEW_TEXTS[1]), (5, 20))


def rest() -> Iterator[TextWork]:
    """The second seed, and what the tables can do without."""
    yield from table("encoder", ENCODER_ROWS, (20, 5), (1,))
    yield from table("decoder", (*DECODER_ROWS, *distillations((1e-3,)), FEW_TEXTS[1]), (5, 20), (1,), ("questions",))
    yield from table("encoder", ENCODER_ROWS, (50,))
    yield from table("decoder", (AUTO,), (1, 20), tasks=("questions",))
    yield from table("decoder", (*distillations((1e-3,)), FEW_TEXTS[0]), (1,), tasks=("questions",))
    yield from table("decoder", DECODER_ROWS, (1,), tasks=("german",))
    yield from table("decoder", (*distillations(RATES[:1]), FEW_TEXTS[0]), (5, 20), tasks=("german",))
    yield from table("decoder", distillations(generic=True), (20,), tasks=("german",))
    yield from table("writer", (*WRITER_THESEUS[1:], AUTO, *distillations(RATES[:1])), WRITER_BATCHES[-1:])


def quick() -> Iterator[TextWork]:
    few = (*REFERENCES, QUICK_THESEUS, REGRESSION)
    yield from table("quick-encoder", few, (2,), tasks=("questions",))
    yield from table("quick-decoder", (*few, HEAD_RIDGE), (2,), tasks=("questions",))
    yield from table("quick-writer", few, (2,))


# In the order in which they are run.
STAGES = named(
    decoders,
    writers,
    encoders,
    verdicts,
    decoder_controls,
    writer_controls,
    subjects,
    german,
    rotary,
    rest,
    quick,
)


def summarise(store: Store) -> list[dict[str, Any]]:
    """Every line of the tables: the mean and the standard deviation over seeds of each figure."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in store.cells.values():
        groups.setdefault(tuple(cell[name] for name in ("pair", "task", "row", "batches", "rule")), []).append(cell)
    lines = []
    for (pair, task, row, batches, rule), cells in sorted(groups.items()):
        line: dict[str, Any] = {"pair": pair, "task": task, "row": row, "batches": batches, "rule": rule}
        line["seeds"] = len(cells)
        refused = [cell["refused"] for cell in cells if "refused" in cell]
        if refused:
            line["refused"] = refused[0]
        for name in FIGURES:
            values = [cell[name] for cell in cells if isinstance(cell.get(name), int | float)]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else None
                line[name] = [round(statistics.mean(values), 5), None if spread is None else round(spread, 5)]
        verdicts = [cell["verdict"] for cell in cells if "verdict" in cell]
        if verdicts:
            line["verdicts"] = verdicts
            line["choices"] = [f"{cell['choice']}: {cell['chosen']}" for cell in cells if "choice" in cell]
        lines.append(line)
    return lines


def summary_of(store: Store, is_quick: bool) -> dict[str, Any]:
    names = [name for name in STAGES if (name == QUICK) == is_quick]
    return {"lines": summarise(store), "missing": missing(store, STAGES, names)}


def report(content: dict[str, Any]) -> None:
    for line in content["lines"]:
        figures = {name: round(line[name][0], 3) for name in FIGURES if name in line}
        print(line["pair"], line["task"], line["batches"], line["row"], line["rule"], figures or line.get("refused"))


def main() -> None:
    has_data = data_folder() is not None
    run_command("transport_language", __doc__, STAGES, summary_of, report, seed=SEED, has_data=has_data)


if __name__ == "__main__":
    main()
