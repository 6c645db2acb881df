"""Killed in the middle, by SIGKILL and at any moment: resumed, the result is the same and the source untouched.

Twenty moments, one after the other in one work; as many as INTERBASIN_KILLS says where that is set.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.vectors.stores.test_files import lists
from tests.vectors.stores.translators import Plain, vectors

from interbasin.jobs.translate.apply import translate_vectors

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("INTERBASIN_KILLS", "20"))
ROWS, BATCH = 6000, 20
TRANSLATOR = Plain(6, 9)
# Imports once, and forks for every run: a kill falls into the work, and not into seconds of imports.
SCRIPT = f"""
import os, sys
from tests.vectors.stores.translators import Plain
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.vectors.files import parquet
from interbasin.vectors.stores import postgresql_sink
import psycopg
print("ready", flush=True)
for line in sys.stdin:
    source, output = line.split()
    child = os.fork()
    if not child:
        translate_vectors(Plain(6, 9), source, output, rows_per_batch={BATCH})
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def killed(runner: subprocess.Popen[str], source: str, output: str, shares: list[float], whole: float) -> int:
    """Run with a kill at every moment, given as a share of the whole time; how many kills hit."""
    assert runner.stdin is not None and runner.stdout is not None
    hits = 0
    for share in shares:
        runner.stdin.write(f"{source} {output}\n")
        runner.stdin.flush()
        child = int(runner.stdout.readline())
        time.sleep(share * whole)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        if int(runner.stdout.readline()) == 0:
            break
        hits += 1
    return hits


def moments(seed: int) -> list[float]:
    """Moments that together are less than the whole, so that each can hit."""
    draws = [random.Random(seed).uniform(0.05, 1.0) for _ in range(KILLS)]
    return [0.8 * one / sum(draws) for one in draws]


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def test_parquet(runner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = vectors(ROWS, 6)
    pq.write_table(pa.table({"id": [f"key {i}" for i in range(ROWS)], "v": lists(x)}), "old.parquet")
    before = Path("old.parquet").read_bytes()
    whole = timed(lambda: translate_vectors(TRANSLATOR, "old.parquet", "whole.parquet", rows_per_batch=BATCH))
    hits = killed(runner, str(tmp_path / "old.parquet"), str(tmp_path / "new.parquet"), moments(0), whole)
    assert hits >= KILLS / 10, hits
    if not Path("new.parquet").exists():
        translate_vectors(TRANSLATOR, "old.parquet", "new.parquet", rows_per_batch=BATCH)
    assert Path("new.parquet").read_bytes() == Path("whole.parquet").read_bytes()
    assert Path("old.parquet").read_bytes() == before
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("output", ["postgresql:?table=docs&column=new", "postgresql:?table=fresh&column=new"])
def test_pgvector(runner, server, output):
    server.fill(vectors(ROWS // 4, 6))
    address, table = server.address(column="old"), "docs" if "docs" in output else "fresh"

    def digest(column: str, of: str = "docs") -> str:
        rows = server.connection.execute(f"SELECT id, {column}::text FROM {of} ORDER BY id").fetchall()
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    before = digest("old")
    whole = timed(
        lambda: translate_vectors(TRANSLATOR, address, "postgresql:?table=docs&column=whole", rows_per_batch=BATCH)
    )
    hits = killed(runner, address, output, moments(1), whole)
    assert hits >= KILLS / 10, hits
    if "new" not in server.columns(table):
        translate_vectors(TRANSLATOR, address, output, rows_per_batch=BATCH)
    assert digest("new", table) == digest("whole")
    assert digest("old") == before
    left = [
        name
        for (name,) in server.connection.execute("SELECT attname FROM pg_attribute WHERE attname LIKE 'interbasin%'")
    ]
    assert left == []
