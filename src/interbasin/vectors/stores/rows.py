"""What a store of vectors is to whoever carries its rows: `Rows` are read in pieces, in order, and a `Sink` takes them.

A sink knows how many rows it has from an earlier run that was stopped, and puts the whole in its place when it is
complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


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


def output_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Floats keep their precision; whole numbers become float32."""
    return stored.newbyteorder("=") if stored in (np.float16, np.float32, np.float64) else np.dtype(np.float32)
