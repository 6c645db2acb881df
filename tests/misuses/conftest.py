"""Every row runs in one empty folder, which it must leave empty; the files that rows share lie beside it."""

from __future__ import annotations

import shutil

import pytest
from tests.misuses import things  # noqa: F401  (puts them on the shelf)
from tests.misuses.table import the


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory):
    the.folder = tmp_path_factory.mktemp("shelf")
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(autouse=True)
def inside(empty_folder, monkeypatch):
    monkeypatch.chdir(empty_folder)
    monkeypatch.delenv("INTERBASIN_DOWNLOADS", raising=False)
    yield
    for path in empty_folder.iterdir():  # what a row that failed left behind is no fault of the next
        shutil.rmtree(path) if path.is_dir() else path.unlink()
