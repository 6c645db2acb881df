"""How often does the doctor see two models in a table that has one, and miss them in one that has two?

False alarms: pieces of 2,500 to 20,000 consecutive glosses of WordNet, whose own order is by subject, embedded by one
model. Finds: glosses in random order, up to a row by one model and from there on by another, cut to one width.

The limits in `doctoring/mixture.py` were chosen by looking at pieces drawn with seed 1, and at WordLlama, MiniLM,
potion and LSA. So pieces are drawn here with another seed (from the same glosses), and changes to and from MiniLM
without its last layer, which was not looked at, are shown apart; it is a near relative of MiniLM.

    python benchmarks/mixed_tables.py --quick    few pieces; writes results/mixed_tables-quick.json
    python benchmarks/mixed_tables.py            writes results/mixed_tables.json
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import text_encoders
import wordnet
from interbasin.jobs.translate.doctor.mixture import MixtureDetector

SEED = 7
CUTS = (1_500, 2_500, 6_000, 9_000, 10_500)
LOOKED_AT = ("lsa", "minilm", "potion", "wordllama")


def called(rows: np.ndarray) -> str:
    """What the doctor says: ``"two models"``, ``"possible"`` or ``"one model"``."""
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    detector = MixtureDetector(rows.shape[1])
    for place in range(0, len(rows), 4_000):
        block = rows[place : place + 4_000]
        detector.update(block, np.arange(place, place + len(block)))
    found = detector.find(len(rows))
    return "one model" if found is None else "two models" if found.sure else "possible"


def alarms(pieces: int) -> dict[str, dict[str, int]]:
    glosses = [gloss for _, gloss in wordnet.senses()]
    found = {}
    for name in ("wordllama", "potion"):
        if name not in text_encoders.available():
            continue
        vectors = text_encoders.embedded(name, glosses)
        draws = np.random.default_rng(SEED)
        said: Counter[str] = Counter()
        for _ in range(pieces):
            size = int(draws.integers(2_500, 20_000))
            first = int(draws.integers(len(vectors) - size))
            said[called(vectors[first : first + size])] += 1
        found[name] = dict(said)
    return found


def finds() -> dict[str, dict[str, int]]:
    texts = wordnet.corpus().documents
    names = [*text_encoders.available(), "minilm-5-layers"]
    vectors = {name: text_encoders.embedded(name, texts) for name in dict.fromkeys(names)}
    vectors["lsa"] = text_encoders.Lsa(256, 0).fit(texts)(texts)
    found: dict[str, dict[str, int]] = {}
    for one, other in itertools.combinations(sorted(vectors), 2):
        width = min(vectors[one].shape[1], vectors[other].shape[1])
        said = Counter(
            called(np.concatenate([vectors[one][:cut, :width], vectors[other][cut:, :width]])) for cut in CUTS
        )
        known = "looked at before" if {one, other} <= set(LOOKED_AT) else "not looked at before"
        found[f"{one}, {other} ({known})"] = dict(said)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few pieces")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {"environment": frame.environment(seed=SEED, threads=1)}
    content |= {"one model": alarms(5 if options.quick else 100), "two models": finds()}
    frame.save(frame.RESULTS / f"mixed_tables{'-quick' if options.quick else ''}.json", content)
    for title in ("one model", "two models"):
        words = ("two models", "possible", "one model")
        rows = [(name, *(str(said.get(word, 0)) for word in words)) for name, said in content[title].items()]
        frame.show(f"tables of {title}", ("vectors", *words), rows)


if __name__ == "__main__":
    main()
