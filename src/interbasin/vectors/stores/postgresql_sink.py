"""PostgreSQL with pgvector, written: translated vectors in a new column of the same table, or in a new table.

Rows are written in the batches in which they were read, by COPY in the binary format. The output grows under a name of
its own, with a comment that says which work it is of and which key was the last; batch and comment are one transaction,
so whatever is killed, server included, the comment is true. At the end it is renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
from typing import Any

import numpy as np

from interbasin.errors import StoreError
from interbasin.storage.journal import check_same_work
from interbasin.text import plural
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.postgresql import (
    CHECKED_BYTES,
    METRICS,
    NUMBERS,
    PostgresqlRows,
    composed,
    connected,
    known_type,
    refuse_other_server,
    told,
)
from interbasin.vectors.stores.uri import StoreURI

MOST_NUMBERS = 16_000  # of a vector of pgvector
MOST_INDEXED = {"vector": 2_000, "halfvec": 4_000}  # numbers of a vector that an index of pgvector is built over
LONGEST_NAME = 63  # bytes that the server keeps of a name
SECONDS_FOR_A_LOCK = 2.0
MARK = "interbasin: unfinished "


class PostgresqlSink:
    """A new column of the source's table, or a new table of keys and vectors, that grows under another name.

    See `interbasin.vectors.stores.opening.Sink`.

    Args:
        output: Which table and column; the database is the source's.
        rows: The source.
        width: Of the translated vectors.
        translator: Its fingerprint.
        bad_rows: What becomes of rows that cannot be translated.
        force: Replace a column or table of that name, and an unfinished one of other work.
    """

    def __init__(
        self,
        output: StoreURI,
        rows: PostgresqlRows,
        width: int,
        translator: dict[str, Any],
        *,
        bad_rows: str = "refuse",
        force: bool,
    ) -> None:
        refuse_other_server(output, rows.address)
        self._rows, self._width, self._force = rows, width, force
        self._source = rows.table
        self.notes: tuple[str, ...] = ()
        self._column = output.column or rows.table.column
        self.name = rows.address.shown.partition("?")[0] + f"?table={output.table}&column={self._column}"
        self._address = rows.address
        if width > MOST_NUMBERS:
            raise StoreError(f"pgvector holds at most {MOST_NUMBERS} numbers a vector, and {width} are asked for.")
        self._kind, self._written = rows.table.kind, rows.table.written
        self.rows, self.mark = 0, None
        self.rows_per_batch: int | None = None
        self._checksum: int | None = 0
        self._made_here = False
        self._connection = connected(rows.address)
        try:
            with told(self._address, "preparing the output"):
                self._schema, self._name = place_of(self._connection, output, rows)
                self._in_table = (self._schema, self._name) == (rows.table.schema, rows.table.name)
                place = json.dumps([self._schema, self._name, self._column])
                self._growing = f"interbasin_{hashlib.sha256(place.encode()).hexdigest()[:16]}"
                if output.type is not None:
                    self._kind, self._written = known_type(self._connection, output.type)
                layout = {"kind": self._kind, "bad_rows": bad_rows}
                self._work = {"source": rows.fingerprint(), "translator": translator, "layout": layout}
                self._refuse_what_is_in_the_way()
                self._take_up()
        except BaseException:
            self.close()
            raise

    def _refuse_what_is_in_the_way(self) -> None:
        if self._in_table and self._column == self._source.column:
            raise StoreError(
                f"The output {self.name} is the source column itself, which is never written to; name another column."
            )
        if self._column == self._source.key:
            raise StoreError(
                f"The output {self.name} is the key column {self._column!r}, by which rows are told apart; name "
                "another column."
            )
        kind = self._kind_of_column() if self._in_table else self._kind_of_table()
        if kind is None:
            return
        what = f"column {self._column!r}" if self._in_table else f"table {self._name!r}"
        if self._in_table and kind not in NUMBERS:
            raise StoreError(
                f"The {what} exists already and holds {kind}; only columns of vectors are ever replaced, so choose "
                "another name."
            )
        if not self._in_table and kind not in "rp":
            raise StoreError(
                f"What is named {self._name!r} exists already and is no table; only tables are ever replaced, so "
                "choose another name."
            )
        if not self._force:
            raise StoreError(
                f"The {what} exists already and nothing is overwritten unasked; choose another name, or ask for it "
                "with force=True (--force)."
            )

    def _kind_of_column(self) -> str | None:
        """The type of what stands where the new column will be, without its schema and size."""
        found = self._connection.execute(
            "SELECT t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(%s) AND a.attname = %s AND NOT a.attisdropped",
            [self._source.quoted.as_string(self._connection), self._column],
        ).fetchone()
        return None if found is None else str(found[0])

    def _kind_of_table(self) -> str | None:
        """What stands where the new table will be, in the server's letters."""
        found = self._connection.execute(
            "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            [self._schema, self._name],
        ).fetchone()
        return None if found is None else str(found[0])

    def _regclass(self, schema: str, name: str) -> Any:
        from psycopg import sql

        written = sql.Identifier(schema, name).as_string(self._connection)
        return self._connection.execute("SELECT to_regclass(%s)", [written]).fetchone()[0]

    def _has_column(self, name: str) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND NOT attisdropped",
            [self._source.quoted.as_string(self._connection), name],
        ).fetchone()
        return found is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        return NUMBERS[self._kind].newbyteorder("=")

    @property
    def _table(self) -> Any:
        """The table that is written to."""
        from psycopg import sql

        return self._source.quoted if self._in_table else sql.Identifier(self._schema, self._growing)

    def _take_up(self) -> None:
        """Lock the work, and find what an earlier run left."""
        number = int.from_bytes(hashlib.sha256(self._growing.encode()).digest()[:8], "big", signed=True)
        # A server under load lets go of a lock only some time after the connection that had it was closed.
        waiting_ends = time.monotonic() + SECONDS_FOR_A_LOCK
        while not self._connection.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone()[0]:
            if time.monotonic() > waiting_ends:
                raise StoreError(f"Another process is writing {self.name} at this moment; wait for it.")
            time.sleep(0.05)
        self._refuse_what_is_in_the_way()  # which the run that had the lock may have put there at its end
        comment = self._comment()
        if comment is None:
            return
        try:
            state = self._state_in(comment)
            check_same_work(
                state["work"],
                json.loads(json.dumps(self._work)),
                f"The unfinished {self.name}",
                f"drop {self._growing}",
            )
        except OSError:
            if not self._force:
                raise
            self._drop_growing()
            return
        self.rows, self.mark, self.rows_per_batch = state["rows"], state["last"], state["rows_per_batch"]
        self._checksum = state.get("checksum")

    def _state_in(self, comment: str) -> dict[str, Any]:
        try:
            state = json.loads(comment.removeprefix(MARK)) if comment.startswith(MARK) else None
        except ValueError:
            state = None
        whole = (
            isinstance(state, dict)
            and isinstance(state.get("work"), dict)
            and all(isinstance(state["work"].get(name), dict) for name in ("source", "layout", "translator"))
            and all(type(state.get(name)) is int for name in ("rows", "rows_per_batch"))
            and isinstance(state.get("last"), str | None)
            and isinstance(state.get("checksum"), int | None)
        )
        if state is None or not whole:
            raise StoreError(
                f"The unfinished {self.name} is damaged, so this run cannot go on from it (the comment on "
                f"{self._growing} does not tell how far it is); drop {self._growing} to start anew, or ask for that "
                "with force=True (--force)."
            )
        return dict(state)

    def _comment(self) -> str | None:
        """What stands at the growing column or table; None if there is none."""
        if self._in_table:
            if not self._has_column(self._growing):
                return None
            query = (
                "SELECT col_description(attrelid, attnum) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attname = %s"
            )
            values = [self._source.quoted.as_string(self._connection), self._growing]
        else:
            if self._regclass(self._schema, self._growing) is None:
                return None
            query, values = (
                "SELECT obj_description(to_regclass(%s), 'pg_class')",
                [self._table.as_string(self._connection)],
            )
        return str(self._connection.execute(query, values).fetchone()[0] or "")

    def _drop_growing(self) -> None:
        from psycopg import sql

        if self._in_table:
            query = sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(self._table, sql.Identifier(self._growing))
        else:
            query = sql.SQL("DROP TABLE {}").format(self._table)
        self._connection.execute(query)

    @property
    def _vectors(self) -> Any:
        """The column that is written to."""
        from psycopg import sql

        return sql.Identifier(self._growing if self._in_table else self._column)

    def start(self, rows_per_batch: int) -> None:
        from psycopg import sql

        begun = self.rows_per_batch is not None
        self.rows_per_batch, self._made_here = rows_per_batch, not begun
        source, connection = self._source, self._connection
        kind = sql.SQL("{}({})").format(sql.SQL(self._written), sql.Literal(self._width))
        key = sql.SQL("{} {}").format(sql.Identifier(source.key), sql.SQL(source.key_kind))
        with told(self._address, "preparing the output"):
            if not begun:
                with connection.transaction():
                    if self._in_table:
                        query = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(self._table, self._vectors, kind)
                    else:
                        query = sql.SQL("CREATE TABLE {} ({} PRIMARY KEY, {} {})").format(
                            self._table, key, self._vectors, kind
                        )
                    connection.execute(query)
                    self._note()
            if self._in_table:
                connection.execute(
                    sql.SQL("CREATE TEMP TABLE interbasin_batch ({} PRIMARY KEY, {} {}) ON COMMIT DELETE ROWS").format(
                        key, self._vectors, kind
                    )
                )

    def _note(self) -> None:
        """Write how far it is to where the next run looks, in the transaction that is open."""
        from psycopg import sql

        state = {
            "work": self._work,
            "rows": self.rows,
            "last": self.mark,
            "rows_per_batch": self.rows_per_batch,
            "checksum": self._checksum,
        }
        where = sql.SQL("TABLE {}").format(self._table)
        if self._in_table:
            where = sql.SQL("COLUMN {}.{}").format(self._table, self._vectors)
        text = sql.Literal(MARK + json.dumps(state))
        self._connection.execute(sql.SQL("COMMENT ON {} IS {}").format(where, text))

    def append(self, piece: Piece) -> None:
        from psycopg import sql

        keys, last, checksum = piece.rest
        key = sql.Identifier(self._source.key)
        before = self.rows, self.mark, self._checksum
        into = sql.SQL("interbasin_batch ({}, {})").format(key, self._vectors)
        if not self._in_table:
            into = sql.SQL("{} ({}, {})").format(self._table, key, self._vectors)
        try:
            with told(self._address, "writing vectors"), self._connection.transaction():
                with (
                    self._connection.cursor() as cursor,
                    cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(into)) as copy,
                ):
                    copy.write(composed(keys, piece.vectors, self.dtype, self._rows.name))
                if self._in_table:
                    self._connection.execute(
                        sql.SQL(
                            "UPDATE {table} AS t SET {column} = b.{column} FROM interbasin_batch b "
                            "WHERE t.{key} = b.{key}"
                        ).format(table=self._table, column=self._vectors, key=key)
                    )
                self.rows, self.mark = self.rows + len(keys), last
                self._checksum = None if self._checksum is None else self._checksum + checksum
                self._note()
        except BaseException:
            self.rows, self.mark, self._checksum = before
            raise

    def finish(self) -> None:
        from psycopg import sql

        connection, ids = self._connection, sql.Identifier
        with told(self._address, "putting the output in its place"):
            self.notes = (self._index_to_build(), *self._changes())
            with connection.transaction():
                try:
                    # The work may have taken hours, in which someone else may have written there.
                    self._refuse_what_is_in_the_way()
                except StoreError as error:
                    raise StoreError(
                        f"{error} It came there while this run worked, of which everything is kept: rename it and run "
                        "the same command again."
                    ) from error
                if self._in_table:
                    if self._kind_of_column() is not None:
                        connection.execute(
                            sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(self._table, ids(self._column))
                        )
                    connection.execute(sql.SQL("COMMENT ON COLUMN {}.{} IS NULL").format(self._table, self._vectors))
                    connection.execute(
                        sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(
                            self._table, self._vectors, ids(self._column)
                        )
                    )
                else:
                    connection.execute(sql.SQL("COMMENT ON TABLE {} IS NULL").format(self._table))
                    if self._kind_of_table() is not None:
                        connection.execute(sql.SQL("DROP TABLE {}").format(ids(self._schema, self._name)))
                    connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(self._table, ids(self._name)))
                    self._rename_primary_key()

    def _rename_primary_key(self) -> None:
        """As the server would have named it, had the table had its name from the start."""
        from psycopg import sql

        table = sql.Identifier(self._schema, self._name)
        (found,) = self._connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'p'",
            [table.as_string(self._connection)],
        ).fetchone()
        endings = itertools.chain(["_pkey"], (f"_pkey{number}" for number in itertools.count(1)))
        names = (self._name.encode()[: LONGEST_NAME - len(end)].decode(errors="ignore") + end for end in endings)
        name = next(one for one in names if self._regclass(self._schema, one) is None)
        query = sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}")
        self._connection.execute(query.format(table, sql.Identifier(found), sql.Identifier(name)))

    def _index_to_build(self) -> str:
        """What to say of an index over the new vectors, which is not made here."""
        from psycopg import sql

        most = MOST_INDEXED[self._kind]
        if self._width > most:
            return (
                f"No index over the new vectors was built, and pgvector builds none over {self._kind} of more than "
                f"{most:,} numbers: these have {self._width:,}."
            )
        graphs = self._connection.execute("SELECT 1 FROM pg_am WHERE amname = 'hnsw'").fetchone() is not None
        how = next((name for name, metric in METRICS.items() if metric == self._rows.metric), "cosine")
        schema, dot, _ = self._written.rpartition(".")
        query = sql.SQL("CREATE INDEX ON {} USING {} ({} {})").format(
            sql.Identifier(self._schema, self._name),
            sql.SQL("hnsw" if graphs else "ivfflat"),
            sql.Identifier(self._column),
            sql.SQL(f"{schema}{dot}{self._kind}_{how}_ops"),
        )
        return f"No index over the new vectors was built; do so with: {query.as_string(self._connection)};"

    def _changes(self) -> tuple[str, ...]:
        """What changed in the source after it was read, found by one look at all rows of both sides."""
        from psycopg import sql

        source, ids = self._source, sql.Identifier
        if self._in_table:
            both = sql.SQL("SELECT {key} AS k, {old} AS s, {new} IS NOT NULL AS done FROM {table}")
        else:
            both = sql.SQL(
                "SELECT s.{key} AS k, s.{old} AS s, g.{key} IS NOT NULL AS done FROM {table} s FULL JOIN {made} g "
                "ON s.{key} = g.{key}"
            )
        send = self._connection.execute(
            "SELECT t.typsend::regproc::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(%s) AND a.attname = %s",
            [source.quoted.as_string(self._connection), source.column],
        ).fetchone()[0]
        query = sql.SQL(
            "SELECT count(*) FILTER (WHERE s IS NOT NULL AND NOT done), count(*) FILTER (WHERE s IS NULL AND done), "
            "count(*) FILTER (WHERE s IS NOT NULL AND done), "
            "sum(('x' || encode(substr(sha256({send}(s) || textsend(k::text)), 1, {count}), 'hex'))"
            "::bit({bits})::bigint) FILTER (WHERE s IS NOT NULL AND done) FROM ({both}) AS found"
        ).format(
            send=sql.SQL(send),
            count=sql.Literal(CHECKED_BYTES),
            bits=sql.Literal(8 * CHECKED_BYTES),
            both=both.format(
                key=ids(source.key),
                old=ids(source.column),
                new=ids(self._growing),
                table=source.quoted,
                made=self._table,
            ),
        )
        missed, stale, left, checksum = self._connection.execute(query).fetchone()
        # Of a row that was removed from the table, its new column went along.
        gone = max(int(stale), self.rows - int(left))
        again = "run again with --force when nothing is being written"
        notes = []
        if missed:
            notes.append(
                f"{plural(missed, 'row')} came into the table behind the reader's back and "
                f"{'is' if missed == 1 else 'are'} not translated; {again}."
            )
        if gone:
            kept = "; their translations are still there" if stale else ""
            notes.append(
                f"{plural(gone, 'row')} that had been read {'is' if gone == 1 else 'are'} gone from the source{kept}, "
                f"and others may have changed; {again}."
            )
        elif self._checksum is not None and int(checksum or 0) != self._checksum:
            notes.append(
                "Rows of the source were changed after they had been read, and what is written are translations of "
                f"what they held before; {again}."
            )
        return tuple(notes)

    def close(self) -> None:
        import psycopg

        # Where nothing was done, nothing is left behind, if the server still listens.
        if self._made_here and not self.rows:
            with contextlib.suppress(psycopg.Error):
                self._drop_growing()
        self._connection.close()


def place_of(connection: Any, output: StoreURI, rows: PostgresqlRows) -> tuple[str, str]:
    """Schema and name of the table to write: the source's own if it is named alike; a name may have a dot in it."""
    assert output.table is not None
    if output.table == rows.address.table:
        return rows.table.schema, rows.table.name
    schema, dot, name = output.table.partition(".")
    if not dot:
        return rows.table.schema, output.table
    found = connection.execute(
        "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = %s AND (pg_table_is_visible(c.oid) OR n.nspname = %s)",
        [output.table, rows.table.schema],
    ).fetchone()
    return (schema, name) if found is None else (str(found[0]), output.table)
