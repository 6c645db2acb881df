"""Whatever call fails, and wherever a process is killed: nothing partial, nothing lost, and the same bytes next time.

A few trials of each case, drawn by a seed, first and last calls always among them; all of them where INTERBASIN_FAULTS
is ``all``. `python -m tests.faults` counts them.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator

import pytest
from tests.faults.cases import BY_NAME, CASES, Case
from tests.faults.known import KNOWN, Known, unknown
from tests.faults.layer import NO_COMPILER, Layer, find_compiler, layer
from tests.faults.trials import KINDS, Bench, Trial
from typer.main import get_command

from interbasin.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)]
EVERY = os.environ.get("INTERBASIN_FAULTS") == "all"
TRIALS, TRIALS_OF_SLOW = 2, 1
BENCHES = [(case, over) for case in CASES for over in (False, True) if not over or case.replaces]
# Commands that read only, or whose writing another case tries, each with its reason.
ELSEWHERE = {"demo": "writes nothing"}


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layer]:
    with layer(tmp_path_factory.mktemp("layer")) as found:
        yield found


@pytest.fixture(scope="module")
def bench_of(armed: Layer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case, bool], Bench]:
    """The bench of a case, made once."""
    return functools.cache(lambda case, over: Bench(armed, case, over, tmp_path_factory.mktemp("bench") / "of"))


def name_of(value: object) -> str | None:
    return value.name if isinstance(value, Case) else "over" if value is True else "fresh" if value is False else None


@pytest.mark.parametrize(("case", "over"), BENCHES, ids=name_of)
def test_nothing_is_partial_or_lost_and_the_next_run_gives_the_same_bytes(case, over, bench_of):
    bench = bench_of(case, over)
    draw = random.Random(f"{case.name} {over}")
    trials = bench.every_trial() if EVERY else bench.some_trials(TRIALS_OF_SLOW if case.slow else TRIALS, draw)
    violations = [violation for trial in trials for violation in bench.run(trial)]
    assert unknown(violations) == []


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.why)
def test_what_is_known_to_be_wrong_still_is(known: Known, bench_of):
    example = known.example
    bench = bench_of(BY_NAME[example.case], example.over)
    violations = bench.run(Trial(example.fault, bench.find(example.call)[example.place]))
    kinds = {violation.kind for violation in violations if known.is_cause_of(violation)}
    assert kinds == set(known.kinds), "what is mended is taken out of KNOWN"


def test_known_violations_have_a_kind_that_there_is():
    assert {kind for known in KNOWN for kind in known.kinds} <= KINDS.keys()


def test_every_command_that_writes_has_a_case():
    tried = {" ".join(word for word in case.words[:2] if word.isalpha()) for case in CASES if case.words}
    for path, command in commands_of(get_command(app), ()):
        writes = {"output", "statistics", "state"} & {parameter.name for parameter in command.params}
        name = " ".join(path)
        assert not writes or any(words.startswith(name) for words in tried) or name in ELSEWHERE, name


def commands_of(command, path):
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_of(below, (*path, name))
    if path and not hasattr(command, "commands"):
        yield path, command
