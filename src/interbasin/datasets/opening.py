"""One door to all data: `open_data` reads a DATA string and hands it to the file that knows the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from interbasin.checks import require_whole
from interbasin.datasets.arrays import ArraySamples, arrays_of, idx_pairs, open_npy_samples, open_npz_samples, read_idx
from interbasin.datasets.base import Batches, Samples, Shaping, class_numbers, shaping_like
from interbasin.datasets.digits import load_digits
from interbasin.datasets.images import open_images
from interbasin.datasets.texts import TextSamples, longest, open_tokenizer, read_jsonl, read_lines
from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.randomness import generator_of
from interbasin.vectors.files.base import check_begins, open_vectors

if TYPE_CHECKING:
    from interbasin.models.base import Inputs

DIGITS, SPLITS = "digits", ("train", "test")
FORMS = "digits, a folder of images or of idx files, or a .txt, .jsonl, .npz, .npy or .parquet file"
HOME = "INTERBASIN_DATA"
LABEL = "label"  # the column of labels in a table
ROWS = 4096  # of a table that are read at a time


def open_data(
    text: str | os.PathLike[str],
    *,
    like: Inputs | None = None,
    batch_size: int = 64,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    split: str | None = None,
    column: str | None = None,
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
    - ``.txt``, one text per line, and ``.jsonl`` with ``text`` and, for labels, ``label``.
    - ``.parquet``: a column of lists, or of text; labels from ``label``.

    A name that is not here is looked for in the folder that the environment variable ``INTERBASIN_DATA`` names. Nothing
    in a file is ever executed.

    Args:
        text: The DATA.
        like: Example inputs of the network. Batches get their dtype, their shape where that can be done in one plain
            way, and their name. Without, floats become float32 and eight-bit numbers too, others stay whole numbers.
        batch_size: Samples per batch.
        limit: At most so many samples: the first, or with ``shuffle`` any.
        shuffle: Read them in another order, drawn once; every pass has the same.
        seed: Of that order.
        split: Which part, where there are parts; by default train.
        column: Which column of ``.parquet``, or key of ``.jsonl``.
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
    samples = _samples(os.fspath(text), shaping, split, column, tokenizer, max_length)
    if tokens_as_labels is None:
        tokens_as_labels = isinstance(samples, TextSamples) and samples.labels is None
    holds_tokens = isinstance(samples, TextSamples) or column is not None
    holds_tokens |= isinstance(samples, ArraySamples) and samples.array.dtype.kind in "iu"
    if tokens_as_labels and not holds_tokens:
        raise DataError(f"Tokens were to be the labels, but {samples.name} is no text; leave tokens_as_labels out.")
    if samples.count == 0:
        raise DataError(f"{samples.name} holds no samples at all; check what wrote it.")
    order = torch.randperm(samples.count, generator=generator_of(seed)).tolist() if shuffle else range(samples.count)
    rows = tuple(order)[: samples.count if limit is None else limit]
    labelled = samples.labels is not None and not tokens_as_labels
    return Batches(samples, rows, batch_size, shaping, labelled, tokens_as_labels)


def splits_of(text: str | os.PathLike[str]) -> tuple[str, ...]:
    """The parts that data come in: train and test for digits and idx files, none for most others."""
    if os.fspath(text) == DIGITS:
        return SPLITS
    path = _path(os.fspath(text))
    if not path.is_dir():
        return ()
    return tuple(idx_pairs(path)) or tuple(name for name in SPLITS if (path / name).is_dir())


def _samples(
    text: str, shaping: Shaping, split: str | None, column: str | None, tokenizer: Any, max_length: int | None
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
    if path.is_dir():
        pairs = idx_pairs(path)
        if part in pairs:
            return arrays_of(str(pairs[part][0]), *map(read_idx, pairs[part]))
        shape = None if shaping.example is None else tuple(shaping.example.shape[1:])
        return open_images(path / part if part is not None else path, shape)

    def texts(words: Sequence[str], labels: Tensor | None = None, classes: tuple[str, ...] = ()) -> TextSamples:
        splitter = open_tokenizer(tokenizer, str(path))
        return TextSamples(str(path), words, splitter, longest(splitter, max_length), labels, classes)

    match path.suffix.lower():
        case ".npy":
            return open_npy_samples(path)
        case ".npz":
            return open_npz_samples(path)
        case ".txt":
            return texts(read_lines(path))
        case ".jsonl":
            return texts(*read_jsonl(path, column))
        case ".parquet":
            return _table(path, column, texts)
    raise FileError(f"Data can be {FORMS}; {path} is none of these. Convert or rename it.")


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


def _table(path: Path, column: str | None, texts: Callable[..., Samples]) -> Samples:
    """Samples of a column of a Parquet file: text, or vectors as `open_vectors` reads them; labels from ``label``.

    The column is by default ``text`` if there is such a column of text, else what `open_vectors` takes. ``texts`` makes
    samples of texts, labels and class names.
    """
    check_begins(path, (b"PAR1",), ".parquet")
    # Imported here because it takes longer than reading most other files.
    import pyarrow as pa

    from interbasin.vectors.files.parquet import open_table
    from interbasin.vectors.files.tables import list_type

    with open_table(path) as opened:
        schema = opened.schema_arrow
        if column is not None and column not in schema.names:
            raise UnknownNameError.of(f"column in {path}", column, schema.names)
        name = column if column is not None else "text" if "text" in schema.names else None
        kind = None if name is None else schema.field(name).type
        is_text = kind is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        wanted = [name for name in (LABEL, *([name] if is_text else [])) if name in schema.names]
        values = {name: opened.read([name]).column(name).to_pylist() for name in wanted}
    for missing, column_values in values.items():
        if None in column_values:
            raise DataError(f"Row {column_values.index(None)} of {path} has no {missing!r}; take such rows out.")
    labels, classes = class_numbers(values[LABEL], str(path)) if LABEL in values else (None, ())
    if is_text:
        return texts(values[name], labels, classes)
    if column is None and labels is not None and all(list_type(field.type) is None for field in schema):
        raise DataError(
            f"{path} has labels beside columns of numbers, so which are the inputs is not clear; put the numbers into "
            "one column of lists, and name it with column (--column)."
        )
    array = np.concatenate(list(open_vectors(path, column=column).batches(ROWS)))
    return ArraySamples(str(path), array, labels, classes)
