"""All of a data set at once, as tensors in memory: for jobs that draw their own folds and batches."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch import Tensor

from interbasin.datasets.opening import open_data
from interbasin.errors import DataError


def read_pairs(
    text: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None, seed: int = 0, **options: Any
) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    """Inputs, labels and the names of classes of the data that a DATA string names.

    Inputs are float32, whatever the file holds (eight-bit numbers in [0, 1]). Labels are int64 for classes and float32
    for other numbers, ``(count,)`` or ``(count, ...)`` for several labels and fields; None if there are none.

    Args:
        text: The DATA, as `open_data` takes it.
        split: Which part, where there are parts; by default train.
        limit: At most so many samples, drawn with the seed.
        seed: Of that choice; without a limit the order is that of the file.
        options: What else `open_data` takes: ``like``, ``column``, ``label_column``, ``scale``, ``mean``, ``std``.

    Raises:
        DataError: if the data are text, or hold NaN or infinity; names the file and the sample. And all that
            `open_data` raises.

    Example:
        >>> inputs, labels, classes = read_pairs("digits", split="test")
        >>> inputs.shape, labels.shape, len(classes)
        (torch.Size([360, 8, 8]), torch.Size([360]), 10)
    """
    batches = open_data(text, split=split, limit=limit, draw=True, seed=seed, **options)
    (batch,) = replace(batches, batch_size=batches.count)
    inputs, labels = batch if batches.labelled or batches.tokens_as_labels else (batch, None)
    if not isinstance(inputs, Tensor):
        raise DataError(
            f"All of {batches.samples.name} was to be read as one tensor of numbers, but it is text, or like= asks for "
            "inputs by name; take batches of it from open_data."
        )
    return inputs.float(), labels, batches.classes
