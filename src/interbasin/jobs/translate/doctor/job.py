"""The check-up of a table of vectors: one pass, in memory that does not grow with it, and the rows by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.checks import require_whole
from interbasin.errors import DataError, ShapeError
from interbasin.evaluate.retrieval import blocks_of
from interbasin.jobs.translate.doctor.findings import Finding, TableStatistics
from interbasin.jobs.translate.rows import as_array
from interbasin.outcome import Draft, Result
from interbasin.text import plural, printable

SEVERITIES = ("error", "warning", "remark")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Checkup(Result):
    """What was found; ``metrics`` hold counts and lengths by name.

    Attributes:
        findings: The worst first.
        dtype: What its numbers are stored as.
        lengths: Of its rows, in words; empty if none has one.
    """

    findings: tuple[Finding, ...] = ()
    dtype: str = ""
    lengths: str = ""

    job = "translate doctor"

    @property
    def healthy(self) -> bool:
        """Whether nothing but remarks was found."""
        return all(finding.severity == "remark" for finding in self.findings)

    @property
    def basics(self) -> str:
        """What kind of table it is, on one line."""
        rows, width = int(self.metrics["rows"]), int(self.metrics["width"])
        return ", ".join(
            filter(None, [f"{plural(rows, 'row')} of {plural(width, 'number')}", self.dtype, self.lengths])
        )

    def __str__(self) -> str:
        if not self.findings:
            return f"{self.basics}: nothing was found."
        lines = [f"{finding.severity}: {finding.text}" for finding in self.findings]
        return "\n".join(map(printable, [f"{self.basics}: {plural(len(lines), 'finding')}", *lines]))

    def write(self, draft: Draft) -> None:
        """Add the findings as a table."""
        if self.findings:
            columns: dict[str, list[Any]] = {
                name: [getattr(finding, name) for finding in self.findings] for name in ("kind", "severity")
            }
            columns["count"] = [float(finding.count) for finding in self.findings]
            columns["rows"] = [" ".join(map(str, finding.rows)) or "-" for finding in self.findings]
            columns["text"] = [finding.text for finding in self.findings]
            draft.table("findings", columns)


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
        >>> [(finding.kind, finding.rows) for finding in doctor(rows).findings]
        [('not finite', (8,)), ('zero', (7,)), ('duplicate', (21,))]
    """
    require_whole("seed", seed, least=0)
    if rows_per_batch is not None:
        require_whole("rows_per_batch", rows_per_batch, least=1)
    statistics: TableStatistics | None = None
    stored = vectors.dtype if hasattr(vectors, "pieces") else getattr(vectors, "stored", None)
    for batch in _batches(vectors, rows_per_batch):
        if batch.ndim != 2 or batch.dtype.kind not in "fiub":
            raise ShapeError(f"Vectors are rows of real numbers, found shape {batch.shape} of dtype {batch.dtype}.")
        if statistics is None:
            statistics = TableStatistics(batch.shape[1], stored or batch.dtype, seed)
        elif batch.shape[1] != statistics.width:
            raise ShapeError(f"A batch has rows of {batch.shape[1]} numbers and those before have {statistics.width}.")
        statistics.update(batch)
        if progress is not None:
            progress(statistics.rows)
    if statistics is None or statistics.rows == 0:
        raise DataError("There are no rows to look at; give a table with some.")
    # What is only possible comes behind all that is certain.
    worst_first = sorted(
        statistics.findings(), key=lambda finding: (SEVERITIES.index(finding.severity), finding.kind == "two parts")
    )
    return Checkup(
        metrics=statistics.metrics(),
        findings=tuple(worst_first),
        dtype=str(statistics.dtype),
        lengths=statistics.describe_lengths(),
        notes=tuple(finding.text for finding in worst_first if finding.severity != "remark"),
        request={"seed": seed},
    )


def _batches(vectors: Any, rows_per_batch: int | None) -> Iterator[NDArray[Any]]:
    size = rows_per_batch or max(64, 2**22 // max(1, int(getattr(vectors, "width", 1024))))
    if hasattr(vectors, "pieces"):  # a store, as `apply` reads it
        yield from (as_array(piece.vectors) for piece in vectors.pieces(size, 0))
    elif hasattr(vectors, "batches") and not hasattr(vectors, "ndim"):  # as `open_vectors` gives them
        yield from vectors.batches(size)
    elif hasattr(vectors, "shape") or isinstance(vectors, list | tuple):
        table = vectors if hasattr(vectors, "shape") else np.asarray(vectors)
        yield from (as_array(block) for _, block in blocks_of(table, rows_per_batch))
    else:
        yield from map(as_array, vectors)
