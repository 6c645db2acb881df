"""Collecting the tests is quick."""

from __future__ import annotations

import pytest
from tests.conftest import IMPORTED_WHILE_COLLECTING


def test_collecting_the_tests_imports_no_library_of_networks(request: pytest.FixtureRequest) -> None:
    """Of the files that this run collects; `make test` collects all."""
    imported = request.config.stash[IMPORTED_WHILE_COLLECTING]
    assert not imported, "a test file imports these at its top; import them in the test or in a fixture"
