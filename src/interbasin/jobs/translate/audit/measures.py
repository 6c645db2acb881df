"""The figures of an audit: every way of searching on all queries, over numbers of pairs, and slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FitError
from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.evaluate.retrieval import Nearest, Ranking, ndcg, nearest, overlap, recall, reciprocal_rank
from interbasin.jobs.translate.audit.inputs import AuditInputs, CrossFitted
from interbasin.jobs.translate.translator import Translator

Numbers = NDArray[np.float64]
FOLDS = 5


@dataclass(frozen=True, eq=False)
class SearchMetric:
    """What rankings are measured against, and over which queries.

    Attributes:
        inputs: What there is.
        reference: What the new model itself finds, if that is known.
        asked: Which queries count: those with labels, where there are labels.
        bootstrap: Over these.
    """

    inputs: AuditInputs
    reference: Ranking | None
    asked: NDArray[np.bool_]
    bootstrap: Bootstrap | None

    @classmethod
    def of(
        cls, inputs: AuditInputs, reference: Ranking | None, draws: int, confidence: float, seed: int
    ) -> SearchMetric:
        labels = inputs.labels
        asked = np.ones(len(inputs.old_queries), dtype=bool) if labels is None else labels.known
        measurable = labels is not None or reference is not None
        bootstrap = Bootstrap(int(asked.sum()), draws, confidence, seed) if measurable else None
        return cls(inputs, reference, asked, bootstrap)

    @property
    def primary(self) -> str | None:
        """What the verdict is about: recall by labels, else the overlap with what the new model finds."""
        return "recall" if self.inputs.labels is not None else "overlap" if self.reference is not None else None

    def measures(self, found: Ranking) -> dict[str, Numbers]:
        """By measure, a number for each query that counts."""
        k, labels, values = self.inputs.k, self.inputs.labels, {}
        if labels is not None:
            values["recall"] = recall(found.rows, labels, k)
            values["reciprocal_rank"] = reciprocal_rank(found.rows, labels, k)
            values["ndcg"] = ndcg(found.rows, labels, k)
        if self.reference is not None:
            values["overlap"] = overlap(found.rows, self.reference.rows, k)
        return {name: one[self.asked] for name, one in values.items()}

    def intervals(self, values: Mapping[str, Numbers]) -> dict[str, Interval]:
        if self.bootstrap is None or not values:
            return {}
        return dict(zip(values, self.bootstrap.intervals(np.stack(list(values.values()), 1)), strict=True))


@dataclass(frozen=True, eq=False)
class Choice:
    """The best of some methods, and what it is worth.

    Attributes:
        method: The one that is best over all queries.
        best: What that one finds in the mean, as it stands in the table.
        numbers: For each query the number of the method that is best over others.
        unanimous: Whether that is the same method for every query.
    """

    method: str
    best: float
    numbers: Numbers
    unanimous: bool

    @property
    def note(self) -> str:
        """Why the mean of the numbers is another than the best of the table; empty where it is not."""
        if f"{self.numbers.mean():.3f}" == f"{self.best:.3f}":
            return ""
        return f"the method chosen on other queries; the best in the table is {self.method} with {self.best:.3f}"


def chosen_elsewhere(values: Mapping[str, Numbers], seed: int) -> Choice:
    """Choose a method without judging it by the queries that chose it.

    Who is picked as the best of many on the same queries looks better than he is. Here queries are parted, and each is
    judged by the method that the other parts would have picked.
    """
    names, matrix = list(values), np.stack(list(values.values()))
    count = matrix.shape[1]
    fold = np.random.default_rng(seed).permutation(count) % min(FOLDS, count)
    honest: Any = np.empty(count)
    picked = set()
    for one in range(fold.max() + 1):
        others = fold != one
        best = int(matrix[:, others].mean(1).argmax()) if others.any() else 0
        picked.add(best)
        honest[~others] = matrix[best, ~others]
    means = matrix.mean(1)
    chosen = int(means.argmax())
    return Choice(names[chosen], float(means[chosen]), honest, picked == {chosen})


Progress = Callable[[float], object] | None


@dataclass(frozen=True, eq=False)
class Searched:
    """What was found without embedding anything anew.

    Attributes:
        keep: Old queries among old documents.
        translate: By method, new queries among translated documents.
        adapt: By method, new queries, mapped into the old space, among old documents.
        zeros: How many documents are rows of zeros.
    """

    keep: Ranking
    translate: Mapping[str, Ranking]
    adapt: Mapping[str, Ranking]
    zeros: int

    def pool(self, inputs: AuditInputs) -> NDArray[np.int64]:
        """The documents that some search brought up, and those that labels name."""
        found = [self.keep.rows, *(one.rows for one in self.translate.values())]
        found += [one.rows[:, : inputs.k] for one in self.adapt.values()]
        if inputs.labels is not None:
            found += list(inputs.labels.relevant)
        rows = np.unique(np.concatenate([one.ravel() for one in found]))
        return rows[rows >= 0]

    def pool_overlap(self) -> float:
        """Of what a translated search brings up, the share that the old one brings up too; mean over methods."""
        shares = []
        for one in self.translate.values():
            shared = [len(np.intersect1d(a, b)) for a, b in zip(one.rows, self.keep.rows, strict=True)]
            shares.append(float(np.mean(shared)) / self.keep.rows.shape[1])
        return float(np.mean(shares))


def searched(
    inputs: AuditInputs,
    forward: Mapping[str, CrossFitted],
    backward: Mapping[str, Translator],
    progress: Progress = None,
) -> Searched:
    """All of them, reading the index once.

    Args:
        inputs: What there is.
        forward: By method, from the old space to the new.
        backward: By method, from the new space to the old.
        progress: Called with what share is done.
    """
    depth, metric = inputs.depth, inputs.metric
    keep = Nearest(inputs.old_queries, depth, metric)
    translate = {name: Nearest(inputs.new_queries, depth, metric) for name in forward}
    adapt = {
        name: Nearest(one.transform(_floating(inputs.new_queries)), depth, metric) for name, one in backward.items()
    }
    zeros = 0
    for place, given in inputs.blocks():
        block = _floating(given)
        keep.update(block)  # the first to look: it names rows that are not finite
        zeros += int((~np.any(block, axis=1)).sum())
        for name, translator in forward.items():
            translate[name].update(translator.of(block, place))
        for search in adapt.values():
            search.update(block)
        if progress is not None:
            progress((place + len(block)) / len(inputs.documents))
    return Searched(
        keep.ranking(),
        {name: one.ranking() for name, one in translate.items()},
        {name: one.ranking() for name, one in adapt.items()},
        zeros,
    )


def translated_search(
    inputs: AuditInputs, translators: Mapping[Any, CrossFitted], progress: Progress = None
) -> dict[Any, Ranking]:
    """New queries among documents that each of these translates; the first k."""
    searches = {name: Nearest(inputs.new_queries, inputs.k, inputs.metric) for name in translators}
    for place, given in inputs.blocks():
        block = _floating(given)
        for name, translator in translators.items():
            searches[name].update(translator.of(block, place))
        if progress is not None:
            progress((place + len(block)) / len(inputs.documents))
    return {name: one.ranking() for name, one in searches.items()}


def _floating(given: Any) -> NDArray[Any]:
    """A block as an array to calculate with; one that is mapped into memory, or quantised, is copied."""
    if hasattr(given, "detach"):
        return np.asarray(given.detach().float().cpu())
    block = np.asarray(given)
    return block if block.dtype in (np.float32, np.float64) else block.astype(np.float32)


REPEATS = 3
FIRST, STEP = 100, 10**0.5


@dataclass(frozen=True)
class Curve:
    """What fewer pairs bring.

    Attributes:
        method, measure: Of what.
        pairs: How many the method was fitted on.
        values: What it then reached; the mean over several draws of so many pairs.
        losses: What it lacks of what all pairs bring.
        enough: The fewest pairs of the curve that are shown to lack no more than the margin, which the interval of
            their loss decides; None if no fewer than all are.
        rising: Whether the last step still brought more than the margin.
    """

    method: str
    measure: str
    pairs: tuple[int, ...]
    values: tuple[Interval, ...]
    losses: tuple[Interval, ...]
    enough: int | None
    rising: bool

    def columns(self) -> dict[str, list[float | str]]:
        """As a table."""
        return {
            "pairs": list(self.pairs),
            "value": [one.value for one in self.values],
            "low": [one.low for one in self.values],
            "high": [one.high for one in self.values],
            "loss": [one.value for one in self.losses],
            "loss_low": [one.low for one in self.losses],
            "loss_high": [one.high for one in self.losses],
        }


def counts_of(given: Sequence[int] | None, pairs: int) -> list[int]:
    """The numbers of pairs to try, smaller than all: by default 100, 316, 1,000, ...

    Raises:
        DataError: if one is no number of pairs.
    """
    if given is not None:
        wrong = [one for one in given if one < 2]
        if wrong:
            raise DataError(f"A learning curve is over numbers of pairs, at least 2, found {wrong[0]}.")
        return sorted({int(one) for one in given if one < pairs})
    steps = [round(FIRST * STEP**place) for place in range(20)]
    return [one for one in steps if one <= 0.7 * pairs]


def learning_curve(
    search_metric: SearchMetric,
    name: str,
    method: Translator,
    counts: Sequence[int],
    with_all: NDArray[np.float64],
    margin: float,
    seed: int,
    progress: Callable[[float], object] | None = None,
) -> Curve | None:
    """The curve of a method; None if there is nothing to try, or nothing to measure by.

    Args:
        search_metric: What to measure by.
        name, method: The method.
        counts: Numbers of pairs.
        with_all: What all pairs bring, one number per query.
        margin: How much may be lacking.
        seed: Of which pairs are drawn.
        progress: Called with what share is done.
    """
    measure, inputs, bootstrap = search_metric.primary, search_metric.inputs, search_metric.bootstrap
    if measure is None or bootstrap is None or not counts:
        return None
    draws = np.random.default_rng(seed)
    translators: dict[Any, CrossFitted] = {}
    for count in counts:
        for repeat in range(REPEATS):
            rows = draws.choice(len(inputs.old_pairs), count, replace=False)
            where = {int(row): place for place, row in enumerate(rows)}
            places = {row: where[pair] for row, pair in inputs.places.items() if pair in where}
            try:
                translators[count, repeat] = CrossFitted(
                    method, inputs.old_pairs[rows], inputs.new_pairs[rows], places, seed
                )
            except FitError:  # too few for this method: the curve begins later
                break
    columns, tried = [], []
    found = translated_search(inputs, translators, progress)
    for count in counts:
        of_this = [search_metric.measures(found[key])[measure] for key in found if key[0] == count]
        if of_this:
            tried.append(count)
            columns.append(np.mean(of_this, axis=0))
    tried.append(len(inputs.old_pairs))
    columns.append(with_all)
    values = bootstrap.intervals(np.stack(columns, 1))
    losses = bootstrap.intervals(np.stack([with_all - one for one in columns], 1))
    enough = next((count for count, loss in zip(tried[:-1], losses[:-1], strict=True) if loss.high <= margin), None)
    rising = len(tried) > 1 and losses[-2].low > 0 and losses[-2].value > margin
    return Curve(name, measure, tuple(tried), tuple(values), tuple(losses), enough, rising)


FEWEST = 10  # queries that a group must have for its mean to mean anything
FAR = 0.1  # of the queries are called far from the pairs
OUTLIER = 3.5  # of a robust deviation
VARIES = 1e-3  # of the median: norms that differ by less were made equal
LESS_THAN = {"reembed": "less than re-embedding", "keep": "less than the old model"}  # by what a loss is counted from


@dataclass(frozen=True)
class Slice:
    """A group of queries.

    Attributes:
        name: Which.
        queries: How many.
        figures: By way, what it finds for them.
        loss: What translated vectors lack here of what ``reference`` finds.
        reference: ``reembed``, or ``keep`` where it is not known what re-embedding finds.
    """

    name: str
    queries: int
    figures: Mapping[str, Interval]
    loss: Interval
    reference: str = "keep"

    @property
    def less_than(self) -> str:
        """What the loss is, in words."""
        return LESS_THAN[self.reference]


def slices(
    search_metric: SearchMetric, values: Mapping[str, Numbers], draws: int, confidence: float, seed: int
) -> tuple[Slice, ...]:
    """The groups, the one with the largest loss first.

    Args:
        search_metric: What is measured by.
        values: By way, one number per query; the way ``translate`` among them.
        draws, confidence, seed: Of the intervals.
    """
    reference = "reembed" if "reembed" in values else "keep"
    if "translate" not in values or reference not in values:
        return ()
    columns = [*values.values(), values[reference] - values["translate"]]
    matrix = np.stack(columns, 1)
    found = []
    for name, chosen in _groups(search_metric.inputs).items():
        inside = chosen[search_metric.asked]
        count = int(inside.sum())
        if FEWEST <= count < len(inside):
            *figures, loss = Bootstrap(count, draws, confidence, seed).intervals(matrix[inside])
            found.append(Slice(name, count, dict(zip(values, figures, strict=True)), loss, reference))
    return tuple(sorted(found, key=lambda one: -one.loss.value))


def _groups(inputs: AuditInputs) -> dict[str, NDArray[np.bool_]]:
    groups: dict[str, NDArray[np.bool_]] = {}
    if inputs.lengths is not None:
        short, long = np.quantile(inputs.lengths, (0.25, 0.75))
        words = "word" if short == 1 else "words"
        groups[f"short queries (up to {short:.0f} {words})"] = inputs.lengths <= short
        groups[f"long queries ({long:.0f} words and more)"] = inputs.lengths >= long
    groups["queries of unusual norm (old model)"] = _unusual(_norms(inputs.old_queries))
    groups["queries of unusual norm (new model)"] = _unusual(_norms(inputs.new_queries))
    similar = nearest(inputs.new_queries, inputs.new_pairs, 1, "cosine").scores[:, 0]
    groups["queries far from every pair"] = similar <= np.quantile(similar, FAR)
    if inputs.labels is not None:
        wanted = inputs.labels.relevant
        first = np.array([one[0] if len(one) else 0 for one in wanted])
        norms = _norms(np.asarray(inputs.documents[np.unique(first)]))
        unusual = np.unique(first)[_unusual(norms)]
        groups["right document of unusual norm"] = np.isin(first, unusual) & inputs.labels.known
        if inputs.places:
            seen = np.array([any(row in inputs.places for row in one.tolist()) for one in wanted])
            # Of those that are, nothing can be told: they have new vectors already, and need no translation.
            groups["right document not among the pairs"] = ~seen & inputs.labels.known
    return groups


def _norms(rows: Any) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.linalg.norm(np.asarray(rows, dtype=np.float64), axis=1)
    return norms


def _unusual(norms: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Far from the median, measured by the median of such distances."""
    away = np.abs(norms - np.median(norms))
    spread = 1.4826 * float(np.median(away))
    return away > max(OUTLIER * spread, VARIES * float(np.median(norms)))
