"""Two matrices read in step, row by row the same samples seen in two spaces."""

from __future__ import annotations

from collections.abc import Iterator

from interbasin.errors import ShapeError
from interbasin.vectors.files.base import Batch, Vectors

__all__ = ["default_rows_per_batch", "paired_batches"]

BATCH_BYTES = 64 * 2**20
FEWEST_ROWS, MOST_ROWS = 256, 65_536


def paired_batches(
    source: Vectors, target: Vectors, rows_per_batch: int, start: int = 0
) -> Iterator[tuple[Batch, Batch]]:
    """Batches of the same rows of both, from row ``start`` on; see ``Vectors.batches``.

    Raises:
        ShapeError: At once, if the two differ in their numbers of rows, or if an argument is out of range.
    """
    if source.rows != target.rows:
        raise ShapeError(
            f"Paired vectors need equal numbers of rows; {source.path} has {source.rows} and {target.path} has "
            f"{target.rows}. Give two files in which row i is the same sample, for every i."
        )
    return zip(source.batches(rows_per_batch, start), target.batches(rows_per_batch, start), strict=True)


def default_rows_per_batch(source_width: int, target_width: int = 0) -> int:
    """Rows for which a pair of float32 batches takes about 64 MiB, from 256 to 65,536.

    Example:
        >>> default_rows_per_batch(384, 768)
        14563
    """
    row_bytes = 4 * max(1, source_width + target_width)
    return min(MOST_ROWS, max(FEWEST_ROWS, BATCH_BYTES // row_bytes))
