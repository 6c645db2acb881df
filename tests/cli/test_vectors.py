"""``--statistics``: kept, taken up again after an interrupt, and never mixed up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.test_frame import failed, run, two_files  # noqa: F401  (two_files is the fixture `files`)
from tests.test_storage import left_in

from interbasin import PairedMoments
from interbasin.statistics import PairedMoments as Moments
from interbasin.vectors.files.base import Vectors


@pytest.fixture
def command(files, tmp_path):
    return ("compare", *files, "--rows-per-batch", 30, "--json", "--quiet", "--statistics", tmp_path / "seen")


def test_a_second_run_does_not_read_again(command, files, tmp_path, monkeypatch):
    first = run(*command)
    assert first.exit_code == 0, first.stderr

    def no_rows(self, rows_per_batch, start=0):
        assert start == self.rows, "the file was read again"
        return iter(())

    monkeypatch.setattr(Vectors, "batches", no_rows)
    assert run(*command).stdout == first.stdout
    for method in ("least-squares", "cca", "procrustes"):
        output = tmp_path / method
        done = run("fit", *files, "--method", method, "-o", output, "--quiet", "--statistics", tmp_path / "seen")
        assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("batches", [1, 3, 6])
def test_an_interrupted_run_goes_on_to_identical_numbers(command, batches, files, tmp_path, monkeypatch):
    whole = run(*command[:-2])
    update = Moments.update

    def tire(self, source, target):
        if self.batches == batches:
            raise KeyboardInterrupt
        update(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Moments, "update", tire)
        done = run(*command)
    assert done.exit_code == 130 and done.stdout == ""
    assert f"rows are kept in {tmp_path / 'seen'}: run the same command to go on." in done.stderr
    assert "nothing half-written" not in done.stderr
    assert PairedMoments.load(tmp_path / "seen").count == 30 * batches
    resumed = run(*command)
    assert json.loads(resumed.stdout) == json.loads(whole.stdout)
    assert left_in(tmp_path) == ["a.npy", "b.npy", "seen", "seen/moments.json", "seen/moments.safetensors"]


def test_statistics_of_other_files_are_refused(command, files, tmp_path):
    assert run(*command).exit_code == 0
    source, target = files
    swapped = ("compare", target, source, "--statistics", tmp_path / "seen")
    assert "of other files" in failed(run(*swapped))
    np.save(source, np.load(source) + 1)
    assert "changed since" in failed(run("compare", source, target, "--statistics", tmp_path / "seen"))


def test_statistics_on_the_way_to_a_bad_row_are_kept(files, tmp_path):
    array = np.load(files[0])
    array[100, 0] = np.inf
    np.save(files[0], array)
    failed(run("compare", *files, "--rows-per-batch", 30, "--statistics", tmp_path / "seen"))
    assert PairedMoments.load(tmp_path / "seen").count == 90
