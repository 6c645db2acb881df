"""What an audit is given, checked once: pairs, queries, the index, labels, and the methods to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from interbasin.errors import DataError, FitError, ShapeError, UnknownNameError
from interbasin.evaluate.retrieval import METRICS, Labels
from interbasin.evaluate.retrieval.search import blocks_of
from interbasin.jobs.translate.auditing.unseen import Unseen
from interbasin.jobs.translate.choosing import CANDIDATES
from interbasin.jobs.translate.row_hashes import places_of
from interbasin.jobs.translate.translator import Translator

__all__ = ["Material", "backward", "forward", "methods_of"]

Methods = Mapping[str, Translator]
Fitted = TypeVar("Fitted")


@dataclass(frozen=True, eq=False)
class Material:
    """What an audit is about.

    Attributes:
        old_pairs, new_pairs: The same documents as the two models see them.
        old_query_pairs, new_query_pairs: What maps of queries are fitted on; the pairs where nothing else is given.
        old_queries, new_queries: The same queries as the two models see them.
        documents: The index: the old model's vectors of all documents.
        labels: Which documents are right for which query, if that is known.
        places: Number of a document -> number of the pair that it is.
        lengths: Of the queries' texts, in words, if they are known.
        metric, k, depth: How vectors are compared, how many are looked at, and how many are embedded anew.
    """

    old_pairs: NDArray[Any]
    new_pairs: NDArray[Any]
    old_query_pairs: NDArray[Any]
    new_query_pairs: NDArray[Any]
    old_queries: NDArray[Any]
    new_queries: NDArray[Any]
    documents: Any
    labels: Labels | None
    places: Mapping[int, int]
    lengths: NDArray[np.int64] | None
    metric: str
    k: int
    depth: int

    @classmethod
    def of(
        cls,
        pairs: tuple[Any, Any],
        queries: tuple[Any, Any],
        documents: Any,
        labels: Any,
        query_pairs: tuple[Any, Any] | None,
        pair_rows: Any,
        texts: Sequence[str] | None,
        metric: str,
        k: int,
        depth: int,
    ) -> Material:
        """Check that all of it fits together.

        Raises:
            ShapeError: if rows or widths do not.
            DataError: if labels or numbers of rows name what is not there.
        """
        if metric not in METRICS:
            raise UnknownNameError.of("metric", metric, METRICS)
        if k < 1 or depth < k:
            raise DataError(
                f"An audit looks at the first k documents and embeds the first depth, depth no smaller than k; found "
                f"k={k} and depth={depth}."
            )
        documents = documents if hasattr(documents, "shape") else np.asarray(documents)
        if len(documents.shape) != 2 or len(documents) == 0:
            raise ShapeError(f"documents is the old vectors of the index, a row each, found {tuple(documents.shape)}.")
        old, new = _two(pairs, "pairs")
        old_queries, new_queries = _two(queries, "queries")
        old_maps, new_maps = (old, new) if query_pairs is None else _two(query_pairs, "query_pairs")
        for name, found, wanted in (
            ("pairs", old, documents),
            ("queries", old_queries, documents),
            ("query_pairs", old_maps, documents),
            ("the new queries", new_queries, new),
            ("the new half of query_pairs", new_maps, new),
        ):
            if found.shape[1] != wanted.shape[1]:
                side = "the index" if wanted is documents else "the new half of the pairs"
                raise ShapeError(
                    f"In {name} a row has {found.shape[1]} numbers and in {side} {wanted.shape[1]}; give (old, new), "
                    "in this order, of the same two models."
                )
        rows = None if pair_rows is None else np.asarray(pair_rows, dtype=np.int64)
        if rows is not None:
            _check_pair_rows(rows, len(old), len(documents))
        if texts is not None and len(texts) != len(old_queries):
            raise DataError(f"There are {len(old_queries)} queries and {len(texts)} texts of them; give one for each.")
        return cls(
            old,
            new,
            old_maps,
            new_maps,
            old_queries,
            new_queries,
            documents,
            None if labels is None else Labels.of(labels, len(old_queries), len(documents)),
            places_of(old, blocks_of(documents))
            if rows is None
            else dict(zip(rows.tolist(), range(len(rows)), strict=True)),
            None if texts is None else np.array([len(text.split()) for text in texts]),
            metric,
            k,
            min(depth, len(documents)),
        )

    def blocks(self) -> Iterator[tuple[int, Any]]:
        """The index, a few thousand rows at a time."""
        return blocks_of(self.documents)


def _two(given: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        old, new = given
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name} is two arrays, (old, new), of the same items as the two models see them.") from error
    # Tensors of half precision have no array: through float32.
    old, new = (
        np.asarray(one.detach().float().cpu()) if hasattr(one, "detach") else np.asarray(one) for one in (old, new)
    )
    if old.ndim != 2 or new.ndim != 2 or len(old) != len(new):
        raise ShapeError(
            f"{name} is two arrays of rows, (old, new), row i the same item, found shapes {old.shape} and {new.shape}."
        )
    if len(old) == 0:
        raise ShapeError(f"{name} has no rows; give some.")
    return old, new


def _check_pair_rows(rows: NDArray[np.int64], pairs: int, documents: int) -> None:
    asked = f"pair_rows is the number of each of the {pairs} pairs among {documents} documents"
    if rows.shape != (pairs,):
        raise DataError(f"{asked}, found shape {rows.shape}.")
    if rows.min() < 0 or rows.max() >= documents:
        raise DataError(f"{asked}, found {len(rows)} numbers from {rows.min()} to {rows.max()}.")
    once, counts = np.unique(rows, return_counts=True)
    if len(once) < len(rows):
        raise DataError(f"{asked}, found {once[counts > 1][0]} more than once; a document is one pair.")


def methods_of(given: Sequence[str] | Mapping[str, Translator] | None, seed: int) -> dict[str, Translator]:
    """The methods to try, by name.

    Raises:
        UnknownNameError: if one is not known.
    """
    names = list(CANDIDATES) if given is None else [given] if isinstance(given, str) else list(given)
    if not names:
        raise DataError(f"No method was asked for; try one of: {'; '.join(CANDIDATES)}.")
    if isinstance(given, Mapping):
        return dict(given)
    found = {}
    for name in names:
        if name not in CANDIDATES:
            # Names hold commas themselves.
            raise UnknownNameError(
                f"There is no method of translation for an audit named {name!r}; try one of: "
                f"{'; '.join(CANDIDATES)} (with semicolons between several)."
            )
        candidate = CANDIDATES[name]
        found[name] = Translator(method=candidate.method, seed=seed, **candidate.changes)  # type: ignore[arg-type]
    return found


def forward(methods: Methods, material: Material, seed: int) -> tuple[dict[str, Unseen], list[str]]:
    """From old to new, each method fitted on the pairs, and what is to be said of those that cannot be.

    Raises:
        FitError: if none can.
    """

    def fit(method: Translator) -> Unseen:
        return Unseen(method, material.old_pairs, material.new_pairs, material.places, seed)

    return _fitted(methods, fit)


def backward(methods: Methods, material: Material) -> tuple[dict[str, Translator], list[str]]:
    """From new to old, for queries; see `forward`."""
    return _fitted(methods, lambda one: clone(one).fit(material.new_query_pairs, material.old_query_pairs))


def _fitted(methods: Methods, fit: Callable[[Translator], Fitted]) -> tuple[dict[str, Fitted], list[str]]:
    found, remarks = {}, []
    for name, method in methods.items():
        try:
            found[name] = fit(method)
        except FitError as error:
            remarks.append(f"The method {name} was left out: {error}")
    if not found:
        raise FitError(f"No method can be fitted on these pairs. {remarks[0]}")
    return found, remarks
