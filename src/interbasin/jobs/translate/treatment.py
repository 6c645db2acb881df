"""One piece of a store translated: what rows cannot be, what the translator must fit, and what precision comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.opening import Rows, output_dtype

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


@dataclass
class Treatment:
    """Makes a piece ready for the translator and translates it; counts the bad rows.

    Args:
        translator, name, dtype: The map, the store's name for messages, and the dtype of its numbers.
        bad_rows: ``"refuse"`` ends the run at a row of zeros or with a number that is not finite; ``"keep"`` writes
            such rows as zeros and as NaN.
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

    def translated(self, piece: Piece, bad: Mapping[str, NDArray[np.intp]], first: int) -> Piece:
        """A piece that is ready, translated, with its bad rows as zeros and NaN."""
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
            beyond = f"Translated, {listed(np.flatnonzero(~finite.all(axis=1)) + first)} of {self.name} would have"
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
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
    candidates = np.flatnonzero(~np.isfinite(squares) | (squares == 0))
    few = vectors[candidates]
    return {"not finite": candidates[~np.isfinite(few).all(axis=1)], "zero": candidates[~few.any(axis=1)]}


def _bad_rows_error(kind: str, which: NDArray[np.intp], name: str, *, kept: bool) -> DataError:
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
