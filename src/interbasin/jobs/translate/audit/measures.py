"""The figures of an audit: every way of searching on all queries, over numbers of pairs, and slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from interbasin.checks import require_whole
from interbasin.errors import DataError, FitError
from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.evaluate.retrieval import Nearest, Ranking, blocks_of, ndcg, nearest, overlap, recall, reciprocal_rank
from interbasin.jobs.translate.audit.inputs import AuditInputs, CrossFitted
from interbasin.jobs.translate.evaluate import intervals_of
from interbasin.jobs.translate.rows import as_floats
from interbasin.jobs.translate.translator import Translator

FOLDS = 5
REPEATS = 3  # draws of pairs for each point of a learning curve
FIRST, STEP = 100, 10**0.5  # numbers of pairs on a learning curve
FEWEST = 10  # queries that a slice must have for its mean to mean anything
FAR = 0.1  # of the queries are called far from the pairs
OUTLIER = 3.5  # of a robust deviation
VARIES = 1e-3  # of the median: norms that differ by less were made equal
LESS_THAN = {"reembed": "less than re-embedding", "keep": "less than the old model"}  # by what a loss is counted from

Numbers = NDArray[np.float64]
Progress = Callable[[float], object] | None
Key = TypeVar("Key")


def search_index(
    inputs: AuditInputs, searches: Mapping[Key, tuple[Nearest, CrossFitted | None]], progress: Progress = None
) -> tuple[dict[Key, Ranking], int]:
    """What every search finds, among documents that its method, if any, translates; and how many rows are all zeros.

    The index is read once.
    """
    zeros = 0
    for place, rows in blocks_of(inputs.documents):
        block = as_floats(rows)
        zeros += int((~np.any(block, axis=1)).sum())
        for search, translator in searches.values():
            search.update(block if translator is None else translator.translate(block, place))
        if progress is not None:
            progress((place + len(block)) / len(inputs.documents))
    return {key: search.ranking() for key, (search, _) in searches.items()}, zeros


class SearchMetric:
    """What rankings are measured against, and over which queries.

    Attributes:
        reference: What the new model itself finds, if that is known.
        asked: Which queries count: those with labels, where there are labels.
        primary: What the verdict is about: recall by labels, else the overlap with what the new model finds.
    """

    def __init__(
        self, inputs: AuditInputs, reference: Ranking | None, draws: int, confidence: float, seed: int
    ) -> None:
        self.inputs, self.reference = inputs, reference
        self.primary = "recall" if inputs.labels is not None else "overlap" if reference is not None else None
        self.asked = np.ones(len(inputs.old_queries), dtype=bool) if inputs.labels is None else inputs.labels.known
        self.count = int(self.asked.sum())
        self._options = draws, confidence, seed

    def measure(self, ranking: Ranking) -> dict[str, Numbers]:
        """By measure, one number per query that counts."""
        k, labels, values = self.inputs.k, self.inputs.labels, {}
        if labels is not None:
            by_labels = {"recall": recall, "reciprocal_rank": reciprocal_rank, "ndcg": ndcg}
            values = {name: measure(ranking.rows, labels, k) for name, measure in by_labels.items()}
        if self.reference is not None:
            values["overlap"] = overlap(ranking.rows, self.reference.rows, k)
        return {name: numbers[self.asked] for name, numbers in values.items()}

    def bootstrap(self, count: int | None = None) -> Bootstrap:
        """Over the queries that count, or over some of them."""
        return Bootstrap(self.count if count is None else count, *self._options)

    def intervals(self, values: Mapping[Key, Numbers]) -> dict[Key, Interval]:
        """The mean of each over the queries that count."""
        return intervals_of(self.bootstrap(), values) if values else {}


@dataclass(frozen=True, eq=False)
class Choice:
    """The best of some methods, and what it is worth.

    Attributes:
        method: The best over all queries.
        best: Its mean, as the table has it.
        numbers: Per query, the number of the method that is best over other queries.
    """

    method: str
    best: float
    numbers: Numbers

    @property
    def note(self) -> str:
        """Why the mean of the numbers differs from the best of the table; empty where it does not."""
        if f"{self.numbers.mean():.3f}" == f"{self.best:.3f}":
            return ""
        return f"the method chosen on other queries; the best in the table is {self.method} with {self.best:.3f}"


def choose_method(values: Mapping[str, Numbers], seed: int) -> Choice:
    """Choose a method, and judge it by queries that had no say in the choice.

    The best of many on the same queries looks better than it is. Here each fold of the queries is judged by the method
    that is best on the other folds.
    """
    names, matrix = list(values), np.stack(list(values.values()))
    count = matrix.shape[1]
    folds = np.random.default_rng(seed).permutation(count) % min(FOLDS, count)
    numbers = np.empty(count)
    for fold in range(folds.max() + 1):
        others = folds != fold
        best = int(matrix[:, others].mean(1).argmax()) if others.any() else 0
        numbers[~others] = matrix[best, ~others]
    means = matrix.mean(1)
    return Choice(names[int(means.argmax())], float(means.max()), numbers)


@dataclass(frozen=True)
class Curve:
    """What fewer pairs bring.

    Attributes:
        method, measure: Of what.
        pairs: How many the method was fitted on.
        values: What it then reached; the mean over several draws of so many pairs.
        losses: What it lacks of what all pairs bring.
        enough: The fewest pairs of the curve whose loss is shown, by its interval, to be within the margin;
            None if there is none, or all pairs bring nothing.
        rising: Whether the last step still brought more than the margin.
        margin: A loss that does not matter, in the units of the measure.
    """

    method: str
    measure: str
    pairs: tuple[int, ...]
    values: tuple[Interval, ...]
    losses: tuple[Interval, ...]
    enough: int | None
    rising: bool
    margin: float


def curve_counts(counts: Iterable[int] | bool | None, pairs: int) -> list[int]:
    """The numbers of pairs to try, smaller than all: those given; for True 100, 316, 1,000, ...; else none.

    Raises:
        DataError: if one is no number of pairs.
    """
    if counts is None or isinstance(counts, bool):
        steps = [round(FIRST * STEP**place) for place in range(20)]
        return [step for step in steps if step <= 0.7 * pairs] if counts else []
    if not isinstance(counts, Iterable):
        raise DataError(f"curve must be True, False or a list of numbers of pairs, got {counts!r}.")
    checked = {require_whole("curve", count, least=2) for count in counts}
    return sorted(count for count in checked if count < pairs)


def learning_curve(
    search_metric: SearchMetric,
    name: str,
    method: Translator,
    counts: Sequence[int],
    with_all: Numbers,
    margin: float,
    seed: int,
    progress: Progress = None,
) -> Curve:
    """The curve of a method over these numbers of pairs; ``with_all`` is what all pairs bring, per query.

    ``margin`` is a share of what all pairs bring: half of a small recall is never near enough to it.
    """
    of_all = float(with_all.mean())
    margin *= of_all
    measure, inputs = str(search_metric.primary), search_metric.inputs
    draws = np.random.default_rng(seed)
    searches: dict[tuple[int, int], tuple[Nearest, CrossFitted | None]] = {}
    for count in counts:
        for repeat in range(REPEATS):
            rows = draws.choice(len(inputs.old_pairs), count, replace=False)
            where = {int(row): place for place, row in enumerate(rows)}
            places = {row: where[pair] for row, pair in inputs.places.items() if pair in where}
            try:
                fitted = CrossFitted(method, inputs.old_pairs[rows], inputs.new_pairs[rows], places, seed)
            except FitError:  # too few for this method: the curve begins later
                break
            searches[count, repeat] = Nearest(inputs.new_queries, inputs.k, inputs.metric), fitted
    rankings, _ = search_index(inputs, searches, progress)
    columns: dict[int, Numbers] = {}
    for count in counts:
        repeats = [search_metric.measure(rankings[key])[measure] for key in rankings if key[0] == count]
        if repeats:
            columns[count] = np.mean(repeats, axis=0)
    columns[len(inputs.old_pairs)] = with_all
    values = search_metric.intervals(columns)
    losses = search_metric.intervals({count: with_all - numbers for count, numbers in columns.items()})
    *fewer, _ = losses
    return Curve(
        name,
        measure,
        tuple(columns),
        tuple(values.values()),
        tuple(losses.values()),
        enough=next((count for count in fewer if of_all > 0 and losses[count].high <= margin), None),
        rising=bool(fewer) and losses[fewer[-1]].low > 0 and losses[fewer[-1]].value > margin,
        margin=margin,
    )


@dataclass(frozen=True)
class Slice:
    """A group of queries.

    Attributes:
        name: Which.
        queries: How many.
        figures: By way, what it finds for them.
        loss: What translated vectors lack here.
        less_than: What the loss is counted from: one of `LESS_THAN`.
    """

    name: str
    queries: int
    figures: Mapping[str, Interval]
    loss: Interval
    less_than: str


def slices(search_metric: SearchMetric, values: Mapping[str, Numbers]) -> tuple[Slice, ...]:
    """The groups, the one with the largest loss first; ``values`` hold one number per query for each way."""
    reference = "reembed" if "reembed" in values else "keep"
    if "translate" not in values or reference not in values:
        return ()
    columns = {**values, "loss": values[reference] - values["translate"]}
    parts = []
    for name, members in _groups(search_metric.inputs).items():
        inside = members[search_metric.asked]
        count = int(inside.sum())
        if FEWEST <= count < len(inside):
            selected = {way: numbers[inside] for way, numbers in columns.items()}
            figures = intervals_of(search_metric.bootstrap(count), selected)
            loss = figures.pop("loss")
            parts.append(Slice(name, count, figures, loss, LESS_THAN[reference]))
    return tuple(sorted(parts, key=lambda part: -part.loss.value))


def _groups(inputs: AuditInputs) -> dict[str, NDArray[np.bool_]]:
    groups: dict[str, NDArray[np.bool_]] = {}
    if inputs.lengths is not None:
        short, long = np.quantile(inputs.lengths, (0.25, 0.75))
        groups[f"short queries (up to {short:.0f} {'word' if short == 1 else 'words'})"] = inputs.lengths <= short
        groups[f"long queries ({long:.0f} words and more)"] = inputs.lengths >= long
    groups["queries of unusual norm (old model)"] = _unusual(inputs.old_queries)
    groups["queries of unusual norm (new model)"] = _unusual(inputs.new_queries)
    similar = nearest(inputs.new_queries, inputs.new_pairs, 1, "cosine").scores[:, 0]
    groups["queries far from every pair"] = similar <= np.quantile(similar, FAR)
    if inputs.labels is not None:
        relevant, known = inputs.labels.relevant, inputs.labels.known
        first = np.array([rows[0] if len(rows) else 0 for rows in relevant])
        documents = np.unique(first)
        unusual = documents[_unusual(inputs.documents[documents])]
        groups["right document of unusual norm"] = np.isin(first, unusual) & known
        if inputs.places:
            # Documents among the pairs have new vectors already: they need no translation, and tell nothing of it.
            paired = np.array([any(row in inputs.places for row in rows.tolist()) for rows in relevant])
            groups["right document not among the pairs"] = ~paired & known
    return groups


def _unusual(rows: Any) -> NDArray[np.bool_]:
    """Rows whose norm is far from the median, measured by the median of such distances."""
    norms = np.linalg.norm(np.asarray(rows, dtype=np.float64), axis=1)
    away = np.abs(norms - np.median(norms))
    spread = 1.4826 * float(np.median(away))
    unusual: NDArray[np.bool_] = away > max(OUTLIER * spread, VARIES * float(np.median(norms)))
    return unusual
