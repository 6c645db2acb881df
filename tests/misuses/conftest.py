"""Every row runs in an empty folder of its own; the files that rows share lie beside it."""

from __future__ import annotations

import pytest
from tests.misuses import things  # noqa: F401  (puts them on the shelf)
from tests.misuses.table import the


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    the.folder = tmp_path_factory.getbasetemp() / "shelf"
    the.folder.mkdir(exist_ok=True)
