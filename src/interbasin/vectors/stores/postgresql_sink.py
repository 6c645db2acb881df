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
from urllib.parse import urlsplit

import numpy as np

from interbasin.errors import StoreError
from interbasin.text import plural
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.postgresql import (
    CHECKED_BYTES,
    METRICS,
    NUMBERS,
    PostgresqlRows,
    compose,
    connect,
    encode_rows,
    explain_errors,
    find_type,
)
from interbasin.vectors.stores.same_work import check_same_work
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
        rows, width: The source, and the width of its translated vectors.
        translator, bad_rows: The fingerprint, and what becomes of rows that cannot be translated.
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
        self._rows, self._width, self._force, self._source, self._address = rows, width, force, rows.table, rows.address
        self.notes: tuple[str, ...] = ()
        self._column = output.column or rows.table.column
        self.name = rows.address.shown.partition("?")[0] + f"?table={output.table}&column={self._column}"
        if width > MOST_NUMBERS:
            raise StoreError(f"pgvector holds at most {MOST_NUMBERS} numbers a vector, and {width} are asked for.")
        self.rows, self.mark = 0, None
        self.rows_per_batch: int | None = None
        self._checksum: int | None = 0
        self._made_here = False
        self._connection = connect(rows.address)
        try:
            with explain_errors(self._address, "preparing the output"):
                self._place = find_place(self._connection, output, rows)
                self._in_table = self._place == rows.table.place
                growing = json.dumps([*self._place, self._column])
                self._growing = f"interbasin_{hashlib.sha256(growing.encode()).hexdigest()[:16]}"
                # The table and the column that are written to, until the output is complete.
                self._table = rows.table.place if self._in_table else (self._place[0], self._growing)
                self._vectors = self._growing if self._in_table else self._column
                self._kind, self._written = output.type or rows.table.kind, rows.table.written
                if output.type is not None:
                    self._written = find_type(self._connection, output.type)
                self.dtype: np.dtype[Any] = NUMBERS[self._kind].newbyteorder("=")
                layout = {"kind": self._kind, "bad_rows": bad_rows}
                self._work = {"source": rows.fingerprint(), "translator": translator, "layout": layout}
                self._refuse_what_is_in_the_way()
                self._take_up()
        except BaseException:
            self.close()
            raise

    def _execute(self, query: str, values: list[Any] | None = None, **parts: Any) -> Any:
        """Run a query that may name the ``{table}`` and its column of ``{vectors}`` that are written to."""
        names = {"table": self._table, "vectors": self._vectors, "key": self._source.key, **parts}
        return self._connection.execute(compose(query, **names), values)

    def _refuse_what_is_in_the_way(self) -> None:
        obstacle = None
        if self._in_table and self._column == self._source.column:
            obstacle = "the source column itself, which is never written to"
        elif self._column == self._source.key:
            obstacle = f"the key column {self._column!r}, which tells rows apart"
        if obstacle is not None:
            raise StoreError(f"The output {self.name} is {obstacle}; name another column.")
        kind = self._kind_in_the_way()
        if kind is None:
            return
        name = self._place[1]
        what = f"column {self._column!r}" if self._in_table else f"table {name!r}"
        if self._in_table and kind not in NUMBERS:
            raise StoreError(
                f"The {what} exists already and holds {kind}; only columns of vectors are ever replaced, so choose "
                "another name."
            )
        if not self._in_table and kind not in "rp":
            raise StoreError(f"What is named {name!r} exists already and is no table; choose another name.")
        if not self._force:
            raise StoreError(
                f"The {what} exists already and nothing is overwritten unasked; choose another name, or ask for it "
                "with force=True (--force)."
            )

    def _kind_in_the_way(self) -> str | None:
        """What stands where the output will be: the type of a column, or the server's letter for a kind of table."""
        row = self._connection.execute(
            "SELECT t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = %s AND a.attname = %s AND NOT a.attisdropped"
            if self._in_table
            else "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s",
            [self._source.number, self._column] if self._in_table else list(self._place),
        ).fetchone()
        return None if row is None else str(row[0])

    def _find_table(self, name: str) -> int | None:
        """The server's number of the table, or of another thing that has such a name, in the output's schema."""
        written = compose("{name}", name=(self._place[0], name)).as_string(self._connection)
        number: int | None = self._connection.execute("SELECT to_regclass(%s)::oid", [written]).fetchone()[0]
        return number

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
            work = json.loads(json.dumps(self._work))
            check_same_work(state["work"], work, f"The unfinished {self.name}", f"drop {self._growing}")
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
        """The comment on the growing column or table; None if there is no such column or table."""
        if self._in_table:
            row = self._connection.execute(
                "SELECT col_description(attrelid, attnum) FROM pg_attribute "
                "WHERE attrelid = %s AND attname = %s AND NOT attisdropped",
                [self._source.number, self._growing],
            ).fetchone()
        else:
            number = self._find_table(self._growing)
            query = "SELECT obj_description(%s, 'pg_class')"
            row = None if number is None else self._connection.execute(query, [number]).fetchone()
        return None if row is None else str(row[0] or "")

    def _drop_growing(self) -> None:
        self._execute("ALTER TABLE {table} DROP COLUMN {vectors}" if self._in_table else "DROP TABLE {table}")

    def start(self, rows_per_batch: int) -> None:
        from psycopg import sql

        begun = self.rows_per_batch is not None
        self.rows_per_batch, self._made_here = rows_per_batch, not begun
        kinds = {
            "kind": compose("{kind}({width})", kind=sql.SQL(self._written), width=self._width),
            "key_kind": sql.SQL(self._source.key_kind),
        }
        with explain_errors(self._address, "preparing the output"):
            if not begun:
                with self._connection.transaction():
                    self._execute(
                        "ALTER TABLE {table} ADD COLUMN {vectors} {kind}"
                        if self._in_table
                        else "CREATE TABLE {table} ({key} {key_kind} PRIMARY KEY, {vectors} {kind})",
                        **kinds,
                    )
                    self._write_comment()
            if self._in_table:
                self._execute(
                    "CREATE TEMP TABLE interbasin_batch ({key} {key_kind} PRIMARY KEY, {vectors} {kind}) "
                    "ON COMMIT DELETE ROWS",
                    **kinds,
                )

    def _write_comment(self) -> None:
        """Write how far it is to where the next run looks, in the transaction that is open."""
        from psycopg import sql

        state = {
            "work": self._work,
            "rows": self.rows,
            "last": self.mark,
            "rows_per_batch": self.rows_per_batch,
            "checksum": self._checksum,
        }
        where = "COLUMN {table}.{vectors}" if self._in_table else "TABLE {table}"
        self._execute(f"COMMENT ON {where} IS {{text}}", text=sql.Literal(MARK + json.dumps(state)))

    def append(self, piece: Piece) -> None:
        keys, last, checksum = piece.rest
        before = self.rows, self.mark, self._checksum
        into = "interbasin_batch" if self._in_table else self._table
        names = {"into": into, "key": self._source.key, "vectors": self._vectors}
        query = compose("COPY {into} ({key}, {vectors}) FROM STDIN (FORMAT BINARY)", **names)
        try:
            with explain_errors(self._address, "writing vectors"), self._connection.transaction():
                with self._connection.cursor() as cursor, cursor.copy(query) as copy:
                    copy.write(encode_rows(keys, piece.vectors, self.dtype, self._rows.name))
                if self._in_table:
                    self._execute(
                        "UPDATE {table} AS t SET {vectors} = b.{vectors} FROM interbasin_batch b "
                        "WHERE t.{key} = b.{key}"
                    )
                self.rows, self.mark = self.rows + len(keys), last
                self._checksum = None if self._checksum is None else self._checksum + checksum
                self._write_comment()
        except BaseException:
            self.rows, self.mark, self._checksum = before
            raise

    def finish(self) -> None:
        with explain_errors(self._address, "putting the output in its place"):
            self.notes = (self._index_to_build(), *self._changes())
            with self._connection.transaction():
                try:
                    # The work may have taken hours, in which someone else may have written there.
                    self._refuse_what_is_in_the_way()
                except StoreError as error:
                    raise StoreError(
                        f"{error} It came there while this run worked, of which everything is kept: rename it and run "
                        "the same command again."
                    ) from error
                is_in_the_way = self._kind_in_the_way() is not None
                if self._in_table:
                    if is_in_the_way:
                        self._execute("ALTER TABLE {table} DROP COLUMN {column}", column=self._column)
                    self._execute("COMMENT ON COLUMN {table}.{vectors} IS NULL")
                    self._execute("ALTER TABLE {table} RENAME COLUMN {vectors} TO {column}", column=self._column)
                else:
                    self._execute("COMMENT ON TABLE {table} IS NULL")
                    if is_in_the_way:
                        self._execute("DROP TABLE {old}", old=self._place)
                    self._execute("ALTER TABLE {table} RENAME TO {name}", name=self._place[1])
                    self._rename_primary_key()

    def _rename_primary_key(self) -> None:
        """As the server would have named it, had the table had its name from the start."""
        table = self._place[1]
        (old,) = self._connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'p'", [self._find_table(table)]
        ).fetchone()
        endings = itertools.chain(["_pkey"], (f"_pkey{number}" for number in itertools.count(1)))
        names = (table.encode()[: LONGEST_NAME - len(end)].decode(errors="ignore") + end for end in endings)
        new = next(name for name in names if self._find_table(name) is None)
        self._execute("ALTER TABLE {place} RENAME CONSTRAINT {old} TO {new}", place=self._place, old=old, new=new)

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
        query = compose(
            "CREATE INDEX ON {table} USING {method} ({column} {operators})",
            table=self._place,
            method=sql.SQL("hnsw" if graphs else "ivfflat"),
            column=self._column,
            operators=sql.SQL(f"{schema}{dot}{self._kind}_{how}_ops"),
        )
        return f"No index over the new vectors was built; do so with: {query.as_string(self._connection)};"

    def _changes(self) -> tuple[str, ...]:
        """What changed in the source after it was read, found by one look at all rows of both sides."""
        from psycopg import sql

        source = self._source
        both = compose(
            "SELECT {key} AS k, {old} AS s, {new} IS NOT NULL AS done FROM {table}"
            if self._in_table
            else "SELECT s.{key} AS k, s.{old} AS s, g.{key} IS NOT NULL AS done FROM {table} s FULL JOIN {growing} g "
            "ON s.{key} = g.{key}",
            key=source.key,
            old=source.column,
            new=self._growing,
            table=source.place,
            growing=self._table,
        )
        (send,) = self._connection.execute(
            "SELECT t.typsend::regproc::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = %s AND a.attname = %s",
            [source.number, source.column],
        ).fetchone()
        missed, stale, present, checksum = self._execute(
            "SELECT count(*) FILTER (WHERE s IS NOT NULL AND NOT done), count(*) FILTER (WHERE s IS NULL AND done), "
            "count(*) FILTER (WHERE s IS NOT NULL AND done), "
            "sum(('x' || encode(substr(sha256({send}(s) || textsend(k::text)), 1, {count}), 'hex'))"
            "::bit({bits})::bigint) FILTER (WHERE s IS NOT NULL AND done) FROM ({both}) AS found",
            send=sql.SQL(send),
            count=CHECKED_BYTES,
            bits=8 * CHECKED_BYTES,
            both=both,
        ).fetchone()
        # Of a row that was removed from the table, its new column went along.
        gone = max(int(stale), self.rows - int(present))
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


def find_place(connection: Any, output: StoreURI, rows: PostgresqlRows) -> tuple[str, str]:
    """Schema and name of the table to write: the source's own if it is named alike; a name may have a dot in it."""
    assert output.table is not None
    if output.table == rows.address.table:
        return rows.table.place
    own_schema = rows.table.place[0]
    schema, dot, name = output.table.partition(".")
    if not dot:
        return own_schema, output.table
    row = connection.execute(
        "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = %s AND (pg_table_is_visible(c.oid) OR n.nspname = %s)",
        [output.table, own_schema],
    ).fetchone()
    return (schema, name) if row is None else (str(row[0]), output.table)


def refuse_other_server(output: StoreURI, source: StoreURI) -> None:
    """Nothing, if the output names no server, or the source's."""
    if output.secret == "postgresql:///":
        return
    new, old = urlsplit(output.secret), urlsplit(source.secret)
    if (new.hostname, new.port, new.path, new.query) != (old.hostname, old.port, old.path, old.query):
        raise StoreError(
            "The output names another server or database than the source, and rows are translated inside one; write it "
            "as postgresql:?table=TABLE&column=COLUMN."
        )
