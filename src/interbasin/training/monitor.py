"""What can be seen of a training while it runs: a bar with the loss, the score and the time left; TensorBoard files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from interbasin.errors import FileError
from interbasin.extras import import_extra
from interbasin.storage.destination import as_path, cannot_write

# True for a bar on stderr, or a function of the step, the number of all steps (None: not known) and the loss.
Progress = Callable[[int, int | None, float], object] | bool | None


class Monitor:
    """Passes on what is going on; to nobody by default."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[int, float], object]] = []
        self._words = ""
        self._writer: Any = None

    def report_step(self, step: int, loss: float, rates: Sequence[float]) -> None:
        """After a step: its loss, and the rates it was taken with."""
        for listener in self._listeners:
            listener(step, loss)
        if self._writer is not None:
            self._writer.add_scalar("loss", loss, step)
            for number, rate in enumerate(rates):
                self._writer.add_scalar("rate" if len(rates) == 1 else f"rate/{number}", rate, step)

    def report_score(self, step: int, score: float) -> None:
        """After a look."""
        self._words = f", score {score:.4g}"
        if self._writer is not None:
            self._writer.add_scalar("score", score, step)

    def flush(self) -> None:
        """Have all events on the disk: a checkpoint is about to say that these steps are done."""
        if self._writer is not None:
            self._writer.flush()


@contextlib.contextmanager
def open_monitor(
    progress: Progress, tensorboard: str | os.PathLike[str] | None, what: str, steps: int | None, start: int
) -> Iterator[Monitor]:
    """A monitor for as long as the block lasts.

    Args:
        progress: See `train`.
        tensorboard: A folder for event files.
        what: Stands beside the bar.
        steps: The number of all steps, where it is known.
        start: The number of steps that an earlier run took; later events of it do not count.

    Raises:
        MissingExtraError: if event files are asked for and TensorBoard is not installed.
        FileError: if their folder cannot be written.
    """
    monitor = Monitor()
    with contextlib.ExitStack() as stack:
        if tensorboard is not None:
            monitor._writer = stack.enter_context(_open_writer(tensorboard, start))
        if callable(progress):
            monitor._listeners.append(lambda step, loss: progress(step, steps, loss))
        elif progress:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            console = Console(stderr=True)
            # In a file or a pipe a bar is noise.
            bar = stack.enter_context(Bar(*columns, console=console, transient=True, disable=not console.is_terminal))
            task = bar.add_task(what, total=steps, completed=start)

            def draw(step: int, loss: float) -> None:
                bar.update(task, completed=step, description=f"{what}: loss {loss:.4g}{monitor._words}")

            monitor._listeners.append(draw)
        yield monitor


@contextlib.contextmanager
def _open_writer(folder: str | os.PathLike[str], start: int) -> Iterator[Any]:
    path = as_path(folder, "The folder of TensorBoard's files")
    what = "Writing files for TensorBoard"
    import_extra("tensorboard", what, "adapt")
    events = import_extra("torch.utils.tensorboard", what, "adapt")
    if path.exists() and not path.is_dir():
        raise FileError(f"Asked to write TensorBoard's files to {path}, but that is a file; choose another folder.")
    try:
        writer = events.SummaryWriter(str(path), purge_step=start + 1 if start else None)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield writer
    finally:
        writer.close()
