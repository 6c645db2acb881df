"""What an audit looks at: pairs, queries, documents, labels, the methods fitted on the pairs, and new vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics.pairwise import cosine_similarity

from interbasin.checks import require_choice, require_whole
from interbasin.errors import DataError, FitError, ShapeError, UnknownNameError
from interbasin.evaluate.retrieval import METRICS, Labels, Ranking, blocks_of, nearest
from interbasin.jobs.translate.methods import CANDIDATES
from interbasin.jobs.translate.rows import as_array, find_rows
from interbasin.jobs.translate.translator import Translator
from interbasin.text import list_names, plural

FOLDS = 4
FEWEST, MOST = 20, 1000  # held-out pairs to check the order by: fewer say nothing, and more say nothing new
DEVIATIONS = 3.0  # of the mean rank of random partners: what pairs must be better by
AT_ONCE = 1024  # documents that are embedded together
NAMED = 5  # documents that a message lists

Embed = Callable[[NDArray[np.int64]], Any]
Methods = Sequence[str] | Mapping[str, Translator] | None
Fitted = TypeVar("Fitted")


class AuditInputs:
    """What an audit is about, checked to fit together.

    Attributes:
        old_pairs, new_pairs, old_queries, new_queries: The same items as the two models see them.
        old_query_pairs, new_query_pairs: What maps of queries are fitted on; by default the pairs.
        places: Number of a document -> number of the pair that it is.
        lengths: Of the queries' texts, in words, if they are known.
        documents, labels, metric, k, depth: See `audit`.
    """

    def __init__(
        self,
        pairs: tuple[Any, Any],
        queries: tuple[Any, Any],
        documents: Any,
        labels: Any,
        query_pairs: tuple[Any, Any] | None,
        pair_rows: Any = None,
        texts: Sequence[str] | None = None,
        *,
        metric: str,
        k: int,
        depth: int,
    ) -> None:
        self.metric, self.k = require_choice("metric", metric, METRICS), require_whole("k", k, least=1)
        if require_whole("depth", depth) < k:
            raise DataError(f"depth must be at least k, got k={k} and depth={depth}.")
        self.documents = documents if hasattr(documents, "shape") else np.asarray(documents)
        if len(self.documents.shape) != 2 or len(self.documents) == 0:
            raise ShapeError(f"documents must be one row per document, found shape {tuple(self.documents.shape)}.")
        self.depth = min(depth, len(self.documents))
        self.old_pairs, self.new_pairs = _read_pair(pairs, "pairs")
        self.old_queries, self.new_queries = _read_pair(queries, "queries")
        self.old_query_pairs, self.new_query_pairs = self.old_pairs, self.new_pairs
        if query_pairs is not None:
            self.old_query_pairs, self.new_query_pairs = _read_pair(query_pairs, "query_pairs")
        index, new = ("the index", self.documents.shape[1]), ("the new half of the pairs", self.new_pairs.shape[1])
        for name, rows, (side, width) in (
            ("pairs", self.old_pairs, index),
            ("queries", self.old_queries, index),
            ("query_pairs", self.old_query_pairs, index),
            ("the new queries", self.new_queries, new),
            ("the new half of query_pairs", self.new_query_pairs, new),
        ):
            if rows.shape[1] != width:
                raise ShapeError(f"In {name} a row has {rows.shape[1]} numbers and in {side} {width}; give (old, new).")
        self.labels = None if labels is None else Labels.of(labels, len(self.old_queries), len(self.documents))
        self.places = find_rows(self.old_pairs, blocks_of(self.documents)) if pair_rows is None else {}
        if pair_rows is not None:
            self.places = self._read_places(np.asarray(pair_rows))
        if texts is not None and len(texts) != len(self.old_queries):
            raise DataError(f"There are {len(self.old_queries)} queries and {len(texts)} texts; give one for each.")
        self.lengths = None if texts is None else np.array([len(text.split()) for text in texts])

    def _read_places(self, rows: NDArray[Any]) -> dict[int, int]:
        pairs, documents = len(self.old_pairs), len(self.documents)
        if rows.shape != (pairs,) or rows.dtype.kind not in "iu":
            fault = f"shape {rows.shape} of dtype {rows.dtype}"
        elif rows.min() < 0 or rows.max() >= documents:
            fault = f"{pairs} numbers from {rows.min()} to {rows.max()}"
        elif (repeated := _first_repeated(rows)) is not None:
            fault = f"{repeated} more than once"
        else:
            return dict(zip(rows.tolist(), range(pairs), strict=True))
        raise DataError(f"pair_rows is the number of each of {pairs} pairs among {documents} documents, found {fault}.")


def _read_pair(arrays: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        old, new = map(as_array, arrays)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{name} is two arrays, (old, new), of the same items as the two models see them.") from error
    if old.ndim != 2 or new.ndim != 2 or len(old) != len(new) or len(old) == 0:
        raise ShapeError(
            f"{name} is two arrays of rows, (old, new), row i the same item, found shapes {old.shape} and {new.shape}."
        )
    return old, new


def _first_repeated(rows: NDArray[np.int64]) -> int | None:
    once, counts = np.unique(rows, return_counts=True)
    return int(once[counts > 1][0]) if len(once) < len(rows) else None


def translators_by_name(methods: Methods, seed: int) -> dict[str, Translator]:
    """The methods to try, by name."""
    names = list(CANDIDATES) if methods is None else [methods] if isinstance(methods, str) else list(methods)
    if not names:
        raise DataError(f"No method was asked for; try one of: {'; '.join(CANDIDATES)}.")
    if isinstance(methods, Mapping):
        return dict(methods)
    unknown = [name for name in names if not isinstance(name, str) or name not in CANDIDATES]
    if unknown:  # names hold commas themselves
        raise UnknownNameError(
            f"There is no method of translation for an audit named {unknown[0]!r}; try one of: "
            f"{'; '.join(CANDIDATES)} (with semicolons between several)."
        )
    return {name: Translator(seed=seed, **CANDIDATES[name]) for name in names}


def fit_methods(
    methods: Mapping[str, Translator], fit: Callable[[Translator], Fitted]
) -> tuple[dict[str, Fitted], list[str]]:
    """Every method fitted, and a note for each that cannot be; an error if none can."""
    fitted, notes = {}, []
    for name, method in methods.items():
        try:
            fitted[name] = fit(method)
        except FitError as error:
            notes.append(f"The method {name} was left out: {error}")
    if not fitted:
        raise FitError(f"No method can be fitted on these pairs. {notes[0]}")
    return fitted, notes


class CrossFitted:
    """A method fitted on all pairs. Documents in the pairs are cross-fitted: the map that translates one never saw it.

    Attributes:
        whole: The method fitted on all pairs.
        folds: The fold of each pair.
        others: Per fold, the method fitted on the other folds; empty if no pair is a document.
    """

    def __init__(
        self, method: Translator, x: NDArray[Any], y: NDArray[Any], places: Mapping[int, int], seed: int
    ) -> None:
        self.whole = clone(method).fit(x, y)
        self.others: list[Translator] = []
        self.folds = np.random.default_rng(seed).permutation(len(x)) % FOLDS
        self._rows = np.array(sorted(places), dtype=np.int64)
        if not places:
            return
        if len(x) < 2 * FOLDS:
            raise FitError(f"{len(x)} pairs are too few to judge documents among them by other pairs.")
        self._fold_of_row = self.folds[[places[row] for row in self._rows.tolist()]]
        self.others = [clone(method).fit(x[self.folds != fold], y[self.folds != fold]) for fold in range(FOLDS)]

    def translate(self, block: NDArray[Any], first: int) -> NDArray[Any]:
        """The documents from number ``first`` on, translated."""
        translated: NDArray[Any] = self.whole.transform(block)
        low, high = np.searchsorted(self._rows, (first, first + len(block)))
        inside = self._rows[low:high] - first
        for fold, translator in enumerate(self.others):
            own = inside[self._fold_of_row[low:high] == fold]
            if len(own):
                translated[own] = translator.transform(block[own])
        return translated


def check_pair_order(inputs: AuditInputs, method: Translator, fitted: CrossFitted) -> list[str]:
    """A warning where translations of held-out pairs are no nearer to their partners than to others."""
    old, new, held_out = inputs.old_pairs, inputs.new_pairs, fitted.folds == 0
    rows = np.flatnonzero(held_out)[:MOST]
    if len(rows) < FEWEST:
        return []
    try:
        translator = fitted.others[0] if fitted.others else clone(method).fit(old[~held_out], new[~held_out])
    except FitError:  # too few for this method to say anything
        return []
    cosines = cosine_similarity(translator.transform(old[rows]).astype(np.float64), new[rows].astype(np.float64))
    own = np.diag(cosines)
    # Ties count half, so that translations that are all alike are taken for chance.
    nearer = (cosines > own[:, None]).sum(1) + ((cosines == own[:, None]).sum(1) - 1) / 2
    share = float(nearer.mean()) / (len(rows) - 1)
    if share < 0.5 - DEVIATIONS / np.sqrt(12 * len(rows)):
        return []
    return [
        f"The pairs do not look like pairs: of {plural(len(rows), 'pair')} that the map did not see, translations "
        f"find the right partner of {int((nearer < 1).sum()):,} (chance finds 1), with a mean cosine of "
        f"{own.mean():.2f} to partners and {cosines.mean():.2f} to all; are rows in the same order?"
    ]


class IncompletePoolError(DataError):
    """Documents are missing from a pool; ``missing`` holds their numbers."""

    def __init__(self, message: str, missing: NDArray[np.int64]) -> None:
        super().__init__(message)
        self.missing = missing


class NewVectors:
    """The new model's vectors of all documents, or of those with the numbers ``rows``, a pool.

    What a search in a pool finds is at least as good as a search among all: an upper bound.
    """

    def __init__(self, vectors: Any, rows: NDArray[np.int64] | None = None) -> None:
        self.vectors, self.rows, self.bound = vectors, rows, rows is not None
        if rows is not None:
            order = np.argsort(rows)
            self.rows, self.vectors = rows[order], vectors[order]

    @classmethod
    def of_all(cls, vectors: Any, documents: int, width: int) -> NewVectors:
        """Of all documents."""
        vectors = vectors if hasattr(vectors, "shape") else np.asarray(vectors)
        if tuple(vectors.shape) != (documents, width):
            shape = tuple(vectors.shape)
            raise ShapeError(f"new_documents must be {documents} rows of {width} numbers, as the index, found {shape}.")
        return cls(vectors)

    @classmethod
    def of_embedded(
        cls, rows: NDArray[np.int64], embed: Embed, width: int, progress: Callable[[float], object] | None = None
    ) -> NewVectors:
        """Of the pool ``rows``, as ``embed`` gives them."""
        vectors = np.empty((len(rows), width), dtype=np.float32)
        for place in range(0, len(rows), AT_ONCE):
            batch = rows[place : place + AT_ONCE]
            embedded = as_array(embed(batch))
            if embedded.shape != (len(batch), width):
                raise ShapeError(f"embed must give {len(batch)} rows of {width} numbers, and gave {embedded.shape}.")
            vectors[place : place + AT_ONCE] = embedded
            if progress is not None:
                progress((place + len(batch)) / len(rows))
        return cls(vectors, rows)

    @classmethod
    def of_pool(cls, needed: NDArray[np.int64], pool: tuple[Any, Any], width: int) -> NewVectors:
        """Of the pool that a user embedded; those that are not needed are left out."""
        rows, vectors = np.asarray(pool[0], dtype=np.int64), np.asarray(pool[1])
        if rows.ndim != 1 or vectors.shape != (len(rows), width):
            raise ShapeError(
                f"A pool is the numbers of documents, and a row of {width} numbers for each, found shapes {rows.shape} "
                f"and {vectors.shape}."
            )
        repeated = _first_repeated(rows)
        if repeated is not None:
            raise DataError(f"The pool holds document {repeated} more than once; give every document one row.")
        missing = np.setdiff1d(needed, rows)
        if len(missing):
            raise IncompletePoolError(
                f"The pool lacks {plural(len(missing), 'document')} of the {len(needed):,} that these searches brought "
                f"up or labels name ({list_names(map(str, missing), NAMED)}); embed them too, and give the same pairs, "
                "queries, labels and methods as when the pool was listed.",
                missing,
            )
        kept = np.isin(rows, needed)
        return cls(vectors[kept], rows[kept])

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The vectors of the documents with these numbers."""
        return np.asarray(self.vectors[rows if self.rows is None else np.searchsorted(self.rows, rows)])

    def search(self, queries: Any, depth: int, metric: str) -> Ranking:
        """The nearest of these documents."""
        ranking = nearest(queries, self.vectors, depth, metric)
        if self.rows is None:
            return ranking
        return Ranking(np.where(ranking.rows < 0, -1, self.rows[ranking.rows]), ranking.scores)
