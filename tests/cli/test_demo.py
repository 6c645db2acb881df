"""``interbasin demo``: every fit in a row, with or without the extras."""

from __future__ import annotations

import json
import sys

import pytest
from tests.cli.test_frame import run
from tests.test_demo import shorten
from tests.test_storage import left_in

from interbasin import demo, fit

pytestmark = pytest.mark.slow  # the demonstration, shortened, is run twice


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    shorten(monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_json_has_a_row_for_every_fit_and_writes_no_file(tmp_path):
    done = run("demo", "--json")
    found = json.loads(done.stdout, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert done.exit_code == 0
    assert [row["method"] for row in found["rows"]] == ["(none)", *fit.names()]
    assert found["seed"] == 0 and set(found["similarities"]) > {"linear_cka"}
    assert left_in(tmp_path) == []


@pytest.fixture(scope="module")
def without_an_extra() -> demo.Demo:
    """What the demonstration finds where an extra is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setitem(sys.modules, "ot", None)
        return demo.run_demo()


@pytest.fixture
def found_without_an_extra(monkeypatch, without_an_extra):
    """The command finds that, and need not look for it again."""
    monkeypatch.setattr(demo, "run_demo", lambda *, seed, progress: without_an_extra)


def test_without_an_extra_there_is_a_note_that_names_it(found_without_an_extra):
    found = json.loads(run("demo", "--json", "--quiet").stdout)
    (row,) = [row for row in found["rows"] if row["method"] == "sinkhorn"]
    assert row["accuracy"] is None and "pip install 'interbasin[ot]'" in row["note"]


def test_people_see_every_fit_and_the_extra_that_is_missing(found_without_an_extra):
    done = run("demo", "--quiet")
    assert done.exit_code == 0 and done.stderr == ""
    assert [name for name in fit.names() if name not in done.stdout] == []
    shown = " ".join(done.stdout.split())
    assert "keep the old model" in shown and "re-embed everything" in shown
    assert "pip install 'interbasin[ot]'" in shown and ".." not in shown
