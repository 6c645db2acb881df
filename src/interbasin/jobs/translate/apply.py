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
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError
from interbasin.outcome import Result
from interbasin.vectors.files import default_rows_per_batch
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.opening import FileRows, Rows, Sink, open_rows, open_sink, output_dtype
from interbasin.vectors.stores.uri import parse_uri

ENGINES = ("local", "ray")
BATCH_BYTES = 32 * 2**20  # of vectors that come in and go out together
BAD_ROWS = ("refuse", "keep")
PROBES, SUMS = 4, 64  # rows that tell one translator from another, and how many sums are kept of each
MOST_NAMED = 5  # bad rows named in one message
TRUNCATED = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)  # what Matryoshka models are cut to


class FittedTranslator(Protocol):
    """What is asked of a translator: rows in, rows out, each by itself."""

    @property
    def source_width(self) -> int: ...
    @property
    def target_width(self) -> int: ...
    @property
    def carries_norms(self) -> bool: ...
    def transform(self, x: NDArray[Any], /) -> NDArray[Any]: ...


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
        names = ("source", "output", "rows", "resumed_at", "source_width", "target_width", "dtype")
        return {
            **{name: getattr(self, name) for name in names},
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
        from interbasin.jobs.translate.wrap_faiss import wrap_index

        if source.kind != "faiss" or destination.kind != "faiss":
            raise FileError(
                f"Only a FAISS index can be wrapped, found {source.shown}; give faiss:// files, or translate the rows."
            )
        return wrap_index(translator, rows, destination.path, source.path, force=force, in_place=in_place)
    pieces = None
    if engine == "ray":
        from interbasin.jobs.translate.on_ray import require_ray, translate_on_ray

        require_ray(source)
        pieces = functools.partial(translate_on_ray, source, rows)
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
    """Translate rows into the sink that ``open_output`` opens once all else is checked; see `translate_vectors`.

    The sink goes on where an earlier run stopped, with the batches of that run. ``open_output`` is given the new width
    and the translator's fingerprint. ``pieces`` is another way of getting translated pieces, given how to treat them,
    the batch and the first row.
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
            yield *treatment.prepare(piece, first), first
            first += len(piece.vectors)

    pieces = read()
    with ThreadPoolExecutor(1, "reading") as reader:
        upcoming = reader.submit(next, pieces, None)
        while (prepared := upcoming.result()) is not None:
            upcoming = reader.submit(next, pieces, None)
            yield treatment.translate(*prepared)


@dataclass
class Treatment:
    """Prepares a piece for the translator and translates it; counts the bad rows.

    Args:
        translator, name, dtype: The map, the store's name for messages, and the dtype of its numbers.
        bad_rows, scale: See `translate_vectors`.
        keeps: Whether what was done stays when a run ends early.
    """

    translator: FittedTranslator
    name: str
    dtype: np.dtype[Any]
    bad_rows: str = "refuse"
    scale: float | None = None
    keeps: bool = True
    counts: dict[str, int] = field(default_factory=lambda: {"not finite": 0, "zero": 0})

    def prepare(self, piece: Piece, first: int) -> tuple[Piece, dict[str, NDArray[np.intp]]]:
        """The piece in a precision to calculate in, without its bad rows; and the numbers of those."""
        vectors = piece.vectors
        if vectors.dtype not in (np.float32, np.float64):
            vectors = vectors.astype(np.float32)
        vectors = np.require(vectors, requirements=["C", "W"])  # torch complains of memory that it may not write
        if self.scale is not None:
            vectors = vectors * vectors.dtype.type(self.scale)
        bad = bad_rows_of(vectors)
        for kind, which in bad.items():
            if len(which) and self.bad_rows == "refuse":
                raise _bad_rows_error(kind, which + first, self.name, kept=self.keeps and first > 0)
            self.counts[kind] += len(which)
        if any(map(len, bad.values())):
            vectors = vectors.copy()
            vectors[np.concatenate(list(bad.values()))] = 1  # any row that can be translated; it is replaced again
        return Piece(vectors, piece.rest), bad

    def translate(self, piece: Piece, bad: Mapping[str, NDArray[np.intp]], first: int) -> Piece:
        """A prepared piece translated, with its bad rows as zeros and NaN."""
        with np.errstate(over="ignore", invalid="ignore"):  # refused below, by row
            vectors = self.translator.transform(piece.vectors)
        expected = (len(piece.vectors), self.translator.target_width)
        if vectors.shape != expected:
            raise ShapeError(
                f"The translator gave an array of shape {vectors.shape} where {expected} was promised; fit it again."
            )
        dtype = output_dtype(self.dtype)
        if vectors.dtype != dtype:
            with np.errstate(over="ignore"):
                vectors = vectors.astype(dtype)
        finite = np.isfinite(vectors)
        if not finite.all():
            beyond = f"Translated, {name_rows(np.flatnonzero(~finite.all(axis=1)) + first)} of {self.name} would have"
            if dtype == np.float16:
                raise DataError(f"{beyond} numbers beyond 65,504, the largest of float16; store them as float32 first.")
            raise DataError(
                f"{beyond} numbers beyond {np.finfo(dtype).max:.2g}, the largest of {dtype}, or none at all; such rows "
                "are far from what the translator was fitted on, so mend or drop them."
            )
        for kind, value in (("not finite", np.nan), ("zero", 0)):
            if len(bad[kind]):
                vectors[bad[kind]] = value
        return Piece(vectors, piece.rest)


def check_fits(translator: FittedTranslator, rows: Rows, scale: float | None) -> None:
    """Refuse other widths, whole numbers whose scale is not known, and a scale for numbers that are not whole."""
    if rows.dtype.kind in "biu" and scale is None:
        fault = (
            f"{rows.name} holds {rows.dtype} vectors, which are quantised: each number times a scale is what the "
            "encoder gave, and the store does not tell the scale. Give it with scale= (--scale), or store floats."
        )
        if rows.dtype == np.uint8:
            fault += (
                f" If they are bits, eight to a number, {rows.width} numbers stand for {8 * rows.width} dimensions, "
                "and no scale will help: take the vectors that they were made from."
            )
        raise DataError(fault)
    if rows.dtype.kind == "f" and scale is not None:
        raise DataError(f"A scale is for whole numbers, but {rows.name} holds {rows.dtype} vectors; leave it out.")
    if scale is not None and not _is_a_scale(scale, rows.dtype):
        raise DataError(
            f"A scale is a number above 0 by which every {rows.dtype} becomes a float32, found {scale}; give what the "
            "numbers were divided by when they were quantised."
        )
    if rows.width == translator.source_width:
        return
    fault = (
        f"The translator takes vectors of {translator.source_width} numbers, but those in {rows.name} have {rows.width}"
    )
    if rows.width == translator.target_width:
        raise ShapeError(
            f"{fault}, the width that it translates to; were they translated already, or does it go the other way?"
        )
    if rows.width < translator.source_width and rows.width in TRUNCATED:
        raise ShapeError(
            f"{fault}; if they are the first numbers of longer ones (truncated, Matryoshka), fit a translator on "
            f"vectors that are cut to {rows.width} too."
        )
    raise ShapeError(f"{fault}; give vectors of the encoder that it was fitted on.")


def _is_a_scale(scale: float, dtype: np.dtype[Any]) -> bool:
    largest = 1 if dtype.kind == "b" else max(abs(int(np.iinfo(dtype).min)), int(np.iinfo(dtype).max))
    limits = np.finfo(np.float32)
    return bool(float(limits.tiny) <= scale <= float(limits.max) / largest)


def norms_notes(translator: FittedTranslator, name: str, metric: str | None) -> list[str]:
    """Notes where lengths are lost that an index may compare by."""
    if translator.carries_norms or metric == "cosine":
        return []
    if metric is not None:
        return [
            f"{name} is compared by {metric}, for which the lengths of vectors count, and this translator "
            "does not carry them: scores will change. Compare by cosine, or fit a method that carries norms."
        ]
    return [
        "This translator does not carry the lengths of vectors: compare by cosine; an index by dot product or l2 will "
        "rank differently."
    ]


def bad_rows_of(vectors: NDArray[Any]) -> dict[str, NDArray[np.intp]]:
    """Rows of zeros, and rows with numbers that are not finite."""
    # One pass finds candidates, huge and tiny rows among them; only these are looked at one by one.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # also where a signalling NaN is looked at
        squares = np.einsum("ij,ij->i", vectors, vectors)
        candidates = np.flatnonzero(~np.isfinite(squares) | (squares == 0))
        few = vectors[candidates]
        return {"not finite": candidates[~np.isfinite(few).all(axis=1)], "zero": candidates[~few.any(axis=1)]}


def _bad_rows_error(kind: str, which: NDArray[np.intp], name: str, *, kept: bool) -> DataError:
    holds = "hold" if len(which) > 1 else "holds"
    what = f"{holds} NaN or infinity" if kind == "not finite" else f"{holds} nothing but zeros"
    return DataError(
        f"In {name}, {name_rows(which)} {what}, which cannot be translated. Mend or drop such rows, or hand them on as "
        f"they are with bad_rows='keep' (--bad-rows keep){'; what was done so far is kept' if kept else ''}."
    )


def name_rows(which: NDArray[np.intp]) -> str:
    """Row numbers for a message.

    Example:
        >>> name_rows(np.arange(3)), name_rows(np.arange(7))
        ('rows 0, 1, 2 (counted from 0)', 'rows 0, 1, 2, 3, 4 (counted from 0) and 2 more in the same batch')
    """
    named = ", ".join(map(str, which[:MOST_NAMED]))
    more = f" and {len(which) - MOST_NAMED} more in the same batch" if len(which) > MOST_NAMED else ""
    return f"row{'s' if len(which) > 1 else ''} {named} (counted from 0){more}"


def translator_fingerprint(translator: FittedTranslator) -> dict[str, Any]:
    """What tells this translator from another, whatever is inside: its translations of a few fixed rows.

    Every number of these counts, in one of a few weighted sums, so that no change of a map is missed.
    """
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((PROBES, translator.source_width))
    translated = np.asarray(translator.transform(rows), dtype=np.float64)
    width = translated.shape[1]
    weighted = translated * generator.uniform(0.5, 1.5, width)
    sums = np.zeros((PROBES, min(SUMS, width)))
    for first in range(0, width, SUMS):
        part = weighted[:, first : first + SUMS]
        sums[:, : part.shape[1]] += part
    return {"widths": [translator.source_width, translator.target_width], "probe": sums.ravel().tolist()}
