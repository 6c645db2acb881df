"""A forward pass that only runs while it is asked for something.

Two networks are recorded side by side: the target's hook needs what the source has at the place that belongs to it.
Were the source to run first, every one of its activations would have to wait for the target in memory. So it runs in a
thread of its own, as a generator would, up to the next activation that the target asks for, and waits there, inside its
hook. The two never run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from interbasin.networks.recording.surroundings import these_surroundings

__all__ = ["Beside"]


class _AbandonedError(BaseException):
    """Ends a pass that nobody waits for any more."""


class Beside:
    """A function in a thread of its own, which moves from one `rest` to the next and only when told to."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._over = self._abandoned = False
        self._error: BaseException | None = None
        self._enter = these_surroundings()
        self._thread = threading.Thread(target=self._work, name="interbasin-source", daemon=True)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._abandoned = True
        self._go.release()
        self._thread.join()

    def until(self, ready: Callable[[], bool]) -> None:
        """Let it run until ``ready()``, asked at each rest, or until it is over; raises what it raised."""
        while not self._over and not ready():
            self._go.release()
            self._back.acquire()
        if self._error is not None:
            raise self._error

    def rest(self) -> None:
        """For the function itself: stop here until there is more to be done."""
        self._back.release()
        self._go.acquire()
        if self._abandoned:
            raise _AbandonedError

    def _work(self) -> None:
        self._go.acquire()
        try:
            if not self._abandoned:
                with self._enter():
                    self._run()
        except _AbandonedError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._back.release()
