"""One door to all data: `open_data` reads a DATA string and hands it to the file that knows the format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interbasin.checks import require_whole
from interbasin.datasets.arrays import (
    ArraySamples,
    arrays_of,
    idx_pairs,
    npz_parts,
    open_npy_samples,
    open_npz_samples,
    read_idx,
)
from interbasin.datasets.base import Batches, Samples, Shaping, shaping_like
from interbasin.datasets.digits import load_digits
from interbasin.datasets.fields import open_hdf5, open_mat
from interbasin.datasets.images import open_images
from interbasin.datasets.nas_bench import DEEPSEA, is_pickle, open_deepsea, open_task, refuse_pickle, task_parts
from interbasin.datasets.tables import MakeTexts, arrow_parts, is_arrow_folder, open_arrow_samples, open_parquet_samples
from interbasin.datasets.text_tables import TableColumns, open_csv, open_series, series_parts
from interbasin.datasets.texts import TextSamples, longest, open_tokenizer, read_jsonl, read_lines
from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.randomness import generator_of

if TYPE_CHECKING:
    from interbasin.models.base import Inputs

DIGITS, SPLITS = "digits", ("train", "test")
FORMS = (
    "digits, a folder of images, of idx files or of datasets, or a .txt, .jsonl, .npz, .npy, .csv, .tsv, .h5, .mat or "
    ".parquet file"
)
HOME = "INTERBASIN_DATA"


def open_data(
    text: str | os.PathLike[str],
    *,
    like: Inputs | None = None,
    batch_size: int = 64,
    limit: int | None = None,
    shuffle: bool = False,
    draw: bool = False,
    seed: int = 0,
    split: str | None = None,
    column: str | None = None,
    label_column: str | None = None,
    labels_needed: bool = True,
    tokenizer: Any = None,
    max_length: int | None = None,
    tokens_as_labels: bool | None = False,
    scale: bool = True,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> Batches:
    """The data that a DATA string names, as batches to iterate over as often as needed.

    - ``digits``: the embedded ones, 8 x 8 images in [0, 1]; splits train (1,437) and test (360).
    - A folder of images, whose subfolders are classes; below ``train`` and ``test``, if it has those.
    - A folder of idx files, as MNIST comes; splits train and test.
    - ``.npz`` with ``x`` and, for labels, ``y``; ``.npy``: the first axis counts the samples, which may have any shape.
      Labels may be a number, several numbers, or a field per sample. With ``x_test`` and ``y_test`` (``x_valid`` and
      ``y_valid``) beside them there are splits train and test (valid).
    - ``.csv``: rows of numbers, with labels in the column ``label``, ``y``, ``target`` or ``class``.
    - ``.tsv`` of the UCR archive: a row is a label and a time series, ``(1, length)``; ``NAME_TRAIN.tsv``, or a folder
      ``NAME``, has the splits train and test where ``NAME_TEST.tsv`` stands beside it. Both kinds may be gzipped.
    - ``.h5`` and ``.hdf5`` of PDEBench: fields at the first time, and at the last as labels, channels first.
    - Tasks of NAS-Bench-360 that are plain arrays: folders of NinaPro, Cosmic and Darcy flow, ``deepsea_filtered.npz``.
    - ``.txt``, one text per line, and ``.jsonl`` with ``text`` and, for labels, ``label``.
    - ``.parquet``, and folders that the library `datasets` saved: a column of lists, or of text; labels from ``label``.

    A name that is not here is looked for in the folder that the environment variable ``INTERBASIN_DATA`` names. Nothing
    in a file is ever executed.

    Args:
        text: The DATA.
        like: Example inputs of the network. Batches get their dtype, their shape where that can be done in one plain
            way, and their name. Without, floats become float32 and eight-bit numbers too, others stay whole numbers.
        batch_size: Samples per batch.
        limit: At most so many samples: the first, or with ``shuffle`` or ``draw`` any.
        shuffle: Read them in another order, drawn once; every pass has the same.
        draw: Shuffle only where ``limit`` leaves samples out; a limit that leaves none out changes nothing.
        seed: Of that order.
        split: Which part, where there are parts; by default train.
        column: Which column of ``.parquet`` or of a folder of `datasets`, or key of ``.jsonl``.
        label_column: Which column of ``.csv``, ``.parquet`` or a folder of `datasets` has the labels; ``"none"`` if
            none has.
        labels_needed: Whether such a table without a column of labels, or without the one that is named, is refused;
            else it may lack it.
        tokenizer: For text: the folder of a model of transformers, or a tokenizer of that library.
        max_length: For text: at most so many tokens.
        tokens_as_labels: For text: the tokens are the labels, as language models have them. With None, that is so for
            text without labels of its own.
        scale: Divide eight-bit numbers by 255.
        mean: Subtracted after that: one number, or one per channel.
        std: And divided by.

    Raises:
        FileError: if there is no such file, or it is damaged.
        DataError: if there are no samples, or some cannot be used. Numbers are looked at when they are read.
        ShapeError: if there are not as many labels as samples, or they do not have the network's shape.
        UnknownNameError: if there is no such split, column or array.
        MissingExtraError: if a library that is needed is not installed.

    Example:
        >>> data = open_data("digits", like=torch.zeros(1, 64), split="test", batch_size=100)
        >>> data.count, len(data), [tuple(part.shape) for part in next(iter(data))]
        (360, 4, [(100, 64), (100,)])
    """
    require_whole("batch_size", batch_size, least=1)
    if limit is not None:
        require_whole("limit", limit, least=1)
    shaping = shaping_like(like, scale=scale, mean=mean, std=std)
    samples = _samples(
        os.fspath(text), shaping, split, TableColumns(column, label_column, labels_needed), tokenizer, max_length
    )
    if tokens_as_labels is None:
        tokens_as_labels = isinstance(samples, TextSamples) and samples.labels is None
    holds_tokens = isinstance(samples, TextSamples) or column is not None
    holds_tokens |= isinstance(samples, ArraySamples) and samples.array.dtype.kind in "iu"
    if tokens_as_labels and not holds_tokens:
        raise DataError(f"Tokens were to be the labels, but {samples.name} is no text; leave tokens_as_labels out.")
    if samples.count == 0:
        raise DataError(f"{samples.name} holds no samples at all; check what wrote it.")
    shuffle = shuffle or (draw and limit is not None and limit < samples.count)
    order = torch.randperm(samples.count, generator=generator_of(seed)).tolist() if shuffle else range(samples.count)
    rows = tuple(order)[: samples.count if limit is None else limit]
    labelled = samples.labels is not None and not tokens_as_labels
    return Batches(samples, rows, batch_size, shaping, labelled, tokens_as_labels)


def splits_of(text: str | os.PathLike[str]) -> tuple[str, ...]:
    """The parts that data come in, of train, valid and test; none for most."""
    if os.fspath(text) == DIGITS:
        return SPLITS
    path = _path(os.fspath(text))
    if path.is_dir():
        subfolders = tuple(name for name in SPLITS if (path / name).is_dir())
        parts = tuple(idx_pairs(path)) or tuple(arrow_parts(path)) or tuple(series_parts(path)) or task_parts(path)
        return parts or (() if is_arrow_folder(path) else subfolders)
    match _ending(path):
        case ".npz":
            return tuple(npz_parts(path))
        case ".tsv":
            return tuple(series_parts(path))
    return ()


def _samples(
    text: str,
    shaping: Shaping,
    split: str | None,
    columns: TableColumns,
    tokenizer: Any,
    max_length: int | None,
) -> Samples:
    known = splits_of(text)
    if split is not None and split not in known:
        if known:
            raise UnknownNameError.of(f"split of {text}", split, known)
        raise DataError(f"The split {split!r} was asked of {text}, which has no splits; leave it out.")
    part = split or (known[0] if known else None)
    if text == DIGITS:
        digits = vars(load_digits())
        images, labels = digits[f"{part}_images"], digits[f"{part}_labels"]
        return ArraySamples(f"digits ({part})", images.numpy(), labels, tuple(map(str, range(10))))
    path = _path(text)

    def texts(words: Sequence[str], labels: Tensor | None = None, classes: tuple[str, ...] = ()) -> TextSamples:
        splitter = open_tokenizer(tokenizer, str(path))
        return TextSamples(str(path), words, splitter, longest(splitter, max_length), labels, classes)

    if path.is_dir():
        return _samples_in(path, part, columns, shaping, texts)
    match _ending(path):
        case ".npy":
            return open_npy_samples(path)
        case ".npz":
            return open_deepsea(path, part) if path.name == DEEPSEA and part else open_npz_samples(path, part)
        case ".csv":
            return open_csv(path, columns)
        case ".tsv":
            parts = series_parts(path)
            return open_series(parts[part] if part else path, tuple(parts.values()) or _beside(path))
        case ".h5" | ".hdf5":
            return open_hdf5(path)
        case ".mat":
            return open_mat(path)
        case ".txt":
            return texts(read_lines(path))
        case ".jsonl":
            return texts(*read_jsonl(path, columns.inputs))
        case ".parquet":
            return open_parquet_samples(path, columns, texts)
    if is_pickle(path):
        raise refuse_pickle(path)
    raise FileError(f"Data can be {FORMS}; {path} is none of these. Convert or rename it.")


def _samples_in(folder: Path, part: str | None, columns: TableColumns, shaping: Shaping, texts: MakeTexts) -> Samples:
    """The samples in a folder."""
    pairs, tables, series = idx_pairs(folder), arrow_parts(folder), series_parts(folder)
    if part in pairs:
        images, labels = pairs[part]
        return arrays_of(str(images), read_idx(images), read_idx(labels))
    if part is not None and part in tables:
        return open_arrow_samples(tables[part], columns, texts)
    if is_arrow_folder(folder):
        return open_arrow_samples(folder, columns, texts)
    if part in series:
        return open_series(series[part], tuple(series.values()))
    if part is not None and part in task_parts(folder):
        return open_task(folder, part)
    shape = None if shaping.example is None else tuple(shaping.example.shape[1:])
    return open_images(folder / part if part is not None else folder, shape)


def _ending(path: Path) -> str:
    """How the name of a file ends, in lower case, whether the file is gzipped or not."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix if name.endswith((".csv.gz", ".tsv.gz")) else path.suffix.lower()


def _beside(path: Path) -> tuple[Path, ...]:
    """For the test file of a UCR set, the training file, whose classes have the same numbers."""
    train = path.with_name(path.name.replace("_TEST.tsv", "_TRAIN.tsv"))
    return tuple(series_parts(train).values())


def _path(text: str) -> Path:
    """The file or folder of that name, here or in the folder of data sets.

    Raises:
        FileError: if there is none, or it holds nothing.
    """
    home = os.environ.get(HOME)
    places = [Path(text).expanduser(), *([Path(home) / text] if home else [])] if text else []
    try:
        path = next((path for path in places if path.is_dir() or path.is_file()), None)
        is_empty = path is not None and path.is_file() and path.stat().st_size == 0
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"The data {text!r} cannot be looked up ({reason}); give {FORMS}.") from error
    if path is None:
        raise FileError(f"Data were to be read from {text!r}, but there is no such file or folder; give {FORMS}.")
    if is_empty:
        raise FileError(f"{path} is empty (0 bytes); write it again, or copy or download it again.")
    return path
