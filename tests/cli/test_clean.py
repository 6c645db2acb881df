"""``interbasin clean``: what killed commands left goes, unfinished work only where that is asked, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_frame import failed, run
from tests.test_storage import left_in

from interbasin.storage.lock import claim_folder, claim_temporary_folder, unfinished_folder


@pytest.fixture
def left(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A temporary folder and unfinished work, beside something precious; both without a process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").write_text("precious")
    claims = claim_temporary_folder(tmp_path), claim_folder(unfinished_folder(tmp_path / "new.npy"), "new.npy")
    for claim in claims:
        (claim.folder / "state.json").write_text("half")
        claim.release()
    return claims[0].folder, claims[1].folder


def test_a_dry_run_lists_and_removes_nothing(left):
    done = run("clean", "--dry-run", "--json")
    removed = json.loads(done.stdout)["removed"]
    assert done.exit_code == 0 and removed == [{"folder": left[0].name, "bytes": 4, "unfinished": False}]
    assert all(folder.exists() for folder in left)
    assert "would remove" in run("clean", "--dry-run").stdout


def test_what_can_go_on_stays_until_it_is_asked_for(left, tmp_path):
    done = run("clean", tmp_path)
    assert done.exit_code == 0 and left[0].name in done.stdout
    assert "1 unfinished run can go on, and stayed; --unfinished removes such work too." in done.stderr
    assert not left[0].exists() and left[1].exists()
    assert left[1].name in run("clean", tmp_path, "--unfinished").stdout
    assert left_in(tmp_path) == ["precious"]
    assert run("clean").stdout == "Nothing was left behind.\n"


def test_folders_below_are_looked_into_where_that_is_asked(left, tmp_path):
    assert run("clean", tmp_path.parent, "--unfinished").exit_code == 0 and left[0].exists()
    assert run("clean", tmp_path.parent, "--unfinished", "--below").exit_code == 0
    assert left_in(tmp_path) == ["precious"]


def test_what_a_running_command_uses_is_not_touched(left):
    claim = claim_folder(left[1], "new.npy")
    assert json.loads(run("clean", "--unfinished", "--json").stdout)["removed"][0]["folder"] == left[0].name
    assert left[1].exists()
    claim.release()


def test_a_folder_that_is_not_there_is_said(tmp_path):
    assert "nowhere, which is no folder; give the folder that" in failed(run("clean", tmp_path / "nowhere"))
