"""Data as they are given, as tensors: arrays, pairs, data sets or batches, and what is refused of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interbasin.batches import as_batches, split_batch
from interbasin.errors import DataError, ShapeError

LARGEST_SINGLE = torch.finfo(torch.float32).max
LARGEST_INPUT = 1e17  # so that squares of as many numbers as an input may have can be added
MOST_UNSEEN = 1000  # classes that there may be, however few samples


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs, and labels where there are some, one row for each sample."""

    inputs: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@contextmanager
def in_single_precision() -> Iterator[None]:
    """New layers hold float32, as all data here do, whatever the caller's default is; that comes back in the end."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def read_samples(data: Any, name: str, *, labelled: bool = True) -> Samples:
    """Data of the target as tensors: a pair (inputs, labels), a Dataset of such pairs, or batches of them.

    Args:
        data: What was given.
        name: How messages call it.
        labelled: Whether labels are needed; without, they are left out.

    Raises:
        DataError, ShapeError: if there are no samples, no labels, values that are not finite, or shapes that differ.
    """
    inputs, labels = _tensors(data, name, labelled)
    if not inputs.ndim or (labels is not None and not labels.ndim):
        raise ShapeError(f"In the place of inputs or labels of {name} is a single number; give one for each sample.")
    if not len(inputs):
        raise DataError(f"There are no samples at all in {name}; give some.")
    if inputs.ndim < 2:
        raise ShapeError(
            f"Inputs of {name} have shape {tuple(inputs.shape)}; give a row of numbers, a signal or a field for each "
            "sample: a single feature has shape (samples, 1)."
        )
    if labelled and labels is None:
        raise DataError(f"There are no labels in {name}; give pairs (inputs, labels).")
    if labels is not None and len(labels) != len(inputs):
        raise ShapeError(
            f"There are {len(inputs)} inputs and {len(labels)} labels in {name}; give one label for each input."
        )
    inputs = to_single(inputs.detach(), f"the inputs of {name}")
    _require_squares(inputs, f"the inputs of {name}")
    if not labelled or labels is None:
        return Samples(inputs)
    labels = labels.detach()
    to_single(labels, f"the labels of {name}")
    return Samples(inputs, labels)


def to_single(values: Tensor, what: str, before: int | None = None) -> Tensor:
    """Numbers in single precision.

    Args:
        values: One row for each sample.
        what: How messages call them.
        before: How many rows came before, where these are a batch of more.

    Raises:
        DataError: names the first row that holds NaN or infinity, or a number that is too large for single precision.
    """
    single = values.float()
    bad = (~torch.isfinite(single.reshape(len(single), -1))).any(1).nonzero()
    if not len(bad):
        return single
    first = int(bad[0])
    row = f"Row {first + (before or 0)} of {what}"
    if bool(torch.isfinite(values[first]).all()):
        largest = float(values[first].abs().max())
        raise DataError(
            f"{row} holds numbers as large as {largest:.3g}, and float32 ends at {LARGEST_SINGLE:.3g}; divide them by "
            "their spread first."
        )
    share = f" ({len(bad)} of {len(values)} rows do)" if before is None else ""
    raise DataError(f"{row} holds NaN or infinity{share}; take such rows out, or fill them.")


def _require_squares(inputs: Tensor, what: str) -> None:
    """Refuse inputs whose squares are infinite in single precision: they have no distances and no spread."""
    sizes = inputs.reshape(len(inputs), -1).abs().amax(1)
    row = int(sizes.argmax())
    if float(sizes[row]) > LARGEST_INPUT:
        raise DataError(
            f"Row {row} of {what} holds numbers as large as {float(sizes[row]):.3g}, whose squares are infinite in "
            "float32; divide the inputs by their spread first."
        )


def refuse_text(labels: Any, name: str) -> None:
    """Refuse labels that are names of classes, in an array, a list, or alone.

    Raises:
        DataError: shows the first of them.
    """
    first = labels.ravel()[:1].tolist() if isinstance(labels, np.ndarray) else labels
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if isinstance(first, str | bytes):
        raise DataError(
            f"Labels of {name} are whole numbers, one for each class, found strings ({str(first)!r}); number the "
            "classes from 0 on."
        )


def require_range(labels: Tensor, name: str, known: int = 0) -> None:
    """Refuse classes with numbers far beyond what so many samples can have; ``known`` classes there are for sure.

    Raises:
        DataError: names the largest.
    """
    largest = int(labels.max())
    if largest >= max(MOST_UNSEEN, 10 * len(labels), known):  # a year, or an identifier
        raise DataError(
            f"Label {largest} in row {int(labels.argmax())} of {name} is out of range for {len(labels)} samples; "
            "number the classes from 0 on."
        )


def _tensors(data: Any, name: str, labelled: bool) -> tuple[Tensor, Tensor | None]:
    """Inputs, and labels where there are some, as one tensor each."""
    if isinstance(data, Tensor | np.ndarray):
        return as_tensor(data, name), None
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    if labelled and is_pair and isinstance(data[0], Tensor | np.ndarray):
        refuse_text(data[1], name)
    # A list of two inputs without labels is two batches.
    if is_pair and all(map(_is_array, data)) and (labelled or isinstance(data, tuple)):
        return as_tensor(data[0], name), as_tensor(data[1], name)
    if labelled and isinstance(data, tuple) and is_pair and _is_array(data[0]) and isinstance(data[1], list):
        return as_tensor(data[0], name), as_tensor(data[1], name)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence | Mapping):
        samples = [_split(data[place]) for place in range(len(data))]  # a Dataset: one sample at a time
        return _stack([inputs for inputs, _ in samples], name), _stack_labels([label for _, label in samples], name)
    batches = [_split(batch) for batch in as_batches(data, 256)]
    if not batches:
        return torch.zeros(0), None
    labels = [label for _, label in batches]
    refuse_text(labels, name)
    if all(isinstance(label, int | float) or getattr(label, "ndim", None) == 0 for label in labels):
        return _stack([inputs for inputs, _ in batches], name), _stack_labels(labels, name)  # a sample at a time
    for number, (inputs, label) in enumerate(batches):
        counts = [len(part) for part in (inputs, label) if isinstance(part, Tensor | np.ndarray) and part.ndim]
        if len(set(counts)) > 1:
            raise ShapeError(
                f"Batch {number} of {name} has {counts[0]} inputs and {counts[1]} labels; give one label for each "
                "input."
            )
    return _concatenate([inputs for inputs, _ in batches], name), (
        None if any(label is None for label in labels) else _concatenate(labels, name)
    )


def _is_array(part: Any) -> bool:
    """Whether this is a tensor, an array, or a table that can be had as one."""
    return isinstance(part, Tensor | np.ndarray) or (hasattr(part, "__array__") and hasattr(part, "ndim"))


def _split(batch: Any) -> tuple[Any, Any]:
    """Inputs and labels of a batch or sample; data sets without labels put their inputs into a tuple of one."""
    return (batch[0], None) if isinstance(batch, tuple | list) and len(batch) == 1 else split_batch(batch)


def _stack_labels(labels: Sequence[Any], name: str) -> Tensor | None:
    refuse_text(labels, name)
    return None if any(label is None for label in labels) else _stack(labels, name)


def _stack(parts: Sequence[Any], name: str) -> Tensor:
    return _concatenate([as_tensor(part, name)[None] for part in parts], name)


def _concatenate(parts: Sequence[Any], name: str) -> Tensor:
    tensors = [as_tensor(part, name) for part in parts]
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise ShapeError(f"Samples of {name} have shapes {first} and {second}; give all in one shape.")
    return torch.cat(tensors) if tensors else torch.zeros(0)


def refuse_mask(part: Any, name: str) -> None:
    """Refuse numpy's masked arrays, alone or in a list.

    Raises:
        DataError: says what to do with what is masked.
    """
    if any(isinstance(array, np.ma.MaskedArray) for array in (part if isinstance(part, list | tuple) else [part])):
        raise DataError(
            f"Inputs and labels of {name} are plain arrays, found a masked array, whose mask would be lost; use "
            ".filled(value), or leave those rows out."
        )


def as_tensor(part: Any, name: str) -> Tensor:
    """Numbers of any kind of array as a dense tensor, which shares their memory where that can be done.

    Raises:
        DataError: if they are no real numbers, or masked.
    """
    refuse_mask(part, name)
    try:
        if not isinstance(part, Tensor):  # arrays may be reversed, or have the bytes of another machine
            array = np.asarray(part)
            part = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
        tensor = torch.as_tensor(part)
        tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"Inputs and labels of {name} are numbers, found {type(part).__name__}; give tensors or arrays of numbers."
        ) from error
    if tensor.is_complex():
        raise DataError(f"Numbers of {name} are complex; give real and imaginary part as two channels.")
    return tensor.clone() if tensor.is_inference() else tensor  # nothing can be trained on one of inference mode
