"""Killed at random moments; `python -m tests.faults --kills 300` goes through all cases."""

from __future__ import annotations

import random

import pytest
from tests.faults.cases import BY_NAME
from tests.faults.kills import RandomKills, databases
from tests.faults.known import unknown
from tests.faults.layer import NO_COMPILER, find_compiler, layer
from tests.faults.trials import Bench

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)]
KILLS = 4


@pytest.fixture(scope="module")
def armed(tmp_path_factory):
    with layer(tmp_path_factory.mktemp("layer")) as found:
        yield found


@pytest.mark.parametrize("name", ["merge to a folder", "translate apply to npy", "train with checkpoint"])
def test_a_kill_at_any_moment_leaves_nothing_partial(name, armed, tmp_path):
    target = RandomKills(Bench(armed, BY_NAME[name], True, tmp_path / "bench"), random.Random(0))
    kills = [target.kill() for _ in range(KILLS)]
    assert any(landed for landed, _ in kills)
    assert unknown([violation for _, violations in kills for violation in violations]) == []


def test_a_kill_at_any_moment_leaves_a_database_as_it_was(armed, tmp_path):
    with databases(armed, tmp_path, random.Random(0)) as found:
        if not found:
            pytest.skip("pgserver is not installed: there is no PostgreSQL server to kill a translation in")
        kills = [target.kill() for target in found for _ in range(KILLS)]
    assert any(landed for landed, _ in kills)
    assert [violation for _, violations in kills for violation in violations] == []
