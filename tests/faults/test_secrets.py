"""A password in an address of a store reaches nothing that people or programs read: no output, no file, no table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.vectors.stores.conftest import Server
from typer.testing import CliRunner

import interbasin as ib
from interbasin.cli import app

SECRET = "hunter2"
X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    ib.Translator(method="ridge").fit(X, X[:, :4]).save("map")


def shown_by(*words: str) -> str:
    """All that a command leaves to read: what it prints, its exception and the causes of that, and every file."""
    done = CliRunner().invoke(app, ["translate", *words])
    shown, error = done.stdout + done.stderr, done.exception
    while error is not None:
        shown, error = f"{shown} {error!r} {error}", error.__cause__ or error.__context__
    files = [path for path in Path(".").rglob("*") if path.is_file()]
    names = " ".join(map(str, Path(".").rglob("*")))
    return shown + names + "".join(path.read_bytes().decode("latin-1") for path in files)


ADDRESSES = [
    "lance://me:hunter2@host/db/docs",
    "lance://me:hunter2@host",
    "lance://me:hun hunter2@host/docs#v",
    "lance://s3://me:hunter2@bucket/docs",
    "lance://s3://bucket/docs?password=hunter2",
    "faiss://me:hunter2@host/flat.index",
    "https://me:hunter2@host/docs.npy",
    "s3://me:hunter2@bucket/docs.parquet",
    "postgresql://me:hunter2@127.0.0.1:1/db?table=docs",
    "postgres://me:hunter2@127.0.0.1:1/db?table=docs&column=v",
    "postgresql://127.0.0.1:1/db?table=docs&user=me&password=hunter2",
    "postgresql://me:hunter2@a@127.0.0.1:1/db?table=docs",
    "postgresql://me:hunter2@[::1/db?table=docs",
    "postgresql://me:hunter2@host/db",
    "postgresql:?table=docs&password=hunter2&host=127.0.0.1&port=1",
]
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "doctor": lambda address: ["doctor", address],
    "doctor with an outcome": lambda address: ["doctor", address, "-o", "out"],
    "from": lambda address: ["apply", "map", address, "-o", "new.npy"],
    "into": lambda address: ["apply", "map", "x.npy", "-o", address],
    "from and into": lambda address: ["apply", "map", address, "-o", address],
    "fit": lambda address: ["fit", address, "x.npy", "-o", "other"],
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"], ["--debug"]], ids=["plain", "json", "debug"])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_command_that_fails_repeats_no_password(address, command, options):
    assert SECRET not in shown_by(*COMMANDS[command](address), *options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
def test_what_a_command_does_with_a_server_repeats_no_password(server: Server, options):
    server.fill(X)
    address = server.address().replace("postgres:@", f"postgres:{SECRET}@")
    assert SECRET in address
    shown = shown_by("apply", "map", address, "-o", "postgresql:?table=docs&column=new", *options)
    assert "written to" in shown or '"output"' in shown
    shown += shown_by("apply", "map", address, "-o", "postgresql:?table=docs&column=new", *options)  # which is there
    shown += shown_by("apply", "map", address, "-o", f"{address}&column=other", *options)
    shown += shown_by("apply", "map", f"{address}&column=nothing", "-o", "postgresql:?column=third", *options)
    shown += shown_by("doctor", f"{address}&column=old", "-o", "checked", *options)
    assert Path("checked/outcome.json").is_file()
    comments = server.connection.execute("SELECT description FROM pg_description").fetchall()
    tables = server.connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
    assert SECRET not in shown + str(comments) + str(tables)


@pytest.mark.slow
def test_a_run_on_a_server_that_is_stopped_keeps_no_password(server: Server, monkeypatch):
    from interbasin.vectors.stores.postgresql_sink import PostgresqlSink

    server.fill(X)
    address = server.address().replace("postgres:@", f"postgres:{SECRET}@")
    append, done = PostgresqlSink.append, []

    def stop(self, piece):
        append(self, piece)
        done.append(piece)
        raise KeyboardInterrupt

    monkeypatch.setattr(PostgresqlSink, "append", stop)
    shown = shown_by("apply", "map", address, "-o", "postgresql:?table=docs&column=new", "--batch-rows", "7")
    assert done and "Interrupted" in shown
    kept = server.connection.execute("SELECT description FROM pg_description").fetchall()
    assert SECRET not in shown + str(kept)
