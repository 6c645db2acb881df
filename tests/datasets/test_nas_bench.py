"""Tasks of NAS-Bench-360, written here in the layouts that it publishes. Pickles are refused, and never loaded."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from tests.test_storage import refused

from interbasin.datasets import open_data, read_pairs, splits_of
from interbasin.errors import DataError, FileError, ShapeError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


def write_ninapro() -> dict[str, np.ndarray]:
    Path("ninaPro").mkdir()
    signals = {name: np.random.default_rng(0).normal(size=(count, 6, 4)) for name, count in PARTS.items()}
    for name, values in signals.items():
        np.save(f"ninaPro/ninapro_{name}.npy", values)
        np.save(f"ninaPro/label_{name}.npy", np.arange(len(values)).astype(np.float64))
    return signals


PARTS = {"train": 5, "val": 2, "test": 3}


def test_ninapro_is_an_image_with_a_row_for_each_electrode():
    signals = write_ninapro()
    assert splits_of("ninaPro") == ("train", "valid", "test")
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        inputs, labels, _ = read_pairs("ninaPro", split=split)
        assert np.allclose(inputs[:, 0], signals[name].swapaxes(1, 2)) and inputs.shape[1:] == (1, 4, 6)
        assert labels.tolist() == list(range(PARTS[name])) and labels.dtype is torch.int64


def test_what_is_wrong_with_ninapro_is_named():
    write_ninapro()
    np.save("ninaPro/label_test.npy", np.arange(2))
    refused(lambda: read_pairs("ninaPro", split="test"), ShapeError, ("3 samples", "2 labels"))
    Path("ninaPro/label_val.npy").unlink()
    refused(lambda: read_pairs("ninaPro", split="valid"), FileError, ("label_val.npy",))
    np.save("ninaPro/ninapro_train.npy", np.zeros((5, 6)))
    refused(lambda: read_pairs("ninaPro"), ShapeError, ("(5, 6)",))
    np.save("ninaPro/label_train.npy", np.array([{}] * 5))
    np.save("ninaPro/ninapro_train.npy", np.zeros((5, 6, 4)))
    refused(lambda: read_pairs("ninaPro"), DataError, ("label_train.npy", "run code"))


def test_deepsea_has_its_channels_first_and_several_labels():
    rows = np.random.default_rng(0)
    arrays = {}
    for name, count in PARTS.items():
        arrays[f"x_{name}"] = np.eye(4, dtype=np.uint8)[rows.integers(0, 4, (count, 10))] * 255
        arrays[f"y_{name}"] = rows.integers(0, 2, (count, 36))
    np.savez("deepsea_filtered.npz", **arrays)
    assert splits_of("deepsea_filtered.npz") == ("train", "valid", "test")
    inputs, labels, _ = read_pairs("deepsea_filtered.npz", split="valid")
    assert inputs.shape == (2, 4, 10) and np.array_equal(inputs, arrays["x_val"].swapaxes(1, 2) / 255)
    assert np.array_equal(labels, arrays["y_val"]) and labels.dtype is torch.int64


def test_darcy_flow_has_a_file_for_each_part():
    Path("darcy").mkdir()
    for number, count in ((1, 4), (2, 3)):
        fields = {"coeff": np.ones((count, 5, 5)), "sol": np.full((count, 5, 5), float(number))}
        scipy.io.savemat(f"darcy/piececonst_r421_N1024_smooth{number}.mat", fields)
    assert splits_of("darcy") == ("train", "test")
    assert read_pairs("darcy")[1].shape == (4, 1, 5, 5) and read_pairs("darcy", split="test")[1].unique().tolist() == [
        2
    ]


def write_cosmic() -> None:
    for part, count in (("train", 3), ("test", 2)):
        folder = Path("cosmic", f"npy_{part}", "f435w", "10182", "pb")
        folder.mkdir(parents=True)
        for number in range(count):
            image = np.full((3, 8, 8), float(number))
            image[1] = number % 2
            np.save(folder / f"{number}_x.npy", image)
        np.save(folder / "sky.npy", np.zeros(count))


def test_cosmic_goes_from_images_to_masks():
    write_cosmic()
    assert splits_of("cosmic") == ("train", "test")
    inputs, labels, _ = read_pairs("cosmic")
    assert inputs.shape == labels.shape == (3, 1, 8, 8) and inputs[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert labels[:, 0, 0, 0].tolist() == [0, 1, 0]
    np.save("cosmic/train_dirs.npy", ["./cosmic/npy_train/f435w/10182/pb/2_x.npy"])
    assert read_pairs("cosmic")[0][:, 0, 0, 0].tolist() == [2]


@pytest.mark.parametrize(
    ("line", "error", "word"),
    [
        ("./cosmic/npy_train/../../secret.npy", DataError, "../../secret.npy"),
        ("/etc/secret.npy", DataError, "secret.npy"),
        ("./cosmic/npy_train/gone.npy", FileError, "gone.npy"),
    ],
)
def test_a_list_of_cosmic_names_files_below_its_folder_only(line, error, word):
    write_cosmic()
    np.save("cosmic/train_dirs.npy", [line])
    refused(lambda: read_pairs("cosmic"), error, (word,))


def test_images_of_cosmic_have_one_size():
    write_cosmic()
    np.save("cosmic/npy_train/f435w/10182/pb/3_x.npy", np.zeros((3, 4, 4)))
    refused(lambda: read_pairs("cosmic"), ShapeError, ("3_x.npy", "(4, 4)"))
    np.save("cosmic/npy_train/f435w/10182/pb/3_x.npy", np.zeros((4, 4)))
    refused(lambda: read_pairs("cosmic"), ShapeError, ("3_x.npy", "image and mask"))


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("challenge2017.pkl", bytes), ("s2_cifar100.gz", gzip.compress), ("train", bytes), ("a.pt", bytes)],
)
def test_pickles_are_refused_and_never_loaded(name, pack):
    Path(name).write_bytes(pack(pickle.dumps({"data": Trap()})))
    refused(lambda: open_data(name), DataError, (name, "run code", "np.savez"))
    assert not Path("sprung").exists()


def test_a_pickled_dictionary_in_an_array_is_refused():
    np.save("satellite_train.npy", {"data": Trap(), "label": 1})
    refused(lambda: open_data("satellite_train.npy"), DataError, ("satellite_train.npy", "run code"))
    assert not Path("sprung").exists()
