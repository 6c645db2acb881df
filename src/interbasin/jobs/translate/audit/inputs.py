"""What an audit looks at: pairs, queries, documents, right answers, and a pool where few documents are embedded anew.

Documents in the pairs are cross-fitted: the map that translates one never saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from interbasin.errors import DataError, FitError, ShapeError, UnknownNameError
from interbasin.evaluate.retrieval import METRICS, Labels, Nearest, Ranking, nearest
from interbasin.evaluate.retrieval.search import blocks_of
from interbasin.jobs.translate.methods import CANDIDATES
from interbasin.jobs.translate.rows import find_rows
from interbasin.jobs.translate.translator import Translator
from interbasin.text import plural

FOLDS = 4


class CrossFitted:
    """A method, fitted on all pairs for documents that are none of them, and on the other pairs for those that are.

    Args:
        method: What to fit.
        x, y: The pairs.
        places: Number of a document -> number of the pair that it is.
        seed: Of how pairs are parted.
        whole: The method fitted on all pairs, where that was done already.

    Attributes:
        parts: Which part each pair is of.
        others: For each part, what was fitted on the others; empty if no pair is a document.

    Raises:
        FitError: if pairs are too few.
    """

    def __init__(
        self,
        method: Translator,
        x: NDArray[Any],
        y: NDArray[Any],
        places: Mapping[int, int],
        seed: int,
        whole: Translator | None = None,
    ) -> None:
        self.whole = clone(method).fit(x, y) if whole is None else whole
        self.rows = np.array(sorted(places), dtype=np.int64)
        self.others: list[Translator] = []
        self.parts = np.random.default_rng(seed).permutation(len(x)) % FOLDS
        if not places:
            return
        if len(x) < 2 * FOLDS:
            raise FitError(f"{len(x)} pairs are too few to judge documents among them by other pairs.")
        self.fold = self.parts[[places[row] for row in self.rows.tolist()]]
        for one in range(FOLDS):
            kept = self.parts != one
            self.others.append(clone(method).fit(x[kept], y[kept]))

    @property
    def carries_norms(self) -> bool:
        return self.whole.carries_norms

    def of(self, block: NDArray[Any], first: int) -> NDArray[Any]:
        """The documents from number ``first`` on, translated."""
        made: NDArray[Any] = self.whole.transform(block)
        low, high = np.searchsorted(self.rows, (first, first + len(block)))
        inside, fold = self.rows[low:high] - first, self.fold[low:high] if len(self.rows) else None
        for one, translator in enumerate(self.others):
            own = inside[fold == one]
            if len(own):
                made[own] = translator.transform(block[own])
        return made


Methods = Mapping[str, Translator]
Fitted = TypeVar("Fitted")


@dataclass(frozen=True, eq=False)
class AuditInputs:
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
    ) -> AuditInputs:
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
            find_rows(old, blocks_of(documents))
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


def forward(methods: Methods, inputs: AuditInputs, seed: int) -> tuple[dict[str, CrossFitted], list[str]]:
    """From old to new, each method fitted on the pairs, and what is to be said of those that cannot be.

    Raises:
        FitError: if none can.
    """

    def fit(method: Translator) -> CrossFitted:
        return CrossFitted(method, inputs.old_pairs, inputs.new_pairs, inputs.places, seed)

    return _fitted(methods, fit)


def backward(methods: Methods, inputs: AuditInputs) -> tuple[dict[str, Translator], list[str]]:
    """From new to old, for queries; see `forward`."""
    return _fitted(methods, lambda one: clone(one).fit(inputs.new_query_pairs, inputs.old_query_pairs))


def _fitted(methods: Methods, fit: Callable[[Translator], Fitted]) -> tuple[dict[str, Fitted], list[str]]:
    found, notes = {}, []
    for name, method in methods.items():
        try:
            found[name] = fit(method)
        except FitError as error:
            notes.append(f"The method {name} was left out: {error}")
    if not found:
        raise FitError(f"No method can be fitted on these pairs. {notes[0]}")
    return found, notes


FEWEST, MOST = 20, 1000  # pairs that are held out: fewer say nothing, and more say nothing new
DEVIATIONS = 3.0  # of the mean rank of random partners: what pairs have to be better by


def check_pair_order(inputs: AuditInputs, method: Translator, fitted: CrossFitted) -> str | None:
    """A warning where translations of pairs that were held out are no nearer to their partners than to others.

    Args:
        inputs: What there is.
        method: What translates.
        fitted: The same, with the maps that were fitted without some pairs, if there are any.
    """
    held = fitted.parts == 0
    rows = np.flatnonzero(held)[:MOST]
    if len(rows) < FEWEST:
        return None
    try:
        translator = (
            fitted.others[0] if fitted.others else clone(method).fit(inputs.old_pairs[~held], inputs.new_pairs[~held])
        )
    except FitError:  # too few for this method to say anything
        return None
    found, wanted = (_directions(one) for one in (translator.transform(inputs.old_pairs[rows]), inputs.new_pairs[rows]))
    cosines = found @ wanted.T
    own = np.diag(cosines)
    # Ties count half, so that translations that are all alike are taken for chance.
    nearer = (cosines > own[:, None]).sum(1) + ((cosines == own[:, None]).sum(1) - 1) / 2
    share = float(nearer.mean()) / (len(rows) - 1)
    if share < 0.5 - DEVIATIONS / np.sqrt(12 * len(rows)):
        return None
    hits = int((nearer < 1).sum())
    return (
        f"The pairs do not look like pairs: of {plural(len(rows), 'pair')} that the map did not see, translations "
        f"find the right partner of {hits:,} (chance finds 1), with a mean cosine of {own.mean():.2f} to partners and "
        f"{cosines.mean():.2f} to all; are rows in the same order?"
    )


def _directions(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = np.asarray(rows, dtype=np.float64)
    norms: NDArray[np.float64] = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.maximum(norms, 1e-300)


Embed = Callable[[NDArray[np.int64]], Any]
AT_ONCE = 1024  # documents that are embedded together
NAMED = 5  # documents that a message lists


class IncompletePoolError(DataError):
    """Documents are missing from a pool; ``missing`` holds their numbers."""

    def __init__(self, message: str, missing: NDArray[np.int64]) -> None:
        super().__init__(message)
        self.missing = missing


class All:
    """The new model's vectors of all documents."""

    bound = False

    def __init__(self, vectors: Any, documents: int, width: int) -> None:
        vectors = vectors if hasattr(vectors, "shape") else np.asarray(vectors)
        if tuple(vectors.shape) != (documents, width):
            raise ShapeError(
                f"The new vectors of all documents are {documents} rows of {width} numbers, found shape "
                f"{tuple(vectors.shape)}; give one for every document of the index, in its order."
            )
        self.vectors = vectors

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self.vectors[rows])

    def search(self, queries: Any, depth: int, metric: str) -> Ranking:
        return nearest(queries, self.vectors, depth, metric)


class Pool:
    """The new model's vectors of some documents.

    What a search among them brings up is at least as good as a search among all: a bound from above.
    """

    bound = True

    def __init__(self, rows: NDArray[np.int64], vectors: NDArray[Any]) -> None:
        order = np.argsort(rows)
        self.rows, self.vectors = rows[order], vectors[order]

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self.vectors[np.searchsorted(self.rows, rows)]

    def search(self, queries: Any, depth: int, metric: str) -> Ranking:
        search = Nearest(queries, depth, metric)
        for _, block in blocks_of(self.vectors):
            search.update(block)
        found = search.ranking()
        return Ranking(np.where(found.rows < 0, -1, self.rows[found.rows]), found.scores)


def embedded_pool(
    rows: NDArray[np.int64], embed: Embed, width: int, progress: Callable[[float], object] | None = None
) -> Pool:
    """The pool with the vectors that ``embed`` makes.

    Raises:
        ShapeError: if it gives others than were asked for.
    """
    made = np.empty((len(rows), width), dtype=np.float32)
    for place in range(0, len(rows), AT_ONCE):
        asked = rows[place : place + AT_ONCE]
        found = embed(asked)
        found = np.asarray(found.detach().float().cpu() if hasattr(found, "detach") else found)
        if found.shape != (len(asked), width):
            raise ShapeError(
                f"embed was asked for {len(asked)} documents in the new model's width {width}, and gave an array of "
                f"shape {found.shape}; give a row for every number."
            )
        made[place : place + AT_ONCE] = found
        if progress is not None:
            progress((place + len(asked)) / len(rows))
    return Pool(rows, made)


def given_pool(needed: NDArray[np.int64], given: tuple[Any, Any], width: int) -> Pool:
    """The pool that a user embedded.

    Raises:
        IncompletePoolError: if documents are missing from it.
        DataError: if it holds a document twice.
        ShapeError: if rows and vectors do not belong together.
    """
    rows, vectors = np.asarray(given[0], dtype=np.int64), np.asarray(given[1])
    if rows.ndim != 1 or vectors.shape != (len(rows), width):
        raise ShapeError(
            f"A pool is the numbers of documents, and a row of {width} numbers for each, found shapes {rows.shape} and "
            f"{vectors.shape}."
        )
    once, counts = np.unique(rows, return_counts=True)
    if len(once) < len(rows):
        raise DataError(
            f"The pool holds document {once[counts > 1][0]} more than once; give every document one row of numbers."
        )
    missing = np.setdiff1d(needed, rows)
    if len(missing):
        named = ", ".join(map(str, missing[:NAMED])) + (", ..." if len(missing) > NAMED else "")
        raise IncompletePoolError(
            f"The pool lacks {plural(len(missing), 'document')} of the {len(needed):,} that these searches brought up "
            f"or labels name ({named}); embed them too, and give the same pairs, queries, labels and methods as when "
            "the pool was listed.",
            missing,
        )
    kept = np.isin(rows, needed)
    return Pool(rows[kept], vectors[kept])
