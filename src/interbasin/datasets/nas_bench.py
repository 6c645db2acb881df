"""Tasks of NAS-Bench-360 in the files that it publishes, as far as these are plain arrays.

- NinaPro: a folder with ``ninapro_train.npy`` and ``label_train.npy``, and the same for ``val`` and ``test``.
- DeepSEA: ``deepsea_filtered.npz`` with ``x_train``, ``y_train``, and the same for ``val`` and ``test``.
- Darcy flow: a folder with ``piececonst_r421_N1024_smooth1.mat`` (train) and ``..._smooth2.mat`` (test).
- Cosmic: a folder with ``npy_train`` and ``npy_test``, an ``.npy`` per image below them (image, mask of cosmic rays).

ECG, Spherical, PSICOV, CIFAR-100 and Satellite are published as pickles, which are never loaded: loading one can run
code. FSD50K is audio.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interbasin.datasets.arrays import arrays_of, load_npy, map_npy, open_npz_samples
from interbasin.datasets.base import Samples
from interbasin.datasets.fields import FieldSamples, open_mat
from interbasin.errors import DataError, FileError, ShapeError

NAMES = {"train": "train", "valid": "val", "test": "test"}  # our name of a part, and that in file names
DARCY = {"train": "piececonst_r421_N1024_smooth1.mat", "test": "piececonst_r421_N1024_smooth2.mat"}
DEEPSEA = "deepsea_filtered.npz"
PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")


def task_parts(folder: Path) -> tuple[str, ...]:
    """The parts of a task of NAS-Bench-360 in a folder; none if it holds no such task."""
    ninapro = (split for split, name in NAMES.items() if (folder / f"ninapro_{name}.npy").is_file())
    darcy = (split for split, name in DARCY.items() if (folder / name).is_file())
    cosmic = (split for split, name in NAMES.items() if (folder / f"npy_{name}").is_dir())
    return tuple(ninapro) or tuple(darcy) or tuple(cosmic)


def open_task(folder: Path, split: str) -> Samples:
    """A part of a task of NAS-Bench-360, one of `task_parts`, with one channel first.

    Raises:
        FileError, DataError, ShapeError: if a file is missing, damaged, a pickle, or of another shape.
    """
    name = NAMES[split]
    if (folder / f"ninapro_{name}.npy").is_file():
        return _open_ninapro(folder / f"ninapro_{name}.npy", folder / f"label_{name}.npy")
    if (folder / DARCY.get(split, "")).is_file():
        return open_mat(folder / DARCY[split])
    return _open_cosmic(folder, name)


def open_deepsea(path: Path, split: str) -> Samples:
    """A part of DeepSEA: sequences of DNA as ``(4, length)``, and 36 labels of 0 or 1 each."""
    samples = open_npz_samples(path, split)
    if samples.array.ndim != 3:
        raise ShapeError(f"{path} holds inputs of shape {samples.array.shape}; (samples, length, 4) was expected.")
    return type(samples)(samples.name, samples.array.transpose(0, 2, 1), samples.labels, samples.classes)


def is_pickle(path: Path) -> bool:
    """Whether a file is a pickle, by its name or by how it begins, gzipped or not."""
    if path.suffix.lower() in PICKLES:
        return True
    try:
        with path.open("rb") as file:
            begin = file.read(2)
        if begin == b"\x1f\x8b":
            with gzip.open(path) as file:
                begin = file.read(2)
    except (OSError, EOFError, zlib.error):
        return False
    return len(begin) == 2 and begin[0] == 0x80 and begin[1] in range(2, 6)  # the mark, and the version, of a pickle


def refuse_pickle(path: Path) -> DataError:
    """The error for a file that is a pickle, or packs one."""
    return DataError(
        f"{path} is a pickle, or packs one, as some tasks of NAS-Bench-360 come; these are never loaded, because "
        "loading one can run code. Where you trust it, load it yourself and save its arrays: "
        "np.savez('data.npz', x=x, y=y)."
    )


def _open_ninapro(data: Path, labels: Path) -> Samples:
    if not labels.is_file():
        raise FileError(f"{data} has its labels in {labels.name}, which is not beside it; copy it there.")
    signals = map_npy(data)
    if signals.ndim != 3:
        raise ShapeError(f"{data} has shape {signals.shape}; (samples, times, channels) was expected.")
    numbers = load_npy(labels)
    if numbers.dtype.kind == "f" and np.array_equal(numbers, np.round(numbers)):
        numbers = numbers.astype(np.int64)  # classes, whatever wrote them
    # An image with a row per electrode, as the benchmark has it.
    return arrays_of(str(data), signals.transpose(0, 2, 1)[:, None], numbers)


@dataclass(frozen=True)
class _Layer:
    """One layer of images that have a file each: the image itself, or the mask."""

    paths: tuple[Path, ...]
    layer: int

    def __call__(self, rows: Sequence[int]) -> NDArray[Any]:
        layers: list[NDArray[Any]] = []
        for row in rows:
            image = map_npy(self.paths[row])
            if image.ndim != 3 or len(image) < 2:
                raise ShapeError(f"{self.paths[row]} has shape {image.shape}; (image and mask, x, y) was expected.")
            layers.append(np.array(image[self.layer])[None])
            if layers[-1].shape != layers[0].shape:
                raise ShapeError(
                    f"{self.paths[row]} holds {layers[-1].shape[1:]} pixels and {self.paths[rows[0]]} holds "
                    f"{layers[0].shape[1:]}; cut images to one size."
                )
        return np.stack(layers)


def _open_cosmic(folder: Path, name: str) -> Samples:
    """Images and masks below a folder: those that ``train_dirs.npy`` lists, if there is such a list, else all."""
    below, chosen = folder / f"npy_{name}", folder / f"{name}_dirs.npy"
    if chosen.is_file():
        lines = [str(line).replace("\\", "/") for line in load_npy(chosen).ravel().tolist()]
        # The list has paths from wherever it was written; what counts is below the part's folder.
        ends = [line.rpartition(f"{below.name}/")[2] for line in lines]
        outside = next((end for end in ends if ".." in Path(end).parts or Path(end).is_absolute()), None)
        if outside is not None:
            raise DataError(f"{chosen} names {outside!r}, which does not lie below {below}; make the list again.")
        paths = [below / end for end in ends]
    else:
        paths = sorted(path for path in below.rglob("*.npy") if path.name != "sky.npy")
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise FileError(f"{chosen} names {missing}, and there is no such file; copy it, or make the list again.")
    return FieldSamples(str(below), len(paths), _Layer(tuple(paths), 0), _Layer(tuple(paths), 1))
