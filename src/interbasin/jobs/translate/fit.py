"""A translation of documents, and one of queries where they have pairs of their own, in one folder with their card."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from interbasin.errors import DataError
from interbasin.jobs.translate.evaluate import evaluate_translation
from interbasin.jobs.translate.rows import paired_rows
from interbasin.jobs.translate.translator import Card, Translator
from interbasin.outcome import Draft, Result

FEWEST = 40  # pairs from which some can be spared
HELD = 0.2  # of the pairs
MOST_HELD = 2000
QUERIES = "queries"
NO_PAIRS = 0.2  # mean cosine below which rows that find their partner only by chance are no pairs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FittedMaps(Result):
    """Translators fitted on all pairs, and figures of a first fit on pairs that it did not see.

    Attributes:
        documents: The translator of documents, or of everything.
        queries: The translator of queries, if they had pairs of their own.
    """

    documents: Translator = field(default_factory=Translator)
    queries: Translator | None = None

    job = "translate fit"
    headline = ("cosine", "recall_1")

    def write(self, draft: Draft) -> None:
        """Add what `Translator.load` reads; the translator of queries lies below it, in ``queries``."""
        with draft.filled("translation", "file") as folder:
            self.documents.write_into(folder)
        if self.queries is not None:
            self.queries.save(draft.folder / QUERIES)
            draft.add(QUERIES, "file", QUERIES)
        if self.documents.judged_:
            scores = self.documents.judged_
            draft.table("methods", {"method": list(scores), "score": list(scores.values())})


def fit_translation(
    translator: Translator,
    x: Any,
    y: Any,
    *,
    queries: tuple[Any, Any] | None = None,
    card: Card | Mapping[str, Any] | None = None,
) -> FittedMaps:
    """Fit a translator on pairs, and measure a first fit on a fifth of them that it did not see.

    Args:
        translator: What to fit; it stays as it is.
        x, y: Pairs of documents.
        queries: Pairs of queries, (x, y), for a map of their own: models that embed queries and documents differently
            need one.
        card: What the vectors are.

    Raises:
        DataError: if all rows of a side are the same.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> x = generator.normal(size=(100, 4))
        >>> found = fit_translation(Translator(method="ridge"), x, 2 * x)
        >>> round(found.metrics["cosine"], 3)
        1.0
    """
    started = time.perf_counter()
    whole = Card.of(card)
    document_card = whole if queries is None else replace(whole, role=whole.role or "documents")
    documents, metrics, notes = _fit(translator, x, y, document_card)
    map_of_queries = None
    if queries is not None:
        query_card = replace(whole, role=whole.role or "queries")
        map_of_queries, query_metrics, query_notes = _fit(translator, *queries, query_card)
        metrics |= {f"{QUERIES}_{name}": value for name, value in query_metrics.items()}
        notes += [f"Queries: {note}" for note in query_notes]
    return FittedMaps(
        metrics=metrics,
        documents=documents,
        queries=map_of_queries,
        notes=tuple(notes),
        request={**translator.get_params(), **whole.to_json(), "seed": documents.seed},
        timings={"fit": time.perf_counter() - started},
    )


def _fit(translator: Translator, x: Any, y: Any, card: Card) -> tuple[Translator, dict[str, float], list[str]]:
    """A translator fitted on all pairs, with the metrics and the notes of it."""
    source, target = paired_rows(x, y)
    for what, rows in (("source", source), ("target", target)):
        if bool((rows == rows[0]).all()):
            raise DataError(f"All {len(rows)} rows of the {what} are the same, which shows nothing; give other items.")
    fitted = clone(translator).fit(source, target, card=card)
    metrics: dict[str, float] = {"pairs": len(source)}
    if "rank" in fitted.details_:
        metrics["rank"] = int(fitted.details_["rank"])
    notes = list(fitted.notes)
    if card.metric in ("dot", "l2") and not fitted.carries_norms:
        notes.append(
            f"The vectors are compared by {card.metric}, for which lengths count, and {fitted.chosen_} does not carry "
            "them; ridge and procrustes do."
        )
    if fitted.chosen_ == "relative":
        notes.append(
            f"What 'relative' gives are cosines with the {len(source):,} pairs as anchors, for a RelativeDecoder of "
            "the target's side; it is no translation by itself, and nothing was measured."
        )
    elif len(source) < FEWEST:
        notes.append(
            f"Of {len(source)} pairs none can be spared to measure by, so nothing tells how good the translation is; "
            f"give {FEWEST} at least, better some hundreds."
        )
    else:
        order = np.random.default_rng(translator.seed).permutation(len(source))
        held_out = order[: min(MOST_HELD, int(HELD * len(source)))]
        rest = np.ones(len(source), dtype=bool)
        rest[held_out] = False
        # With "auto" the figures are of the method that all pairs chose.
        first = clone(translator).set_params(**fitted.chosen_params()).fit(source[rest], target[rest])
        metrics |= {
            **evaluate_translation(first, source[held_out], target[held_out], seed=translator.seed).metrics,
            "pairs": len(source),
            "pairs_held_out": len(held_out),
        }
        if metrics["recall_10_low"] <= 10 / len(held_out) and metrics["cosine"] < NO_PAIRS:
            notes.append(
                f"The pairs do not look like pairs: of {len(held_out)} that were held out, {metrics['recall_10']:.1%} "
                "find their partner among the nearest 10, as many as by chance, and their mean cosine is "
                f"{metrics['cosine']:.3f}. Are the rows of both files the same items, in the same order?"
            )
    return fitted, metrics, notes
