"""Interrupts wait until what must not be left half-way is done, and then they come."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from interbasin.storage.interrupts import InterruptedAfterwards, hold_back_interrupts


@pytest.fixture(autouse=True)
def handlers():
    """Both signals interrupt, as in the program."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_comes_when_the_block_has_ended(number):
    done = []
    with pytest.raises(KeyboardInterrupt), hold_back_interrupts():
        os.kill(os.getpid(), number)
        done.append("all of it")
    assert done == ["all of it"] and signal.getsignal(number) is signal.default_int_handler


def test_an_interrupt_says_what_is_complete_and_does_not_where_that_failed():
    with pytest.raises(InterruptedAfterwards, match="out is complete") as caught, hold_back_interrupts(Path("out")):
        os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.complete == Path("out")
    with pytest.raises(KeyboardInterrupt) as other, hold_back_interrupts(Path("out")):
        os.kill(os.getpid(), signal.SIGINT)
        raise OSError("no room")
    assert not isinstance(other.value, InterruptedAfterwards) and isinstance(other.value.__context__, OSError)


def test_the_outermost_block_is_what_an_interrupt_waits_for():
    done = []
    with pytest.raises(KeyboardInterrupt), hold_back_interrupts():
        with hold_back_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
        done.append("behind the inner one")
    assert done


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with hold_back_interrupts():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_in_another_thread_nothing_changes():
    seen = []

    def run() -> None:
        with hold_back_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
