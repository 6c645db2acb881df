"""The statistics of two files: read once, kept on the way, and honest about what cannot go on."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.statistics.test_moments import state
from tests.test_storage import TOO_LONG, left_in, refused

from interbasin import LayerwiseMoments, PairedMoments, maps
from interbasin.errors import DataError, FileError, InterbasinError, ShapeError
from interbasin.vectors import moments as vector_moments
from interbasin.vectors import moments_of_files, open_vectors

ROWS, BATCH = 100, 16


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", generator.normal(size=(ROWS, 5)).astype(np.float32))
    np.save(tmp_path / "b.npy", generator.normal(size=(ROWS, 3)).astype(np.float32))
    return open_vectors(tmp_path / "a.npy"), open_vectors(tmp_path / "b.npy")


@pytest.fixture
def once(files):
    return state(moments_of_files(*files, rows_per_batch=BATCH))


def interrupt_at(rows: int):
    def progress(done: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    return progress


def unreadable(vectors):
    class Reader:
        def batches(self, rows_per_batch, start):
            assert start == vectors.rows, "the file was read again"
            return iter(())

    return replace(vectors, reader=Reader())


def test_the_moments_of_files_are_those_of_their_arrays(files):
    x, y = (np.load(vectors.path) for vectors in files)
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    assert state(moments_of_files(*files, rows_per_batch=BATCH)) == state(PairedMoments.of_batches(batches))


def test_progress_counts_the_rows(files):
    seen: list[int] = []
    moments_of_files(*files, rows_per_batch=40, progress=seen.append)
    assert seen == [0, 40, 80, 100]


@pytest.mark.parametrize("rows", [1, 33, 80, ROWS])
def test_an_interrupted_run_goes_on_to_identical_numbers(files, once, rows, tmp_path):
    keep = tmp_path / "seen"
    with pytest.raises(KeyboardInterrupt):
        moments_of_files(*files, rows_per_batch=BATCH, keep=keep, progress=interrupt_at(rows))
    assert rows <= PairedMoments.load(keep).count < rows + BATCH
    done: list[int] = []
    resumed = moments_of_files(*files, rows_per_batch=BATCH, keep=keep, progress=done.append)
    assert state(resumed) == once and done[0] >= rows
    assert state(PairedMoments.load(keep)) == once
    assert left_in(keep) == ["moments.json", "moments.safetensors"]


def test_an_interrupt_before_the_first_batch_leaves_nothing(files, tmp_path):
    before = left_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        moments_of_files(*files, keep=tmp_path / "seen", progress=interrupt_at(0))
    assert left_in(tmp_path) == before


def test_statistics_are_kept_on_the_way(files, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_moments, "SECONDS_BETWEEN_SAVES", -1.0)
    kept: list[int] = []

    def look(done: int) -> None:
        if (tmp_path / "seen").exists():
            kept.append(PairedMoments.load(tmp_path / "seen").count)

    moments_of_files(*files, rows_per_batch=40, keep=tmp_path / "seen", progress=look)
    assert kept == [40, 80]


def test_finished_statistics_are_not_read_again(files, once, tmp_path):
    moments_of_files(*files, rows_per_batch=BATCH, keep=tmp_path / "seen")
    again = moments_of_files(*(unreadable(vectors) for vectors in files), keep=tmp_path / "seen")
    assert state(again) == once


def test_an_empty_folder_may_hold_the_statistics(files, once, tmp_path):
    (tmp_path / "seen").mkdir()
    moments_of_files(*files, rows_per_batch=BATCH, keep=tmp_path / "seen")
    assert state(PairedMoments.load(tmp_path / "seen")) == once


def test_statistics_of_other_files_are_refused_and_stay(files, tmp_path):
    source, target = files
    kept = state(moments_of_files(source, target, rows_per_batch=BATCH, keep=tmp_path / "seen"))
    np.save(tmp_path / "c.npy", np.load(source.path))
    words = (str(tmp_path / "seen"), "of other files", "remove it")
    other = open_vectors(tmp_path / "c.npy")
    refused(lambda: moments_of_files(other, target, keep=tmp_path / "seen"), InterbasinError, words)
    refused(lambda: moments_of_files(target, source, keep=tmp_path / "seen"), InterbasinError, words)
    assert state(PairedMoments.load(tmp_path / "seen")) == kept


def test_statistics_of_a_file_that_has_changed_are_refused(files, tmp_path):
    source, target = files
    moments_of_files(source, target, keep=tmp_path / "seen")
    np.save(source.path, np.load(source.path) + 1)
    words = ("have changed since",)
    refused(lambda: moments_of_files(open_vectors(source.path), target, keep=tmp_path / "seen"), InterbasinError, words)


def test_statistics_without_gram_matrices_do_not_become_some_with_them(files, tmp_path):
    moments_of_files(*files, grams=False, keep=tmp_path / "seen")
    refused(lambda: moments_of_files(*files, keep=tmp_path / "seen"), DataError, ("without Gram matrices", "remove"))
    assert not moments_of_files(*files, grams=False, keep=tmp_path / "seen").has_grams


def someone_elses(folder: Path) -> None:
    folder.mkdir()
    (folder / "letter.txt").write_text("dear", "utf-8")


def layers(folder: Path) -> None:
    moments = LayerwiseMoments()
    moments.update({"a": np.eye(2), "b": np.eye(2)}, {"a": np.eye(2)})
    moments.save(folder)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (someone_elses, ("holds other things",)),
        (lambda folder: folder.write_text("dear", "utf-8"), ("a file of that name",)),
        (maps.Identity(2).save, ("holds other things",)),
        (layers, ("several layers",)),
        (lambda folder: PairedMoments.of(np.eye(2), np.eye(2)).save(folder), ("of other files",)),
    ],
    ids=["letters", "a file", "a map", "layers", "statistics without files"],
)
def test_a_folder_that_holds_something_else_is_refused_and_stays(files, prepare, words, tmp_path):
    keep = tmp_path / "seen"
    prepare(keep)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused(lambda: moments_of_files(*files, keep=keep), InterbasinError, (str(keep), *words))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_damaged_statistics_are_called_damaged(files, tmp_path):
    moments_of_files(*files, keep=tmp_path / "seen")
    path = tmp_path / "seen" / "moments.json"
    path.write_text(path.read_text("utf-8")[:-20], "utf-8")
    refused(lambda: moments_of_files(*files, keep=tmp_path / "seen"), FileError, (str(path), "damaged or cut off"))


def test_a_name_that_is_too_long_is_refused_before_reading(files, tmp_path):
    refused(lambda: moments_of_files(*(unreadable(vectors) for vectors in files), keep=tmp_path / TOO_LONG), FileError)


def test_a_place_that_cannot_be_written_is_refused_before_reading(files, tmp_path):
    sources = [unreadable(vectors) for vectors in files]
    refused(lambda: moments_of_files(*sources, keep=files[0].path / "below" / "a" / "file"), FileError)


@pytest.mark.parametrize(("side", "value"), [("source", np.nan), ("target", np.inf)])
def test_bad_values_are_placed_in_their_files(files, side, value, tmp_path):
    broken = files[side == "target"]
    array = np.load(broken.path)
    array[50, 1] = value
    np.save(broken.path, array)
    files = [open_vectors(vectors.path) for vectors in files]
    keep = tmp_path / "seen"
    words = (str(files[0].path), str(files[1].path), side, "1 of", "(1)")
    refused(lambda: moments_of_files(*files, rows_per_batch=BATCH, keep=keep), DataError, words)
    assert PairedMoments.load(keep).count == 48
    assert [name for name in left_in(tmp_path) if name.startswith(".")] == []


def test_the_bad_row_is_counted_in_the_file(files):
    array = np.load(files[0].path)
    array[50, 1] = np.nan
    np.save(files[0].path, array)
    source, target = (open_vectors(vectors.path) for vectors in files)
    refused(lambda: moments_of_files(source, target, rows_per_batch=BATCH), DataError, ("first in row 50",))


def test_unequal_numbers_of_rows_are_refused_and_leave_nothing(files, tmp_path):
    np.save(tmp_path / "short.npy", np.ones((ROWS - 1, 3)))
    before = left_in(tmp_path)
    short = open_vectors(tmp_path / "short.npy")
    words = ("100", "99", "short.npy", "a.npy")
    refused(lambda: moments_of_files(files[0], short, keep=tmp_path / "seen"), ShapeError, words)
    assert left_in(tmp_path) == before


def test_a_file_that_is_gone_is_named(files, tmp_path):
    files[1].path.unlink()
    refused(lambda: moments_of_files(*files, keep=tmp_path / "seen"), FileError, (str(files[1].path),))
    assert left_in(tmp_path) == ["a.npy"]


def test_a_full_disk_leaves_the_earlier_statistics(files, tmp_path, monkeypatch):
    keep = tmp_path / "seen"
    with pytest.raises(KeyboardInterrupt):
        moments_of_files(*files, rows_per_batch=BATCH, keep=keep, progress=interrupt_at(33))

    def fail(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", fail)
        refused(lambda: moments_of_files(*files, rows_per_batch=BATCH, keep=keep), FileError, ("No space left",))
    assert PairedMoments.load(keep).count == 48
    assert left_in(keep) == ["moments.json", "moments.safetensors"]


def test_what_is_kept_names_no_folder(files, tmp_path):
    moments_of_files(*files, keep=tmp_path / "seen")
    document = json.loads((tmp_path / "seen" / "moments.json").read_text("utf-8"))
    assert document["notes"]["inputs"]["source"]["file"] == "a.npy" and str(tmp_path) not in json.dumps(document)
