"""PostgreSQL with pgvector, read: a connection, a table and its column of vectors, and its rows.

Rows are read in the order of a unique key, by COPY in the binary format. Names from users reach the server only as
quoted identifiers, values only as parameters. A connection string is never shown: what the driver says is repeated only
without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError, StoreError, UnknownNameError
from interbasin.extras import import_extra
from interbasin.text import plural, redact
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.uri import StoreURI

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # and no flags, and no extension of the header
TRAILER = b"\xff\xff"
NUMBERS: dict[str, np.dtype[Any]] = {"vector": np.dtype(">f4"), "halfvec": np.dtype(">f2")}
METRICS = {"cosine": "cosine", "l2": "l2", "ip": "inner product"}
CHECKED_BYTES = 7  # of a row's hash, so that the server can take it for a whole number
KEPT_WHILE = ("reading vectors", "writing vectors", "putting the output in its place")
GROWING = re.compile(r"interbasin_[0-9a-f]{16}")  # names under which outputs grow


@contextlib.contextmanager
def explain_errors(address: StoreURI, doing: str) -> Iterator[None]:
    """Around what the driver does: its errors become one sentence, without the connection string."""
    import psycopg

    try:
        yield
    except psycopg.OperationalError as error:
        kept = "what is done is kept: " if doing in KEPT_WHILE else ""
        raise StoreError(
            f"The server of {address.shown} could not be reached or went away while {doing} "
            f"({reason_of(error, address)}); {kept}run the same command again when it is back."
        ) from None
    except psycopg.Error as error:
        raise StoreError(
            f"The server of {address.shown} refused {doing} ({reason_of(error, address)}); check names and rights."
        ) from None


def reason_of(error: BaseException, address: StoreURI) -> str:
    """What the driver says on one line, with whatever is secret struck out."""
    reason = " ".join(str(error).split()) or type(error).__name__
    parts = urlsplit(address.secret)
    secrets = {address.secret, parts.netloc, parts.password or "", unquote(parts.password or "")}
    secrets |= {value for name, _, value in (pair.partition("=") for pair in parts.query.split("&")) if "pass" in name}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        reason = reason.replace(secret, "***")
    return redact(reason)[:300].rstrip(".")


def connect(address: StoreURI) -> Any:
    """A connection. The driver may not be installed, and the server not be there."""
    psycopg = import_extra("psycopg", f"Reading {address.shown}", "vectors")
    with explain_errors(address, "connecting"):
        return psycopg.connect(address.secret, autocommit=True, application_name="interbasin")


def compose(query: str, **parts: Any) -> Any:
    """The query with its parts in it: text, or schema and name, as a quoted identifier; numbers as literals."""
    from psycopg import sql

    quoted = {
        name: sql.Identifier(part)
        if isinstance(part, str)
        else sql.Identifier(*part)
        if isinstance(part, tuple)
        else part
        for name, part in parts.items()
    }
    return sql.SQL(query).format(**quoted)


@dataclass(frozen=True)
class Table:
    """A table and its column of vectors, as the server knows them.

    Attributes:
        number: The server's own number of the table.
        place: Its schema and its name.
        column: The column of vectors.
        key: The column that tells rows apart.
        kind: ``"vector"`` or ``"halfvec"``.
        written: That type as the server writes it, quoted, and with its schema where it needs one.
        key_kind: The type of the key, likewise.
    """

    number: int
    place: tuple[str, str]
    column: str
    key: str
    kind: str
    written: str
    key_kind: str


@dataclass(frozen=True)
class PostgresqlRows:
    """Rows of a table that have a vector, in the order of their keys."""

    address: StoreURI
    table: Table
    rows: int
    width: int
    metric: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.address.shown

    @property
    def dtype(self) -> np.dtype[Any]:
        return NUMBERS[self.table.kind].newbyteorder("=")

    def fingerprint(self) -> dict[str, Any]:
        schema, name = self.table.place
        return {"schema": schema, "table": name, "column": self.table.column, "key": self.table.key}

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        """``mark`` is the last key of an earlier run, as text; ``start`` only counts."""
        from psycopg import sql

        table, last = self.table, mark
        with contextlib.closing(connect(self.address)) as connection:
            while True:
                above = sql.SQL("")
                if last is not None:  # COPY takes no parameters, so the last key is a literal, quoted by the driver
                    kind = sql.SQL(table.key_kind)
                    above = compose(
                        "AND t.{key} > CAST({last} AS {kind})", key=table.key, last=sql.Literal(last), kind=kind
                    )
                query = compose(
                    "COPY (SELECT t.{key}, t.{column}, t.{key}::text FROM {table} AS t "
                    "WHERE t.{column} IS NOT NULL {above} ORDER BY t.{key} LIMIT {count}) TO STDOUT (FORMAT BINARY)",
                    key=table.key,
                    column=table.column,
                    table=table.place,
                    above=above,
                    count=rows_per_batch,
                )
                with explain_errors(self.address, "reading vectors"):
                    batch = copy_rows(connection, query)
                if not batch:
                    return
                keys, vectors, texts = zip(*batch, strict=True)
                last = texts[-1].decode()
                yield Piece(to_matrix(vectors, self, texts), (keys, last, checksum_of(vectors, texts)))
                if len(keys) < rows_per_batch:
                    return


def copy_rows(connection: Any, query: Any) -> list[tuple[bytes, ...]]:
    """The rows that a COPY query gives."""
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return decode_rows(b"".join(copy))


def decode_rows(content: bytes) -> list[tuple[bytes, ...]]:
    """The rows of a COPY in the binary format; no field of ours is null."""
    rows, place = [], len(SIGNATURE)
    while (fields := int.from_bytes(content[place : place + 2], "big", signed=True)) > 0:
        place += 2
        row = []
        for _ in range(fields):
            length = int.from_bytes(content[place : place + 4], "big")
            row.append(content[place + 4 : place + 4 + length])
            place += 4 + length
        rows.append(tuple(row))
    return rows


def checksum_of(vectors: tuple[bytes, ...], keys: tuple[bytes, ...]) -> int:
    """A sum over rows that tells whether any of them has changed since, as `PostgresqlSink.finish` asks the server."""
    return sum(
        int.from_bytes(hashlib.sha256(vector + key).digest()[:CHECKED_BYTES], "big")
        for vector, key in zip(vectors, keys, strict=True)
    )


def to_matrix(vectors: tuple[bytes, ...], rows: PostgresqlRows, keys: tuple[bytes, ...]) -> NDArray[Any]:
    """Rows of numbers from what the server sends: two bytes that count them, two without a meaning, the numbers."""
    number = NUMBERS[rows.table.kind]
    expected = 4 + rows.width * number.itemsize
    for key, vector in zip(keys, vectors, strict=True):
        if len(vector) != expected:
            raise ShapeError(
                f"In {rows.name}, the row with key {key.decode()!r} has {(len(vector) - 4) // number.itemsize} numbers "
                f"where the first has {rows.width}; drop or mend that row."
            )
    whole = np.frombuffer(b"".join(vectors), np.uint8).reshape(len(vectors), expected)
    return whole[:, 4:].copy().view(number).astype(number.newbyteorder("="))


def open_postgresql(address: StoreURI) -> PostgresqlRows:
    """The column at an address, checked but not yet read.

    Raises:
        StoreError: if the server, the table or a fit key is not there, or the column is not of vectors.
        UnknownNameError: if the table has no such column.
        DataError: if no row has a vector.
    """
    with contextlib.closing(connect(address)) as connection, explain_errors(address, "looking at the table"):
        number, schema, name = find_table(connection, address)
        columns = dict(
            connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                [number],
            ).fetchall()
        )
        column = choose_column(columns, address)
        key = choose_key(connection, address, number, columns)
        written = columns[column].partition("(")[0]
        table = Table(number, (schema, name), column, key, written.rpartition(".")[2], written, columns[key])
        names = {"column": column, "table": table.place}
        query = compose("SELECT count({column}), count(*) - count({column}) FROM {table}", **names)
        rows, without = connection.execute(query).fetchone()
        if not rows:
            raise DataError(f"{address.shown} has no row with a vector; check what wrote it.")
        query = "COPY (SELECT {column} FROM {table} WHERE {column} IS NOT NULL LIMIT 1) TO STDOUT (FORMAT BINARY)"
        ((first,),) = copy_rows(connection, compose(query, **names))
        metric = index_metric(connection, table)
    notes = (f"{plural(without, 'row')} of {address.shown} without a vector stayed without one.",) if without else ()
    width = (len(first) - 4) // NUMBERS[table.kind].itemsize
    return PostgresqlRows(address, table, int(rows), width, metric, notes)


def find_table(connection: Any, address: StoreURI) -> tuple[int, str, str]:
    """Number, schema and name of the table: ``name`` or ``schema.name``, looked up as the server would."""
    assert address.table is not None
    schema, dot, name = address.table.partition(".")
    candidates = [(None, address.table), *([(schema, name)] if dot else [])]  # a name may have a dot in it
    for place, candidate in candidates:
        row = connection.execute(
            "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relname = %s AND c.relkind IN ('r', 'p') AND "
            "(n.nspname = %s OR (%s::text IS NULL AND pg_table_is_visible(c.oid)))",
            [candidate, place, place],
        ).fetchone()
        if row is not None:
            return int(row[0]), str(row[1]), str(row[2])
    tables = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    ).fetchall()
    raise UnknownNameError.of("table in that database", address.table, [str(known) for (known,) in tables])


def choose_column(columns: dict[str, str], address: StoreURI) -> str:
    """The column of vectors: the one named, or the only one."""
    of_vectors = [name for name, kind in columns.items() if kind.partition("(")[0].rpartition(".")[2] in NUMBERS]
    if address.column is not None:
        if address.column not in columns:
            raise UnknownNameError.of(f"column in {address.shown}", address.column, columns)
        if address.column not in of_vectors:
            raise StoreError(
                f"The column {address.column!r} of {address.shown} has type {columns[address.column]}, but vectors are "
                f"vector or halfvec of pgvector; cast it, or name another: {', '.join(of_vectors) or '(none)'}."
            )
        return address.column
    of_vectors = [name for name in of_vectors if not GROWING.fullmatch(name)]
    if len(of_vectors) != 1:
        has = f"several columns of vectors ({', '.join(of_vectors)})" if of_vectors else "no column of vectors"
        raise StoreError(f"{address.shown} has {has}; name one with ?column=NAME in the address (or --column).")
    return of_vectors[0]


def choose_key(connection: Any, address: StoreURI, table: int, columns: dict[str, str]) -> str:
    """The column that tells rows apart: the one named, if it does, or the primary key."""
    unique = connection.execute(
        "SELECT a.attname, i.indisprimary, a.attnotnull FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
        "WHERE i.indrelid = %s AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL",
        [table],
    ).fetchall()
    if address.key is None:
        for column, primary, _ in unique:
            if primary:
                return str(column)
        raise StoreError(
            f"{address.shown} has no primary key of one column, and rows must be told apart; name a unique column with "
            "?key=NAME in the address (or --key)."
        )
    if address.key not in columns:
        raise UnknownNameError.of(f"column in {address.shown}", address.key, columns)
    if not any(column == address.key and never_null for column, _, never_null in unique):
        raise StoreError(
            f"The key {address.key!r} of {address.shown} is not known to be unique and never null; make it the primary "
            "key, or name a column that has a unique index and is NOT NULL."
        )
    return address.key


def index_metric(connection: Any, table: Table) -> str | None:
    """How an index over the column compares, if there is one: the class of its operators says so."""
    row = connection.execute(
        "SELECT o.opcname FROM pg_index i JOIN pg_opclass o ON o.oid = i.indclass[0] "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
        "WHERE i.indrelid = %s AND a.attname = %s",
        [table.number, table.column],
    ).fetchone()
    return None if row is None else METRICS.get(str(row[0]).split("_")[1] if "_" in str(row[0]) else "")


def find_type(connection: Any, name: str) -> str:
    """How the server writes a type of vectors, which it may not have."""
    if name not in NUMBERS:
        raise UnknownNameError.of("type of vectors", name, NUMBERS)
    row = connection.execute(
        "SELECT format_type(oid, NULL) FROM pg_type WHERE typname = %s ORDER BY pg_type_is_visible(oid) DESC", [name]
    ).fetchone()
    if row is None:
        version = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        has = f"its pgvector is {version[0]}" if version else "it has no pgvector"
        raise StoreError(
            f"The type {name} was asked for, but this server does not have it ({has}; halfvec came with 0.7.0); leave "
            "the type out, or update the extension."
        )
    return str(row[0])


def encode_rows(keys: tuple[bytes, ...], vectors: NDArray[Any], dtype: np.dtype[Any], name: str) -> bytes:
    """Rows of a COPY in the binary format: two fields each, a key as it came and a vector."""
    number = dtype.newbyteorder(">")
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(vectors.astype(number))
    if dtype == np.float16 and not np.isfinite(numbers).all():
        raise DataError(
            f"Translated, vectors of {name} have numbers beyond 65,504, the largest of halfvec; use vector."
        )
    size = 4 + numbers.shape[1] * number.itemsize
    head = struct.pack(">ihH", size, numbers.shape[1], 0)
    parts = [SIGNATURE]
    for key, row in zip(keys, numbers, strict=True):
        parts += [struct.pack(">hi", 2, len(key)), key, head, row.tobytes()]
    return b"".join([*parts, TRAILER])
