"""One door to all stores: what a source and an output are, which source a VECTORS string means, and which output fits.

`Rows` are read in pieces, in order, and a `Sink` takes them. A sink knows how many rows it has from an earlier run
that was stopped, and puts the whole in its place when it is complete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from interbasin.errors import DataError, FileError
from interbasin.outcome.hashes import narrowest_mode
from interbasin.storage import refuse_file_in_the_way
from interbasin.storage.journal import Unfinished
from interbasin.text import list_names
from interbasin.vectors.files.base import Piece, Vectors, file_fingerprint, open_vectors
from interbasin.vectors.files.npz import ArraySink, StoredReader, StreamedReader
from interbasin.vectors.stores.same_work import check_same_work
from interbasin.vectors.stores.uri import FILES, StoreURI

if TYPE_CHECKING:
    import pyarrow as pa

    from interbasin.vectors.files.tables import Selection


class Rows(Protocol):
    """A store that is read.

    Attributes:
        name: What to call it in messages and reports; never with a password in it.
        rows: How many there are.
        width: How many numbers each has.
        dtype: Of the numbers as they are stored.
        metric: How an index over them compares ("cosine", "inner product", "l2"); None where the store does not say.
        notes: What a user should know about how it is read.
    """

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def metric(self) -> str | None: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def fingerprint(self) -> Mapping[str, Any]:
        """What tells this store, in its present state, from another; JSON-able."""
        ...

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        """Exactly ``rows_per_batch`` rows per piece, except the last, from row ``start`` on.

        ``mark`` is what the sink kept of the last row it has, for stores whose rows have no numbers.
        """
        ...


class Sink(Protocol):
    """A store that is written.

    Attributes:
        name: What to call it in messages and reports.
        rows: How many rows it has already.
        rows_per_batch: The batches in which they were written; None if there are none. Only the same batches give the
            same bytes.
        mark: Where the last of them stood, for stores whose rows have no numbers.
        notes: What a user should know about what was written; complete when it is finished.
    """

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def rows_per_batch(self) -> int | None: ...
    @property
    def mark(self) -> Any: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def start(self, rows_per_batch: int) -> None: ...
    def append(self, piece: Piece) -> None: ...
    def finish(self) -> None:
        """Put what was written into its place, in one step."""
        ...

    def close(self) -> None:
        """Let go of it. What was written and not finished stays for a later run."""
        ...


class FileRows:
    """Rows of a file; of a table, with its other columns. See `Rows`.

    Attributes:
        schema: Of the table; None if the file holds arrays.
        selection: Which of its columns are the vectors.
        compression: Path of a column of the table -> its codec.

    Raises:
        DataError: if a table has several columns of one name.
    """

    metric: str | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.name, self.rows, self.width = vectors, str(vectors.path), vectors.rows, vectors.width
        self.dtype = vectors.dtype if vectors.stored.kind == "f" else vectors.stored
        self.schema: pa.Schema | None = None
        self.selection: Selection | None = None
        self.compression: Mapping[str, str] = {}
        if vectors.format == "parquet":
            table: Any = vectors.reader
            self.schema, self.selection, self.compression = table.schema, table.selection, table.compression
            names = table.schema.names
            if len(set(names)) < len(names):
                twice = ", ".join(sorted({name for name in names if names.count(name) > 1}))
                raise DataError(f"{self.name} has several columns named {twice}; rename all but one of them.")

    def fingerprint(self) -> dict[str, Any]:
        chosen = {"column": self.vectors.column} if self.selection is None else {"columns": [*self.selection.columns]}
        return {**file_fingerprint(self.vectors.path), **chosen}

    def check_bytes(self) -> None:
        """Raise a `FileError` if the file is not what its checksum says; for work that does not read it in one go."""
        if isinstance(self.vectors.reader, StoredReader):
            self.vectors.reader.check_bytes()

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        if self.schema is None:
            return map(Piece, self.vectors.batches(rows_per_batch, start))
        table: Any = self.vectors.reader
        pieces: Iterator[Piece] = table.pieces(rows_per_batch, start, self.schema.names)
        return self.vectors.unchanged(pieces)


def open_rows(address: StoreURI) -> Rows:
    """The store at an address, checked but not yet read.

    Raises:
        FileError: if it is missing or not what it should be.
        MissingExtraError: if a library for it is not installed.
    """
    if address.kind in FILES:
        return FileRows(open_vectors(address.path, column=address.column))
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
    """The ``output`` of ``rows``, which are at ``source``, when they are translated to another ``width``.

    Args:
        fingerprint: What tells the translator from another.
        scale, bad_rows, in_place: See `translate_vectors`.
        force: Replace what is there, and what an unfinished run of other work left.

    Raises:
        FileError: if something is in the way, or the output cannot hold what comes from this source.
    """
    for kind in ("faiss", "postgresql"):
        if (output.kind == kind) != (source.kind == kind):
            raise FileError(f"What is in {_noun(source)} cannot be written to {_noun(output)}; {_remedy(source)}")
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
    dtype = output_dtype(rows.dtype)
    sink, options = _sink_that_grows(output, rows, width, dtype)
    layout = {"kind": output.kind, "column": output.column, "dtype": str(dtype), "scale": scale, "bad_rows": bad_rows}
    work = {"source": dict(rows.fingerprint()), "translator": dict(fingerprint), "layout": layout}
    # Opened last: it claims the place.
    unfinished = Unfinished(
        destination,
        work,
        refuse_what_is_in_the_way=refuse,
        check_same_work=check_same_work,
        force=force,
        mode=narrowest_mode([source.path]),
    )
    try:
        return sink(unfinished, **options)  # type: ignore[no-any-return]
    except BaseException:
        unfinished.close()
        raise


def _sink_that_grows(output: StoreURI, rows: Any, width: int, dtype: np.dtype[Any]) -> tuple[Any, dict[str, Any]]:
    """The class that writes a file or a Lance table, and its options, of rows that come from such a one."""
    if output.kind in ("npy", "npz"):
        others = (
            [] if rows.schema is None else [name for name in rows.schema.names if name not in rows.selection.columns]
        )
        if others:
            raise FileError(
                f"{rows.name} has columns beside its vectors ({list_names(others, 8)}), which a .{output.kind} file "
                "has no place for; write to a .parquet file or a Lance table."
            )
        options: dict[str, Any] = {"rows": rows.rows, "width": width, "dtype": dtype}
        if output.kind == "npz":
            options["member"] = output.column or "x"
            if isinstance(rows, FileRows) and rows.vectors.format == "npz":
                options["member"], options["beside"] = rows.vectors.column, rows.vectors.path
                options["compressed"] = isinstance(rows.vectors.reader, StreamedReader)
        return ArraySink, options
    from interbasin.vectors.files.tables import translated_schema

    schema, column = translated_schema(rows.schema, rows.selection, width, dtype)
    if output.kind == "lance":
        from interbasin.vectors.stores.lance import LanceSink

        return LanceSink, {"name": output.shown, "schema": schema, "column": column}
    from interbasin.vectors.files.parquet import ParquetSink

    compression = rows.compression if isinstance(rows, FileRows) else {}
    old = "" if rows.selection is None else rows.selection.columns[0]
    codecs = [codec for path, codec in compression.items() if path == old or path.startswith(f"{old}.")]
    codec = codecs[0] if codecs else "UNCOMPRESSED"
    options = {"schema": schema, "column": column, "width": width, "dtype": dtype, "rows": rows.rows}
    return ParquetSink, {**options, "codec": codec, "compression": compression}


def refuse_unless_free(path: Path, source: Path | None, *, force: bool, in_place: bool) -> None:
    """Raise a `FileError` if something is at ``path``: the source, unless ``in_place``; a file, unless ``force``."""
    if source is not None and path.exists() and path.samefile(source):
        if not in_place:
            raise FileError(
                f"The output {path} is the source itself, which is never replaced unasked; choose another name, or ask "
                "for it with in_place=True (--in-place)."
            )
        force = True
    # Vectors carry no mark of who wrote them: whoever says force names the very file.
    refuse_file_in_the_way(path, force=force, ours=lambda file: True)


def output_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Floats keep their precision; whole numbers become float32."""
    return stored.newbyteorder("=") if stored in (np.float16, np.float32, np.float64) else np.dtype(np.float32)


def _noun(address: StoreURI) -> str:
    nouns = {"lance": "a Lance table", "faiss": "a FAISS index", "postgresql": "a PostgreSQL table"}
    return nouns.get(address.kind, f"a .{address.kind} file")


def _remedy(source: StoreURI) -> str:
    if source.kind == "faiss":
        return "give another faiss:// file as output."
    if source.kind == "postgresql":
        return "give a column or a table of the same database as output: postgresql:?table=TABLE&column=COLUMN."
    return "give a .npy, .npz or .parquet file or a lance:// table as output."
