"""The check-up of a table of vectors: one pass, in memory that does not grow with it, and the rows by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.retrieval import blocks_of
from interbasin.jobs.translate.doctor.findings import Finding, State
from interbasin.outcome import Draft, Result
from interbasin.text import plural

__all__ = ["Checkup", "Finding", "doctor"]

SEVERITIES = ("error", "warning", "remark")


@runtime_checkable
class Batched(Protocol):
    """What gives its rows in batches, as `interbasin.vectors.open_vectors` does."""

    def batches(self, rows_per_batch: int, /) -> Iterator[NDArray[Any]]: ...


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Checkup(Result):
    """What was found; ``metrics`` hold counts and lengths by name.

    Attributes:
        findings: The worst first.
        rows, width: Of the table.
        dtype: What its numbers are stored as.
        lengths: Of its rows, in words; empty if none has one.
    """

    findings: tuple[Finding, ...] = ()
    rows: int = 0
    width: int = 0
    dtype: str = ""
    lengths: str = ""

    job = "translate doctor"

    @property
    def healthy(self) -> bool:
        """Whether nothing but remarks was found."""
        return all(one.severity == "remark" for one in self.findings)

    @property
    def basics(self) -> str:
        """What kind of table it is, on one line."""
        about = [f"{plural(self.rows, 'row')} of {plural(self.width, 'number')}", self.dtype, self.lengths]
        return ", ".join(filter(None, about))

    def __str__(self) -> str:
        head = f"{self.basics}: "
        if not self.findings:
            return head + "nothing was found."
        return (
            head
            + plural(len(self.findings), "finding")
            + "\n"
            + "\n".join(f"{one.severity}: {one.text}" for one in self.findings)
        )

    def write(self, draft: Draft) -> None:
        """Add the findings as a table."""
        if not self.findings:
            return
        draft.table(
            "findings",
            {
                "kind": [finding.kind for finding in self.findings],
                "severity": [finding.severity for finding in self.findings],
                "count": [float(finding.count) for finding in self.findings],
                "rows": [" ".join(map(str, finding.rows)) or "-" for finding in self.findings],
                "text": [finding.text for finding in self.findings],
            },
        )


def doctor(
    vectors: Any,
    *,
    rows_per_batch: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Checkup:
    """Look for what is wrong with a table of vectors.

    Finds rows of zeros, NaN and infinity, exact duplicates, mixed norms, dimensions that are constant, vectors that
    were rounded to eight bits or cut, and two models in one table (`interbasin.jobs.translate.doctor.mixture` says
    how far that goes).

    Args:
        vectors: Rows: an array, which may be memory-mapped; what `interbasin.vectors.open_vectors` opens; a store as
            `interbasin.vectors.stores.opening.Rows` has it; or batches of rows to iterate over, once.
        rows_per_batch: Rows in memory at once.
        seed: Of what is sampled.
        progress: Called with how many rows are done.

    Raises:
        ShapeError: if these are no rows.
        DataError: if there are none.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(300, 8))
        >>> rows[7], rows[8], rows[20] = 0, np.nan, rows[21]
        >>> [(one.kind, one.rows) for one in doctor(rows).findings]
        [('not finite', (8,)), ('zero', (7,)), ('duplicate', (21,))]
    """
    state: State | None = None
    stored = vectors.dtype if hasattr(vectors, "pieces") else getattr(vectors, "stored", None)
    for batch in _batches(vectors, rows_per_batch):
        if state is None:
            state = State(batch.shape[1], stored or batch.dtype, seed)
        elif batch.shape[1] != state.width:
            raise ShapeError(
                f"A batch has rows of {batch.shape[1]} numbers and those before have {state.width}; a table has one "
                "width."
            )
        state.update(batch)
        if progress is not None:
            progress(state.rows)
    if state is None or state.rows == 0:
        raise DataError("There are no rows to look at; give a table with some.")
    # What is only possible comes behind all that is certain.
    worst_first = sorted(state.findings(), key=lambda one: (SEVERITIES.index(one.severity), one.kind == "two parts"))
    return Checkup(
        metrics=state.metrics(),
        findings=tuple(worst_first),
        rows=state.rows,
        width=state.width,
        dtype=str(state.dtype),
        lengths=state.lengths_in_words(),
        notes=tuple(finding.text for finding in worst_first if finding.severity != "remark"),
        request={"seed": seed},
    )


def _batches(vectors: Any, rows_per_batch: int | None) -> Iterator[NDArray[Any]]:
    if hasattr(vectors, "pieces"):  # a store, as `apply` reads it
        size = rows_per_batch or max(64, 2**22 // max(1, int(vectors.width)))
        yield from (_array(piece.vectors) for piece in vectors.pieces(size, 0))
        return
    if isinstance(vectors, Batched) and not hasattr(vectors, "ndim"):
        width = int(getattr(vectors, "width", 1024))
        yield from vectors.batches(rows_per_batch or max(64, 2**22 // max(1, width)))
        return
    if hasattr(vectors, "shape") or isinstance(vectors, list | tuple):
        given = vectors if hasattr(vectors, "shape") else np.asarray(vectors)
        yield from (_array(block) for _, block in blocks_of(given, rows_per_batch))
        return
    for batch in vectors:
        yield _array(batch)


def _array(given: Any) -> NDArray[Any]:
    array = np.asarray(given.detach().float().cpu() if hasattr(given, "detach") else given)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise ShapeError(
            f"Vectors are rows of real numbers, (rows, width), found shape {array.shape} of dtype {array.dtype}."
        )
    return array
