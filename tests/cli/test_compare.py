"""``interbasin compare``: the similarities of the library, for people and for programs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.test_frame import failed, run, two_files  # noqa: F401  (two_files is the fixture `files`)

from interbasin import PairedMoments, statistics
from interbasin.cli.compare import MEANINGS


def test_the_numbers_are_those_of_the_library(files):
    x, y = (np.load(path) for path in files)
    done = run("compare", *files, "--json", "--quiet")
    printed = json.loads(done.stdout)
    assert printed.pop("similarities") == pytest.approx(statistics.similarities(PairedMoments.of(x, y)), abs=1e-12)
    expected = {"source": str(files[0]), "target": str(files[1]), "rows": 200, "source_width": 4, "target_width": 4}
    assert printed == expected


def test_batches_change_nothing(files):
    whole, parts = (
        json.loads(run("compare", *files, "--json", "--quiet", "--rows-per-batch", rows).stdout)["similarities"]
        for rows in (200, 7)
    )
    assert parts == pytest.approx(whole, abs=1e-6)  # the distance is a root: half the digits


def test_every_similarity_has_a_meaning(files):
    found = statistics.similarities(PairedMoments.of(*(np.load(path) for path in files)))
    assert set(found) == set(MEANINGS)
    shown = run("compare", *files, "--quiet").stdout
    assert [name for name in found if name not in shown] == []


def test_between_unequal_widths_the_cosine_is_left_out(files):
    np.save(files[1], np.load(files[1])[:, :2])
    found = json.loads(run("compare", *files, "--json", "--quiet").stdout)
    assert "mean_cosine" not in found["similarities"] and found["target_width"] == 2
    assert run("compare", *files, "--quiet").exit_code == 0


def test_too_few_rows_are_remarked_on(files):
    for path in files:
        np.save(path, np.load(path)[:4])
    assert "inflated" in run("compare", *files).stderr


def test_two_runs_with_the_same_statistics_agree(files, tmp_path):
    command = ("compare", *files, "--json", "--quiet", "--statistics", tmp_path / "seen")
    first = run(*command)
    assert first.exit_code == 0 and run(*command).stdout == first.stdout
