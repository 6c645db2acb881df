"""The PostgreSQL server that tests of stores run on, for the tests of secrets too."""

from __future__ import annotations

from tests.vectors.stores.conftest import running, server

__all__ = ["running", "server"]
