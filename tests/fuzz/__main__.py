"""Damage files at random, read them, and count what comes of it: ``python -m tests.fuzz --mutants 10000 --seed 0``.

Ends with code 1 if a mutant was neither refused in a sentence nor read right. Every one of these is printed with what
repeats it, and ``--keep FOLDER`` writes it as a regression.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
import time
from pathlib import Path

# Before the libraries start their pools: every child would have them again, and some take gigabytes of addresses.
os.environ |= {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}

import torch
from tests.fuzz.formats import FORMATS
from tests.fuzz.hunt import BAD, Corpora, Mutant, Verdict, count, judge, make_corpora, scratch_folder, to_table
from tests.fuzz.trees import from_json, to_json

from interbasin._version import __version__


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mutants", type=int, default=400, help="how many, over all formats")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant of each format")
    parser.add_argument("--format", action="append", choices=list(FORMATS), help="one of the formats; may be repeated")
    parser.add_argument("--json", type=Path, help="a file for the counts and for what was found")
    parser.add_argument("--keep", type=Path, help="a folder for regressions, one file for each mutant that was found")
    parser.add_argument("--again", type=Path, help="a folder of regressions, which are read in place of new mutants")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    names = asked.format or list(FORMATS)
    verdicts: list[Verdict] = []
    kept = [] if asked.again is None else [read_kept(path) for path in sorted(asked.again.glob("*.json"))]
    with scratch_folder() as scratch:
        # Files of all formats may be taken for one another; those that are kept need the whole ones of their own.
        corpora = make_corpora(scratch, FORMATS if asked.again is None else {one.format for one in kept})
        if asked.again is not None:
            verdicts += judge([functools.partial(_itself, one) for one in kept], corpora, scratch)
            names = []
        for place, name in enumerate(names):
            share = asked.mutants // len(names) + (place < asked.mutants % len(names))
            verdicts += _judge_some(name, range(asked.first, asked.first + share), asked.seed, corpora, scratch)
    found = [one for one in verdicts if one.verdict in BAD]
    for one in found:
        print(
            f"{one.verdict}: {one.mutant.name} ({one.mutant.variant}; {', '.join(one.mutant.words)})\n    {one.detail}"
        )
        if asked.keep is not None:
            _keep(one, asked.keep)
    counts, seconds = count(verdicts), time.monotonic() - started
    print(f"{to_table(counts)}\n{len(verdicts):,} mutants in {seconds:.0f} seconds, seed {asked.seed}")
    if asked.json is not None:
        document = {"mutants": len(verdicts), "seed": asked.seed, "first": asked.first, "version": __version__}
        document |= {"torch": torch.__version__, "seconds": round(seconds, 1), "counts": counts}
        document["verdicts"] = {one.mutant.name: one.verdict for one in verdicts} if asked.again is not None else {}
        document["found"] = [{"mutant": one.mutant.name, "verdict": one.verdict, "detail": one.detail} for one in found]
        asked.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 1 if found else 0


def _judge_some(name: str, numbers: range, seed: int, corpora: Corpora, scratch: Path) -> list[Verdict]:
    mutants = [functools.partial(corpora.mutant, name, seed, number) for number in numbers]
    verdicts = []
    for verdict in judge(mutants, corpora, scratch):
        verdicts.append(verdict)
        if sys.stderr.isatty():
            print(f"\r{name}: {len(verdicts):,} of {len(mutants):,}", end="\033[K", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="\033[K", file=sys.stderr, flush=True)
    return verdicts


def _itself(mutant: Mutant) -> Mutant:
    return mutant


def read_kept(path: Path) -> Mutant:
    """The mutant in a file that ``--keep`` wrote."""
    document = json.loads(path.read_text("utf-8"))
    tree = from_json(document["files"])
    return Mutant(document["format"], document["variant"], document["reading"], document["damage"], tree, path.stem)


def _keep(one: Verdict, folder: Path) -> None:
    """Write a mutant so that it can be read again when the mutations are others."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "format": one.mutant.format,
        "variant": one.mutant.variant,
        "reading": one.mutant.reading,
        "was": one.verdict,
        "found": re.sub(r"/\S*/mutant/", "", one.detail.strip().splitlines()[-1]),  # no folder of anybody's
        "damage": list(one.mutant.words),
        "files": to_json(one.mutant.tree),
    }
    words = one.mutant.name.replace("'", "").replace("--", "").split()
    (folder / f"{'-'.join(words).replace('format-', '', 1)}.json").write_text(
        json.dumps(document, indent=2) + "\n", "utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
