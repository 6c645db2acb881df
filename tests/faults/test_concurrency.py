"""Two programs at the same time, for the same output: one result, whole; a sentence for whoever came too late.

A few cases; all of them where INTERBASIN_FAULTS is ``all``, and in `python -m tests.faults --pairs`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.faults.cases import CASES, Case
from tests.faults.layer import NO_COMPILER, Layer, find_compiler, layer
from tests.faults.trials import Bench

FEW = {"fit", "merge to a file", "rebasin", "translate apply to parquet", "save wiring"}
TRIED = [case for case in CASES if case.name in FEW or (os.environ.get("INTERBASIN_FAULTS") == "all" and not case.slow)]
PAIRS = [(case, over) for case in TRIED for over in (False, True) if not over or case.replaces]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)]


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layer]:
    with layer(tmp_path_factory.mktemp("layer")) as found:
        yield found


@pytest.mark.parametrize(
    ("case", "over"), PAIRS, ids=lambda value: getattr(value, "name", "over" if value else "fresh")
)
def test_of_two_writers_one_result_stays_and_nothing_beside_it(case: Case, over: bool, armed: Layer, tmp_path):
    assert Bench(armed, case, over, tmp_path / "bench").run_twice_at_once() == []
