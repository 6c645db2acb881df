"""Should an index of vectors be translated when its model is replaced, and does the audit know?

Glosses of WordNet are the documents, words are the queries, and the glosses of a word are the right answers (see
`wordnet.py`; without WordNet, captions of Multi30k stand in, some of them without every other word as queries). For
five changes of models, with 300, 1,000 and 4,000 pairs, the audit measures every way of going on with the index:

- WordLlama (256) to MiniLM (384) and potion (128) to MiniLM: trained apart, the new one better;
- MiniLM without its last layer to MiniLM: an upgrade within the family;
- MiniLM cut to 256 dimensions to MiniLM: the same model, stored smaller;
- MiniLM to MiniLM with a linear layer on top, trained on words and glosses that are not in the corpus: what an adapter
  or a last layer that is fine-tuned to a domain is.

The bars: the verdict must advise against translating where that loses to keeping the old model (the first), and for it
where it is as good as re-embedding (the last: what a linear layer does, a map can do).

    python benchmarks/migration.py --quick    3,000 documents, two changes, 300 pairs; results/migration-quick.json
    python benchmarks/migration.py            everything; results/migration.json
    python benchmarks/migration.py --only wordllama    those changes again, merged into the results

Encoders install by name (see `text_encoders.py`); what they gave is kept in ``.cache``.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import interbasin as ib
import text_encoders
import wordnet

SEED = 0
WORDNET = "WordNet glosses"
PAIRS = (300, 1_000, 4_000)
WIDTH = 256  # that the cut form of MiniLM has
TRAINED_ON, EPOCHS, TEMPERATURE = 10_000, 10, 0.05  # of the layer that adapts MiniLM to the corpus
DONT, DO = ("re-embed", "keep"), ("translate", "optional")


@dataclass(frozen=True)
class Change:
    """A change of models: what encodes before and after, and what the verdict must be, if that is known beforehand."""

    name: str
    old: Callable[[Sequence[str]], np.ndarray]
    new: Callable[[Sequence[str]], np.ndarray]
    wanted: tuple[str, ...] | None = None


def encoder(name: str) -> Callable[[Sequence[str]], np.ndarray]:
    return lambda texts: text_encoders.embedded(name, texts)


def cut(texts: Sequence[str]) -> np.ndarray:
    rows = text_encoders.embedded("minilm", texts)[:, :WIDTH]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def trained_projection(texts: wordnet.Corpus) -> np.ndarray:
    """A linear layer over MiniLM that brings words nearer to their glosses than to others; of other words."""
    words, glosses = zip(*wordnet.explained_elsewhere(texts, TRAINED_ON, SEED), strict=True)
    x, y = (torch.from_numpy(text_encoders.embedded("minilm", list(one))) for one in (words, glosses))
    torch.manual_seed(SEED)
    layer = torch.eye(x.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([layer], lr=1e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(256):
            one, other = (torch.nn.functional.normalize(side[rows] @ layer.mT, dim=1) for side in (x, y))
            scores = one @ other.mT / TEMPERATURE
            right = torch.arange(len(rows))
            loss = torch.nn.functional.cross_entropy(scores, right) + torch.nn.functional.cross_entropy(
                scores.mT, right
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return layer.detach().numpy()


def adapted(corpus: wordnet.Corpus) -> Callable[[Sequence[str]], np.ndarray]:
    """MiniLM with that layer, which is trained when it is first needed."""
    layer = functools.cache(lambda: trained_projection(corpus))

    def encode(texts: Sequence[str]) -> np.ndarray:
        rows = text_encoders.embedded("minilm", texts) @ layer().T
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return encode


def changes(name: str, texts: wordnet.Corpus) -> list[Change]:
    found = [Change("wordllama to minilm", encoder("wordllama"), encoder("minilm"), DONT)]
    if "potion" in text_encoders.available():
        found.append(Change("potion to minilm", encoder("potion"), encoder("minilm")))
    found.append(Change("minilm, 5 layers to 6", encoder("minilm-5-layers"), encoder("minilm")))
    found.append(Change(f"minilm, {WIDTH} dimensions to 384", cut, encoder("minilm")))
    if name == WORDNET:
        found.append(Change("minilm to minilm adapted", encoder("minilm"), adapted(texts), DO))
    return found


def captions(documents: int, queries: int) -> wordnet.Corpus:
    """Captions, and as queries some of them without every other word."""
    import gzip

    path = Path(os.environ["INTERBASIN_DATA"]) / "text" / "train.en.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = list(dict.fromkeys(line.strip() for line in file))[:documents]
    rows = np.sort(np.random.default_rng(SEED).choice(len(texts), queries, replace=False)).tolist()
    return wordnet.Corpus(texts, [" ".join(texts[row].split()[::2]) for row in rows], [[row] for row in rows])


def corpus(documents: int, queries: int) -> tuple[str, wordnet.Corpus]:
    try:
        return WORDNET, wordnet.corpus(documents, queries, SEED)
    except SystemExit as error:
        if not os.environ.get("INTERBASIN_DATA"):
            raise
        print(f"{error}\nCaptions of Multi30k stand in.", file=sys.stderr)
        return "Multi30k captions", captions(documents, queries)


def measured(change: Change, texts: wordnet.Corpus, pairs: int) -> dict[str, Any]:
    """One audit."""
    old, new = change.old(texts.documents), change.new(texts.documents)
    rows = np.random.default_rng(SEED).permutation(len(old))[:pairs]
    started = time.perf_counter()
    found = ib.audit(
        pairs=(old[rows], new[rows]),
        queries=(change.old(texts.queries), change.new(texts.queries)),
        documents=old,
        new_documents=new,
        labels=texts.labels,
        query_texts=texts.queries,
        curve=[one for one in PAIRS if one < pairs] or False,
        seed=SEED,
    )
    return {
        "change": change.name,
        "widths": [old.shape[1], new.shape[1]],
        "pairs": pairs,
        "table": [
            {
                "way": way.title,
                "key": way.way,
                "method": way.method,
                **{name: [one.value, one.low, one.high] for name, one in way.figures.items()},
            }
            for way in found.table
        ],
        "best": found.method,
        "differences": {name: [one.value, one.low, one.high] for name, one in found.verdict.differences.items()},
        "advice": found.verdict.advice,
        "verdict": found.verdict.text,
        "curve": None if found.curve is None else found.curve.columns(),
        "slices": [
            {"name": one.name, "queries": one.queries, "loss": [one.loss.value, one.loss.low, one.loss.high]}
            for one in found.slices
        ],
        "seconds": time.perf_counter() - started,
    }


def bars(cases: Sequence[dict[str, Any]], known: Sequence[Change]) -> list[dict[str, Any]]:
    """Whether the verdict is right where it is known what it should be, with the most pairs."""
    found = []
    for change in known:
        of_it = [case for case in cases if case["change"] == change.name]
        if change.wanted and of_it:
            last = max(of_it, key=lambda case: case["pairs"])
            met = last["advice"] in change.wanted
            found.append({"change": change.name, "wanted": list(change.wanted), "found": last["advice"], "met": met})
    return found


def shown(case: dict[str, Any]) -> None:
    rows = []
    for way in case["table"]:
        if way["method"] in ("", case["best"]):
            cells = [f"{way[name][0]:.3f} [{way[name][1]:.3f}, {way[name][2]:.3f}]" for name in ("recall", "overlap")]
            rows.append((way["way"], way["method"] or "-", *cells))
    title = f"{case['change']}, {case['pairs']:,} pairs: {case['advice']}"
    frame.show(title, ("way", "method", "recall at 10", "overlap at 10"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3,000 documents, two changes, 300 pairs")
    parser.add_argument("--only", help="changes whose names hold this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = frame.RESULTS / ("migration-quick.json" if options.quick else "migration.json")
    name, texts = corpus(3_000, 400) if options.quick else corpus(12_000, 2_000)
    every = changes(name, texts)
    chosen = [every[0], every[2]] if options.quick else every
    chosen = [one for one in chosen if not options.only or options.only in one.name]
    earlier = json.loads(path.read_text("utf-8")) if options.only and path.exists() else {"cases": []}
    cases = [case for case in earlier["cases"] if case["change"] not in {one.name for one in chosen}]
    for change in chosen:
        for pairs in PAIRS[:1] if options.quick else PAIRS:
            cases.append(measured(change, texts, pairs))
            shown(cases[-1])
            content = {
                "environment": frame.environment(seed=SEED, threads=torch.get_num_threads()),
                "corpus": {"name": name, "documents": len(texts.documents), "queries": len(texts.queries)},
                "cases": cases,
                "bars": [] if options.quick else bars(cases, every),  # few queries decide little
            }
            frame.save(path, content)
    for bar in content["bars"]:
        said = "met" if bar["met"] else "NOT MET"
        print(f"{bar['change']}: {bar['found']}, wanted {' or '.join(bar['wanted'])}: {said}")


if __name__ == "__main__":
    main()
