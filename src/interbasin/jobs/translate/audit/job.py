"""The audit: every way of going on with an index, measured on the same queries against the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Interval
from interbasin.evaluate.retrieval import Ranking, reranked
from interbasin.jobs.translate.audit.inputs import (
    All,
    AuditInputs,
    CrossFitted,
    Embed,
    Pool,
    backward,
    check_pair_order,
    embedded_pool,
    forward,
    given_pool,
    methods_of,
)
from interbasin.jobs.translate.audit.measures import (
    Choice,
    Numbers,
    Searched,
    SearchMetric,
    chosen_elsewhere,
    counts_of,
    learning_curve,
    searched,
    slices,
)
from interbasin.jobs.translate.audit.result import WAYS, Audit, Way
from interbasin.jobs.translate.audit.verdict import judged
from interbasin.jobs.translate.translator import Translator
from interbasin.outcome import Stages
from interbasin.text import plural

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
        pair_rows: Which documents the pairs are; by default they are looked for. Documents in the pairs are
            cross-fitted.
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
        progress: Called with what share is done, from 0 to 1.

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
    inputs = AuditInputs.of(pairs, queries, documents, labels, query_pairs, pair_rows, query_texts, metric, k, depth)
    counts = [] if curve is False else counts_of(None if curve is True else curve, len(inputs.old_pairs))
    tried = methods_of(methods, seed)
    work = Stages(progress, len(STAGES))
    width = inputs.new_pairs.shape[1]
    complete = None if new_documents is None else All(new_documents, len(inputs.documents), width)

    fitted, found = _searches(inputs, tried, work, seed)
    rows = found.pool(inputs)
    with work.stage("new model") as tell:
        known: All | Pool | None = complete
        if embed is not None:
            known = embedded_pool(rows, embed, width, tell)
        elif pool is not None:
            known = given_pool(rows, pool, width)
        rankings = _rankings(inputs, found, known)
    search_metric = SearchMetric.of(inputs, rankings.get(("reembed", "")), draws, confidence, seed)
    values = {key: search_metric.measures(ranking) for key, ranking in rankings.items()}
    choices = _choices(values, search_metric, seed)
    primary = {way: choice.numbers for way, choice in choices.items()}
    best = choices["translate"].method if choices else next(iter(fitted))
    verdict = judged(
        choices,
        search_metric.bootstrap,
        labelled=inputs.labels is not None,
        bound=known is not None and known.bound,
        k=k,
        depth=inputs.depth,
        margin=margin,
    )
    with work.stage("curve") as tell:
        drawn = None
        if search_metric.primary is not None and counts:
            # Without any shrinking, a map does worse with more pairs as long as they are about as many as dimensions.
            over = "ridge" if best == "affine" and "ridge" in fitted else best
            with_all = values["translate", over][search_metric.primary]
            drawn = learning_curve(search_metric, over, tried[over], counts, with_all, margin, seed, tell)
    table = tuple(
        Way(way, method, search_metric.intervals(one), WAYS[way].format(depth=inputs.depth))
        for (way, method), one in values.items()
    )
    groups = slices(search_metric, primary, draws, confidence, seed) if primary else ()
    doubt = check_pair_order(inputs, tried[best], fitted[best])
    notes = [
        *([doubt] if doubt else []),
        *work.notes,
        *_notes(inputs, fitted, found, known, search_metric, rows),
    ]
    if drawn is not None and drawn.rising:
        notes.append("The learning curve still rises at its end: more pairs would make a better translation.")
    metrics = _metrics(table, primary, search_metric, verdict.differences, best)
    metrics |= {
        "pairs": len(inputs.old_pairs),
        "queries": int(search_metric.asked.sum()),
        "documents": len(inputs.documents),
        "pool": len(rows),
        "pool_overlap": found.pool_overlap(),
        **({} if drawn is None or drawn.enough is None else {"pairs_enough": drawn.enough}),
    }
    request = {
        "metric": metric,
        "k": k,
        "depth": inputs.depth,
        "methods": list(fitted),
        "margin": margin,
        "confidence": confidence,
        "draws": draws,
        "seed": seed,
        "labels": inputs.labels is not None,
        "new_vectors": "all" if complete is not None else "pool" if known is not None else "none",
    }
    work.finish()
    return Audit(
        metrics=metrics,
        table=table,
        verdict=verdict,
        method=best,
        curve=drawn,
        slices=groups,
        pool=rows,
        notes=tuple(notes),
        timings=work.timings,
        request=request,
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
    inputs = AuditInputs.of(pairs, queries, documents, labels, query_pairs, None, None, metric, k, depth)
    return _searches(inputs, methods_of(methods, seed), Stages(None, len(STAGES)), seed)[1].pool(inputs)


def _searches(
    inputs: AuditInputs, tried: Mapping[str, Translator], work: Stages, seed: int
) -> tuple[dict[str, CrossFitted], Searched]:
    with work.stage("fit"):
        there, notes = forward(tried, inputs, seed)
        back, others = backward(tried, inputs)
        work.notes += list(dict.fromkeys([*notes, *others]))
    with work.stage("search") as tell:
        return there, searched(inputs, there, back, tell)


def _rankings(inputs: AuditInputs, found: Searched, known: All | Pool | None) -> dict[tuple[str, str], Ranking]:
    """By way and method, in the order of the table."""
    rankings = {("keep", ""): found.keep}
    rankings |= {("translate", name): one for name, one in found.translate.items()}
    rankings |= {("adapt", name): one for name, one in found.adapt.items()}
    if known is None:
        return rankings
    queries, metric, k = inputs.new_queries, inputs.metric, inputs.k
    for name, one in found.translate.items():
        rankings["rerank", name] = reranked(queries, one, known.of, metric, k)
    rankings["keep_rerank", ""] = reranked(queries, found.keep, known.of, metric, k)
    rankings["reembed", ""] = known.search(queries, k, metric)
    return rankings


def _choices(
    values: Mapping[tuple[str, str], Mapping[str, Numbers]], search_metric: SearchMetric, seed: int
) -> dict[str, Choice]:
    """For each way the best of its methods; none if there is nothing to measure by."""
    measure = search_metric.primary
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
    search_metric: SearchMetric,
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
    for way_name, one in search_metric.intervals(primary).items():
        if way_name in ("translate", "adapt", "rerank"):
            note(str(search_metric.primary), f"{way_name}.best", one)
    for name, one in differences.items():
        note("difference", name, one)
    return found


def _notes(
    inputs: AuditInputs,
    fitted: Mapping[str, CrossFitted],
    found: Searched,
    known: All | Pool | None,
    search_metric: SearchMetric,
    pool: NDArray[np.int64],
) -> list[str]:
    said = []
    asked, documents = int(search_metric.asked.sum()), len(inputs.documents)
    if asked < FEW_QUERIES:
        said.append(f"With {plural(asked, 'query', 'queries')} the intervals are wide; give some hundreds.")
    if asked < len(inputs.old_queries):
        said.append(f"{asked:,} of {len(inputs.old_queries):,} queries have labels; figures are over these.")
    share = len(inputs.old_pairs) / documents
    if share > LARGE_SHARE and not inputs.places:
        said.append(
            f"The pairs are {share:.0%} as many as the documents, and none was found among them: if they are there in "
            "another form, translated vectors look better here than they are; say which they are with pair_rows=."
        )
    if found.zeros:
        said.append(f"{plural(found.zeros, 'document')} of the index {'is' if found.zeros == 1 else 'are'} all zeros.")
    lost = [name for name, one in fitted.items() if not one.carries_norms]
    if inputs.metric != "cosine" and lost:
        said.append(f"Scores by {inputs.metric} depend on norms, which these methods do not carry: {', '.join(lost)}.")
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
