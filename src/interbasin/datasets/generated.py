"""Data that are made, written as an ``.npz`` file which `open_data` reads: fields of equations, and planted gaps.

The file holds ``x`` and ``y`` and, where a test part was asked for, ``x_test`` and ``y_test``. Beside them
``interbasin``, an array of one text (JSON), says what they were made from, by which a later run knows that it may
replace the file. Every member is an array, so that loops over ``np.load(file)`` work.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.checks import require_whole
from interbasin.datasets.equations import EQUATIONS, Equation, generate
from interbasin.datasets.opening import splits_of
from interbasin.datasets.pairs import read_pairs
from interbasin.datasets.planted import merge_labels, rotate_patches
from interbasin.errors import DataError, FileError
from interbasin.methods import Method, MethodTable
from interbasin.storage import as_path, new_file, refuse_file_in_the_way

COUNT, TEST_COUNT, PATCH = 1000, 200, 4
RECORD, FORMAT = "interbasin", "interbasin.data.v1"
OLD_RECORD = "interbasin.json"  # in files of earlier versions, where the record was no array

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class GeneratedData:
    """What `write_data` wrote.

    Attributes:
        name: Of the generator.
        output: The file.
        request: What it was made from.
        shapes: Of every array in it.
    """

    name: str
    output: Path
    request: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    def summary(self) -> dict[str, Any]:
        """The same as plain values, which JSON can hold."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        return {"name": self.name, "output": str(self.output), "request": dict(self.request), "shapes": shapes}


def write_data(
    name: str,
    output: str | os.PathLike[str],
    *,
    count: int | None = None,
    test_count: int | None = None,
    points: int | None = None,
    numbers: Mapping[str, float] | None = None,
    source: str | os.PathLike[str] | None = None,
    label_column: str | None = None,
    patch: int | None = None,
    classes: int | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> GeneratedData:
    """Make data and write them to an ``.npz`` file, whole or not at all.

    An equation gives random initial fields ``x`` and what becomes of them, ``y``. ``rotated-patches`` and
    ``merged-labels`` change the inputs, or the labels, of a ``source`` in a way that is known; its test part becomes
    ``x_test`` and ``y_test``. Where labels have names, ``rotated-patches`` writes these, and ``merged-labels`` says in
    ``request["merged"]`` which of them each number stands for.

    Args:
        name: One of `GENERATORS`.
        output: The file, whose name ends in ``.npz``.
        count: How many samples for training. Of equations 1,000 by default, of a source all.
        test_count: How many for the test. Of equations 200 by default, of a source all of its test part.
        points: Along each axis of an equation's fields.
        numbers: Of the equation: ``{"viscosity": 0.01}``.
        source: The DATA whose samples are changed; they have labels.
        label_column: The column of its labels, where it is a table; see `open_data`.
        patch: Side of the patches of ``rotated-patches``; 4 by default.
        classes: How many classes ``merged-labels`` leaves.
        seed: The same seed gives the same file.
        force: Replace a file that an earlier call wrote.
        progress: Is called with the number of samples that are done; the samples for the test come last.

    Raises:
        UnknownNameError: if there is no such generator, or an equation has no such number.
        DataError, ShapeError: if an option does not belong to it, is missing, or does not fit the source.
        FileError: if the output exists, or cannot be written.
    """
    method = GENERATORS[name]
    chosen: dict[str, Any] = {"points": points, "source": source, "patch": patch, "classes": classes}
    chosen["label_column"] = label_column
    chosen["numbers"] = dict(numbers) if numbers else None
    GENERATORS.require_options(method.name, chosen)
    for need in sorted(method.needs):
        if chosen[need] is None:
            raise DataError(f"{method.name} needs {need}=, and it was not given; say {MEANINGS[need]}.")
    path = as_path(output)
    if path.suffix.lower() != ".npz":
        raise FileError(f"Data are written to an .npz file, and {path} is named otherwise; choose a name that ends so.")
    refuse_file_in_the_way(path, force=force, ours=_is_ours)
    request: dict[str, Any] = {"count": count, "test_count": test_count, "seed": require_whole("seed", seed, least=0)}
    request |= {key: value for key, value in chosen.items() if value is not None}
    arrays, settings = method.function(method.name, progress or (lambda done: None), **request)
    request |= settings
    if source is not None:
        request["source"] = os.fspath(source)
    record = {"format": FORMAT, "name": method.name, "request": request}
    members = {**arrays, RECORD: np.array(json.dumps(record, indent=2, allow_nan=False))}
    with new_file(path, force=force, ours=_is_ours) as temporary:
        np.savez(temporary, allow_pickle=False, **members)
    return GeneratedData(method.name, path, request, {key: array.shape for key, array in arrays.items()})


def samples_of(name: str, count: int | None = None, test_count: int | None = None) -> int:
    """How many samples `write_data` reports to its ``progress``; none for changes of a source, which take no time.

    Example:
        >>> samples_of("burgers", 50), samples_of("merged-labels", 50)
        (250, 0)
    """
    if GENERATORS[name].needs:
        return 0
    return (COUNT if count is None else count) + (TEST_COUNT if test_count is None else test_count)


def _is_ours(path: Path) -> bool:
    try:
        with np.load(path, allow_pickle=False) as members:
            # What is no array comes as its bytes.
            record = json.loads(str(members[RECORD]) if RECORD in members else members[OLD_RECORD])
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error, RecursionError):
        return False
    return isinstance(record, dict) and record.get("format") == FORMAT


# ---------------------------------------------------------------------- the generators


def _solve(
    name: str,
    progress: Callable[[int], None],
    *,
    count: int | None,
    test_count: int | None,
    seed: int,
    points: int | None = None,
    numbers: Mapping[str, float] | None = None,
) -> tuple[Arrays, dict[str, Any]]:
    many = require_whole("count", COUNT if count is None else count, least=1)
    tests = require_whole("test_count", TEST_COUNT if test_count is None else test_count, least=0)
    settings: dict[str, Any] = {**EQUATIONS[name].numbers, **(numbers or {})}
    x, y = generate(name, many, points=points, seed=seed, progress=progress, **settings)
    arrays: Arrays = {"x": x, "y": y}
    if tests:
        more = generate(
            name, tests, points=points, seed=seed, stream=1, progress=lambda done: progress(many + done), **settings
        )
        arrays["x_test"], arrays["y_test"] = more
    return arrays, {"count": many, "test_count": tests, "points": x.shape[-1], "numbers": settings}


@dataclass(frozen=True, eq=False)
class _Source:
    """Samples of a source, those of its test part last.

    Attributes:
        inputs, labels: Of all.
        names: Of the labels, by their numbers, where they have names.
        count: How many samples are for training.
        has_test: Whether there is a test part.
    """

    inputs: Tensor
    labels: Tensor
    names: tuple[str, ...]
    count: int
    has_test: bool

    def arrays(self, x: Tensor, y: Tensor | NDArray[Any]) -> tuple[Arrays, dict[str, Any]]:
        """What was made of it, in parts, and how many samples each has."""
        inputs, labels = x.numpy(), np.asarray(y)
        arrays: Arrays = {"x": inputs[: self.count], "y": labels[: self.count]}
        if self.has_test:
            arrays |= {"x_test": inputs[self.count :], "y_test": labels[self.count :]}
        return arrays, {"count": self.count, "test_count": len(inputs) - self.count}


def _read_source(
    source: str | os.PathLike[str], label_column: str | None, count: int | None, test_count: int | None, seed: int
) -> _Source:
    if count is not None:
        require_whole("count", count, least=1)
    splits = splits_of(source)
    if test_count is not None and require_whole("test_count", test_count, least=0) and "test" not in splits:
        raise DataError(
            f"{test_count} samples for a test were asked of {source}, which has no test part; leave it out."
        )
    has_test = "test" in splits and test_count != 0
    limits = {"train" if splits else None: count} | ({"test": test_count} if has_test else {})
    inputs, labels, names = [], [], []
    for split, limit in limits.items():
        x, y, classes = read_pairs(source, split=split, limit=limit, seed=seed, label_column=label_column)
        if y is None:
            raise DataError(
                f"A gap is planted between inputs and labels, and {source} has no labels; give labelled data."
            )
        inputs.append(x)
        labels.append(y)
        names.append(classes)
    joined = _join_names(labels, names, source)
    return _Source(torch.cat(inputs), *joined, count=len(inputs[0]), has_test=has_test)


def _join_names(
    labels: Sequence[Tensor], names: Sequence[tuple[str, ...]], source: str | os.PathLike[str]
) -> tuple[Tensor, tuple[str, ...]]:
    """The labels of all parts, where a number is the same class in each, and their names."""
    if len(set(names)) == 1:
        first = names[0]
        is_named = first != tuple(map(str, range(len(first))))  # unlike those of the digits, which are their numbers
        return torch.cat(list(labels)), first if is_named else ()
    if not all(names):
        raise DataError(
            f"Labels of {source} are names in one part and numbers in another, so that which number is which name is "
            "not clear; write the labels of both alike."
        )
    known = tuple(sorted({name for part in names for name in part}))
    own = [torch.tensor([known.index(name) for name in part]) for part in names]
    return torch.cat([numbers[part] for numbers, part in zip(own, labels, strict=True)]), known


def _rotate(
    name: str,
    progress: Callable[[int], None],
    *,
    count: int | None,
    test_count: int | None,
    seed: int,
    source: str | os.PathLike[str],
    label_column: str | None = None,
    patch: int = PATCH,
) -> tuple[Arrays, dict[str, Any]]:
    given = _read_source(source, label_column, count, test_count, seed)
    images = given.inputs[:, None] if given.inputs.ndim == 3 else given.inputs  # images of one colour are flat
    # Labels with names are written as these, which readers number again.
    labels = np.array(given.names)[given.labels.numpy()] if given.names else given.labels
    arrays, settings = given.arrays(rotate_patches(images, patch, seed=seed), labels)
    return arrays, {**settings, "patch": patch}


def _merge(
    name: str,
    progress: Callable[[int], None],
    *,
    count: int | None,
    test_count: int | None,
    seed: int,
    source: str | os.PathLike[str],
    label_column: str | None = None,
    classes: int,
) -> tuple[Arrays, dict[str, Any]]:
    given = _read_source(source, label_column, count, test_count, seed)
    merged = merge_labels(given.labels, classes, seed=seed)
    arrays, settings = given.arrays(given.inputs, merged)
    if given.names:
        members = [torch.unique(given.labels[merged == label]).tolist() for label in range(classes)]
        settings["merged"] = [[given.names[number] for number in numbers] for numbers in members]
    return arrays, settings


MEANINGS = {"source": "which DATA to change", "classes": "how many classes to leave"}  # of what a generator needs


def _describe(equation: Equation) -> str:
    numbers = ", ".join(f"{name} {value:g}" for name, value in equation.numbers.items())
    return f"{equation.about} ({numbers}; {' x '.join([str(equation.points)] * equation.axes)} points)"


GENERATORS: MethodTable[Callable[..., tuple[Arrays, dict[str, Any]]]] = MethodTable(
    "generator of data",
    [
        *(
            Method(name, "takamoto:22", _describe(equation), _solve, options={"points": equation.points, "numbers": {}})
            for name, equation in EQUATIONS.items()
        ),
        Method(
            "rotated-patches",
            "",
            "images whose patches are all multiplied by one orthogonal matrix: only the inputs are foreign",
            _rotate,
            needs=frozenset({"source"}),
            options={"source": None, "label_column": None, "patch": PATCH},
        ),
        Method(
            "merged-labels",
            "",
            "labels permuted and merged into fewer classes: only the answers are foreign",
            _merge,
            needs=frozenset({"source", "classes"}),
            options={"source": None, "label_column": None, "classes": None},
        ),
    ],
)

__all__ = ["GENERATORS", "GeneratedData", "samples_of", "write_data"]
