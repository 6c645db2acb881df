"""Interrupts at the right moment: not between making a folder and knowing of it, nor while something is tidied up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedAfterwards(KeyboardInterrupt):
    """An interrupt that came when something was complete.

    Attributes:
        complete: What is in its place.
    """

    def __init__(self, complete: Path) -> None:
        super().__init__(f"{complete} is complete.")
        self.complete = complete


@contextlib.contextmanager
def hold_back_interrupts(complete: Path | None = None) -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block has ended, which must not take long.

    Args:
        complete: What is in its place when the block has ended well; the interrupt says so then.
    """
    if threading.current_thread() is not threading.main_thread():  # no other one is interrupted
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is not None and handler != signal.SIG_IGN:
            handlers[number] = signal.signal(number, lambda *arguments: held.append(arguments))
    try:
        yield
    except BaseException:
        _let_go(handlers, held)
        raise
    try:
        _let_go(handlers, held)
    except KeyboardInterrupt as error:
        raise error if complete is None else InterruptedAfterwards(complete) from error


def _let_go(handlers: dict[int, Any], held: list[tuple[int, FrameType | None]]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for number, frame in held:
        if callable(handlers[number]):
            handlers[number](number, frame)
        else:
            signal.raise_signal(number)
