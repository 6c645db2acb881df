"""Everyone draws the same examples, unless they search for new ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PRINT_SETTINGS = """
import json
from tests.profiles import at_most
from hypothesis import settings
now = settings.default
print(json.dumps([now.max_examples, now.derandomize, at_most(10).max_examples, at_most(100).max_examples, repr(now)]))
"""


def settings_under(**environment: str) -> Any:
    """What the tests draw under an environment: examples, whether the same ones, and two tests' own limits."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "INTERBASIN_"))}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_SETTINGS],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("profile", ["default", "check", "search"])
def test_a_continuous_integration_changes_nothing(profile: str) -> None:
    assert settings_under(INTERBASIN_PROFILE=profile, CI="1") == settings_under(INTERBASIN_PROFILE=profile)


def test_examples_are_the_same_and_few_by_default_and_new_in_a_search() -> None:
    assert settings_under()[:4] == [15, True, 10, 15]
    assert settings_under(INTERBASIN_PROFILE="check")[:4] == [50, True, 10, 50]
    assert settings_under(INTERBASIN_PROFILE="search", INTERBASIN_EXAMPLES="700")[:4] == [700, False, 700, 700]
