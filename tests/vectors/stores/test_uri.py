"""What VECTORS strings mean, and that no password is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from interbasin.errors import FileError
from interbasin.vectors.stores.uri import parse_uri


def test_files_are_told_by_their_extension():
    assert parse_uri("a/b.npy").kind == "npy"
    assert parse_uri("b.NPZ", column="x").column == "x"
    assert parse_uri("c.parquet").path == Path("c.parquet")


@pytest.mark.parametrize(
    "text, folder, table, column",
    [
        ("lance://db/docs", "db", "docs", None),
        ("lance:///srv/db/docs.lance#v", "/srv/db", "docs", "v"),
        ("lance://docs", ".", "docs", None),
        ("lance:///docs", "/", "docs", None),
    ],
)
def test_lance_tables(text, folder, table, column):
    found = parse_uri(text)
    assert (found.path, found.table, found.column) == (Path(folder), table, column)


def test_options_say_what_an_address_leaves_open():
    assert parse_uri("lance://db", table="docs", column="v").table == "docs"
    found = parse_uri("postgresql://host/db", table="docs", column="v", key="id")
    assert (found.table, found.column, found.key) == ("docs", "v", "id")


def test_the_servers_own_settings_reach_the_server():
    found = parse_uri("postgresql://me:pw@host:5/db?sslmode=require&table=docs&column=a%20b&key=id&type=halfvec")
    assert found.secret == "postgresql://me:pw@host:5/db?sslmode=require"
    assert (found.table, found.column, found.key, found.type) == ("docs", "a b", "id", "halfvec")


def test_the_same_database_needs_no_server():
    found = parse_uri("postgresql:?table=docs&column=new")
    assert (found.secret, found.table, found.column) == ("postgresql:///", "docs", "new")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@host/db?table=docs",
        "postgresql://me:hunter2@host/db?table=docs&password=hunter2",
        "postgresql://host/db?table=docs&user=me&password=hunter2",
        "postgres://me:hunter2@/db?host=/run/postgresql&table=docs",
        "postgresql://me:hunter2@a@host/db?table=docs",
    ],
)
def test_passwords_are_not_shown(text):
    found = parse_uri(text)
    assert "hunter2" not in found.shown + repr(found)
    assert "hunter2" in found.secret


@pytest.mark.parametrize(
    "text, words",
    [
        ("postgresql://me:hun/ter2@host/db?table=docs", "cannot be read .and is not repeated here"),
        ("postgresql://me:hun?ter2@host/db?table=docs", "cannot be read"),
        ("postgresql://me:1?ter2@host/db?table=x&table=docs", "cannot be read"),
        ("postgresql://me:hunter2@host:x/db?table=docs", "cannot be read"),
        ("postgresql://me:hunter2@host/db?table", "cannot be read"),
        ("postgresql://me:hunter2@host/db", r"needs a table: add \?table=NAME"),
        ("postgresql://me:hunter2@host/db?table=docs#v", r"names its column as \?column=NAME, not behind a #"),
        ("mysql://me:hunter2@host/db", "found mysql://. Write them to one of these"),
        ("lance://me:hunter2@host/db/docs", r"names a local path, .* of a server: lance://me:\*\*\*@host/db/docs"),
        ("lance://me:hunter2@host", r"lance://me:\*\*\*@host"),
        ("lance://s3://me:hunter2@host/docs#v", r"s3://me:\*\*\*@host/docs#v"),
        ("faiss://me:hunter2@host/flat.index", r"faiss://me:\*\*\*@host/flat.index"),
        ("lance://db/docs?password=hunter2", r"password=\*\*\*"),
        ("lance://db/", "named as lance://FOLDER/TABLE"),
        ("lance://#v", "named as lance://FOLDER/TABLE"),
        ("faiss://", "found faiss:// alone; name the file"),
        ("vectors.csv", "has the extension '.csv'. Convert or rename it"),
        ("vectors", "has no extension"),
    ],
)
def test_what_cannot_be_understood_is_refused_without_secrets(text, words):
    if text == "lance://db/":
        text = "lance://"
    with pytest.raises(FileError, match=words) as caught:
        parse_uri(text)
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("s/flat.index", "If it is a FAISS index, write faiss://s/flat.index."),
        ("s/flat.FAISS", "If it is a FAISS index, write faiss://s/flat.FAISS."),
        ("s/docs.lance/", "If it is a Lance table, write lance://s/docs.lance."),
        ("folder", "If it is a folder of Lance tables, write lance://folder/TABLE."),
        ("s/vectors.csv", "Convert or rename it."),
    ],
)
def test_a_bare_path_of_a_store_is_told_how_to_be_written(given, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError) as caught:
        parse_uri(given)
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("text", "path"), [("lance://./a:b@c/docs", "a:b@c"), ("faiss://./a:b@c.index", "a:b@c.index")]
)
def test_a_path_that_looks_like_a_login_can_still_be_named(text, path):
    assert parse_uri(text).path == Path(path)
