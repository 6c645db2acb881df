"""Kills at random moments: of every case, and of translations inside a PostgreSQL server."""

from __future__ import annotations

import hashlib
import random
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.faults.layer import Done, Layer, command_program
from tests.faults.trials import Bench, Violation
from tests.faults.world import make_world
from tests.fresh import Running
from tests.vectors.stores.conftest import Server, serving
from tests.vectors.stores.translators import vectors

COUNT = struct.Struct("l")
TIMES = 3  # a run that others of the machine slow down is no measure


def count_in(report: Path) -> int:
    """How many calls a process that runs has made so far."""
    with report.open("rb") if report.exists() else open("/dev/null", "rb") as file:
        content = file.read(COUNT.size)
    return int(COUNT.unpack(content)[0]) if len(content) == COUNT.size else 0


def wait_for_a_call(running: Running, report: Path) -> float:
    """Wait until a process has made its first call, or ended; the seconds that took."""
    started = time.perf_counter()
    while not count_in(report) and running.poll() is None:
        time.sleep(0.001)
    return time.perf_counter() - started


@dataclass
class RandomKills:
    """Kills one case at random moments: half of them anywhere, half between its first call and its end."""

    bench: Bench
    draw: random.Random

    def __post_init__(self) -> None:
        self.name = f"{self.bench.case.name}, {'over an older result' if self.bench.over else 'fresh'}"
        measured = [self._measure() for _ in range(TIMES)]
        self._before, self._writing = (min(times) for times in zip(*measured, strict=True))

    def _start(self) -> tuple[Running, Path]:
        self.bench.reset()
        return self.bench.layer.start(self.bench.case.program(force=self.bench.over), self.bench.folder)

    def _measure(self) -> tuple[float, float]:
        running, report = self._start()
        before = wait_for_a_call(running, report)
        started = time.perf_counter()
        self.bench.layer.finish(running, report)
        return before, time.perf_counter() - started

    def kill(self) -> tuple[bool, list[Violation]]:
        """Whether the process was killed before its end, and what was wrong then."""
        running, report = self._start()
        if self.draw.random() < 0.5:
            time.sleep(self.draw.uniform(0, self._before + self._writing))
        else:
            wait_for_a_call(running, report)
            time.sleep(self.draw.uniform(0, self._writing))
        running.kill(signal.SIGKILL)
        done = self.bench.layer.finish(running, report)
        if done.code == 0:
            return False, []
        return True, self.bench.judge_kill(done)


@dataclass
class DatabaseKills:
    """Kills a translation from one column of PostgreSQL into another, or into a new table, at random moments."""

    layer: Layer
    server: Server
    folder: Path
    table: str
    draw: random.Random
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"translate apply to postgresql, {'the same' if self.table == 'docs' else 'another'} table"
        self.folder.mkdir(parents=True)
        make_world(self.folder)
        self.server.fill(vectors(600, 6))
        self._old = self._digest("docs", "old")
        started = time.perf_counter()
        done = self._run(*self._start("docs", "whole"))
        self._seconds = time.perf_counter() - started
        assert done.code == 0, done.errors
        self._wanted = self._digest("docs", "whole")

    def _start(self, table: str, column: str) -> tuple[Running, Path]:
        output = f"postgresql:?table={table}&column={column}"
        words = ("translate", "apply", "map", self.server.address(column="old"), "-o", output, "--batch-rows", "20")
        return self.layer.start(command_program((*words, "--quiet")), self.folder)

    def _run(self, running: Running, report: Path) -> Done:
        return self.layer.finish(running, report)

    def _digest(self, table: str, column: str) -> str | None:
        if column not in self.server.columns(table):
            return None
        rows = self.server.connection.execute(f"SELECT id, {column}::text FROM {table} ORDER BY id").fetchall()
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def kill(self) -> tuple[bool, list[Violation]]:
        """Whether the process was killed before its end, and what was wrong then."""
        running, report = self._start(self.table, "new")
        time.sleep(self.draw.uniform(0, self._seconds))
        running.kill(signal.SIGKILL)
        landed = self.layer.finish(running, report).code != 0
        found = list(self._check_kill())
        self.server.connection.execute(
            "ALTER TABLE docs DROP COLUMN IF EXISTS new" if self.table == "docs" else f"DROP TABLE {self.table}"
        )
        return landed, [Violation(self.name, False, "KILL_AFTER", 0, "", kind, text) for kind, text in found]

    def _check_kill(self) -> Iterator[tuple[str, str]]:
        if self._digest(self.table, "new") not in (None, self._wanted):
            yield "partial", "the new column has its name and is not complete"
        if self._digest(self.table, "new") is None:
            done = self._run(*self._start(self.table, "new"))
            if done.code:
                yield "again", done.errors[-600:]
        if self._digest(self.table, "new") != self._wanted:
            yield "different", "the new column"
        if self._digest("docs", "old") != self._old:
            yield "input", "the old column"
        asked = "SELECT attname FROM pg_attribute WHERE attname LIKE 'interbasin%' UNION SELECT relname FROM pg_class"
        asked += " WHERE relname LIKE 'interbasin%'"
        if left := [name for (name,) in self.server.connection.execute(asked)]:
            yield "litter", ", ".join(left)


@contextmanager
def databases(layer: Layer, home: Path, draw: random.Random) -> Iterator[list[DatabaseKills]]:
    """Translations inside a server that runs as long as the block; none where pgserver is not installed."""
    if find_spec("pgserver") is None:
        yield []
        return
    with serving() as (uri, connection):
        server = Server(uri, connection)
        yield [DatabaseKills(layer, server, home / f"database-{table}", table, draw) for table in ("docs", "fresh")]
