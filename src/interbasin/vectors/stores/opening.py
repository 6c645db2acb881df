"""One door to all stores: which source a VECTORS string means, and which sink can take what comes from it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from interbasin.errors import FileError
from interbasin.storage.journal import Unfinished
from interbasin.vectors.files.opening import open_vectors
from interbasin.vectors.stores.npy import ArrayRows, refuse_unless_free
from interbasin.vectors.stores.rows import Rows, Sink, output_dtype
from interbasin.vectors.stores.uri import FILES, StoreURI

if TYPE_CHECKING:
    import pyarrow as pa


def open_rows(address: StoreURI) -> Rows:
    """The store at an address, checked but not yet read.

    Raises:
        FileError: if it is missing or not what it should be.
        MissingExtraError: if a library for it is not installed.
    """
    if address.kind in FILES:
        vectors = open_vectors(address.path, column=address.column)
        if vectors.format == "parquet":
            from interbasin.vectors.stores.parquet import ParquetRows

            return ParquetRows(vectors)
        return ArrayRows(vectors)
    if address.kind == "lance":
        from interbasin.vectors.stores.lance import open_lance

        return open_lance(address)
    if address.kind == "faiss":
        from interbasin.vectors.stores.faiss import open_faiss

        return open_faiss(address)
    from interbasin.vectors.stores.postgresql import open_postgresql

    return open_postgresql(address)


def open_sink(
    output: StoreURI,
    source: StoreURI,
    rows: Rows,
    width: int,
    fingerprint: Mapping[str, Any],
    *,
    scale: float | None = None,
    bad_rows: str = "refuse",
    force: bool = False,
    in_place: bool = False,
) -> Sink:
    """Where the translated rows of ``rows`` go.

    Args:
        output: Where they shall be.
        source: Where ``rows`` are.
        rows: What will be written.
        width: Of the rows that will be written.
        fingerprint: What tells the translator that makes them from another.
        scale: What they are multiplied by before.
        bad_rows: What becomes of rows that cannot be translated.
        force: Replace what is there, and what an unfinished run of other work left.
        in_place: The output may be the source itself (files).

    Raises:
        FileError: if something is in the way, or the output cannot hold what comes from this source.
    """
    dtype = output_dtype(rows.dtype)
    for kind in ("faiss", "postgresql"):
        if (output.kind == kind) != (source.kind == kind):
            raise FileError(f"What is in {_told(source)} cannot be written to {_told(output)}; {_instead(source)}")
    if output.kind == "postgresql":
        from interbasin.vectors.stores.postgresql import PostgresqlRows
        from interbasin.vectors.stores.postgresql_sink import PostgresqlSink

        assert isinstance(rows, PostgresqlRows)
        return PostgresqlSink(output, rows, width, dict(fingerprint), bad_rows=bad_rows, force=force)
    refuse: Callable[[], object]
    if output.kind == "lance":
        from interbasin.vectors.stores.lance import refuse_table_in_the_way

        destination = output.path / f"{output.table}.lance"
        refuse = functools.partial(refuse_table_in_the_way, output, source, force=force)
    else:
        destination = output.path
        same_kind = source.path if source.kind == output.kind else None
        refuse = functools.partial(refuse_unless_free, destination, same_kind, force=force, in_place=in_place)
    refuse()
    if output.kind == "faiss":
        from interbasin.vectors.stores.faiss import FaissRows, FaissSink

        assert isinstance(rows, FaissRows)
        return FaissSink(destination, rows, width, refuse)
    work = {
        "source": dict(rows.fingerprint()),
        "translator": dict(fingerprint),
        "layout": {
            "kind": output.kind,
            "column": output.column,
            "dtype": str(dtype),
            "scale": scale,
            "bad_rows": bad_rows,
        },
    }
    if output.kind in ("npy", "npz"):
        _refuse_lost_columns(output, rows)
        # Opened last: it claims the place.
        unfinished = Unfinished(destination, work, refuse_what_is_in_the_way=refuse, force=force)
        with _closed_if_it_fails(unfinished):
            return _array_sink(output, source, rows, width, dtype, unfinished)
    from interbasin.vectors.stores.columns import translated_schema

    schema, column = translated_schema(*_table(rows), width, dtype)
    if output.kind == "lance":
        from interbasin.vectors.stores import lance

        unfinished = Unfinished(destination, work, counts=lance.COUNTS, refuse_what_is_in_the_way=refuse, force=force)
        with _closed_if_it_fails(unfinished):
            return lance.LanceSink(unfinished, output.shown, schema, column)
    from interbasin.vectors.stores.parquet import COUNTS, ParquetRows, ParquetSink, compressions

    found: dict[str, str] = {}
    if isinstance(rows, ParquetRows):
        found = compressions(rows)
        name = rows.selection.columns[0]
        of_vectors = [how for path, how in found.items() if path == name or path.startswith(f"{name}.")]
        found = {"": of_vectors[0] if of_vectors else "UNCOMPRESSED", **found}
    unfinished = Unfinished(destination, work, counts=COUNTS, refuse_what_is_in_the_way=refuse, force=force)
    with _closed_if_it_fails(unfinished):
        return ParquetSink(unfinished, schema, column, width, dtype, rows.rows, found)


@contextlib.contextmanager
def _closed_if_it_fails(unfinished: Unfinished) -> Iterator[None]:
    """Around what takes a place that was claimed: a failure lets go of it."""
    try:
        yield
    except BaseException:
        unfinished.close()
        raise


def _array_sink(
    output: StoreURI, source: StoreURI, rows: Rows, width: int, dtype: np.dtype[Any], unfinished: Unfinished
) -> Sink:
    from interbasin.vectors.stores.npy import ArraySink

    if output.kind == "npy":
        return ArraySink(unfinished, rows.rows, width, dtype)
    member, compressed, beside = output.column or "x", False, None
    if isinstance(rows, ArrayRows) and rows.vectors.format == "npz":
        from interbasin.vectors.files.npz import StreamedReader

        member = rows.vectors.column or member
        compressed, beside = isinstance(rows.vectors.reader, StreamedReader), rows.vectors.path
    return ArraySink(unfinished, rows.rows, width, dtype, member=member, compressed=compressed, beside=beside)


def _table(rows: Rows) -> tuple[pa.Schema | None, Any]:
    return getattr(rows, "schema", None), getattr(rows, "selection", None)


def _refuse_lost_columns(output: StoreURI, rows: Rows) -> None:
    schema, selection = _table(rows)
    others = [name for name in schema.names if name not in selection.columns] if schema is not None else []
    if others:
        raise FileError(
            f"{rows.name} has columns beside its vectors "
            f"({', '.join(others[:8])}{', ...' if len(others) > 8 else ''}), which a .{output.kind} file has no place "
            "for; write to a .parquet file or a Lance table."
        )


def _told(address: StoreURI) -> str:
    names = {"lance": "a Lance table", "faiss": "a FAISS index", "postgresql": "a PostgreSQL table"}
    return names.get(address.kind, f"a .{address.kind} file")


def _instead(source: StoreURI) -> str:
    if source.kind == "faiss":
        return "give another faiss:// file as output."
    if source.kind == "postgresql":
        return "give a column or a table of the same database as output: postgresql:?table=TABLE&column=COLUMN."
    return "give a .npy, .npz or .parquet file or a lance:// table as output."
