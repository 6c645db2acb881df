"""Data that are made and written: what is read back is what was made, and nothing is overwritten unasked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.test_storage import left_in, refused

from interbasin.datasets import load_digits, read_pairs, splits_of
from interbasin.datasets.equations import EQUATIONS, generate
from interbasin.datasets.generated import GENERATORS, write_data
from interbasin.datasets.planted import merge_labels, rotate_patches
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError

MEMBERS = ("x", "y", "x_test", "y_test")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


def test_every_equation_and_both_gaps_can_be_written():
    assert GENERATORS.names == (*EQUATIONS, "rotated-patches", "merged-labels")


@pytest.mark.parametrize("name", ["advection", "reaction-diffusion", "darcy"])
def test_what_is_written_is_what_the_equation_gives(name):
    done = []
    written = write_data(name, "d.npz", count=6, test_count=3, points=12, seed=4, progress=done.append)
    x, y = generate(name, 6, points=12, seed=4)
    inputs, labels, _ = read_pairs("d.npz")
    assert np.array_equal(inputs, x) and np.array_equal(labels, y) and splits_of("d.npz") == ("train", "test")
    test_inputs = read_pairs("d.npz", split="test")[0]
    assert len(test_inputs) == 3 and not np.array_equal(test_inputs, x[:3]) and done[-1] == 9
    assert written.shapes["x"] == x.shape and written.summary()["request"]["points"] == 12


def test_the_samples_for_training_do_not_depend_on_those_for_the_test():
    write_data("advection", "a.npz", count=5, test_count=0)
    write_data("advection", "b.npz", count=5, test_count=9)
    assert torch.equal(read_pairs("a.npz")[0], read_pairs("b.npz")[0]) and splits_of("a.npz") == ()


def test_the_numbers_of_an_equation_count_and_the_same_request_gives_the_same_bytes():
    for name, speed in (("a.npz", 0.0), ("b.npz", 0.3), ("c.npz", 0.3)):
        write_data("advection", name, count=4, numbers={"speed": speed})
    inputs, labels, _ = read_pairs("a.npz")
    torch.testing.assert_close(inputs, labels)  # at speed 0 nothing moves
    assert Path("b.npz").read_bytes() == Path("c.npz").read_bytes() != Path("a.npz").read_bytes()


def test_samples_that_advance_in_blocks_are_those_that_advance_together(monkeypatch):
    whole = generate("burgers", 7, points=16)
    monkeypatch.setattr("interbasin.datasets.equations.BLOCK", 32)
    np.testing.assert_array_equal(generate("burgers", 7, points=16), whole)


def test_patches_are_rotated_alike_in_both_parts():
    write_data("rotated-patches", "r.npz", source="digits", patch=2, seed=3)
    digits = load_digits()
    for split, images in (("train", digits.train_images), ("test", digits.test_images)):
        inputs, labels, _ = read_pairs("r.npz", split=split)
        torch.testing.assert_close(inputs, rotate_patches(images[:, None], 2, seed=3))
        assert torch.equal(labels, getattr(digits, f"{split}_labels"))


def test_labels_are_merged_alike_in_both_parts():
    # The test part lacks the last class, so that merging it alone would give other names.
    np.savez("d.npz", x=np.zeros((6, 2)), y=np.arange(6), x_test=np.zeros((3, 2)), y_test=np.arange(3))
    write_data("merged-labels", "m.npz", source="d.npz", classes=2, seed=1)
    merged = merge_labels(torch.arange(6), 2, seed=1)
    assert torch.equal(read_pairs("m.npz")[1], merged) and torch.equal(read_pairs("m.npz", split="test")[1], merged[:3])
    assert write_data("merged-labels", "n.npz", source="d.npz", classes=2, count=4, test_count=0).shapes["x"] == (4, 2)
    assert splits_of("n.npz") == ()


def test_labels_with_names_keep_them():
    kinds = np.array(["saw", "sine", "bell"])
    images = np.arange(24.0).reshape(6, 2, 2)
    np.savez("d.npz", x=images, y=kinds[[0, 1, 2, 0, 1, 2]], x_test=images[:2], y_test=kinds[[2, 0]])
    write_data("rotated-patches", "r.npz", source="d.npz", patch=2)
    for split, expected in (("train", [1, 2, 0, 1, 2, 0]), ("test", [0, 1])):
        _, labels, classes = read_pairs("r.npz", split=split)
        assert classes == ("bell", "saw", "sine") and labels.tolist() == expected
    written = write_data("merged-labels", "m.npz", source="d.npz", classes=2, seed=1)
    merged = written.request["merged"]
    assert sorted(name for names in merged for name in names) == ["bell", "saw", "sine"] and len(merged) == 2
    for name, label in zip(kinds[[0, 1, 2, 0, 1, 2]], read_pairs("m.npz")[1].tolist(), strict=True):
        assert name in merged[label]
    assert written.summary()["request"]["merged"] == merged


def test_a_name_is_the_same_class_in_both_parts_of_a_folder_of_images():
    from PIL import Image

    for split, kinds in (("train", "ab"), ("test", "b")):  # the only class of the test part has number 0 there
        for kind in kinds:
            Path(split, kind).mkdir(parents=True)
            for number in range(2):
                Image.fromarray(np.full((4, 4), 9 * number, np.uint8)).save(Path(split, kind, f"{number}.png"))
    written = write_data("merged-labels", "m.npz", source=".", classes=2)
    place = written.request["merged"].index(["b"])
    assert read_pairs("m.npz", split="test")[1].tolist() == [place, place]


def test_nothing_is_overwritten_unasked_and_only_what_was_made_here_if_asked():
    write_data("advection", "a.npz", count=3)
    before = Path("a.npz").read_bytes()
    refused(lambda: write_data("advection", "a.npz", count=4), FileError, ("a.npz", "force=True"))
    assert Path("a.npz").read_bytes() == before
    write_data("advection", "a.npz", count=4, force=True)
    assert len(read_pairs("a.npz")[0]) == 4
    np.savez("mine.npz", x=np.zeros((2, 2)))
    Path("text.npz").write_text("mine")
    for name in ("mine.npz", "text.npz"):
        refused(lambda name=name: write_data("advection", name, force=True), FileError, (name, "did not write"))


def test_every_member_of_the_file_is_an_array_and_one_says_what_it_was_made_from():
    write_data("advection", "a.npz", count=3, test_count=2, points=16, seed=7)
    with np.load("a.npz", allow_pickle=False) as members:
        shapes = {name: members[name].shape for name in members}
        record = json.loads(str(members["interbasin"]))
    assert shapes == {name: (count, 1, 16) for name, count in zip(MEMBERS, (3, 3, 2, 2), strict=True)} | {
        "interbasin": ()
    }
    assert record["name"] == "advection" and record["request"]["seed"] == 7


def test_a_file_of_an_earlier_version_is_known_as_ours():
    np.savez("old.npz", x=np.zeros((2, 1, 8)), y=np.zeros((2, 1, 8)))
    with zipfile.ZipFile("old.npz", "a") as archive:
        archive.writestr("interbasin.json", '{"format": "interbasin.data.v1", "name": "advection", "request": {}}')
    assert read_pairs("old.npz")[0].shape == (2, 1, 8)
    write_data("advection", "old.npz", count=4, force=True)
    assert len(read_pairs("old.npz")[0]) == 4


def test_a_failure_leaves_nothing(monkeypatch, tmp_path):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.savez", full)
    refused(lambda: write_data("advection", "a.npz", count=3), FileError, ("a.npz", "No space left"))
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("burger", "a.npz"), {}, UnknownNameError, ("burgers",)),
        (("burgers", "a.npy"), {}, FileError, ("a.npy", ".npz")),
        (("burgers", "a.npz"), {"count": 0}, DataError, ("count",)),
        (("burgers", "a.npz"), {"test_count": -1}, DataError, ("test_count",)),
        (("burgers", "a.npz"), {"points": 4}, DataError, ("points",)),
        (("burgers", "a.npz"), {"seed": -1}, DataError, ("seed",)),
        (("burgers", "a.npz"), {"seed": "x"}, DataError, ("seed",)),
        (("burgers", "a.npz"), {"numbers": {"speed": 1.0}}, UnknownNameError, ("viscosity",)),
        (("burgers", "a.npz"), {"numbers": {"time": -1.0}}, DataError, ("time",)),
        (("burgers", "a.npz"), {"patch": 4}, DataError, ("'patch'", "rotated-patches")),
        (("merged-labels", "a.npz"), {"source": "digits"}, DataError, ("classes=",)),
        (("merged-labels", "a.npz"), {"classes": 2}, DataError, ("source=",)),
        (("merged-labels", "a.npz"), {"source": "digits", "classes": 11}, DataError, ("11",)),
        (("merged-labels", "a.npz"), {"source": "f.npz", "classes": 2}, DataError, ("torch.float32",)),
        (("merged-labels", "a.npz"), {"source": "u.npz", "classes": 2}, DataError, ("u.npz", "no labels")),
        (("merged-labels", "a.npz"), {"source": "f.npz", "classes": 2, "test_count": 2}, DataError, ("no test part",)),
        (("rotated-patches", "a.npz"), {"source": "digits", "patch": 3}, ShapeError, ("3 by 3",)),
        (("rotated-patches", "a.npz"), {"source": "digits", "points": 8}, DataError, ("'points'",)),
        (("rotated-patches", "a.npz"), {"source": "digits", "count": 0}, DataError, ("count",)),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_written(arguments, options, error, words, tmp_path):
    np.savez("f.npz", x=np.zeros((3, 2)), y=np.zeros(3))
    np.savez("u.npz", x=np.zeros((3, 2)))
    refused(lambda: write_data(*arguments, **options), error, words)
    assert left_in(tmp_path) == ["f.npz", "u.npz"]
