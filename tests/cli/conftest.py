"""The program is built once for all tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from typer.main import get_command


@pytest.fixture(scope="session", autouse=True)
def program_is_built_once() -> Iterator[None]:
    """typer builds its commands anew for every call, and with our options that takes longer than most calls do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield
