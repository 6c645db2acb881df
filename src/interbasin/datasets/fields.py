"""Fields before and after: the HDF5 files of PDEBench, and the ``.mat`` files of Darcy flow.

An input is the first step in time and the label is the last, or what is given and what is sought where there is no
time; both have their channels first. Nothing is read before it is asked for, and then only the samples that are. The
layouts are known from PDEBench's documentation and loaders [takamoto:22]; no code of theirs is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.datasets.arrays import ArrayLabels, ArraySamples
from interbasin.errors import DataError, InterbasinError, ShapeError
from interbasin.extras import import_extra
from interbasin.text import list_names
from interbasin.vectors.files.base import check_begins, damaged

FIRST, LAST = 0, -1  # steps in time
GAS = ("density", "Vx", "Vy", "Vz", "pressure")  # the channels of a gas, in this order
LISTED = 12  # names that a message repeats
HDF5_BEGINS = b"\x89HDF\r\n\x1a\n"
MATLAB_73 = b"MATLAB 7.3"  # such files are HDF5 behind a head of their own

Read = Callable[[Sequence[int]], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class FieldSamples:
    """Samples and labels that stay in their files until they are read."""

    name: str
    count: int
    read_inputs: Read
    read_targets: Read
    classes: tuple[str, ...] = ()

    @property
    def labels(self) -> FieldLabels:
        return FieldLabels(self.read_targets)

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        return self.read_inputs(rows)


@dataclass(frozen=True, eq=False)
class FieldLabels:
    """Labels that stay in their files until they are read."""

    read: Read

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.read(rows.tolist()).astype(np.float32))


def open_hdf5(path: Path) -> FieldSamples:
    """Samples of a file of PDEBench, channels first.

    - ``tensor`` of shape ``(samples, times, x...)``: from the first time to the last, one channel.
    - ``density``, ``Vx`` (``Vy``, ``Vz``) and ``pressure`` of that shape: the same, in this order of channels.
    - ``nu`` of shape ``(samples, x, y)`` and ``tensor`` of shape ``(samples, 1, x, y)``: from the one to the other.
    - A group per sample with ``data`` of shape ``(times, x..., channels)``: from the first time to the last.

    Raises:
        MissingExtraError: if h5py is not installed.
        FileError: if the file is damaged.
        DataError, ShapeError: if it is laid out in another way.
    """
    check_begins(path, (HDF5_BEGINS,), path.suffix)
    with _open(path) as file:
        names = sorted(file)
        if {"nu", "tensor"} <= set(names):
            _check_fields(path, file, ("nu",), least_axes=3)
            _check_fields(path, file, ("tensor",), least_axes=3, count=len(file["nu"]))
            return FieldSamples(str(path), len(file["nu"]), _Static(path, "nu"), _Static(path, "tensor"))
        fields = ("tensor",) if "tensor" in names else tuple(name for name in GAS if name in names)
        if fields:
            _check_fields(path, file, fields, least_axes=3)
            if file[fields[0]].shape[1] < 2:
                raise DataError(f"{path} has a single step in time, so there is nothing to predict; give more steps.")
            count = len(file[fields[0]])
            return FieldSamples(str(path), count, _Moving(path, fields, FIRST), _Moving(path, fields, LAST))
        group_type = _import_h5py(path).Group
        if names and all(isinstance(file[name], group_type) and "data" in file[name] for name in names):
            groups = tuple(names)
            return FieldSamples(str(path), len(groups), _Groups(path, groups, FIRST), _Groups(path, groups, LAST))
    raise DataError(
        f"{path} holds {list_names(names, LISTED) or 'nothing'}, which is no layout of PDEBench (tensor; nu and "
        "tensor; density, Vx and pressure; or a group per sample with data); save its fields as x and y of an .npz "
        "file."
    )


def _import_h5py(path: Path) -> Any:
    """The library that reads ``path``."""
    return import_extra("h5py", f"Reading {path.name}", "adapt")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """The file, opened anew for every batch, so that no process keeps or inherits an open one."""
    h5py = _import_h5py(path)
    try:
        with h5py.File(path, "r") as file:
            yield file
    except InterbasinError:
        raise
    except (OSError, KeyError, RuntimeError) as error:
        raise damaged(path, error) from error


def _check_fields(path: Path, file: Any, names: Sequence[str], least_axes: int, count: int | None = None) -> None:
    for name in names:
        field = file[name]
        if not isinstance(field, _import_h5py(path).Dataset) or field.dtype.kind not in "fiu":
            raise DataError(f"{name!r} in {path} is no array of numbers; check what wrote it.")
        shape, expected = field.shape, file[names[0]].shape
        if (
            len(shape) < least_axes
            or shape != expected
            or 0 in shape
            or (count is not None and len(shape) and shape[0] != count)
        ):
            raise ShapeError(
                f"{name!r} in {path} has shape {shape}, which does not fit the layout: samples first, then times and "
                "places, and the same for every field; check what wrote it."
            )


def _rows(field: Any, rows: Sequence[int], *step: int) -> NDArray[Any]:
    """Some rows of a field in a file, at a step in time if one is given."""
    places = np.asarray(rows)
    ordered, back = np.unique(places, return_inverse=True)
    first, last = int(ordered[0]), int(ordered[-1])
    # HDF5 reads consecutive rows faster by far than single ones.
    chosen = slice(first, last + 1) if len(ordered) == last - first + 1 else ordered
    return np.asarray(field[(chosen, *step)])[back.ravel()]


@dataclass(frozen=True)
class _Static:
    """A field without time; an axis for its channel is added where it has none."""

    path: Path
    name: str

    def __call__(self, rows: Sequence[int]) -> NDArray[Any]:
        with _open(self.path) as file:
            values = _rows(file[self.name], rows)
        return values[:, None] if values.ndim == 3 else values


@dataclass(frozen=True)
class _Moving:
    """Fields at a step in time, each a channel."""

    path: Path
    names: tuple[str, ...]
    step: int

    def __call__(self, rows: Sequence[int]) -> NDArray[Any]:
        with _open(self.path) as file:
            return np.stack([_rows(file[name], rows, self.step) for name in self.names], axis=1)


@dataclass(frozen=True)
class _Groups:
    """A group per sample: its data at a step in time, channels first."""

    path: Path
    groups: tuple[str, ...]
    step: int

    def __call__(self, rows: Sequence[int]) -> NDArray[Any]:
        samples: list[NDArray[Any]] = []
        with _open(self.path) as file:
            for row in rows:
                field = file[self.groups[row]]["data"]
                _check_sample(self.path, self.groups[row], field)
                samples.append(np.moveaxis(np.asarray(field[self.step]), -1, 0))
                if samples[-1].shape != samples[0].shape:
                    raise ShapeError(
                        f"Sample {self.groups[row]!r} in {self.path} has shape {samples[-1].shape} and "
                        f"{self.groups[rows[0]]!r} has {samples[0].shape}; give samples of one shape."
                    )
        return np.stack(samples)


def _check_sample(path: Path, group: str, field: Any) -> None:
    if len(field.shape) < 3 or field.shape[0] < 2 or field.dtype.kind not in "fiu":
        raise ShapeError(
            f"The data of sample {group!r} in {path} have shape {field.shape} and dtype {field.dtype}; two times or "
            "more, places and channels of numbers were expected."
        )


# ---------------------------------------------------------------------- Darcy flow in .mat files


def open_mat(path: Path, names: tuple[str, str] = ("coeff", "sol")) -> ArraySamples:
    """Samples of a ``.mat`` file of Darcy flow [li:21]: from ``coeff`` to ``sol``, ``(1, x, y)`` each; in memory.

    Raises:
        MissingExtraError: if it was written by MATLAB 7.3 or later, and h5py is not installed.
        FileError: if the file is damaged.
        DataError, ShapeError: if it holds something else.
    """
    check_begins(path, (b"MATLAB",), ".mat")
    with path.open("rb") as opened:
        is_hdf5 = opened.read(len(MATLAB_73)) == MATLAB_73
    arrays: dict[str, Any]
    if is_hdf5:
        with _open(path) as file:  # in which the axes stand the other way round
            arrays = {name: np.asarray(file[name], dtype=np.float32).T for name in names if name in file}
    else:
        from scipy.io import loadmat

        try:
            arrays = loadmat(str(path), variable_names=list(names))
        except Exception as error:  # a damaged file makes scipy raise many things
            raise damaged(path, error) from error
    for name in names:
        array = arrays.get(name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim != 3 or not array.size:
            raise DataError(f"{path} has no {name!r} of numbers with shape (samples, x, y); check what wrote it.")
    x, y = (arrays[name].astype(np.float32)[:, None] for name in names)
    if len(x) != len(y):
        raise ShapeError(f"{path} has {len(x)} fields {names[0]!r} and {len(y)} {names[1]!r}; give as many of both.")
    return ArraySamples(str(path), x, ArrayLabels(y))
