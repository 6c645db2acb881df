"""A translation of documents, and one of queries where they have pairs of their own, in one folder with their card."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from interbasin.errors import DataError
from interbasin.jobs.translate.cards import Card
from interbasin.jobs.translate.evaluate import evaluate_translation
from interbasin.jobs.translate.rows import paired_rows
from interbasin.jobs.translate.translator import Translator
from interbasin.outcome import Draft, Result

FEWEST = 40  # pairs from which some can be spared
HELD = 0.2  # of the pairs
MOST_HELD = 2000
QUERIES = "queries"
NO_PAIRS = 0.2  # mean cosine below which rows that find their partner by chance alone are no pairs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FittedMaps(Result):
    """Translators, and how they do on pairs that were held out of a first fit; then they were fitted on all.

    Attributes:
        documents: The translator of documents, or of everything.
        queries: The translator of queries, if they had pairs of their own.
        request: What was asked, as far as it is not vectors.
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
    """Fit a translator on pairs, and tell how it does on a fifth of them that a first fit did not see.

    Args:
        translator: What to fit; it stays as it is.
        x, y: Pairs of documents.
        queries: Pairs of queries, (x, y), for a map of their own: models that take queries and documents by different
            ways need one.
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
    given = Card.of(card)
    documents, metrics, notes = _fitted(translator, x, y, given if queries is None else _of(given, "documents"))
    found = dict(metrics)
    map_of_queries = None
    if queries is not None:
        map_of_queries, of_queries, more = _fitted(translator, *queries, _of(given, "queries"))
        found |= {f"{QUERIES}_{name}": value for name, value in of_queries.items()}
        notes += [f"Queries: {one}" for one in more]
    asked = {**translator.get_params(), **given.to_json()}
    return FittedMaps(
        metrics=found,
        documents=documents,
        queries=map_of_queries,
        notes=tuple(notes),
        request={**asked, "seed": documents.seed},
        timings={"fit": time.perf_counter() - started},
    )


def _of(card: Card, role: str) -> Card:
    return Card.of({**card.to_json(), "role": card.role or role})


def _fitted(translator: Translator, x: Any, y: Any, card: Card) -> tuple[Translator, dict[str, float], list[str]]:
    source, target = paired_rows(x, y)
    for what, rows in (("source", source), ("target", target)):
        if bool((rows == rows[0]).all()):
            raise DataError(f"All {len(rows)} rows of the {what} are the same, which shows nothing; give other items.")
    notes: list[str] = []
    metrics: dict[str, float] = {"pairs": len(source)}
    found = clone(translator).fit(source, target, card=card)
    chosen = found.translation_ if found.chosen_ != "relative" else None
    rank = found.details_.get("rank")
    if rank is not None:
        metrics["rank"] = int(rank)
    notes += found.notes
    if chosen is None:
        notes.append(
            f"What 'relative' gives are cosines with the {len(source):,} pairs as anchors, for a RelativeDecoder of "
            "the target's side; it is no translation by itself, and nothing was measured."
        )
    elif len(source) < FEWEST:
        notes.append(
            f"Of {len(source)} pairs none can be spared to measure by, so nothing tells how good the translation is; "
            f"give {FEWEST} at least, better some hundreds."
        )
    if card.metric in ("dot", "l2") and not found.carries_norms:
        notes.append(
            f"The vectors are compared by {card.metric}, for which lengths count, and {found.chosen_} does not carry "
            "them; ridge and procrustes do."
        )
    if chosen is not None and len(source) >= FEWEST:
        order = np.random.default_rng(translator.seed).permutation(len(source))
        held = order[: min(MOST_HELD, int(HELD * len(source)))]
        seen = np.ones(len(source), dtype=bool)
        seen[held] = False
        first = clone(translator)
        if translator.method == "auto":  # the method that all pairs chose: the figures are of it
            first.set_params(**found.chosen_params())
        first.fit(source[seen], target[seen])
        metrics |= {
            **evaluate_translation(first, source[held], target[held], seed=translator.seed).metrics,
            "pairs": len(source),
            "pairs_held_out": len(held),
        }
        if metrics["recall_10_low"] <= 10 / len(held) and metrics["cosine"] < NO_PAIRS:
            notes.append(
                f"The pairs do not look like pairs: of {len(held)} that were held out, {metrics['recall_10']:.1%} find "
                f"their partner among the nearest 10, as many as by chance, and their mean cosine is "
                f"{metrics['cosine']:.3f}. Are the rows of both files the same items, in the same order?"
            )
    return found, metrics, notes
