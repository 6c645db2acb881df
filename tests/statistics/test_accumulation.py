"""Statistics on disk: they go on where they stopped, to the last bit."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from tests.records import seal_document
from tests.statistics.test_moments import rows, state
from tests.test_storage import case, left_in, refused, retensored

from interbasin import PairedMoments
from interbasin.errors import FileError

FILES = ["seen", "seen/moments.json", "seen/moments.safetensors"]


def batches(first: int, last: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(rows(8, 3, seed=seed), rows(8, 2, seed=seed + 50)) for seed in range(first, last)]


@pytest.fixture
def saved(tmp_path):
    PairedMoments.of_batches(batches(0, 3)).save(tmp_path / "seen")
    return tmp_path / "seen"


@pytest.mark.parametrize("grams", [False, True])
def test_saving_loading_and_going_on_equals_one_pass(grams, tmp_path):
    PairedMoments.of_batches(batches(0, 3), grams=grams).save(tmp_path / "seen")
    resumed = PairedMoments.load(tmp_path / "seen")
    for x, y in batches(3, 6):
        resumed.update(x, y)
    assert state(resumed) == state(PairedMoments.of_batches(batches(0, 6), grams=grams))
    assert left_in(tmp_path) == FILES


def test_empty_moments_come_back_empty_and_can_go_on(tmp_path):
    PairedMoments(grams=True).save(tmp_path / "seen")
    found = PairedMoments.load(tmp_path / "seen")
    assert found.count == 0 and found.has_grams
    found.update(*batches(0, 1)[0])
    assert state(found) == state(PairedMoments.of_batches(batches(0, 1)))


def test_notes_are_kept(tmp_path):
    PairedMoments.of_batches(batches(0, 1)).save(tmp_path / "seen", notes={"layer": "hidden", "part": 3})
    assert PairedMoments.load_with_notes(tmp_path / "seen")[1] == {"layer": "hidden", "part": 3}


def edit(folder: Path, **changes: object) -> None:
    path = folder / "moments.json"
    document = json.loads(path.read_text("utf-8")) | changes
    seal_document(path, {key: value for key, value in document.items() if value is not ...})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        case("no count", {"count": ...}, FileError, "count"),
        case("a count in words", {"count": "many"}, FileError, "many"),
        case("a negative count", {"count": -5}, FileError, "-5"),
        case("an infinite count", {"count": float("inf")}, FileError),
        case("no rows, but sums", {"count": 0}, FileError),
        case("no sources", {"sources": ...}, FileError, "sources"),
        case("a source more", {"sources": ["source", "other"]}, FileError, "source.1"),
        case("sources that are none", {"sources": 3}, FileError),
        case("grams that are not there", {"grams": False}, FileError, "source.0", "width 3"),
        case("notes that are none", {"notes": 3}, FileError),
        case("no notes", {"notes": ...}, FileError, "notes"),
        case("another format", {"format": "interbasin.map"}, FileError, "interbasin.map"),
        case("a later version", {"version": 9}, FileError, "version 9"),
    ],
)
def test_a_document_that_disagrees_with_its_sums_is_refused(changes, error, words, saved):
    edit(saved, **changes)
    refused(lambda: PairedMoments.load(saved), error, (str(saved), *words))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        case("no cross-product", {"cross.0.0": None}, FileError, "cross.0.0"),
        case("a narrow cross-product", {"cross.0.0": torch.ones(2, 2)}, FileError, "cross.0.0", "(2, 2)", "(2, 3)"),
        case("no origin", {"source.0.origin": None}, FileError, "source.0.origin"),
        case("a short sum", {"source.0.total": torch.ones(2)}, FileError, "source.0", "(2,)"),
        case("another Gram matrix", {"target.0.square": torch.ones(3, 3)}, FileError, "target.0", "(3, 3)"),
    ],
)
def test_sums_that_do_not_fit_together_are_refused(changes, error, words, saved):
    retensored(saved, "moments", changes)
    refused(lambda: PairedMoments.load(saved), error, (str(saved), *words))


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_save_that_fails_leaves_the_earlier_statistics(fault, saved, tmp_path, monkeypatch):
    before = state(PairedMoments.load(saved))

    def fail(*arguments, **keywords):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", fail)
        with pytest.raises((FileError, KeyboardInterrupt)):
            PairedMoments.of_batches(batches(0, 5)).save(saved, force=True)
    assert state(PairedMoments.load(saved)) == before
    assert left_in(tmp_path) == FILES
