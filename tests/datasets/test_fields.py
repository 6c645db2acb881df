"""Files of PDEBench and of Darcy flow, written here in their layouts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from tests.test_storage import refused

from interbasin.datasets import open_data, read_pairs
from interbasin.errors import DataError, FileError, MissingExtraError, ShapeError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


def hdf5(name: str = "f.hdf5", **arrays: np.ndarray) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(name, "w") as file:
        for key, array in arrays.items():
            file.create_dataset(key.replace("__", "/").replace("_coordinate", "-coordinate"), data=array)
    return name


def field(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_a_tensor_goes_from_the_first_time_to_the_last():
    values = field(5, 4, 8)
    hdf5(tensor=values, x_coordinate=np.arange(8.0), t_coordinate=np.arange(5.0))
    inputs, labels, classes = read_pairs("f.hdf5")
    assert np.array_equal(inputs, values[:, :1]) and np.array_equal(labels, values[:, -1:]) and classes == ()
    assert inputs.dtype is labels.dtype is torch.float32


def test_a_gas_has_a_channel_for_each_quantity_in_a_fixed_order():
    fields = {name: field(3, 4, 8) * scale for name, scale in (("pressure", 1), ("Vx", 2), ("density", 3))}
    inputs, labels, _ = read_pairs(hdf5("g.h5", **fields))
    expected = np.stack([fields[name] for name in ("density", "Vx", "pressure")], 1)
    assert np.array_equal(inputs, expected[:, :, 0]) and np.array_equal(labels, expected[:, :, -1])


def test_darcy_flow_goes_from_the_medium_to_the_solution():
    nu, tensor = field(3, 4, 4), field(3, 1, 4, 4)
    inputs, labels, _ = read_pairs(hdf5(nu=nu, tensor=tensor))
    assert np.array_equal(inputs, nu[:, None]) and np.array_equal(labels, tensor)


@pytest.mark.parametrize("shape", [(5, 8, 1), (5, 4, 4, 2)])
def test_a_group_for_each_sample_has_its_channels_last_in_the_file_and_first_here(shape):
    samples = [field(*shape) + number for number in range(3)]
    inputs, labels, _ = read_pairs(hdf5("s.h5", **{f"{n:04d}__data": values for n, values in enumerate(samples)}))
    assert np.array_equal(inputs, [np.moveaxis(values[0], -1, 0) for values in samples])
    assert np.array_equal(labels, [np.moveaxis(values[-1], -1, 0) for values in samples])


def test_samples_are_read_in_any_order_and_twice():
    values = field(20, 2, 3)
    hdf5(tensor=values)
    batches = open_data("f.hdf5", shuffle=True, seed=1, limit=7, batch_size=3)
    for _ in range(2):
        inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        assert np.array_equal(inputs[:, 0], values[list(batches.rows), 0])
        assert np.array_equal(labels[:, 0], values[list(batches.rows), -1])


def test_one_batch_does_not_read_the_whole_file(monkeypatch):
    h5py = pytest.importorskip("h5py")
    hdf5(tensor=field(100, 2, 3))
    read = []
    original = h5py.Dataset.__getitem__

    def count_and_read(self, key, *rest):
        value = original(self, key, *rest)
        read.append(np.size(value))
        return value

    monkeypatch.setattr(h5py.Dataset, "__getitem__", count_and_read)
    next(iter(open_data("f.hdf5", batch_size=5)))
    assert sum(read) == 5 * 3 * 2  # inputs and labels of five samples


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ({"velocity": field(2, 3, 4)}, DataError, ("velocity", "PDEBench", ".npz")),
        ({}, DataError, ("nothing",)),
        ({"tensor": field(3, 4)}, ShapeError, ("(3, 4)",)),
        ({"tensor": field(3, 1, 4)}, DataError, ("single step",)),
        ({"tensor": np.array([[[b"a"]]])}, DataError, ("'tensor'", "no array of numbers")),
        ({"density": field(2, 3, 4), "Vx": field(2, 3, 5)}, ShapeError, ("'Vx'", "(2, 3, 5)")),
        ({"nu": field(2, 4, 4), "tensor": field(3, 1, 4, 4)}, ShapeError, ("'tensor'",)),
        ({"0000__data": field(3, 4, 1), "0001__data": field(3, 5, 1)}, ShapeError, ("'0001'",)),
        ({"0000__data": field(1, 4, 1)}, ShapeError, ("'0000'", "two times")),
    ],
)
def test_what_is_no_layout_is_named(arrays, error, words):
    refused(lambda: read_pairs(hdf5(**arrays)), error, ("f.hdf5", *words))


@pytest.mark.parametrize(("time", "word"), [(0, "in f.hdf5"), (-1, "the labels of f.hdf5")])
def test_nan_is_named_with_file_and_sample(time, word):
    values = field(6, 3, 4)
    values[4, time, 2] = np.nan
    hdf5(tensor=values)
    refused(lambda: read_pairs("f.hdf5"), DataError, (word, "sample 4"))
    refused(lambda: list(open_data("f.hdf5", batch_size=2)), DataError, (word, "sample 4"))


def test_a_damaged_file_is_named():
    hdf5(tensor=field(50, 3, 40))
    Path("cut.hdf5").write_bytes(Path("f.hdf5").read_bytes()[:3000])
    refused(lambda: read_pairs("cut.hdf5"), FileError, ("cut.hdf5",))
    Path("text.h5").write_text("hello")
    refused(lambda: read_pairs("text.h5"), FileError, ("text.h5",))


def test_without_h5py_the_extra_is_named(monkeypatch):
    hdf5(tensor=field(3, 3, 4))
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(lambda: read_pairs("f.hdf5"), MissingExtraError, ("f.hdf5",))


# ---------------------------------------------------------------------- .mat


def test_a_mat_file_goes_from_the_coefficient_to_the_solution():
    coeff, sol = field(3, 5, 5).astype(np.float64), field(3, 5, 5).astype(np.float64)
    scipy.io.savemat("d.mat", {"coeff": coeff, "sol": sol, "other": np.zeros(3)})
    inputs, labels, _ = read_pairs("d.mat")
    assert np.allclose(inputs, coeff[:, None]) and np.allclose(labels, sol[:, None])


def test_a_mat_file_of_later_versions_is_read_too():
    h5py = pytest.importorskip("h5py")
    coeff, sol = field(3, 4, 5), field(3, 4, 5)
    with h5py.File("d.mat", "w", userblock_size=512) as file:
        file["coeff"], file["sol"] = coeff.T, sol.T
    content = bytearray(Path("d.mat").read_bytes())
    content[:20] = b"MATLAB 7.3 MAT-file "
    Path("d.mat").write_bytes(content)
    inputs, labels, _ = read_pairs("d.mat")
    assert np.array_equal(inputs[:, 0], coeff) and np.array_equal(labels[:, 0], sol)


def test_what_is_wrong_with_a_mat_file_is_named():
    scipy.io.savemat("d.mat", {"coeff": field(3, 4, 4)})
    refused(lambda: read_pairs("d.mat"), DataError, ("d.mat", "'sol'"))
    scipy.io.savemat("d.mat", {"coeff": field(3, 4, 4), "sol": field(2, 4, 4)})
    refused(lambda: read_pairs("d.mat"), ShapeError, ("d.mat", "3", "2"))
    Path("c.mat").write_bytes(Path("d.mat").read_bytes()[:300])
    refused(lambda: read_pairs("c.mat"), FileError, ("c.mat",))
    Path("t.mat").write_text("hello")
    refused(lambda: read_pairs("t.mat"), FileError, ("t.mat",))
