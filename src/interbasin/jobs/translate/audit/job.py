"""The audit: every way of going on with an index, measured on the same queries against the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from interbasin.checks import require_fraction, require_whole
from interbasin.errors import DataError
from interbasin.evaluate.retrieval import Nearest, Ranking, reranked
from interbasin.jobs.translate.audit.inputs import (
    AuditInputs,
    CrossFitted,
    Embed,
    Methods,
    NewVectors,
    check_pair_order,
    fit_methods,
    translators_by_name,
)
from interbasin.jobs.translate.audit.measures import (
    SearchMetric,
    choose_method,
    curve_counts,
    learning_curve,
    search_index,
    slices,
)
from interbasin.jobs.translate.audit.result import WAYS, Audit, Way
from interbasin.jobs.translate.audit.verdict import judge
from interbasin.jobs.translate.evaluate import interval_metrics
from interbasin.jobs.translate.rows import as_floats
from interbasin.jobs.translate.translator import Translator
from interbasin.outcome import Stages
from interbasin.text import plural

FEW_QUERIES = 100
LARGE_SHARE = 0.1  # of the index: pairs that the map has seen and that are searched among
STAGES = ("fit", "search", "new model", "curve")

Rankings = dict[tuple[str, str], Ranking]  # by way and method, in the order of the table


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
    curve: Sequence[int] | bool | None = True,
    margin: float = 0.05,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> Audit:
    """Find out whether an index of old vectors should be translated, kept, or embedded anew.

    Every way is measured with the same queries **against the whole index**: inside a sample of it, figures move with
    the sample's size. With ``labels`` the measure is recall; without, the overlap with what the new model finds, which
    says how alike translated vectors are to new ones and not whether they are better than the old ones. Recall is
    capped: where more than k documents are right for a query, k of them count as all, so that 1 can be reached.

    What the new model finds needs its vectors of all documents (``new_documents``). Without them, give ``embed``: it
    embeds only a pool of documents, those that some search brought up, and gives an upper bound. Or take the numbers in
    ``result.pool``, embed those documents yourself, and give ``pool``.

    Args:
        pairs: (old, new): some documents as both models see them, what translations are fitted on.
        queries: (old, new): the queries as both models see them.
        documents: The old model's vectors of the whole index; may be memory-mapped, and is read in blocks.
        new_documents: The new model's vectors of the whole index, row by row the same documents.
        embed: From numbers of documents to the new model's vectors of them.
        pool: Numbers of documents, and the new model's vectors of them.
        labels: For every query the numbers of the right documents; or a mapping from numbers of queries to such.
        query_pairs: (old, new): queries to fit the maps of queries on; by default ``pairs``.
        pair_rows: Which documents the pairs are; by default they are looked for. Documents in the pairs are
            cross-fitted.
        query_texts: The queries themselves, so that short ones are shown apart.
        methods: Names of methods to try, by default all; or a mapping of names to translators.
        metric: How vectors are compared: ``"cosine"``, ``"dot"`` or ``"l2"``.
        k: How many documents are looked at.
        depth: How many are embedded anew where only the top is.
        curve: Numbers of pairs for the learning curve; True chooses them, False or None leaves it out.
        margin: A difference that does not matter, as a share of what the best way finds; for the learning curve, as a
            share of what all pairs bring.
        confidence: Of the intervals, which are over queries.
        draws: How often queries are drawn again for them.
        seed: Of all random draws.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ShapeError: if rows or widths do not fit together.
        DataError: if labels, rows or options name what is not there; if vectors are not finite.

    Example:
        >>> draws = np.random.default_rng(0)
        >>> meaning = draws.normal(size=(600, 8))
        >>> old, new = meaning @ draws.normal(size=(8, 12)), meaning @ draws.normal(size=(8, 16))
        >>> questions = meaning[:150] + 0.3 * draws.normal(size=(150, 8))
        >>> to_old, to_new = (np.linalg.lstsq(meaning, rows, rcond=None)[0] for rows in (old, new))
        >>> result = audit(
        ...     pairs=(old[300:], new[300:]),
        ...     queries=(questions @ to_old, questions @ to_new),
        ...     documents=old,
        ...     new_documents=new,
        ...     methods=["ridge"],
        ... )
        >>> result.verdict.advice
        'translate'
    """
    if sum(source is not None for source in (new_documents, embed, pool)) > 1:
        raise DataError("The new model's vectors come from new_documents=, embed= or pool=; give one of the three.")
    require_fraction("margin", margin)
    require_fraction("confidence", confidence, zero=False)
    require_whole("draws", draws, least=1)
    require_whole("seed", seed, least=0)
    inputs = AuditInputs(
        pairs, queries, documents, labels, query_pairs, pair_rows, query_texts, metric=metric, k=k, depth=depth
    )
    counts = curve_counts(curve, len(inputs.old_pairs))
    translators = translators_by_name(methods, seed)
    width = inputs.new_pairs.shape[1]
    known = None if new_documents is None else NewVectors.of_all(new_documents, len(inputs.documents), width)
    work = Stages(progress, len(STAGES))
    fitted, rankings, zeros = _search(inputs, translators, work, seed)
    rows = _pool(inputs, rankings)
    shared = _pool_overlap(rankings)
    with work.stage("new model") as tell:
        if embed is not None:
            known = NewVectors.of_embedded(rows, embed, width, tell)
        elif pool is not None:
            known = NewVectors.of_pool(rows, pool, width)
        if known is not None:
            rankings |= _rerank(inputs, rankings, known)
    search_metric = SearchMetric(inputs, rankings.get(("reembed", "")), draws, confidence, seed)
    primary, bound = search_metric.primary, known is not None and known.bound
    values = {key: search_metric.measure(ranking) for key, ranking in rankings.items()}
    choices = {}
    if primary is not None:
        for way in WAYS:
            of_way = {method: numbers[primary] for (name, method), numbers in values.items() if name == way}
            if of_way:
                choices[way] = choose_method(of_way, seed)
    best = choices["translate"].method if choices else next(iter(fitted))
    verdict = judge(
        choices,
        None if primary is None else search_metric.bootstrap(),
        labelled=inputs.labels is not None,
        bound=bound,
        k=k,
        depth=inputs.depth,
        margin=margin,
    )
    learned = None
    with work.stage("curve") as tell:
        if primary is not None and counts:
            # Without any shrinking, a map does worse with more pairs as long as they are about as many as dimensions.
            over = "ridge" if best == "affine" and "ridge" in fitted else best
            with_all = values["translate", over][primary]
            learned = learning_curve(search_metric, over, translators[over], counts, with_all, margin, seed, tell)
    table = tuple(
        Way(way, method, search_metric.intervals(numbers), WAYS[way].format(depth=inputs.depth))
        for (way, method), numbers in values.items()
    )
    numbers_of_ways = {way: choice.numbers for way, choice in choices.items()}
    metrics: dict[str, float] = {}
    for row in table:
        for measure, interval in row.figures.items():
            suffix = f".{row.way}.{row.method}" if row.method else f".{row.way}"
            metrics |= interval_metrics(measure, interval, suffix)
    for way, interval in search_metric.intervals(numbers_of_ways).items():
        if way in ("translate", "adapt", "rerank"):
            metrics |= interval_metrics(str(primary), interval, f".{way}.best")
    for name, interval in verdict.differences.items():
        metrics |= interval_metrics("difference", interval, f".{name}")
    if primary is not None:
        metrics["margin"] = verdict.margin
    if inputs.labels is not None:
        metrics["recall_ceiling"] = inputs.labels.ceiling(k)
    metrics |= {
        "pairs": len(inputs.old_pairs),
        "queries": search_metric.count,
        "documents": len(inputs.documents),
        "pool": len(rows),
        "pool_overlap": shared,
        **({} if learned is None or learned.enough is None else {"pairs_enough": learned.enough}),
    }
    notes = [
        *check_pair_order(inputs, translators[best], fitted[best]),
        *work.notes,
        *_describe_inputs(inputs, fitted, search_metric.count, zeros),
        *_describe_pool(len(rows), len(inputs.documents), shared, known),
    ]
    if learned is not None and learned.rising:
        notes.append("The learning curve still rises at its end: more pairs would make a better translation.")
    work.finish()
    return Audit(
        metrics=metrics,
        table=table,
        verdict=verdict,
        method=best,
        curve=learned,
        slices=slices(search_metric, numbers_of_ways),
        pool=rows,
        notes=tuple(notes),
        timings=work.timings,
        request={
            "metric": metric,
            "k": k,
            "depth": inputs.depth,
            "methods": list(fitted),
            "margin": margin,
            "confidence": confidence,
            "draws": draws,
            "seed": seed,
            "labels": inputs.labels is not None,
            "new_vectors": "none" if known is None else "pool" if bound else "all",
        },
    )


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
    inputs = AuditInputs(pairs, queries, documents, labels, query_pairs, metric=metric, k=k, depth=depth)
    _, rankings, _ = _search(inputs, translators_by_name(methods, seed), Stages(None, len(STAGES)), seed)
    return _pool(inputs, rankings)


def _search(
    inputs: AuditInputs, translators: Mapping[str, Translator], work: Stages, seed: int
) -> tuple[dict[str, CrossFitted], Rankings, int]:
    """The methods fitted from old to new, what is found without embedding anything anew, and the rows of zeros."""
    with work.stage("fit"):
        old, new = inputs.old_pairs, inputs.new_pairs
        old_queries, new_queries = inputs.old_query_pairs, inputs.new_query_pairs
        forward, notes = fit_methods(translators, lambda method: CrossFitted(method, old, new, inputs.places, seed))
        backward, more_notes = fit_methods(translators, lambda method: clone(method).fit(new_queries, old_queries))
        work.notes += dict.fromkeys([*notes, *more_notes])
    with work.stage("search") as tell:
        queries, options = inputs.new_queries, (inputs.depth, inputs.metric)
        searches: dict[tuple[str, str], tuple[Nearest, CrossFitted | None]] = {
            ("keep", ""): (Nearest(inputs.old_queries, *options), None)
        }
        for name, fitted in forward.items():
            searches["translate", name] = Nearest(queries, *options), fitted
        for name, translator in backward.items():
            searches["adapt", name] = Nearest(translator.transform(as_floats(queries)), *options), None
        return forward, *search_index(inputs, searches, tell)


def _rerank(inputs: AuditInputs, rankings: Rankings, known: NewVectors) -> Rankings:
    """What is found where the top of a search, or everything, is embedded anew."""
    queries, metric, k = inputs.new_queries, inputs.metric, inputs.k
    reembedded = {
        ("rerank", method): reranked(queries, ranking, known.of, metric, k)
        for (way, method), ranking in rankings.items()
        if way == "translate"
    }
    reembedded["keep_rerank", ""] = reranked(queries, rankings["keep", ""], known.of, metric, k)
    reembedded["reembed", ""] = known.search(queries, k, metric)
    return reembedded


def _pool(inputs: AuditInputs, rankings: Rankings) -> NDArray[np.int64]:
    """The documents that some search brought up, and those that labels name."""
    parts = [ranking.rows[:, : inputs.k] if way == "adapt" else ranking.rows for (way, _), ranking in rankings.items()]
    if inputs.labels is not None:
        parts += inputs.labels.relevant
    rows = np.unique(np.concatenate([part.ravel() for part in parts]))
    return rows[rows >= 0]


def _pool_overlap(rankings: Rankings) -> float:
    """Of what a translated search brings up, the share that the old one brings up too; mean over methods."""
    keep = rankings["keep", ""].rows
    translated = [ranking.rows for (way, _), ranking in rankings.items() if way == "translate"]
    shared = [len(np.intersect1d(a, b)) for rows in translated for a, b in zip(rows, keep, strict=True)]
    return float(np.mean(shared) / keep.shape[1])


def _describe_inputs(inputs: AuditInputs, fitted: Mapping[str, CrossFitted], queries: int, zeros: int) -> list[str]:
    notes = []
    if queries < FEW_QUERIES:
        notes.append(f"With {plural(queries, 'query', 'queries')} the intervals are wide; give some hundreds.")
    if queries < len(inputs.old_queries):
        notes.append(f"{queries:,} of {len(inputs.old_queries):,} queries have labels; figures are over these.")
    if inputs.labels is not None and (ceiling := inputs.labels.ceiling(inputs.k)) < 1:
        notes.append(
            f"Up to {plural(int(inputs.labels.counts.max()), 'document')} are right for a query, and {inputs.k} places "
            f"hold no more than {inputs.k}: recall is capped, so that 1 is the best possible. Without the cap it could "
            f"not exceed {ceiling:.3f} here."
        )
    share = len(inputs.old_pairs) / len(inputs.documents)
    if share > LARGE_SHARE and not inputs.places:
        notes.append(
            f"The pairs are {share:.0%} as many as the documents, and none was found among them: if they are there in "
            "another form, translated vectors look better here than they are; say which they are with pair_rows=."
        )
    if zeros:
        notes.append(f"{plural(zeros, 'document')} of the index {'is' if zeros == 1 else 'are'} all zeros.")
    lost = [name for name, method in fitted.items() if not method.whole.carries_norms]
    if inputs.metric != "cosine" and lost:
        notes.append(f"Scores by {inputs.metric} depend on norms, which these methods do not carry: {', '.join(lost)}.")
    return notes


def _describe_pool(count: int, documents: int, shared: float, known: NewVectors | None) -> list[str]:
    pool = f"{plural(count, 'document')}"
    share = f"({count / documents:.1%} of the index)"
    if known is None:
        return [
            f"Nothing is known of the new model's vectors of documents beyond the pairs: embed the {pool} of the pool "
            f"{share} to have a bound of what re-embedding would bring."
        ]
    if not known.bound:
        return []
    return [
        f"What the new model finds was measured among a pool of {pool} {share} and is an upper bound: overlaps, "
        "re-embedding the top and re-embedding everything would come out lower or equal. Of what translated searches "
        f"brought into the pool, {shared:.0%} the old one brought too."
    ]
