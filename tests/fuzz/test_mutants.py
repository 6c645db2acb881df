"""A few hundred damaged files: each is refused in one sentence, or read right."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.fresh import Starter
from tests.fuzz.formats import FORMATS
from tests.fuzz.running import run_fuzzer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")

MUTANTS = 20  # of each format


@pytest.fixture(scope="module")
def document(starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_fuzzer(starter, tmp_path_factory.mktemp("fuzz"), "--mutants", MUTANTS * len(FORMATS), "--seed", 0)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", FORMATS)
def test_damaged_files_are_refused_in_a_sentence_or_read_right(format_name: str, document: dict[str, Any]) -> None:
    found = [one for one in document["found"] if repr(format_name) in one["mutant"]]
    assert sum(document["counts"][format_name].values()) == MUTANTS
    assert found == []


@pytest.mark.slow
def test_the_fuzzer_sees_every_kind_of_end(starter: Starter, tmp_path: Any) -> None:
    program = """
import os, signal, sys, time
from pathlib import Path
import torch
from interbasin.errors import DataError
from tests.fuzz import hunt
from tests.fuzz.formats import Format, Reading

hunt.WALL_SECONDS = 4

def end(folder, scratch):
    how = (folder / "file").read_text()
    if how == "refused":
        raise DataError("That is no file; give another.")
    if how == "message":
        raise DataError("no sentence")
    if how == "traceback":
        raise TypeError("a bug")
    if how == "crash":
        os.abort()
    if how == "hang":
        time.sleep(60)
    if how == "memory":
        return len(bytes(2**33))
    if how == "resident":
        return len(b"x" * 6 * 10**8)
    return {"right": 1, "as others": 2, "wrong": 3}[how]

hunt.FORMATS["test"] = Format({"plain": None}, (Reading(end, lambda folder: 2),))
corpora = hunt.Corpora({}, {("test", "plain", 0): hunt.digest(1)})
words = [*hunt.GOOD, *hunt.BAD, "resident"]
mutants = [lambda word=word: hunt.Mutant("test", "plain", 0, [], {"file": word.encode()}, word) for word in words]
for one in hunt.judge(mutants, corpora, Path(sys.argv[1])):
    print(f"{one.mutant.name}: {one.verdict}")
"""
    done = starter.run(program, tmp_path, tmp_path)
    ends = dict(line.split(": ") for line in done.stdout.splitlines())
    assert ends.pop("resident") == "memory"
    assert len(ends) == 9 and all(name == verdict for name, verdict in ends.items()), done.stdout + done.stderr
