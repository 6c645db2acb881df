"""A whole store translated into another, a batch at a time: what ``interbasin translate apply`` does.

While one piece is translated the next is read and the last is written.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError
from interbasin.jobs.translate.treatment import (
    FittedTranslator,
    Treatment,
    check_fits,
    norms_notes,
    translator_fingerprint,
)
from interbasin.outcome import Result
from interbasin.vectors.files import default_rows_per_batch
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.opening import FileRows, Rows, Sink, open_rows, open_sink, output_dtype
from interbasin.vectors.stores.uri import parse_uri

ENGINES = ("local", "ray")
BATCH_BYTES = 32 * 2**20  # of vectors that come in and go out together
BAD_ROWS = ("refuse", "keep")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Applied(Result):
    """What was translated. ``timings`` tell translating from finishing, which includes waiting for the disk.

    Attributes:
        source: The store that was read.
        output: The store that was written.
        rows: How many rows it has.
        resumed_at: The row at which this run began.
        source_width: How many numbers a row had.
        target_width: How many numbers a row has now.
        dtype: Of the numbers that were written.
        bad_rows: Kind -> how many rows of this run were of it and were kept as they are.
    """

    source: str
    output: str
    rows: int
    resumed_at: int
    source_width: int
    target_width: int
    dtype: str
    bad_rows: Mapping[str, int]

    job = "translate apply"
    headline = ("rows", "resumed_at")

    def summary(self) -> dict[str, Any]:
        """All of it, JSON-able."""
        return {
            "source": self.source,
            "output": self.output,
            "rows": self.rows,
            "resumed_at": self.resumed_at,
            "source_width": self.source_width,
            "target_width": self.target_width,
            "dtype": self.dtype,
            "bad_rows": dict(self.bad_rows),
            "seconds": self.timings["translate"],
            "seconds_finishing": self.timings["finish"],
            "notes": list(self.notes),
        }


def translate_vectors(
    translator: FittedTranslator,
    vectors: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    column: str | None = None,
    table: str | None = None,
    key: str | None = None,
    rows_per_batch: int | None = None,
    bad_rows: str = "refuse",
    scale: float | None = None,
    metric: str | None = None,
    engine: str = "local",
    wrap: bool = False,
    in_place: bool = False,
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Applied:
    """Translate all vectors of a store into another, with order, ids and other columns kept, and the source untouched.

    A run that was stopped goes on where it was when it is called again with the same arguments, except for FAISS
    indexes, and the result is the same.

    Args:
        translator: A fitted `Translator`.
        vectors: A ``.npy``, ``.npz`` or ``.parquet`` file; ``lance://FOLDER/TABLE[#COLUMN]``; ``faiss://FILE``;
            ``postgresql://USER@HOST/DATABASE?table=TABLE&column=COLUMN[&key=KEY]``.
        output: The same; for a PostgreSQL source ``postgresql:?table=TABLE&column=COLUMN``, in the same database.
        column: Which column has the vectors, where ``vectors`` does not say.
        table: Which table, likewise.
        key: PostgreSQL: the column that tells rows apart, by default the primary key.
        rows_per_batch: By default about 32 MiB; a batch is a row group of a Parquet output.
        bad_rows: ``"refuse"`` ends at a row of zeros, NaN or infinity and names it; ``"keep"`` passes such rows on.
        scale: For vectors of whole numbers: what each is multiplied by.
        metric: How the vectors are compared (``"cosine"``, ``"dot"``, ``"l2"``), where the store does not say.
        engine: ``"local"``, or ``"ray"`` to read and translate on a Ray cluster, every machine of which must reach the
            store.
        wrap: FAISS: touch no row; the new index translates queries, so ``translator`` goes from the new space to the
            old.
        in_place: Let the output be the source itself (files), which is replaced when all is written.
        force: Replace what is at ``output``, and start anew where an unfinished run was of other work.
        progress: Called with the rows that are done and all rows.

    Raises:
        InterbasinError: if something does not fit; see the classes. What was done is kept, if that is anything.

    Example:
        >>> import numpy as np
        >>> class Doubled:
        ...     source_width, target_width, carries_norms = 2, 4, True
        ...     def transform(self, x):
        ...         return np.concatenate([x, x], axis=1)
        >>> np.save("old.npy", np.arange(1.0, 7.0, dtype="float32").reshape(3, 2))
        >>> translate_vectors(Doubled(), "old.npy", "new.npy").rows
        3
        >>> np.load("new.npy")[1].tolist()
        [3.0, 4.0, 3.0, 4.0]
    """
    if engine not in ENGINES:
        raise UnknownNameError.of("engine", engine, ENGINES)
    source = parse_uri(os.fspath(vectors), column=column, table=table, key=key)
    destination = parse_uri(os.fspath(output))
    rows = open_rows(source)
    if wrap:
        from interbasin.jobs.translate.wrap_faiss import wrapped

        if source.kind != "faiss" or destination.kind != "faiss":
            raise FileError(
                f"Only a FAISS index can be wrapped, found {source.shown}; give faiss:// files, or translate the rows."
            )
        return wrapped(translator, rows, destination.path, source.path, force=force, in_place=in_place)
    pieces = None
    if engine == "ray":
        from interbasin.jobs.translate.on_ray import pieces_on_ray, require_ray

        require_ray(source)
        pieces = pieces_on_ray(source, rows)
    open_output = functools.partial(
        open_sink, destination, source, rows, scale=scale, bad_rows=bad_rows, force=force, in_place=in_place
    )
    return apply(
        translator,
        rows,
        open_output,
        rows_per_batch=rows_per_batch,
        bad_rows=bad_rows,
        scale=scale,
        metric=metric,
        progress=progress,
        pieces=pieces,
    )


def apply(
    translator: FittedTranslator,
    rows: Rows,
    open_output: Callable[[int, Mapping[str, Any]], Sink],
    *,
    rows_per_batch: int | None = None,
    bad_rows: str = "refuse",
    scale: float | None = None,
    metric: str | None = None,
    progress: Callable[[int, int], object] | None = None,
    pieces: Callable[[Treatment, int, int], Generator[Piece, None, None]] | None = None,
) -> Applied:
    """Translate all of a store into another.

    The sink goes on where an earlier run stopped. If this run is stopped, what it did is kept.

    Args:
        translator: The fitted map.
        rows: What to read.
        open_output: Gives what to write, of the new width and the translator's fingerprint, once all else is checked.
        rows_per_batch: By default about 32 MiB per batch; a run that goes on keeps the batches that it began with.
        bad_rows: ``"refuse"`` or ``"keep"``; see `Treatment`.
        scale: See `Treatment`.
        metric: How the vectors are compared, where the store does not say.
        progress: Called with the rows that are done and all rows.
        pieces: Another way of getting translated pieces, given how to treat them, the batch and the first row.

    Raises:
        ShapeError: if the widths do not fit.
        DataError: if the numbers cannot be translated; names the rows.
    """
    started = time.perf_counter()
    check_fits(translator, rows, scale)
    if bad_rows not in BAD_ROWS:
        raise DataError(f"Bad rows can be {' or '.join(map(repr, BAD_ROWS))}, found {bad_rows!r}; give one of these.")
    if rows_per_batch is not None and rows_per_batch < 1:
        raise ShapeError(f"Batches of {rows_per_batch} rows were asked for; give 1 or more.")
    widths = translator.source_width, translator.target_width
    sink = open_output(widths[1], translator_fingerprint(translator))
    try:
        resumed_at = done = sink.rows
        if isinstance(rows, FileRows) and (resumed_at or pieces):
            rows.check_bytes()
        treatment = Treatment(translator, rows.name, rows.dtype, bad_rows, scale, getattr(sink, "keeps", True))
        notes = [*rows.notes, *norms_notes(translator, rows.name, rows.metric or metric)]
        size = sink.rows_per_batch or rows_per_batch or default_rows_per_batch(*widths, BATCH_BYTES)
        if sink.rows_per_batch is not None and rows_per_batch not in (None, size):
            notes.append(f"The earlier run wrote batches of {size:,} rows, and this one went on with these.")
        sink.start(size)
        if progress is not None:
            progress(done, rows.rows)
        translated = pieces(treatment, size, done) if pieces else translate_pieces(treatment, rows, size, sink)
        with contextlib.closing(translated), ThreadPoolExecutor(1, "writing") as writer:
            writing: Future[None] | None = None
            count = 0
            for piece in itertools.chain(translated, (None,)):  # None: the last piece is still being written
                if writing is not None:
                    writing.result()
                    done += count
                    if progress is not None:
                        progress(done, rows.rows)
                if piece is not None:
                    writing, count = writer.submit(sink.append, piece), len(piece.vectors)
        calculated = time.perf_counter()
        sink.finish()
    finally:
        sink.close()
    return Applied(
        metrics={"rows": done, "resumed_at": resumed_at, **treatment.counts},
        notes=(*notes, *sink.notes),
        timings={"translate": calculated - started, "finish": time.perf_counter() - calculated},
        request={
            "vectors": rows.name,
            "output": sink.name,
            "rows_per_batch": size,
            "bad_rows": bad_rows,
            "scale": scale,
            "metric": metric,
        },
        source=rows.name,
        output=sink.name,
        rows=done,
        resumed_at=resumed_at,
        source_width=widths[0],
        target_width=widths[1],
        dtype=str(getattr(sink, "dtype", output_dtype(rows.dtype))),
        bad_rows=treatment.counts,
    )


def translate_pieces(treatment: Treatment, rows: Rows, size: int, sink: Sink) -> Generator[Piece, None, None]:
    """Translated pieces in order, from the first row that the sink does not have; the next is read meanwhile."""

    def read() -> Iterator[tuple[Piece, dict[str, NDArray[np.intp]], int]]:
        first = sink.rows
        for piece in rows.pieces(size, first, sink.mark):
            yield *treatment.ready(piece, first), first
            first += len(piece.vectors)

    pieces = read()
    with ThreadPoolExecutor(1, "reading") as reader:
        upcoming = reader.submit(next, pieces, None)
        while (ready := upcoming.result()) is not None:
            upcoming = reader.submit(next, pieces, None)
            yield treatment.translated(*ready)
