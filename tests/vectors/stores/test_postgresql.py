"""Columns of pgvector translated on a real server."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from tests.vectors.stores.conftest import Server
from tests.vectors.stores.test_files import Stopped, stop_at
from tests.vectors.stores.translators import Plain, translated, vectors

from interbasin.cli.output import in_options
from interbasin.errors import DataError, FileError, MissingExtraError, ShapeError, StoreError, UnknownNameError
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.vectors.stores import parse_uri
from interbasin.vectors.stores.postgresql import decode_rows, encode_rows, reason_of, to_matrix

ROWS, TRANSLATOR = 200, Plain(6, 9)
X = vectors(ROWS, 6)
NEW_COLUMN, NEW_TABLE = "postgresql:?table=docs&column=new", "postgresql:?table=fresh&column=v"


def same(found: dict, expected: np.ndarray, kind: str = "integer") -> None:
    assert len(found) == len(expected)
    for place, row in enumerate(expected):
        key = Server.key(place, kind)
        np.testing.assert_allclose(found[key], row, rtol=1e-6)


def without_the_index(notes: tuple[str, ...]) -> list[str]:
    return [one for one in notes if not one.startswith("No index over the new vectors was built")]


@pytest.mark.parametrize("kind", ["integer", "text", "uuid"])
def test_a_new_column_is_filled_and_the_old_one_untouched(server, kind):
    import uuid

    server.fill(X, kind)
    before = server.column("old")
    done = translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN, rows_per_batch=30)
    assert (done.rows, done.dtype) == (ROWS, "float32")
    assert server.columns() == ["id", "old", "note", "new"]
    found = server.column("new")
    same(
        {str(key) if isinstance(key, uuid.UUID) else key: row for key, row in found.items()},
        translated(TRANSLATOR, X),
        kind,
    )
    after = server.column("old")
    assert all((after[key] == row).all() for key, row in before.items())
    comments = server.connection.execute("SELECT count(*) FROM pg_description WHERE description LIKE 'interbasin%'")
    assert comments.fetchone()[0] == 0


def test_a_new_table_has_the_keys_and_the_vectors(server):
    server.fill(X)
    done = translate_vectors(TRANSLATOR, server.address(), NEW_TABLE, rows_per_batch=30)
    assert server.columns("fresh") == ["id", "v"] and server.columns() == ["id", "old", "note"]
    same(server.column("v", "fresh"), translated(TRANSLATOR, X))
    assert done.output.endswith("?table=fresh&column=v")


def indexes(server: Server) -> list[str]:
    found = server.connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1")
    return [name for (name,) in found.fetchall()]


def test_a_new_table_has_a_primary_key_of_its_own_name(server):
    server.fill(X)
    translate_vectors(TRANSLATOR, server.address(), NEW_TABLE)
    assert indexes(server) == ["docs_pkey", "fresh_pkey"]
    translate_vectors(TRANSLATOR, server.address(), NEW_TABLE, force=True)
    assert indexes(server) == ["docs_pkey", "fresh_pkey"]
    # As the server does where the name is taken, or too long.
    server.connection.execute("CREATE TABLE other_pkey (id integer)")
    translate_vectors(TRANSLATOR, server.address(), "postgresql:?table=other&column=v")
    long = "ü" * 31
    translate_vectors(TRANSLATOR, server.address(), f"postgresql:?table={quote(long)}&column=v")
    assert indexes(server) == ["docs_pkey", "fresh_pkey", "other_pkey1", f"{'ü' * 29}_pkey"]


@pytest.mark.parametrize("output", [NEW_COLUMN, "postgresql:?table=a%22%20b&column=c%20%22d"])
def test_the_index_to_build_is_told_as_a_statement_that_runs(server, output):
    server.fill(X)
    done = translate_vectors(TRANSLATOR, server.address(), output)
    (told,) = done.notes
    said, statement = told.split(": ", 1)
    assert said == "No index over the new vectors was built; do so with"
    if output == NEW_COLUMN:
        assert statement == 'CREATE INDEX ON "public"."docs" USING hnsw ("new" vector_cosine_ops);'
    before = len(indexes(server))
    server.connection.execute(statement)
    assert len(indexes(server)) == before + 1


def test_an_index_that_cannot_be_built_is_not_told_of(server):
    server.fill(X)
    (told,) = translate_vectors(Plain(6, 2001), server.address(), NEW_COLUMN).notes
    assert told.endswith("pgvector builds none over vector of more than 2,000 numbers: these have 2,001.")


def test_rows_without_a_vector_stay_without_one(server):
    server.fill(X)
    server.connection.execute("UPDATE docs SET old = NULL WHERE id IN (-100, 50)")
    done = translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN, rows_per_batch=30)
    assert done.rows == ROWS - 2
    assert [key for key, row in server.column("new").items() if row is None] == [-100, 50]
    assert "2 rows of postgresql://" in done.notes[0] and "stayed without one" in done.notes[0]


def test_names_are_quoted_whatever_they_are(server):
    wild = 'x"; DROP TABLE docs; --'
    server.fill(X)
    for old, new in (("docs", wild),):
        server.connection.execute(
            f'CREATE TABLE {quoted(new)} AS SELECT id AS {quoted(wild)}, old AS "a\'b" FROM {old}'
        )
    server.connection.execute(f"ALTER TABLE {quoted(wild)} ADD PRIMARY KEY ({quoted(wild)})")
    done = translate_vectors(
        TRANSLATOR,
        server.address(wild),
        f"postgresql:?table={quote(wild)}&column={quote(wild + '2')}",
        column="a'b",
        key=wild,
        rows_per_batch=70,
    )
    assert done.rows == ROWS
    translate_vectors(TRANSLATOR, server.address(wild, column="a'b"), f"postgresql:?table={quote('t' + wild)}&column=v")
    there = [
        name for (name,) in server.connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    ]
    assert sorted(there) == sorted(["docs", wild, "t" + wild])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
def test_a_run_that_was_stopped_goes_on(server, output):
    server.fill(X, "text")
    for rows in (40, 120):
        with pytest.raises(Stopped):
            translate_vectors(TRANSLATOR, server.address(), output, rows_per_batch=20, progress=stop_at(rows))
        assert "new" not in server.columns() and not server.columns("fresh")
    done = translate_vectors(TRANSLATOR, server.address(), output)
    assert done.resumed_at >= 120
    column, table = ("new", "docs") if output == NEW_COLUMN else ("v", "fresh")
    same(server.column(column, table), translated(TRANSLATOR, X), "text")


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
def test_a_server_that_goes_away_loses_nothing(server, output):
    server.fill(X)

    def go_away(done: int, rows: int) -> None:
        if done == 60:
            server.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'interbasin'"
            )

    with pytest.raises(
        StoreError, match=r"could not be reached or went away while .*what is done is kept: run the same"
    ):
        translate_vectors(TRANSLATOR, server.address(), output, rows_per_batch=20, progress=go_away)
    done = translate_vectors(TRANSLATOR, server.address(), output)
    assert done.resumed_at >= 60
    column, table = ("new", "docs") if output == NEW_COLUMN else ("v", "fresh")
    same(server.column(column, table), translated(TRANSLATOR, X))


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
def test_another_translator_does_not_go_on(server, output):
    server.fill(X)
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, server.address(), output, rows_per_batch=20, progress=stop_at(60))
    other = Plain(6, 9, seed=7)
    with pytest.raises(
        FileError, match=r"was begun by another translator, so this run cannot go on from it; drop interbasin_"
    ):
        translate_vectors(other, server.address(), output)
    assert translate_vectors(other, server.address(), output, force=True).resumed_at == 0
    column, table = ("new", "docs") if output == NEW_COLUMN else ("v", "fresh")
    same(server.column(column, table), translated(other, X))


def test_what_exists_is_not_overwritten_unasked(server):
    server.fill(X)
    server.connection.execute("ALTER TABLE docs ADD COLUMN there vector(2)")
    there = "postgresql:?table=docs&column=there"
    with pytest.raises(StoreError, match="The column 'there' exists already and nothing is overwritten unasked"):
        translate_vectors(TRANSLATOR, server.address(column="old"), there)
    server.connection.execute("CREATE TABLE fresh (id integer)")
    with pytest.raises(StoreError, match="The table 'fresh' exists already and nothing is overwritten unasked"):
        translate_vectors(TRANSLATOR, server.address(column="old"), NEW_TABLE)
    translate_vectors(TRANSLATOR, server.address(column="old"), NEW_TABLE, force=True)
    translate_vectors(TRANSLATOR, server.address(column="old"), there, force=True)
    assert server.columns("fresh") == ["id", "v"] and server.columns() == ["id", "old", "note", "there"]
    with pytest.raises(StoreError, match="is the source column itself, which is never written to"):
        translate_vectors(TRANSLATOR, server.address(column="old"), "postgresql:?table=docs&column=old", force=True)


def test_halfvec_only_where_the_server_has_it(server):
    server.fill(X)
    with pytest.raises(
        StoreError,
        match=r"The type halfvec was asked for, but this server does not have it \(its pgvector is 0\.6\.2; halfvec",
    ):
        translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN + "&type=halfvec")
    with pytest.raises(UnknownNameError, match="no type of vectors named 'bit'; try one of"):
        translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN + "&type=bit")
    translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN + "&type=vector")


def test_the_bytes_of_halfvec():
    import struct
    from types import SimpleNamespace

    x = vectors(3, 5, "float16")
    content = encode_rows((b"a", b"bb", b"c"), x, x.dtype, "docs")
    rows = decode_rows(content)
    assert [key for key, _ in rows] == [b"a", b"bb", b"c"]
    assert rows[1][1] == struct.pack(">hH", 5, 0) + x[1].astype(">f2").tobytes()
    source = SimpleNamespace(table=SimpleNamespace(kind="halfvec"), width=5, name="docs")
    np.testing.assert_array_equal(to_matrix(tuple(one for _, one in rows), source, (b"a", b"bb", b"c")), x)
    with pytest.raises(DataError, match="beyond 65,504, the largest of halfvec; use vector"):
        encode_rows((b"a",), np.full((1, 5), 1e6, dtype=np.float32), np.dtype(np.float16), "docs")


def test_tables_columns_and_keys_that_do_not_fit_are_named(server):
    server.fill(X)
    with pytest.raises(UnknownNameError, match="no table in that database named 'dogs'; try one of: docs"):
        translate_vectors(TRANSLATOR, server.address("dogs"), NEW_COLUMN)
    with pytest.raises(UnknownNameError, match=r"no column in postgresql://.* named 'odd'; try one of: old"):
        translate_vectors(TRANSLATOR, server.address(column="odd"), NEW_COLUMN)
    with pytest.raises(StoreError, match=r"The column 'note' of .* has type text, but vectors are vector or halfvec"):
        translate_vectors(TRANSLATOR, server.address(column="note"), NEW_COLUMN)
    with pytest.raises(UnknownNameError, match="named 'ident'"):
        translate_vectors(TRANSLATOR, server.address(key="ident"), NEW_COLUMN)
    with pytest.raises(StoreError, match=r"The key 'note' of .* is not known to be unique and never null"):
        translate_vectors(TRANSLATOR, server.address(key="note"), NEW_COLUMN)
    server.connection.execute("CREATE TABLE loose AS SELECT * FROM docs")
    with pytest.raises(
        StoreError, match="has no primary key of one column, and rows must be told apart; name a unique"
    ):
        translate_vectors(TRANSLATOR, server.address("loose"), NEW_COLUMN)
    server.connection.execute("ALTER TABLE docs ADD COLUMN second vector(6)")
    with pytest.raises(
        StoreError, match=r"has several columns of vectors \(old, second\); name one with \?column=NAME in"
    ) as caught:
        translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN)
    # In the words of the command, too.
    assert "with ?column=NAME in the address (or --column)" in in_options(str(caught.value), {"column": "--column"})
    server.connection.execute("CREATE TABLE plain (id integer PRIMARY KEY)")
    with pytest.raises(StoreError, match="has no column of vectors"):
        translate_vectors(TRANSLATOR, server.address("plain"), NEW_COLUMN)
    with pytest.raises(DataError, match="has no row with a vector"):
        translate_vectors(TRANSLATOR, server.address(column="second"), NEW_COLUMN)


def test_a_table_in_another_schema(server):
    server.fill(X)
    server.connection.execute(
        "DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA other; ALTER TABLE docs SET SCHEMA other"
    )
    translate_vectors(TRANSLATOR, server.address("other.docs"), "postgresql:?table=other.docs&column=new")
    same(server.column("new", "other.docs"), translated(TRANSLATOR, X))
    server.connection.execute("DROP SCHEMA other CASCADE")


def test_rows_of_another_width_are_named_by_their_key(server):
    server.fill(X)
    server.connection.execute("ALTER TABLE docs ALTER COLUMN old TYPE vector")
    server.connection.execute("UPDATE docs SET old = '[1, 2]' WHERE id = 50")
    with pytest.raises(ShapeError, match=r"the row with key '50' has 2 numbers where the first has 6"):
        translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN)


def test_the_metric_of_an_index_is_found(server):
    server.fill(X)
    lossy = Plain(6, 9, carries_norms=False)
    for metric, words in (("cosine", None), ("l2", "by l2"), ("ip", "by inner product")):
        server.connection.execute("DROP INDEX IF EXISTS fast")
        server.connection.execute(f"CREATE INDEX fast ON docs USING hnsw (old vector_{metric}_ops)")
        done = translate_vectors(lossy, server.address(column="old"), NEW_COLUMN, force=True)
        assert [words in one for one in without_the_index(done.notes)] == ([True] if words else [])
        assert f'("new" vector_{metric}_ops);' in done.notes[-1]


def test_rows_that_come_behind_the_readers_back_are_counted(server):
    server.fill(X)

    def insert(done: int, rows: int) -> None:
        if done == 100:
            server.connection.execute("INSERT INTO docs (id, old) VALUES (-1000, '[1,2,3,4,5,6]')")

    done = translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN, rows_per_batch=20, progress=insert)
    assert done.notes[-1].startswith("1 row came into the table behind the reader's back and is not translated")


def at_100(server: Server, statement: str) -> Any:
    def progress(done: int, rows: int) -> None:
        if done == 100:
            server.connection.execute(statement)

    return progress


INSERT = "INSERT INTO docs (id, old) VALUES (-1000, '[1,2,3,4,5,6]')"
DELETE, FORGET = "DELETE FROM docs WHERE id = -100", "UPDATE docs SET old = NULL WHERE id = -100"
UPDATE = "UPDATE docs SET old = '[1,2,3,4,5,6]' WHERE id = -100"


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
@pytest.mark.parametrize(
    "statement, words",
    [
        (INSERT, ["1 row came into the table"]),
        (DELETE, ["1 row that had been read is gone from the source"]),
        (FORGET, ["1 row that had been read is gone from the source; their translations are still there"]),
        (f"{INSERT}; {DELETE}", ["1 row came into the table", "1 row that had been read is gone"]),
        (UPDATE, ["Rows of the source were changed after they had been read"]),
        ("UPDATE docs SET old = '[1,2,3,4,5,6]' WHERE id = 497", []),  # before it was read
        ("UPDATE docs SET note = 'other'", []),
    ],
)
@pytest.mark.parametrize("stopped", [False, True])
def test_changes_of_the_source_are_remarked(server, output, statement, words, stopped):
    server.fill(X)
    options = {"rows_per_batch": 20}
    if stopped:
        with pytest.raises(Stopped):
            translate_vectors(TRANSLATOR, server.address(), output, progress=stop_at(100), **options)
        server.connection.execute(statement)
        done = translate_vectors(TRANSLATOR, server.address(), output, **options)
        assert done.resumed_at >= 100
    else:
        done = translate_vectors(TRANSLATOR, server.address(), output, progress=at_100(server, statement), **options)
    told = [one for one in without_the_index(done.notes) if "without a vector" not in one]
    assert len(told) == len(words)
    for remark, word in zip(told, words, strict=True):
        assert remark.startswith(word) and "run again with --force when nothing is being written" in remark


@pytest.mark.parametrize("kind", ["text", "uuid"])
def test_the_server_sums_up_as_the_reader_does_whatever_the_key(server, kind):
    server.fill(X, kind)
    if kind == "text":
        server.connection.execute("UPDATE docs SET id = 'ключ ' || id")
    for address, output in ((server.address(), NEW_COLUMN), (server.address(column="old"), NEW_TABLE)):
        done = translate_vectors(TRANSLATOR, address, output, rows_per_batch=30)
        assert without_the_index(done.notes) == []


@pytest.mark.parametrize(
    "output, statement, words",
    [
        (NEW_COLUMN, "ALTER TABLE docs ADD COLUMN new vector(2)", "The column 'new' exists already and nothing"),
        (NEW_COLUMN, "ALTER TABLE docs ADD COLUMN new text", "The column 'new' exists already and holds text"),
        (NEW_TABLE, "CREATE TABLE fresh (precious text)", "The table 'fresh' exists already and nothing"),
        (NEW_TABLE, "CREATE VIEW fresh AS SELECT 1", "What is named 'fresh' exists already and is no table"),
    ],
)
def test_what_appears_during_a_run_is_not_overwritten(server, output, statement, words):
    server.fill(X)
    with pytest.raises(StoreError, match=rf"{words}.*everything is kept: rename it and run the same command again"):
        translate_vectors(
            TRANSLATOR, server.address(column="old"), output, rows_per_batch=20, progress=at_100(server, statement)
        )
    assert (
        "new" in server.columns() if output == NEW_COLUMN else server.columns("fresh") in (["precious"], ["?column?"])
    )
    server.connection.execute(
        "ALTER TABLE docs DROP COLUMN new"
        if output == NEW_COLUMN
        else "DROP TABLE IF EXISTS fresh"
        if "TABLE" in statement
        else "DROP VIEW fresh"
    )
    assert translate_vectors(TRANSLATOR, server.address(), output).resumed_at == ROWS


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
def test_a_run_that_fails_at_once_leaves_nothing_behind(server, output):
    x = X.copy()
    x[0] = 0
    server.fill(x)
    with pytest.raises(DataError, match=r"row 0 .*--bad-rows keep\)\.$"):
        translate_vectors(TRANSLATOR, server.address(), output, rows_per_batch=20)
    assert server.columns() == ["id", "old", "note"]
    tables = server.connection.execute(
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'interbasin_%' AND relpersistence = 'p'"
    )
    assert tables.fetchone()[0] == 0


def test_the_key_and_what_is_no_vector_are_never_replaced(server):
    server.fill(X)
    for table in ("docs", "fresh"):
        with pytest.raises(StoreError, match="is the key column 'id', which tells rows apart; name another"):
            translate_vectors(TRANSLATOR, server.address(), f"postgresql:?table={table}&column=id", force=True)
    with pytest.raises(StoreError, match="The column 'note' exists already and holds text; only columns of vectors"):
        translate_vectors(TRANSLATOR, server.address(), "postgresql:?table=docs&column=note", force=True)
    server.connection.execute("CREATE VIEW fresh AS SELECT 1 AS one")
    seen: list[int] = []
    with pytest.raises(StoreError, match="What is named 'fresh' exists already and is no table; choose another name"):
        translate_vectors(
            TRANSLATOR, server.address(), NEW_TABLE, force=True, progress=lambda done, rows: seen.append(done)
        )
    assert seen == [] and server.columns() == ["id", "old", "note"]
    server.connection.execute("DROP VIEW fresh")


def test_a_table_whose_name_has_a_dot(server):
    server.fill(X, table='"a.b"')
    translate_vectors(TRANSLATOR, server.address("a.b"), "postgresql:?table=a.b&column=new")
    assert server.columns('"a.b"') == ["id", "old", "note", "new"]
    server.fill(X)
    with pytest.raises(StoreError, match=r"The table 'a\.b' exists already"):
        translate_vectors(TRANSLATOR, server.address(), "postgresql:?table=a.b&column=new")


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
@pytest.mark.parametrize("name", ["vector", "b", "t"])
def test_a_key_of_any_name(server, output, name):
    server.fill(X)
    server.connection.execute(f"ALTER TABLE docs RENAME COLUMN id TO {name}")
    assert translate_vectors(TRANSLATOR, server.address(), output, rows_per_batch=30).rows == ROWS


@pytest.mark.parametrize("output", [NEW_COLUMN, NEW_TABLE])
@pytest.mark.parametrize("comment", ["interbasin: unfinished {", "interbasin: unfinished {}", "mine"])
def test_a_damaged_comment_is_told(server, output, comment):
    server.fill(X)
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, server.address(), output, rows_per_batch=20, progress=stop_at(100))
    query = "SELECT attname FROM pg_attribute WHERE attname LIKE 'interbasin_%' AND attrelid = 'docs'::regclass"
    if output == NEW_TABLE:
        query = (
            "SELECT relname FROM pg_class WHERE relname LIKE 'interbasin_%' AND relkind = 'r' AND relpersistence = 'p'"
        )
    (growing,) = server.connection.execute(query).fetchone()
    on = f"TABLE {growing}" if output == NEW_TABLE else f"COLUMN docs.{growing}"
    server.connection.execute(f"COMMENT ON {on} IS '{comment}'")
    with pytest.raises(
        StoreError, match=rf"is damaged, so this run .*comment on {growing} .*; drop {growing} to start"
    ):
        translate_vectors(TRANSLATOR, server.address(), output)
    assert translate_vectors(TRANSLATOR, server.address(), output, force=True).resumed_at == 0


def test_two_processes_do_not_write_one_column(server):
    server.fill(X)

    def second(done: int, rows: int) -> None:
        translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN)

    with pytest.raises(StoreError, match=r"Another process is writing postgresql://.* at this moment"):
        translate_vectors(TRANSLATOR, server.address(), NEW_COLUMN, progress=second)


def test_too_wide_vectors_are_refused(server):
    server.fill(X)
    with pytest.raises(StoreError, match="at most 16000 numbers a vector, and 16001 are asked for"):
        translate_vectors(Plain(6, 16_001), server.address(), NEW_COLUMN)


def test_the_output_is_in_the_same_database(server):
    server.fill(X)
    with pytest.raises(StoreError, match="names another server or database than the source"):
        translate_vectors(TRANSLATOR, server.address(), "postgresql://elsewhere/db?table=docs&column=new")
    translate_vectors(TRANSLATOR, server.address(), server.address(column="new"))
    with pytest.raises(
        FileError, match=r"What is in a PostgreSQL table cannot be written to a .npy file; give a column"
    ):
        translate_vectors(TRANSLATOR, server.address(column="old"), "new.npy")


def test_no_password_is_ever_told(server, capsys):
    for text in (
        "postgresql://me:hunter2@127.0.0.1:1/db?table=docs",
        "postgresql://me:hunter2@127.0.0.1:1/db?table=docs&sslmode=hunter2",
        "postgresql://me@127.0.0.1:1/db?password=hunter2&table=docs&no_such_option=1",
    ):
        with pytest.raises(StoreError) as caught:
            translate_vectors(TRANSLATOR, text, NEW_COLUMN)
        assert "kept" not in str(caught.value)
        told = f"{caught.value} {caught.value!r} {caught.value.__cause__} {capsys.readouterr()}"
        assert "hunter2" not in told.replace('sslmode value: "***"', ""), told
    address = parse_uri("postgresql://me:hun%20ter@host/db?table=docs")
    assert reason_of(ValueError('bad "postgresql://me:hun%20ter@host/db" hun ter'), address) == 'bad "***" ***'


def test_a_column_with_a_password_is_in_no_summary(server):
    server.fill(X)
    address = server.address().replace("postgres:@", "postgres:hunter2@")
    assert "hunter2" in address
    done = translate_vectors(TRANSLATOR, address, NEW_COLUMN)
    assert "hunter2" not in str(done.summary())
    comments = server.connection.execute("SELECT description FROM pg_description WHERE description LIKE '%hunter%'")
    assert comments.fetchall() == []


def test_without_the_driver_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"Reading postgresql://host/db\?table=docs needs the 'vectors' extra"):
        translate_vectors(TRANSLATOR, "postgresql://host/db?table=docs", NEW_COLUMN)
