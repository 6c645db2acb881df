"""The encoder of one network with the head of the other: every way of translating between their hidden layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from interbasin.demo.networks import Pair, share_right
from interbasin.jobs.translate import Translator, stitch
from interbasin.randomness import generator_of

ANCHORS = 300
WAYS: dict[str, dict[str, Any]] = {
    "relative-projection": {},
    "relative-projection, pruned": {"variant": "pruned"},
    "procrustes": {"method": "procrustes"},
    "ridge": {"method": "ridge"},
    "affine": {"method": "affine"},
    "cca": {"method": "cca"},
    "auto": {"method": "auto"},
}


@dataclass(frozen=True)
class Stitch:
    """What one way of translating gives.

    Attributes:
        cosine: Of translated rows with those of the other network, about the mean, on held-out images.
        accuracy: Of the stitched network there.
        note: What auto chose.
    """

    method: str
    cosine: float
    accuracy: float
    note: str = ""


def stitches(pair: Pair, seed: int) -> tuple[Stitch, ...]:
    """A row without translation, one for every way, and last the other network by itself."""
    encoders = [nn.Sequential(*list(one)[:-1]) for one in (pair.source, pair.target)]
    head = pair.target[-1]
    taken = torch.randperm(len(pair.train), generator=generator_of(seed))[:ANCHORS]
    anchors = [encoder(pair.train[taken]) for encoder in encoders]
    source, target = (encoder(pair.test) for encoder in encoders)

    def cosine(rows: torch.Tensor) -> float:
        mean = target.mean(0)
        return float(nn.functional.cosine_similarity(rows - mean, target - mean, dim=1).mean())

    found = [Stitch("(none)", cosine(source), share_right(head(source), pair.test_labels))]
    for name, options in WAYS.items():
        translator = Translator(seed=seed, **options).fit(*anchors)
        network = stitch(encoders[0], translator, head)
        note = translator.chosen_ if name == "auto" else ""
        found.append(
            Stitch(name, cosine(translator.transform(source)), share_right(network(pair.test), pair.test_labels), note)
        )
    return (*found, Stitch("(its own encoder)", 1.0, share_right(head(target), pair.test_labels)))
