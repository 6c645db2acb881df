from __future__ import annotations

import threading

import pytest

from interbasin.networks.recording.lockstep import Beside


def test_it_runs_only_as_far_as_it_is_asked_to():
    done = []

    def run():
        for step in range(5):
            done.append(step)
            beside.rest()

    with Beside(run) as beside:
        assert done == []
        beside.until(lambda: 1 in done)
        assert done == [0, 1]
        beside.until(lambda: 0 in done)
        assert done == [0, 1]
        beside.until(lambda: False)
        assert done == [0, 1, 2, 3, 4]


def test_what_it_raises_is_raised_where_it_is_waited_for():
    def run():
        beside.rest()
        raise LookupError("lost")

    with Beside(run) as beside:
        beside.until(lambda: True)
        with pytest.raises(LookupError, match="lost"):
            beside.until(lambda: False)


def test_it_ends_when_nobody_waits_for_it_any_more():
    cleaned = []

    def run():
        try:
            while True:
                beside.rest()
        finally:
            cleaned.append(True)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), Beside(run) as beside:
        rounds = iter(range(3))
        beside.until(lambda: next(rounds, None) is None)
        raise KeyboardInterrupt
    assert cleaned == [True]
    assert threading.active_count() == before


def test_it_need_not_run_at_all():
    done = []
    with Beside(lambda: done.append(True)):
        pass
    assert done == []
