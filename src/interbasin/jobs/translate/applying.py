"""Applying a fitted translation to all the vectors of a store, a batch at a time, however many there are.

What stores are, only ``data`` knows; here they are two protocols. `Rows` gives pieces of a store in order. A `Sink`
takes translated pieces in the same order, knows how many rows it has from an earlier run that was stopped, and puts the
whole in its place when it is complete. While one piece is translated the next is read and the last is written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError

__all__ = [
    "Applied",
    "FittedTranslator",
    "Piece",
    "Rows",
    "Sink",
    "Treatment",
    "apply",
    "batch_rows",
    "check_fits",
    "output_dtype",
    "same_probe",
    "translator_fingerprint",
]

BATCH_BYTES = 32 * 2**20  # of vectors that come in and go out together
FEWEST_ROWS, MOST_ROWS = 256, 65_536
PROBES, SUMS = 4, 64  # rows that tell one translator from another, and how many sums are kept of each
MOST_NAMED = 5  # bad rows named in one message
TRUNCATED = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)  # what Matryoshka models are cut to
BAD_ROWS = ("refuse", "keep")


class FittedTranslator(Protocol):
    """What is asked of a translator: rows in, rows out, each for itself."""

    @property
    def source_width(self) -> int: ...
    @property
    def target_width(self) -> int: ...
    @property
    def carries_norms(self) -> bool: ...
    def transform(self, x: NDArray[Any], /) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a store.

    Attributes:
        vectors: Of shape (rows, width).
        rest: What belongs to these rows and goes along untouched (ids, other columns); the store's own affair.
    """

    vectors: NDArray[Any]
    rest: Any = None


class Rows(Protocol):
    """A store that is read.

    Attributes:
        name: What to call it in messages and reports; never with a password in it.
        rows: How many there are.
        width: How many numbers each has.
        dtype: Of the numbers as they are stored.
        metric: How an index over them compares ("cosine", "inner product", "l2"); None where the store does not say.
        remarks: What a user should know about how it is read.
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
    def remarks(self) -> tuple[str, ...]: ...
    def fingerprint(self) -> Mapping[str, Any]:
        """What tells this store, in its present state, from another; JSON-able."""
        ...

    def pieces(self, rows_per_batch: int, start: int, mark: Any = None) -> Iterator[Piece]:
        """Exactly ``rows_per_batch`` rows a piece, except the last, from row ``start`` on.

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
        remarks: What a user should know about what was written; complete when it is finished.
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
    def remarks(self) -> tuple[str, ...]: ...
    def start(self, rows_per_batch: int) -> None: ...
    def append(self, piece: Piece) -> None: ...
    def finish(self) -> None:
        """Put what was written into its place, in one step."""
        ...

    def close(self) -> None:
        """Let go of it. What was written and not finished stays for a later run."""
        ...


@dataclass(frozen=True)
class Applied:
    """What was done.

    Attributes:
        source: The store that was read.
        output: The store that was written.
        rows: Rows in it.
        resumed_at: The row at which this run began.
        source_width: Numbers a row before.
        target_width: Numbers a row now.
        dtype: Of the numbers that were written.
        bad_rows: Kind -> how many rows of this run were of it and were kept as they are.
        seconds: Of this run, without putting the output in its place.
        seconds_finishing: For that, which includes waiting for the disk.
        remarks: What a user should know.
    """

    source: str
    output: str
    rows: int
    resumed_at: int
    source_width: int
    target_width: int
    dtype: str
    bad_rows: Mapping[str, int]
    seconds: float
    seconds_finishing: float
    remarks: tuple[str, ...] = ()

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
            "seconds": self.seconds,
            "seconds_finishing": self.seconds_finishing,
            "remarks": list(self.remarks),
        }


@dataclass
class Treatment:
    """How a piece is made ready for the translator, and translated; counts the bad rows that it meets.

    Args:
        translator: The map.
        name: Of the store, for messages.
        dtype: As stored.
        bad_rows: ``"refuse"`` ends the run at a row of zeros or with a number that is not finite; ``"keep"`` hands
            such rows on as they are: zeros as zeros, the others as NaN.
        scale: What whole numbers are multiplied by to become the vectors that they stand for.
        keeps: Whether what was done stays when a run ends early.
    """

    translator: FittedTranslator
    name: str
    dtype: np.dtype[Any]
    bad_rows: str = "refuse"
    scale: float | None = None
    keeps: bool = True
    counts: dict[str, int] = field(default_factory=lambda: {"not finite": 0, "zero": 0})

    def ready(self, piece: Piece, first: int) -> tuple[Piece, dict[str, NDArray[np.intp]]]:
        """The piece in a precision to calculate in, without its bad rows; and which those were."""
        vectors = piece.vectors
        if vectors.dtype not in (np.float32, np.float64):
            vectors = vectors.astype(np.float32)
        vectors = np.require(vectors, requirements=["C", "W"])  # torch complains of memory that it may not write
        if self.scale is not None:
            vectors = vectors * vectors.dtype.type(self.scale)
        bad = bad_rows_of(vectors)
        for kind, which in bad.items():
            if len(which) and self.bad_rows == "refuse":
                raise refused_rows(kind, which + first, self.name, kept=self.keeps and first > 0)
            self.counts[kind] += len(which)
        if any(map(len, bad.values())):
            vectors = vectors.copy()
            vectors[np.concatenate(list(bad.values()))] = 1  # any row that can be translated; it is replaced again
        return Piece(vectors, piece.rest), bad

    def translated(self, piece: Piece, bad: Mapping[str, NDArray[np.intp]], first: int) -> Piece:
        with np.errstate(over="ignore", invalid="ignore"):  # told below, by row
            made = self.translator.transform(piece.vectors)
        expected = (len(piece.vectors), self.translator.target_width)
        if made.shape != expected:
            raise ShapeError(
                f"The translator gave an array of shape {made.shape} where {expected} was promised; fit it again."
            )
        dtype = output_dtype(self.dtype)
        if made.dtype != dtype:
            with np.errstate(over="ignore"):
                made = made.astype(dtype)
        finite = np.isfinite(made)
        if not finite.all():
            which = np.flatnonzero(~finite.all(axis=1)) + first
            if dtype == np.float16:
                raise DataError(
                    f"Translated, {listed(which)} of {self.name} would have numbers beyond 65,504, the largest of "
                    "float16 in which the vectors are stored; store them as float32 first."
                )
            raise DataError(
                f"Translated, {listed(which)} of {self.name} would have numbers beyond {np.finfo(dtype).max:.2g}, the "
                f"largest of {dtype}, or none at all; such rows are far from what the translator was fitted on, so "
                "mend or drop them."
            )
        for kind, value in (("not finite", np.nan), ("zero", 0)):
            if len(bad[kind]):
                made[bad[kind]] = value
        return Piece(made, piece.rest)


def apply(
    translator: FittedTranslator,
    rows: Rows,
    sink: Sink,
    *,
    rows_per_batch: int | None = None,
    bad_rows: str = "refuse",
    scale: float | None = None,
    metric: str | None = None,
    progress: Callable[[int], object] | None = None,
    pieces: Callable[[Treatment, int, int], Generator[Piece, None, None]] | None = None,
) -> Applied:
    """Translate all of a store into another.

    The sink goes on where an earlier run stopped. If this run is stopped, what it did is kept.

    Args:
        translator: The fitted map.
        rows: What to read.
        sink: What to write.
        rows_per_batch: By default about 32 MiB a batch; a run that goes on keeps the batches that it began with.
        bad_rows: ``"refuse"`` or ``"keep"``; see `Treatment`.
        scale: See `Treatment`.
        metric: How the vectors are compared, where the store does not say.
        progress: Called with the number of rows that are done.
        pieces: Another way of getting translated pieces, given how to treat them, the batch and the first row.

    Raises:
        ShapeError: if the widths do not fit.
        DataError: if the numbers cannot be translated; names the rows.
    """
    started = time.perf_counter()
    try:
        check_fits(translator, rows, scale)
        if bad_rows not in BAD_ROWS:
            raise DataError(
                f"Bad rows can be {' or '.join(map(repr, BAD_ROWS))}, found {bad_rows!r}; give one of these."
            )
        if rows_per_batch is not None and rows_per_batch < 1:
            raise ShapeError(f"Batches of {rows_per_batch} rows were asked for; give 1 or more.")
        treatment = Treatment(translator, rows.name, rows.dtype, bad_rows, scale, getattr(sink, "keeps", True))
        resumed_at = done = sink.rows
        remarks = [*rows.remarks, *norms_remark(translator, rows.name, rows.metric or metric)]
        size = sink.rows_per_batch or rows_per_batch or batch_rows(translator.source_width, translator.target_width)
        if sink.rows_per_batch is not None and rows_per_batch not in (None, size):
            remarks.append(f"The earlier run wrote batches of {size:,} rows, and this one went on with these.")
        sink.start(size)
        if progress is not None:
            progress(done)
        made = pieces(treatment, size, done) if pieces else translated_pieces(treatment, rows, size, done, sink.mark)
        with contextlib.closing(made), ThreadPoolExecutor(1, "writing") as writing:
            under_way: tuple[Future[None], int] | None = None
            for piece in made:
                if under_way is not None:
                    done = waited(under_way, progress)
                under_way = writing.submit(sink.append, piece), done + len(piece.vectors)
            if under_way is not None:
                done = waited(under_way, progress)
        calculated = time.perf_counter()
        sink.finish()
    finally:
        sink.close()
    finished = time.perf_counter()
    return Applied(
        rows.name,
        sink.name,
        done,
        resumed_at,
        translator.source_width,
        translator.target_width,
        str(getattr(sink, "dtype", output_dtype(rows.dtype))),
        treatment.counts,
        calculated - started,
        finished - calculated,
        (*remarks, *sink.remarks),
    )


def waited(under_way: tuple[Future[None], int], progress: Callable[[int], object] | None) -> int:
    writing, done = under_way
    writing.result()
    if progress is not None:
        progress(done)
    return done


def translated_pieces(
    treatment: Treatment, rows: Rows, size: int, start: int, mark: Any
) -> Generator[Piece, None, None]:
    """Translated pieces in order; the next is read while one is translated."""

    def ready() -> Iterator[tuple[Piece, dict[str, NDArray[np.intp]], int]]:
        first = start
        for piece in rows.pieces(size, start, mark):
            yield *treatment.ready(piece, first), first
            first += len(piece.vectors)

    coming = ready()
    with ThreadPoolExecutor(1, "reading") as reading:
        upcoming = reading.submit(next, coming, None)
        while (found := upcoming.result()) is not None:
            upcoming = reading.submit(next, coming, None)
            yield treatment.translated(*found)


def batch_rows(source_width: int, target_width: int) -> int:
    """Rows that take about 32 MiB as float32 before and after together, from 256 to 65,536.

    Example:
        >>> batch_rows(384, 768)
        7281
    """
    return min(MOST_ROWS, max(FEWEST_ROWS, BATCH_BYTES // (4 * (source_width + target_width))))


def output_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Floats keep their precision; whole numbers become float32."""
    return stored.newbyteorder("=") if stored in (np.float16, np.float32, np.float64) else np.dtype(np.float32)


def check_fits(translator: FittedTranslator, rows: Rows, scale: float | None) -> None:
    """Whether a translator can be applied to a store at all.

    Raises:
        ShapeError: if the widths differ.
        DataError: if these are whole numbers whose scale is not known, or a scale is given for others.
    """
    if rows.dtype.kind in "biu" and scale is None:
        packed = (
            f" If they are bits, eight to a number, {rows.width} numbers stand for {8 * rows.width} dimensions, and no "
            "scale will help: take the vectors that they were made from."
            if rows.dtype == np.uint8
            else ""
        )
        raise DataError(
            f"{rows.name} holds {rows.dtype} vectors, which are quantised: each number times a scale is what the "
            "encoder gave, and the store does not tell the scale. Give it with scale= (--scale), or store floats."
            f"{packed}"
        )
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


def norms_remark(translator: FittedTranslator, name: str, metric: str | None) -> list[str]:
    """What to say where lengths are lost that an index may compare by."""
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
    """Which rows cannot be meant: of zeros, or with numbers that are not finite."""
    # One pass finds candidates; only those, which also huge and tiny numbers are, are looked at one by one.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
    candidates = np.flatnonzero(~np.isfinite(squares) | (squares == 0))
    few = vectors[candidates]
    return {
        "not finite": candidates[~np.isfinite(few).all(axis=1)],
        "zero": candidates[~few.any(axis=1)],
    }


def refused_rows(kind: str, which: NDArray[np.intp], name: str, *, kept: bool) -> DataError:
    holds = "hold" if len(which) > 1 else "holds"
    what = f"{holds} NaN or infinity" if kind == "not finite" else f"{holds} nothing but zeros"
    return DataError(
        f"In {name}, {listed(which)} {what}, which cannot be translated. Mend or drop such rows, or hand them on as "
        f"they are with bad_rows='keep' (--bad-rows keep){'; what was done so far is kept' if kept else ''}."
    )


def listed(which: NDArray[np.intp]) -> str:
    """Row numbers for a message.

    Example:
        >>> listed(np.arange(3)), listed(np.arange(7))
        ('rows 0, 1, 2 (counted from 0)', 'rows 0, 1, 2, 3, 4 (counted from 0) and 2 more in the same batch')
    """
    named = ", ".join(str(one) for one in which[:MOST_NAMED])
    more = f" and {len(which) - MOST_NAMED} more in the same batch" if len(which) > MOST_NAMED else ""
    return f"row{'s' if len(which) > 1 else ''} {named} (counted from 0){more}"


def translator_fingerprint(translator: FittedTranslator) -> dict[str, Any]:
    """What tells this translator from another, without knowing what is inside: where it takes a few fixed rows.

    Every number of these counts, in one of a few sums with weights of its own, so that no change of a map is missed.
    """
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((PROBES, translator.source_width))
    made = np.asarray(translator.transform(rows), dtype=np.float64)
    weighted = made * generator.uniform(0.5, 1.5, made.shape[1])
    sums = np.zeros((len(made), min(SUMS, made.shape[1])))
    for first in range(0, made.shape[1], SUMS):
        some = weighted[:, first : first + SUMS]
        sums[:, : some.shape[1]] += some
    return {"widths": [translator.source_width, translator.target_width], "probe": sums.ravel().tolist()}


def same_probe(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of one translator; sums may differ in their last digits from machine to machine."""
    try:
        found, asked = (np.asarray(which.get("probe", []), dtype=np.float64) for which in (one, other))
    except (TypeError, ValueError):  # of what was damaged
        return False
    return (
        one.get("widths") == other.get("widths")
        and found.shape == asked.shape
        and bool(np.allclose(found, asked, rtol=1e-6, atol=1e-9))
    )
