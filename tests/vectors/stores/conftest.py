"""A PostgreSQL server with pgvector, for as long as the tests of this folder run."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest


@dataclass
class Server:
    """A database with one table: ``docs``, its key ``id`` and vectors in ``old``."""

    uri: str
    connection: Any

    def address(self, table: str = "docs", **more: str) -> str:
        from urllib.parse import urlencode

        return f"{self.uri}&{urlencode({'table': table, **more})}"

    def fill(self, x: np.ndarray, key: str = "integer", kind: str = "vector", table: str = "docs") -> None:
        self.connection.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        self.connection.execute(f"CREATE TABLE {table} (id {key} PRIMARY KEY, old {kind}({x.shape[1]}), note text)")
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {table} (id, old, note) FROM STDIN") as copy:
            for place, row in enumerate(x):
                copy.write_row((self.key(place, key), str(row.astype(np.float64).tolist()), f"note {place}"))

    @staticmethod
    def key(place: int, kind: str) -> Any:
        if kind == "uuid":
            return f"00000000-0000-0000-0000-{place:012x}"
        return f"key {place}" if kind == "text" else 3 * place - 100

    def column(self, name: str, table: str = "docs") -> dict[Any, np.ndarray | None]:
        rows = self.connection.execute(f'SELECT id, "{name}"::text FROM {table}').fetchall()
        return {
            key: None if text is None else np.array(text.strip("[]").split(","), dtype=np.float32) for key, text in rows
        }

    def columns(self, table: str = "docs") -> list[str]:
        found = self.connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum",
            [table],
        )
        return [name for (name,) in found.fetchall()]


@contextmanager
def serving() -> Iterator[tuple[str, Any]]:
    """The address of a server that runs as long as the block, and a connection to it."""
    import psycopg

    # Not in pytest's folder: the server has a user of its own where tests run as root, and every other run of pytest
    # that starts in the meantime closes that folder to other users.
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a folder for sockets that the system does not name
            import pgserver

            server = pgserver.get_server(folder)
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            yield server.get_uri(), connection
        server.cleanup()


@pytest.fixture(scope="session")
def running() -> Iterator[tuple[str, Any]]:
    with serving() as found:
        yield found


@pytest.fixture
def server(running: tuple[str, Any]) -> Server:
    uri, connection = running
    names = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    for name in names:
        quoted = name.replace('"', '""')
        connection.execute(f'DROP TABLE "{quoted}" CASCADE')
    return Server(uri, connection)
