"""An index of the first network's vectors, and the second network as its new model: should it be translated?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from interbasin.demo.networks import Pair
from interbasin.demo.translations import ANCHORS
from interbasin.jobs.translate.audit import audit
from interbasin.randomness import generator_of

RIGHT = 5  # documents that are right for a query: the images nearest to it, which no network has a say in
METHODS = ("relative-projection", "procrustes", "ridge")


@dataclass(frozen=True)
class Migration:
    """What the audit found.

    Attributes:
        documents, queries, pairs: How many.
        measures: Names of the figures in `rows`.
        rows: The way, the method, and a figure with its interval for each measure, in words.
        advice: One word.
        verdict: The advice in words, with its reason.
    """

    documents: int
    queries: int
    pairs: int
    measures: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    advice: str
    verdict: str


def migration(pair: Pair, seed: int) -> Migration:
    """Audit the change from the first network's hidden layer to the second's, training images being the index."""
    old, new = (nn.Sequential(*list(one)[:-1]) for one in (pair.source, pair.target))
    right = torch.cdist(pair.test, pair.train).topk(RIGHT, largest=False).indices
    taken = torch.randperm(len(pair.train), generator=generator_of(seed))[:ANCHORS]
    documents, new_documents = old(pair.train), new(pair.train)
    found = audit(
        pairs=(documents[taken], new_documents[taken]),
        queries=(old(pair.test), new(pair.test)),
        documents=documents,
        new_documents=new_documents,
        labels=right.tolist(),
        pair_rows=taken.tolist(),
        methods=METHODS,
        depth=50,
        curve=False,
        seed=seed,
    )
    return Migration(
        documents=len(documents),
        queries=len(pair.test),
        pairs=ANCHORS,
        measures=tuple(found.measures.values()),
        rows=tuple(tuple(row) for row in found.rows()),
        advice=found.verdict.advice,
        verdict=found.verdict.text,
    )
