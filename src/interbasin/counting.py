"""Counts as people write them: one file, two files."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun, singular for one.

    Args:
        count: How many.
        one: The noun for one of them.
        many: The noun for any other number; by default ``one`` with an s.

    Example:
        >>> counted(1, "file"), counted(1_234, "file"), counted(0, "batch", "batches")
        ('1 file', '1,234 files', '0 batches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
