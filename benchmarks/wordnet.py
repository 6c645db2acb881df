"""A corpus with labelled queries that installs by name: the glosses of WordNet, and the words that they explain.

Documents are glosses; a query is a word, and the right documents are the glosses of all its senses in the corpus. Comes
from Debian's package wordnet-base, fetched with apt-get on first use and kept in ``.cache``; a copy of WordNet that the
system has already is taken as well.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CACHE = Path(__file__).parent / ".cache"
INSTALLED = Path("/usr/share/wordnet")
PARTS = ("noun", "verb", "adj", "adv")


def folder() -> Path:
    """Where the files of WordNet lie.

    Raises:
        SystemExit: if they can neither be found nor fetched.
    """
    unpacked = CACHE / "wordnet" / "usr" / "share" / "wordnet"
    for found in (INSTALLED, unpacked):
        if (found / "data.noun").exists():
            return found
    fetched = CACHE / "wordnet-package"
    fetched.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", "wordnet-base"], cwd=fetched, check=True, capture_output=True)
        (package,) = fetched.glob("wordnet-base_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(CACHE / "wordnet")], check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise SystemExit(f"WordNet could not be fetched ({error}); try: apt-get install wordnet-base") from error
    return unpacked


@dataclass(frozen=True)
class Corpus:
    """Documents, queries, and for every query the numbers of its documents."""

    documents: list[str]
    queries: list[str]
    labels: list[list[int]]


def senses() -> list[tuple[list[str], str]]:
    """The words and the gloss of every sense; examples, which hold the word itself, are cut off."""
    found = []
    for part in PARTS:
        for line in (folder() / f"data.{part}").read_text("utf-8").splitlines():
            if line.startswith("  "):  # the licence
                continue
            facts, _, gloss = line.partition(" | ")
            fields = facts.split()
            words = [fields[4 + 2 * place].split("(")[0].replace("_", " ") for place in range(int(fields[3], 16))]
            gloss = gloss.split('; "')[0].strip()
            if gloss:
                found.append((words, gloss))
    return found


def corpus(documents: int = 12_000, queries: int = 2_000, seed: int = 0) -> Corpus:
    """So many glosses, drawn at random, and so many words that some of them explain."""
    draws = np.random.default_rng(seed)
    every = senses()
    # One gloss is one document, whoever shares it.
    taken: dict[str, set[str]] = {}
    for place in draws.permutation(len(every)):
        words, gloss = every[place]
        if gloss in taken or len(taken) < documents:
            taken.setdefault(gloss, set()).update(words)
    glosses = list(taken)
    explained: dict[str, list[int]] = {}
    for place, gloss in enumerate(glosses):
        for word in taken[gloss]:
            if word.lower() not in gloss.lower():  # else it would be looked up, not understood
                explained.setdefault(word, []).append(place)
    words = sorted(explained)
    chosen = [words[place] for place in sorted(draws.choice(len(words), min(queries, len(words)), replace=False))]
    return Corpus(glosses, chosen, [explained[word] for word in chosen])


def explained_elsewhere(known: Corpus, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Words and glosses of which neither is a query or a document of the corpus, to train on."""
    documents, queries = set(known.documents), {word.lower() for word in known.queries}
    every = senses()
    found = []
    for place in np.random.default_rng(seed).permutation(len(every)):
        words, gloss = every[place]
        usable = [word for word in words if word.lower() not in queries and word.lower() not in gloss.lower()]
        if usable and gloss not in documents:
            found.append((usable[0], gloss))
        if len(found) == count:
            break
    return found
