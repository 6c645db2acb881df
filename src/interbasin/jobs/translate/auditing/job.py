"""The audit: every way of going on with an index, measured on the same queries against the whole of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError
from interbasin.evaluate.retrieval import Interval, Ranking, reranked
from interbasin.jobs.translate.auditing.curve import counts_of, learning_curve
from interbasin.jobs.translate.auditing.figures import Choice, Numbers, Yardstick, chosen_elsewhere
from interbasin.jobs.translate.auditing.material import Material, backward, forward, methods_of
from interbasin.jobs.translate.auditing.pairing import doubt_of_pairs
from interbasin.jobs.translate.auditing.pool import All, Embed, Pool, embedded_pool, given_pool
from interbasin.jobs.translate.auditing.result import WAYS, Audit, Way
from interbasin.jobs.translate.auditing.searches import Searched, searched
from interbasin.jobs.translate.auditing.slices import slices
from interbasin.jobs.translate.auditing.unseen import Unseen
from interbasin.jobs.translate.auditing.verdict import judged
from interbasin.jobs.translate.translator import Translator
from interbasin.text import plural

__all__ = ["audit", "pool_rows"]

FEW_QUERIES = 100
LARGE_SHARE = 0.1  # of the index: pairs that the map has seen and that are searched among
STAGES = ("fit", "search", "new model", "curve")

Methods = Sequence[str] | Mapping[str, Translator] | None


def audit(
    pairs: tuple[Any, Any],
    queries: tuple[Any, Any],
    documents: Any,
    *,
    new_documents: Any = None,
    embed: Embed | None = None,
    pool: tuple[Any, Any] | None = None,
    labels: Any = None,
    query_pairs: tuple[Any, Any] | None = None,
    pair_rows: Any = None,
    query_texts: Sequence[str] | None = None,
    methods: Methods = None,
    metric: str = "cosine",
    k: int = 10,
    depth: int = 100,
    curve: Sequence[int] | bool = True,
    margin: float = 0.02,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> Audit:
    """Find out whether an index of old vectors should be translated, kept, or embedded anew.

    Every way is measured with the same queries **against the whole index**: inside a sample of it, figures move with
    the sample's size. With ``labels`` the measure is recall; without, the overlap with what the new model finds, which
    says how alike translated vectors are to new ones and not whether they are better than the old ones.

    What the new model finds needs its vectors of all documents (``new_documents``). Without them, give ``embed``: only
    a pool of documents, those that some search brought up, is embedded, and what is measured with it is a bound from
    above. Or take the numbers in ``result.pool``, embed those documents yourself, and give ``pool``.

    Args:
        pairs: (old, new): some documents as both models see them, what translations are fitted on.
        queries: (old, new): the queries as both models see them.
        documents: The old model's vectors of the whole index; may be memory-mapped, and is read in blocks.
        new_documents: The new model's vectors of the whole index, row by row the same documents.
        embed: From numbers of documents to the new model's vectors of them.
        pool: Numbers of documents, and the new model's vectors of them.
        labels: For every query the numbers of the right documents; or a mapping from numbers of queries to such.
        query_pairs: (old, new): queries to fit the maps of queries on; by default ``pairs`` serve for these too.
        pair_rows: Which documents the pairs are; by default they are looked for. Such documents are translated by maps
            that were fitted without them, so that nothing is judged by what it was fitted on.
        query_texts: The queries themselves, so that short ones are shown apart.
        methods: Names of methods to try, by default all; or a mapping of names to translators.
        metric: How vectors are compared: ``"cosine"``, ``"dot"`` or ``"l2"``.
        k: How many documents are looked at.
        depth: How many are embedded anew where only the top is.
        curve: Numbers of pairs for the learning curve; True chooses them, False leaves it out.
        margin: A difference that does not matter.
        confidence: Of the intervals, which are over queries.
        draws: How often queries are drawn again for them.
        seed: Of all that is drawn.
        progress: Told what share is done, from 0 to 1.

    Raises:
        ShapeError: if rows or widths do not fit together.
        DataError: if labels, rows or options name what is not there; if vectors are not finite.

    Example:
        >>> draws = np.random.default_rng(0)
        >>> meaning = draws.normal(size=(600, 8))
        >>> old, new = meaning @ draws.normal(size=(8, 12)), meaning @ draws.normal(size=(8, 16))
        >>> questions = meaning[:150] + 0.3 * draws.normal(size=(150, 8))
        >>> to_old, to_new = (np.linalg.lstsq(meaning, one, rcond=None)[0] for one in (old, new))
        >>> found = audit(
        ...     pairs=(old[300:], new[300:]),
        ...     queries=(questions @ to_old, questions @ to_new),
        ...     documents=old,
        ...     new_documents=new,
        ...     methods=["ridge"],
        ... )
        >>> found.verdict.advice
        'translate'
    """
    if sum(one is not None for one in (new_documents, embed, pool)) > 1:
        raise DataError("The new model's vectors come from new_documents=, embed= or pool=; give one of the three.")
    if not 0 <= margin < 1:
        raise DataError(f"margin is a difference of shares, from 0 to 1, found {margin}.")
    material = Material.of(pairs, queries, documents, labels, query_pairs, pair_rows, query_texts, metric, k, depth)
    counts = [] if curve is False else counts_of(None if curve is True else curve, len(material.old_pairs))
    tried = methods_of(methods, seed)
    work = _Work(progress)
    width = material.new_pairs.shape[1]
    complete = None if new_documents is None else All(new_documents, len(material.documents), width)

    fitted, found = _searches(material, tried, work, seed)
    rows = found.pool(material)
    with work.stage("new model") as tell:
        known: All | Pool | None = complete
        if embed is not None:
            known = embedded_pool(rows, embed, width, tell)
        elif pool is not None:
            known = given_pool(rows, pool, width)
        rankings = _rankings(material, found, known)
    yardstick = Yardstick.of(material, rankings.get(("reembed", "")), draws, confidence, seed)
    values = {key: yardstick.measures(ranking) for key, ranking in rankings.items()}
    choices = _choices(values, yardstick, seed)
    primary = {way: choice.numbers for way, choice in choices.items()}
    best = choices["translate"].method if choices else next(iter(fitted))
    verdict = judged(
        choices,
        yardstick.bootstrap,
        labelled=material.labels is not None,
        bound=known is not None and known.bound,
        k=k,
        depth=material.depth,
        margin=margin,
    )
    with work.stage("curve") as tell:
        drawn = None
        if yardstick.primary is not None and counts:
            # Without any shrinking, a map does worse with more pairs as long as they are about as many as dimensions.
            over = "ridge" if best == "affine" and "ridge" in fitted else best
            with_all = values["translate", over][yardstick.primary]
            drawn = learning_curve(yardstick, over, tried[over], counts, with_all, margin, seed, tell)
    table = tuple(
        Way(way, method, yardstick.intervals(one), WAYS[way].format(depth=material.depth))
        for (way, method), one in values.items()
    )
    groups = slices(yardstick, primary, draws, confidence, seed) if primary else ()
    doubt = doubt_of_pairs(material, tried[best], fitted[best])
    warnings = [
        *([doubt] if doubt else []),
        *work.warnings,
        *_warnings(material, fitted, found, known, yardstick, rows),
    ]
    if drawn is not None and drawn.rising:
        warnings.append("The learning curve still rises at its end: more pairs would make a better translation.")
    metrics = _metrics(table, primary, yardstick, verdict.differences, best)
    metrics |= {
        "pairs": len(material.old_pairs),
        "queries": int(yardstick.asked.sum()),
        "documents": len(material.documents),
        "pool": len(rows),
        "pool_overlap": found.pool_overlap(),
        **({} if drawn is None or drawn.enough is None else {"pairs_enough": drawn.enough}),
    }
    request = {
        "metric": metric,
        "k": k,
        "depth": material.depth,
        "methods": list(fitted),
        "margin": margin,
        "confidence": confidence,
        "draws": draws,
        "seed": seed,
        "labels": material.labels is not None,
        "new_vectors": "all" if complete is not None else "pool" if known is not None else "none",
    }
    work.finished()
    return Audit(metrics, table, verdict, best, drawn, groups, rows, tuple(warnings), work.timings, request)


def pool_rows(
    pairs: tuple[Any, Any],
    queries: tuple[Any, Any],
    documents: Any,
    *,
    labels: Any = None,
    query_pairs: tuple[Any, Any] | None = None,
    methods: Methods = None,
    metric: str = "cosine",
    k: int = 10,
    depth: int = 100,
    seed: int = 0,
) -> NDArray[np.int64]:
    """The numbers of the documents to embed with the new model so that `audit` can be given them as its ``pool``.

    Takes what `audit` does.
    """
    material = Material.of(pairs, queries, documents, labels, query_pairs, None, None, metric, k, depth)
    return _searches(material, methods_of(methods, seed), _Work(None), seed)[1].pool(material)


def _searches(
    material: Material, tried: Mapping[str, Translator], work: _Work, seed: int
) -> tuple[dict[str, Unseen], Searched]:
    with work.stage("fit"):
        there, remarks = forward(tried, material, seed)
        back, others = backward(tried, material)
        work.warnings += list(dict.fromkeys([*remarks, *others]))
    with work.stage("search") as tell:
        return there, searched(material, there, back, tell)


def _rankings(material: Material, found: Searched, known: All | Pool | None) -> dict[tuple[str, str], Ranking]:
    """By way and method, in the order of the table."""
    rankings = {("keep", ""): found.keep}
    rankings |= {("translate", name): one for name, one in found.translate.items()}
    rankings |= {("adapt", name): one for name, one in found.adapt.items()}
    if known is None:
        return rankings
    queries, metric, k = material.new_queries, material.metric, material.k
    for name, one in found.translate.items():
        rankings["rerank", name] = reranked(queries, one, known.of, metric, k)
    rankings["keep_rerank", ""] = reranked(queries, found.keep, known.of, metric, k)
    rankings["reembed", ""] = known.search(queries, k, metric)
    return rankings


def _choices(
    values: Mapping[tuple[str, str], Mapping[str, Numbers]], yardstick: Yardstick, seed: int
) -> dict[str, Choice]:
    """For each way the best of its methods; none if there is nothing to measure by."""
    measure = yardstick.primary
    if measure is None:
        return {}
    found = {}
    for way in WAYS:
        of_way = {method: one[measure] for (name, method), one in values.items() if name == way}
        if of_way:
            found[way] = chosen_elsewhere(of_way, seed)
    return found


def _metrics(
    table: Sequence[Way],
    primary: Mapping[str, Numbers],
    yardstick: Yardstick,
    differences: Mapping[str, Interval],
    best: str,
) -> dict[str, float]:
    found: dict[str, float] = {}

    def note(name: str, where: str, one: Interval) -> None:
        found[f"{name}.{where}"] = one.value
        found[f"{name}_low.{where}"], found[f"{name}_high.{where}"] = one.low, one.high

    for way in table:
        for measure, one in way.figures.items():
            note(measure, f"{way.way}.{way.method}" if way.method else way.way, one)
    for way_name, one in yardstick.intervals(primary).items():
        if way_name in ("translate", "adapt", "rerank"):
            note(str(yardstick.primary), f"{way_name}.best", one)
    for name, one in differences.items():
        note("difference", name, one)
    return found


def _warnings(
    material: Material,
    fitted: Mapping[str, Unseen],
    found: Searched,
    known: All | Pool | None,
    yardstick: Yardstick,
    pool: NDArray[np.int64],
) -> list[str]:
    said = []
    asked, documents = int(yardstick.asked.sum()), len(material.documents)
    if asked < FEW_QUERIES:
        said.append(f"With {plural(asked, 'query', 'queries')} the intervals are wide; give some hundreds.")
    if asked < len(material.old_queries):
        said.append(f"{asked:,} of {len(material.old_queries):,} queries have labels; figures are over these.")
    share = len(material.old_pairs) / documents
    if share > LARGE_SHARE and not material.places:
        said.append(
            f"The pairs are {share:.0%} as many as the documents, and none was found among them: if they are there in "
            "another form, translated vectors look better here than they are; say which they are with pair_rows=."
        )
    if found.zeros:
        said.append(f"{plural(found.zeros, 'document')} of the index {'is' if found.zeros == 1 else 'are'} all zeros.")
    lost = [name for name, one in fitted.items() if not one.carries_norms]
    if material.metric != "cosine" and lost:
        said.append(
            f"Scores by {material.metric} depend on norms, which these methods do not carry: {', '.join(lost)}."
        )
    if known is not None and known.bound:
        said.append(
            f"What the new model finds was measured among a pool of {plural(len(pool), 'document')} "
            f"({len(pool) / documents:.1%} of the index) and is an upper bound: overlaps, re-embedding the top and "
            "re-embedding everything would come out lower or equal. Of what translated searches brought into the pool, "
            f"{found.pool_overlap():.0%} the old one brought too."
        )
    if known is None:
        said.append(
            "Nothing is known of the new model's vectors of documents beyond the pairs: embed the "
            f"{plural(len(pool), 'document')} of the pool ({len(pool) / documents:.1%} of the index) to have a bound "
            "of what re-embedding would bring."
        )
    return said


class _Work:
    """Times, warnings and what share of the stages is done."""

    def __init__(self, progress: Callable[[float], object] | None) -> None:
        self.progress, self.done = progress, 0
        self.timings: dict[str, float] = {}
        self.warnings: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], object] | None]:
        start, done, progress = time.perf_counter(), self.done, self.progress
        yield None if progress is None else lambda share: progress((done + share) / len(STAGES))
        self.timings[name] = time.perf_counter() - start
        self.done += 1

    def finished(self) -> None:
        if self.progress is not None:
            self.progress(1.0)
