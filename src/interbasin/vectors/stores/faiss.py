"""FAISS indexes (``faiss://FILE``): rebuilt from translated vectors, or wrapped so that queries are translated instead.

An index can be rebuilt if it holds its vectors as they were given: flat, IVF over flat, and HNSW over flat, with ids of
their own or without. FAISS keeps an index in memory, so here the output is as large as memory allows, and a run that is
stopped starts anew.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FileError, StoreError
from interbasin.extras import import_extra
from interbasin.outcome.hashes import narrowest_mode
from interbasin.storage import new_file
from interbasin.vectors.files.base import Piece, file_fingerprint
from interbasin.vectors.stores.uri import StoreURI

ROWS_PER_CELL = 256  # as many as FAISS itself trains a cell of an IVF index on
FARTHEST = float(np.finfo(np.float32).max) / 8  # squared length: the squares of distances are four times as large
REBUILT = "IndexFlat, IndexIVFFlat and IndexHNSWFlat, also inside an IndexIDMap"


class FaissRows:
    """The vectors of an index, in the order in which they were added, or cell by cell where it is an IVF.

    Attributes:
        inner: The index, or what a map of ids has inside.
        ids: Those of the map; None where there is none.
    """

    dtype: np.dtype[Any] = np.dtype(np.float32)
    notes: tuple[str, ...] = ()

    def __init__(self, path: Path, index: Any, faiss: Any) -> None:
        self.path, self.index, self.name, self.faiss = path, index, f"faiss://{path}", faiss
        self.rows, self.width = int(index.ntotal), int(index.d)
        metrics = {faiss.METRIC_INNER_PRODUCT: "inner product", faiss.METRIC_L2: "l2"}
        self.metric: str | None = metrics.get(index.metric_type)
        self.inner, self.ids = faiss.downcast_index(index), None
        if isinstance(self.inner, faiss.IndexIDMap | faiss.IndexIDMap2):
            self.inner, self.ids = faiss.downcast_index(self.inner.index), faiss.vector_to_array(self.inner.id_map)

    def fingerprint(self) -> dict[str, Any]:
        return file_fingerprint(self.path)

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        if isinstance(self.inner, self.faiss.IndexIVFFlat):
            yield from self._cell_pieces(rows_per_batch)
            return
        for first in range(start, self.rows, rows_per_batch):
            count = min(rows_per_batch, self.rows - first)
            ids = None if self.ids is None else self.ids[first : first + count]
            yield Piece(self.inner.reconstruct_n(first, count), ids)

    def _cell_pieces(self, rows_per_batch: int) -> Iterator[Piece]:
        """Rows of an IVF, cell by cell; a cell knows the place of each row, and so its id."""
        index, lists = self.inner, self.inner.invlists
        vectors: list[NDArray[Any]] = []
        ids: list[NDArray[Any]] = []
        waiting = 0
        for cell in range(index.nlist):
            count = lists.list_size(cell)
            if not count:
                continue
            codes = self.faiss.rev_swig_ptr(lists.get_codes(cell), count * index.code_size)
            vectors.append(codes.view(np.float32).reshape(count, index.d).copy())
            places = self.faiss.rev_swig_ptr(lists.get_ids(cell), count).copy()
            ids.append(places if self.ids is None else self.ids[places])
            waiting += count
            while waiting >= rows_per_batch:
                rows, names = np.concatenate(vectors), np.concatenate(ids)
                yield Piece(rows[:rows_per_batch], names[:rows_per_batch])
                vectors, ids = [rows[rows_per_batch:]], [names[rows_per_batch:]]
                waiting -= rows_per_batch
        if waiting:
            yield Piece(np.concatenate(vectors), np.concatenate(ids))


def open_faiss(address: StoreURI) -> FaissRows:
    """The index in a file.

    Raises:
        FileError: if there is none, or it is no index.
        DataError: if it is empty.
    """
    faiss = import_extra("faiss", f"Reading {address.shown}", "vectors")
    if not address.path.is_file():
        fault = "that is a folder" if address.path.is_dir() else "there is no such file"
        raise FileError(f"Vectors were to be read from {address.shown}, but {fault}; check the path.")
    try:
        with _bounded_by(address.path.stat().st_size, faiss):
            index = faiss.read_index(str(address.path))
    except (RuntimeError, MemoryError, OSError) as error:
        raise StoreError(
            f"{address.path} could not be read as a FAISS index ({_reason(error)}); write it with faiss.write_index."
        ) from error
    if not index.ntotal:
        raise DataError(f"{address.shown} holds no vectors; check what wrote it.")
    rows = FaissRows(address.path, index, faiss)
    mismatch = _mismatch_in(rows)
    if mismatch is not None:
        raise StoreError(f"{address.path} is damaged: {mismatch}; copy it again, or write it with faiss.write_index.")
    return rows


@contextlib.contextmanager
def _bounded_by(size: int, faiss: Any) -> Iterator[None]:
    """No array of an index that is read meanwhile may be larger than its file; FAISS takes the memory first."""
    set_limit = getattr(faiss, "set_deserialization_vector_byte_limit", None)
    if set_limit is None:  # of an older version
        yield
        return
    before = faiss.get_deserialization_vector_byte_limit()
    set_limit(size)
    try:
        yield
    finally:
        set_limit(before)


def _mismatch_in(rows: FaissRows) -> str | None:
    """What of an index does not fit together, so that reading it would end in other memory; None if all does."""
    faiss, inner = rows.faiss, rows.inner
    if rows.ids is not None and not len(rows.ids) == rows.rows == inner.ntotal:
        return f"it promises {rows.rows} vectors, and has {len(rows.ids)} ids for {inner.ntotal}"
    if (inner.metric_type, inner.d) != (rows.index.metric_type, rows.width):
        return "its map of ids and what is inside differ in metric or width"
    if isinstance(inner, faiss.IndexIVFFlat):
        lists = inner.invlists
        filled = [cell for cell in range(lists.nlist) if lists.list_size(cell)]
        places = [faiss.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell)) for cell in filled]
        count = sum(map(len, places))
        if count != rows.rows or lists.nlist != inner.nlist:
            return (
                f"it promises {rows.rows} vectors in {inner.nlist} cells, and has {count} in {lists.nlist} (of NaN and "
                "infinity no cell is the nearest)"
            )
        if inner.code_size != 4 * inner.d or lists.code_size != inner.code_size:
            return f"its vectors have {inner.d} numbers and {inner.code_size} bytes, and its cells {lists.code_size}"
        if rows.ids is not None and any(part.min() < 0 or part.max() >= rows.rows for part in places):
            return "its cells name vectors that are not there"
        return None
    flat = faiss.downcast_index(inner.storage) if isinstance(inner, faiss.IndexHNSWFlat) else inner
    if isinstance(flat, faiss.IndexFlat):
        size = flat.codes.size()
        if (flat.ntotal, flat.d) != (rows.rows, rows.width) or size != 4 * rows.rows * rows.width:
            return f"it promises {rows.rows} vectors of {rows.width} numbers, and has {size} bytes for them"
    return None


def refuse_what_cannot_be_rebuilt(rows: FaissRows) -> None:
    """Raise a `StoreError` that names the kind of an index which does not hold its vectors as they were given."""
    # Kinds derived from IVF over flat pack their codes differently.
    if isinstance(rows.inner, rows.faiss.IndexFlat | rows.faiss.IndexHNSWFlat) or (
        type(rows.inner) is rows.faiss.IndexIVFFlat
    ):
        return
    raise StoreError(
        f"{rows.name} is an {type(rows.inner).__name__}, which cannot be rebuilt (only {REBUILT} can); translate what "
        "it was made from, or wrap it with wrap=True (--wrap) and a translator from the new space to the old."
    )


class FaissSink:
    """A new index of the same kind and settings; see `interbasin.vectors.stores.opening.Sink`.

    Args:
        destination, width: The file, and the width of the translated vectors.
        rows: The index that it is made like.
        refuse_what_is_in_the_way: Raises what stands at the destination and may not be replaced.
    """

    rows = 0
    rows_per_batch: int | None = None
    mark = None
    keeps = False  # nothing of a run that is stopped

    def __init__(
        self, destination: Path, rows: FaissRows, width: int, refuse_what_is_in_the_way: Callable[[], object]
    ) -> None:
        refuse_what_cannot_be_rebuilt(rows)
        self._refuse_what_is_in_the_way, self._faiss = refuse_what_is_in_the_way, rows.faiss
        self._destination, self._old, self._width, self.name = destination, rows, width, f"faiss://{destination}"
        self.notes: tuple[str, ...] = ()
        self._waiting: list[Piece] = []
        self._new: Any = None

    def start(self, rows_per_batch: int) -> None:
        self.rows_per_batch = rows_per_batch
        faiss, old = self._faiss, self._old.inner
        if isinstance(old, faiss.IndexIVFFlat):
            self._train_rows = min(self._old.rows, ROWS_PER_CELL * old.nlist)
            old_quantizer = faiss.downcast_index(old.quantizer)
            quantizer = self._plain_like(old_quantizer)
            new = faiss.IndexIVFFlat(quantizer, self._width, old.nlist, old.metric_type)
            if isinstance(quantizer, faiss.IndexHNSWFlat):
                new.quantizer_trains_alone = chr(2)  # by k-means over a flat index, as FAISS itself does it
            new.own_fields, new.nprobe = True, old.nprobe
            quantizer.this.disown()
            new.cp.seed, new.cp.min_points_per_centroid = 0, 1
            self.notes = (
                f"The {old.nlist} cells were trained anew on {self._train_rows} translated vectors; check nprobe.",
            )
            if not isinstance(old_quantizer, faiss.IndexFlat | faiss.IndexHNSWFlat):
                self.notes += (
                    f"The cells were found by an {type(old_quantizer).__name__} and are now by an IndexFlat, which is "
                    "exact and may be slower.",
                )
        else:
            new = self._plain_like(old)
        new.metric_arg = old.metric_arg
        if self._old.ids is not None:
            outer = faiss.downcast_index(self._old.index)
            new = (faiss.IndexIDMap2 if isinstance(outer, faiss.IndexIDMap2) else faiss.IndexIDMap)(new)
            new.metric_arg = outer.metric_arg
        self._new = new

    def _plain_like(self, old: Any) -> Any:
        """An empty HNSW with the settings of the old one, or a flat index; of a metric with a parameter, with that."""
        faiss = self._faiss
        if isinstance(old, faiss.IndexHNSWFlat):
            new = faiss.IndexHNSWFlat(self._width, old.hnsw.nb_neighbors(1), old.metric_type)
            new.hnsw.efConstruction, new.hnsw.efSearch = old.hnsw.efConstruction, old.hnsw.efSearch
            new.storage.metric_arg = old.storage.metric_arg
        else:
            new = faiss.IndexFlat(self._width, old.metric_type)
        new.metric_arg = old.metric_arg
        return new

    def append(self, piece: Piece) -> None:
        self.rows += len(piece.vectors)
        self._waiting.append(piece)
        if self._new.is_trained:
            self._add()
            return
        self._require_comparable(piece)
        if self.rows == self._old.rows:
            # All of them, because IVF gives its rows cell by cell: the first ones would be of few cells.
            order = np.random.default_rng(0).permutation(self.rows)
            self._new.train(np.concatenate([waiting.vectors for waiting in self._waiting])[order[: self._train_rows]])
            self._add()

    def _require_comparable(self, piece: Piece) -> None:
        """Refuse vectors for which no cell is the nearest: training on them ends the whole process."""
        with np.errstate(over="ignore"):
            squares = np.einsum("ij,ij->i", piece.vectors, piece.vectors, dtype=np.float32)
        far = np.flatnonzero(~(squares < FARTHEST))
        if len(far):
            row = self.rows - len(piece.vectors) + int(far[0])
            raise DataError(
                f"Translated, row {row} (counted from 0) of {self._old.name} is too long for FAISS to tell which cell "
                "is the nearest, or holds NaN; mend or drop such rows, or give an index without cells (Flat, HNSW)."
            )

    def _add(self) -> None:
        for piece in self._waiting:
            vectors = np.ascontiguousarray(piece.vectors, dtype=np.float32)
            if piece.rest is None:
                self._new.add(vectors)
            else:
                self._new.add_with_ids(vectors, np.ascontiguousarray(piece.rest, dtype=np.int64))
        self._waiting = []

    def finish(self) -> None:
        write_index(self._new, self._destination, self._old.path, self._faiss, self._refuse_what_is_in_the_way)

    def close(self) -> None:
        self._new = None


def write_index(
    index: Any, destination: Path, source: Path, faiss: Any, refuse_what_is_in_the_way: Callable[[], object]
) -> None:
    """Write an index to a new file, unless something is in its way by then, for those who may read the source."""
    mode = narrowest_mode([source])
    with new_file(destination, refuse=refuse_what_is_in_the_way, mode=lambda: mode) as temporary:
        try:
            # Through a file of ours: FAISS prints that its own could not be closed, on a full disk, and goes on.
            with temporary.open("wb") as file:
                faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
        except RuntimeError as error:
            raise FileError(
                f"Could not write {destination} ({_reason(error)}); is there room on the disk and leave to write there?"
            ) from error


def _reason(error: BaseException) -> str:
    """What FAISS says, without the place in its own source that it begins with."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", " ".join(str(error).split()))[:200].rstrip(".")
