"""What the fuzzer once found stays mended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.fresh import Starter
from tests.fuzz.running import run_fuzzer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")

FOLDER = Path(__file__).parent / "regressions"


@pytest.fixture(scope="module")
def verdicts(starter: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What comes of each of them now, in processes of their own: some of them ended the process."""
    return run_fuzzer(starter, tmp_path_factory.mktemp("fuzz"), "--again", FOLDER)["verdicts"]


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_a_mutant_that_was_once_a_defect_is_refused_or_read_right(name: str, verdicts: dict[str, str]) -> None:
    was = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["was"]
    assert verdicts[name] in ("refused", "right", "as others"), f"it is {verdicts[name]} and was {was}"
