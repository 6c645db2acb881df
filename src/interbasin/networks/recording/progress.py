"""How far a recording, or a measurement, is: a bar on stderr, or a function that is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sized

__all__ = ["Progress", "telling"]

Progress = Callable[[int], object] | bool | None


@contextlib.contextmanager
def telling(
    progress: Progress, batches: object, silent: bool, what: str = "recording"
) -> Iterator[Callable[[int], object]]:
    """A function to be called with the number of batches that are done; ``what`` stands beside the bar."""
    if callable(progress):
        yield progress
    elif not progress or silent:
        yield lambda done: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=_length(batches))
            yield lambda done: bar.update(task, completed=done)


def _length(batches: object) -> int | None:
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:  # a loader of an iterable data set has a length in name only
        return None
