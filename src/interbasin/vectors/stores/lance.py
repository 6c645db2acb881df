"""Lance tables (``lance://FOLDER/TABLE[#COLUMN]``), read and written through lancedb.

A table is a folder of files that name one another relative to it. The new one grows in a folder beside its place, by
one version per batch. A version is there whole or not at all, so after a kill the table itself tells how far it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from interbasin.errors import DataError, FileError, StoreError, UnknownNameError
from interbasin.extras import import_extra
from interbasin.storage.journal import Unfinished
from interbasin.vectors.files.base import Piece
from interbasin.vectors.files.tables import Selection, list_array, select, table_pieces, to_matrix
from interbasin.vectors.stores.uri import StoreURI

TABLE = "table"  # the name of a table that grows
MAGIC = b"LANC"  # the end of every file of vectors
METRICS = {"l2": "l2", "cosine": "cosine", "dot": "inner product"}


@dataclass(frozen=True)
class LanceRows:
    """Rows of a Lance table, in the order in which it keeps them, at the version it had when it was opened."""

    address: StoreURI
    rows: int
    width: int
    selection: Selection
    schema: pa.Schema
    version: int
    metric: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.address.shown

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.selection.stored

    def fingerprint(self) -> dict[str, Any]:
        return {
            "table": self.address.table,
            "version": self.version,
            "rows": self.rows,
            "columns": list(self.selection.columns),
        }

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        if start == self.rows:
            return
        with explain_errors(self.address):
            opened = open_table(self.address)
            opened.checkout(self.version)
            batches = opened.search().limit(self.rows - start).offset(start).to_batches(rows_per_batch)
            yield from table_pieces(
                batches, self.selection, self.width, self.rows, rows_per_batch, start, where=self.name
            )


@contextlib.contextmanager
def explain_errors(address: StoreURI) -> Iterator[None]:
    """Around calls of the library: what it raises becomes one sentence."""
    try:
        yield
    # What the library raises for what its own core refuses.
    except (RuntimeError, OSError, ValueError) as error:
        if type(error).__module__ != "builtins":
            raise
        # Without the place in the library's own source.
        reason = re.sub(r", \S+\.rs:\d+:\d+", "", " ".join(str(error).split()))[:300].rstrip(".")
        raise StoreError(
            f"{address.shown} could not be read or written ({reason}); check that it is whole and yours to use."
        ) from error


def open_lance(address: StoreURI) -> LanceRows:
    """The table at an address.

    Raises:
        StoreError: if there is none, or it cannot be read.
        DataError: if it has no rows or no vectors.
    """
    _refuse_remote(address)
    with explain_errors(address):
        opened = open_table(address)
        schema, version, rows = opened.schema, int(opened.version), int(opened.count_rows())
        selection = select(schema, address.column, address.shown)
        if rows == 0:
            raise DataError(f"{address.shown} has no rows; check what wrote it.")
        width = selection.width
        if width is None:
            first = next(iter(opened.search().select(list(selection.columns)).limit(1).to_batches(1)))
            width = to_matrix(first, selection, None, 0, address.shown).shape[1]
        indexes = [index.name for index in opened.list_indices() if list(index.columns) == [*selection.columns[:1]]]
        # A table that has an index says how it compares.
        kind = getattr(opened.index_stats(indexes[0]), "distance_type", "") if indexes else ""
        metric = METRICS.get(str(kind).lower())
    note = f"{address.shown} has an index over its vectors; the new table has none yet: build it when you need it."
    return LanceRows(address, rows, width, selection, schema, version, metric, () if metric is None else (note,))


def open_table(address: StoreURI) -> Any:
    """The table, as the library has it."""
    lancedb = import_extra("lancedb", f"Reading {address.shown}", "vectors")
    folder = address.path / f"{address.table}.lance"
    if not folder.is_dir():
        if not address.path.is_dir():
            raise StoreError(
                f"Vectors were to be read from {address.shown}, but there is no folder {address.path}; check the path."
            )
        tables = [path.name.removesuffix(".lance") for path in address.path.glob("*.lance")]
        raise UnknownNameError.of(f"table in {address.path}", address.table, tables)
    return lancedb.connect(str(address.path)).open_table(address.table)


def _refuse_remote(address: StoreURI) -> None:
    if "://" in address.shown.removeprefix("lance://"):
        raise FileError(f"Lance tables are read from local folders, found {address.shown}; copy the table here first.")


def refuse_table_in_the_way(output: StoreURI, source: StoreURI, *, force: bool) -> None:
    """Raise a `FileError` if there is something already, or it is the source."""
    _refuse_remote(output)
    folder = output.path / f"{output.table}.lance"
    if folder.exists():
        if source.kind == "lance" and folder.samefile(source.path / f"{source.table}.lance"):
            raise FileError(
                f"The output {output.shown} is the source itself, which is never written to; give the new table a name "
                "of its own."
            )
        if not force:
            raise FileError(
                f"{output.shown} exists already and nothing is overwritten unasked; choose another name, or ask for it "
                "with force=True (--force)."
            )
        if not (folder / "_versions").is_dir():
            raise FileError(f"Asked to replace {folder}, but that is no Lance table; choose another name.")


class LanceSink:
    """A Lance table that grows by one version per batch; see `interbasin.vectors.stores.opening.Sink`."""

    mark = None
    notes: tuple[str, ...] = ()

    def __init__(self, unfinished: Unfinished, name: str, schema: pa.Schema, column: str) -> None:
        self._unfinished, self.name, self._schema, self._column = unfinished, name, schema, column
        unfinished.require_kept({})
        self._address = StoreURI("lance", name, unfinished.folder, TABLE)
        self.rows_per_batch: int | None = unfinished.done.get("rows_per_batch")
        self.rows = 0
        self._table: Any = None
        # Files that need no look: what is there now was compared with its sum, or belongs to a batch that is forgotten.
        self._checked = set((unfinished.folder / f"{TABLE}.lance").rglob("*.lance"))
        with explain_errors(self._address):
            database = import_extra("lancedb", f"Writing {name}", "vectors").connect(str(unfinished.folder))
            if unfinished.done:
                self._table, self.rows = database.open_table(TABLE), int(unfinished.done["rows"])
                # The last batch may have been written without the word that it was; then it is written again.
                if int(self._table.count_rows()) != self.rows:
                    self._table.checkout(unfinished.done["version"])
                    self._table.restore()
            self._database = database

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch
        if self._table is None:
            # One is there where a run was killed before it could save. Lance warns of replacing what is not there.
            mode = "overwrite" if (self._unfinished.folder / f"{TABLE}.lance").exists() else "create"
            with explain_errors(self._address):
                self._table = self._database.create_table(TABLE, schema=self._schema, mode=mode)
            self._save()

    def append(self, piece: Piece) -> None:
        assert self._table is not None
        field = self._schema.field(self._column)
        lists = list_array(piece.vectors, field)
        if piece.rest is None:
            table = pa.table({self._column: lists}, schema=self._schema)
        else:
            place = self._schema.get_field_index(self._column)
            table = piece.rest.add_column(place, field, lists).cast(self._schema)
        try:
            with explain_errors(self._address), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of vectors that are not finite, which were asked to be kept
                self._table.add(table)
            self.rows += len(table)
            self._save()
        except OSError as error:
            raise self._unfinished.cannot_write(error) from error

    def _save(self) -> None:
        assert self._table is not None
        done = {"rows": self.rows, "rows_per_batch": self.rows_per_batch, "version": int(self._table.version)}
        # Its files are the library's own; these it writes once, under a new name each time.
        files = (self._unfinished.folder / f"{TABLE}.lance").rglob("*")
        written_once = [path for path in files if path.suffix in (".lance", ".manifest", ".txn") and path.is_file()]
        for path in written_once:
            if path.suffix == ".lance" and path not in self._checked:
                self._require_end(path)
                self._checked.add(path)
        self._unfinished.save(done, os.sync, written_once=written_once)

    def _require_end(self, path: Path) -> None:
        """Refuse a file that stops before its end: Lance goes on where the system has refused to write one."""
        with path.open("rb") as file:
            file.seek(-min(len(MAGIC), path.stat().st_size), os.SEEK_END)
            if file.read() != MAGIC:
                raise FileError(
                    f"Could not write {self.name}: a file of the table is cut off; is there room on the disk and leave "
                    "to write there?"
                )

    def finish(self) -> None:
        self._table = None
        self._unfinished.finish(f"{TABLE}.lance")

    def close(self) -> None:
        self._table = None
        self._unfinished.close()
