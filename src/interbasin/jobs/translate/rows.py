"""Rows of embeddings, checked once, as tensors; and a hash per row, to find rows that repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.arrays import as_tensor, working_dtype
from interbasin.errors import DataError, ShapeError
from interbasin.text import list_names

NAMED = 5  # rows in a message


def as_array(values: Any) -> NDArray[Any]:
    """``values`` as an array; tensors through float32, as numpy has no bfloat16."""
    return np.asarray(values.detach().float().cpu() if hasattr(values, "detach") else values)


def as_floats(values: Any) -> NDArray[Any]:
    """``values`` as an array to calculate with: float32, or float64 as it is."""
    array = as_array(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def rows_of(
    values: Any, what: str, *, width: int | None = None, fewest: int = 1, owner: str = "the translation"
) -> Tensor:
    """A tensor or an array as rows of floating-point numbers, ``(rows, width)``, all of them finite.

    In messages ``what`` is the beginning of the sentence, and ``owner`` expects the width.
    """
    if hasattr(values, "toarray"):
        raise DataError(f"{what} is a sparse matrix, and embeddings are dense; pass .toarray().")
    rows = as_tensor(_as_numbers(values, what), what)
    if rows.ndim != 2:
        raise ShapeError(f"{what} must be (rows, width), found shape {tuple(rows.shape)}. Reshape your data first.")
    if len(rows) < fewest or rows.shape[1] == 0:
        needed = 1 if rows.shape[1] == 0 else fewest
        raise ShapeError(
            f"{what}: found array with {len(rows)} sample(s) and {rows.shape[1]} feature(s) (shape={tuple(rows.shape)})"
            f" while a minimum of {needed} is required."
        )
    if width is not None and rows.shape[1] != width:
        raise ShapeError(
            f"{what} has {rows.shape[1]} features, but {owner} is expecting {width} features as input; is it the right "
            "direction, and the right model?"
        )
    rows = rows.to(working_dtype(rows.dtype)) if rows.is_floating_point() else rows.double()
    # One sum tells, unless it overflows itself; looking at every number takes longer than half a translation.
    if not bool(torch.isfinite(rows.sum())):
        bad = ~torch.isfinite(rows).all(1)
        if bool(bad.any()):
            places = bad.nonzero().flatten().tolist()
            kind = "NaN" if bool(torch.isnan(rows[bad]).any()) else "infinity"
            raise DataError(
                f"{what} holds {kind} (NaN or infinity) in {len(places)} of {len(rows)} rows: "
                f"{list_names(map(str, places), NAMED)}; leave them out."
            )
    return rows


def _as_numbers(values: Any, what: str) -> Any:
    """Arrays of Python objects as numbers; complex numbers are refused."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} has rows of different lengths ({error}); stack embeddings of one width.") from error
    if array.dtype.kind == "c":
        raise DataError(f"{what}: Complex data not supported; embeddings are real, give .real or .imag.")
    if array.dtype.kind != "O":
        return values
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{what} must hold real numbers, found an array of objects ({error}; argument must be a string or a real "
            "number); stack the embeddings into one array."
        ) from error


def paired_rows(source: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Two sets of rows, as many of one as of the other: row i is the same item."""
    if target is None:
        raise DataError(
            "A translation is fitted on pairs: requires y to be passed, but the target y is None. Give the same items "
            "as the other encoder sees them, fit(X, Y)."
        )
    x = rows_of(source, "The source", fewest=2)
    y = as_tensor(_as_numbers(target, "The target"), "The target")
    y = rows_of(y[:, None] if y.ndim == 1 else y, "The target", fewest=2)
    if len(x) != len(y):
        raise ShapeError(
            f"A translation is fitted on pairs, found inconsistent numbers of samples: {len(x)} rows of the source and "
            f"{len(y)} of the target; give the same items in the same order."
        )
    return x, y


def hash_rows(rows: Any) -> NDArray[np.uint64]:
    """A 64-bit hash per row: the same for equal rows of one dtype, and hardly ever for others.

    Example:
        >>> a, b, c = hash_rows(np.array([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]]))
        >>> bool(a == c), bool(a == b)
        (True, False)
    """
    with np.errstate(invalid="ignore"):  # NaN is welcome
        values = np.ascontiguousarray(rows)
        values = values + values.dtype.type(0)  # -0 and 0 are the same number
    words = values.view(f"u{values.dtype.itemsize}").astype(np.uint64, copy=False)
    generator = np.random.default_rng(np.random.SeedSequence(0x1B5))
    factors = generator.integers(2**63, size=words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    with np.errstate(over="ignore"):
        # The high bits of a product depend on all bits below, so they are folded down before the next step.
        mixed = words * factors
        mixed ^= mixed >> np.uint64(32)
        total: NDArray[np.uint64] = (mixed * factors[::-1]).sum(1, dtype=np.uint64)
        total ^= total >> np.uint64(29)
    return total


def find_rows(rows: NDArray[Any], blocks: Iterable[tuple[int, Any]]) -> dict[int, int]:
    """Where some rows stand in a store: number in the store -> number among ``rows``, for exactly equal ones.

    ``blocks`` are consecutive rows of the store, each block with the number of its first.
    """
    known = {int(value): place for place, value in enumerate(hash_rows(rows).tolist())}
    wanted = np.fromiter(known, dtype=np.uint64, count=len(known))
    places: dict[int, int] = {}
    for first, block in blocks:
        array = np.asarray(block)
        if array.dtype != rows.dtype:
            return {}
        hashes = hash_rows(array)
        for place in np.flatnonzero(np.isin(hashes, wanted)).tolist():
            candidate = known[int(hashes[place])]
            if np.array_equal(array[place], rows[candidate]):
                places[first + place] = candidate
    return places
