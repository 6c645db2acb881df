"""What the demonstration shows of two networks: a table of fits, of re-basin, of translations, and an audit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasin import fit
from interbasin.demo.networks import BATCH, Pair
from interbasin.errors import MissingExtraError
from interbasin.evaluate import barrier, distance
from interbasin.fit.registry import with_offset
from interbasin.jobs.merge import merge
from interbasin.jobs.rebasin import METHODS, rebasin
from interbasin.jobs.translate import Translator, stitch
from interbasin.jobs.translate.audit import audit
from interbasin.maps import Map
from interbasin.randomness import generator_of
from interbasin.statistics import PairedMoments, explained_variance, residual_energy, similarities

# ---------------------------------------------------------------------- fits

# The descent has to be given time to come to rest; six digits of it are more than the table shows.
OPTIONS: dict[str, dict[str, Any]] = {"stiefel": {"tolerance": 1e-6, "steps": 5000}}


@dataclass(frozen=True)
class Row:
    """One fit: how it does on the rows it saw (``residual``) and on those it did not (the rest)."""

    method: str
    map: str
    residual: float | None
    held_out_residual: float | None
    explained: float | None
    accuracy: float | None
    note: str = ""


def fit_hidden_layers(pair: Pair) -> tuple[dict[str, float], tuple[Row, ...]]:
    """How alike the hidden layers are, and a row for each fit, below one for none."""
    seen, held_out = _moments(pair, pair.train), _moments(pair, pair.test)
    hidden = pair.encoders[0](pair.test)
    baseline = Row("(none)", "identity", None, None, None, pair.accuracy(pair.target[-1](hidden)))
    return similarities(seen), (baseline, *(_fit_row(name, pair, seen, held_out, hidden) for name in fit.names()))


def _moments(pair: Pair, images: Tensor) -> PairedMoments:
    source, target = pair.encoders
    batches = ((source(batch), target(batch)) for batch in torch.split(images, BATCH))
    return PairedMoments.of_batches(batches, grams=True)


def _fit_row(name: str, pair: Pair, seen: PairedMoments, held_out: PairedMoments, hidden: Tensor) -> Row:
    try:
        fitted = fit.get(name)(seen, **OPTIONS.get(name, {}))
    except MissingExtraError as error:
        return Row(name, "-", None, None, None, None, note=str(error).rstrip("."))
    carrier = with_offset(fitted.map, seen)
    return Row(
        method=name,
        map=fitted.map.kind,
        residual=_relative_residual(seen, carrier),
        held_out_residual=_relative_residual(held_out, carrier),
        explained=explained_variance(held_out, carrier),
        accuracy=pair.accuracy(pair.target[-1](carrier(hidden))),
        note="" if fitted.status == "converged" else f"{fitted.status}: {fitted.message}",
    )


def _relative_residual(moments: PairedMoments, map: Map) -> float:
    energy = float(moments.squares_target(centered=False).sum())
    return math.sqrt(residual_energy(moments, map, centered=False) / energy)


# ---------------------------------------------------------------------- re-basin and merging


@dataclass(frozen=True)
class Aligned:
    """One method: the aligned network, and the way from it to the second network, on held-out images."""

    method: str
    variant: str
    exact: bool  # the aligned network is the same function as the first
    distance: float  # of its weights to the second network's
    accuracy: float  # of the aligned network
    barrier: float  # rise of the loss above the chord between the original networks
    merged: float  # accuracy of the average of the aligned network and the second


def count_alignments() -> int:
    """How many rows `align_networks` makes."""
    return 1 + sum(len(method.variants) for method in METHODS.values())


def align_networks(pair: Pair, seed: int, report: Callable[[int], object]) -> tuple[Aligned, ...]:
    """A row for no alignment, and one for each variant of each method."""
    train = list(zip(torch.split(pair.train, BATCH), torch.split(pair.train_labels, BATCH), strict=True))
    rows = [_aligned_row(pair, pair.source, "(none)", "", True)]
    for method in METHODS.values():
        for variant in method.variants:
            result = rebasin(
                pair.source, pair.target, method=method.name, variant=variant, data=train, seed=seed, epochs=1
            )
            rows.append(_aligned_row(pair, result.model, method.name, variant, result.alignment.is_exact))
            report(len(rows))
    return tuple(rows)


def _aligned_row(pair: Pair, aligned: nn.Module, method: str, variant: str, exact: bool) -> Aligned:
    test = [(pair.test, pair.test_labels)]
    way = barrier(aligned, pair.target, test, points=11, ends=(pair.source, pair.target))
    with torch.no_grad():
        accuracy = pair.accuracy(aligned(pair.test))
        merged = pair.accuracy(merge([aligned, pair.target], method="average")(pair.test))
    apart = float(distance(aligned, pair.target))
    return Aligned(method, variant, exact, apart, accuracy, way.metrics["barrier_original"], merged)


# ---------------------------------------------------------------------- translation

ANCHORS = 300
WAYS: dict[str, dict[str, Any]] = {
    "relative-projection": {},
    "relative-projection, pruned": {"variant": "pruned"},
    **{method: {"method": method} for method in ("procrustes", "ridge", "affine", "cca", "auto")},
}


@dataclass(frozen=True)
class Stitch:
    """What one way of translating gives on held-out images."""

    method: str
    cosine: float  # of translated rows with those of the other network, about the mean
    accuracy: float  # of the stitched network
    note: str = ""  # what auto chose


def stitch_networks(pair: Pair, seed: int) -> tuple[Stitch, ...]:
    """A row without translation, one for every way, and last the other network by itself."""
    head, (old, new) = pair.target[-1], pair.encoders
    anchors = pair.train[_draw_anchors(pair, seed)]
    source, target = old(pair.test), new(pair.test)

    def cosine(rows: Tensor) -> float:
        mean = target.mean(0)
        return float(nn.functional.cosine_similarity(rows - mean, target - mean, dim=1).mean())

    rows = [Stitch("(none)", cosine(source), pair.accuracy(head(source)))]
    for name, options in WAYS.items():
        translator = Translator(seed=seed, **options).fit(old(anchors), new(anchors))
        accuracy = pair.accuracy(stitch(old, translator, head)(pair.test))
        note = translator.chosen_ if name == "auto" else ""
        rows.append(Stitch(name, cosine(translator.transform(source)), accuracy, note))
    return (*rows, Stitch("(its own encoder)", 1.0, pair.accuracy(head(target))))


def _draw_anchors(pair: Pair, seed: int) -> Tensor:
    return torch.randperm(len(pair.train), generator=generator_of(seed))[:ANCHORS]


# ---------------------------------------------------------------------- the audit of a migration


@dataclass(frozen=True)
class Migration:
    """What the audit found, with the numbers of documents, queries and pairs."""

    documents: int
    queries: int
    pairs: int
    measures: tuple[str, ...]  # names of the figures in `rows`
    rows: tuple[tuple[str, ...], ...]  # the way, the method, and a figure with its interval for each measure
    advice: str  # one word
    verdict: str  # the advice in words, with its reason


def audit_migration(pair: Pair, seed: int) -> Migration:
    """Audit the change from the first network's hidden layer to the second's.

    Training images are the index. Right for a query are the five images nearest to it: no network has a say in that.
    """
    old, new = pair.encoders
    anchors = _draw_anchors(pair, seed)
    documents, new_documents = old(pair.train), new(pair.train)
    result = audit(
        pairs=(documents[anchors], new_documents[anchors]),
        queries=(old(pair.test), new(pair.test)),
        documents=documents,
        new_documents=new_documents,
        labels=torch.cdist(pair.test, pair.train).topk(5, largest=False).indices.tolist(),
        pair_rows=anchors.tolist(),
        methods=("relative-projection", "procrustes", "ridge"),
        depth=50,
        curve=False,
        seed=seed,
    )
    return Migration(
        documents=len(documents),
        queries=len(pair.test),
        pairs=ANCHORS,
        measures=tuple(result.measures.values()),
        rows=tuple(tuple(row) for row in result.rows()),
        advice=result.verdict.advice,
        verdict=result.verdict.text,
    )
