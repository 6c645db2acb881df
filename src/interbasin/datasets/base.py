"""What data are: samples that can be read by number, and batches of them, ready for a network.

A `Shaping` turns what a file holds into what a network takes: dtype, scale, shape and name of the input. A shape is
changed only where one way of doing so is plain: axes of one entry added or dropped, an image laid flat or a flat one
cut into rows, and colours moved from the last axis to the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError

if TYPE_CHECKING:
    from interbasin.models.base import Inputs

WHITE = 255.0  # of eight-bit images


@dataclass(frozen=True)
class Shaping:
    """How a batch is made ready for a network.

    Attributes:
        example: The tensor that it stands for in the network's example inputs; None if there were none.
        key: Its name, where inputs are keyword arguments.
        positional: Whether inputs are a tuple.
        constants: What else the network is called with: ``use_cache=False``.
        scale: Whether eight-bit numbers are divided by 255.
        mean: Subtracted after that: one number, or one per channel.
        std: And divided by.
    """

    example: Tensor | None = field(default=None, repr=False)
    key: str | None = None
    positional: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    scale: bool = True
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, batch: Any, name: str, rows: Sequence[int] | None = None) -> Any:
        """The batch as the network takes it: the samples ``rows`` of the data ``name``.

        Raises:
            DataError: if it holds NaN or infinity, or what the network does not take.
            ShapeError: if it has a shape that cannot be brought into the network's in one plain way.
        """
        where = name if rows is None else f"{name}, from sample {rows[0]} on"
        if isinstance(batch, Mapping):
            return self._shape_texts(batch, where)
        tensor = self._to_tensor(batch, where)
        require_finite_samples(tensor, name, rows, given=batch)
        if self.example is not None:
            tensor = _reshape(tensor, self.example, where)
        tensor = self._normalise(tensor, where)
        if self.key is not None:
            return {self.key: tensor, **self.constants}
        return (tensor,) if self.positional else tensor

    def _shape_texts(self, batch: Mapping[str, Tensor], where: str) -> Any:
        if self.example is not None and self.example.is_floating_point():
            raise DataError(f"The network takes numbers, not tokens, but {where} is text; give arrays or images.")
        if self.example is not None and self.key is None:
            # A network of someone's own, which takes the tokens alone.
            return (batch["input_ids"],) if self.positional else batch["input_ids"]
        return {**batch, **self.constants}

    def _to_tensor(self, batch: Any, where: str) -> Tensor:
        array = np.asarray(batch)
        eight_bit = array.dtype == np.uint8
        tokens = self.example is not None and not self.example.is_floating_point()
        if tokens and array.dtype.kind not in "iu":
            raise DataError(
                f"The network takes tokens, whole numbers, and {where} holds {array.dtype}; tokenize it first."
            )
        if array.dtype.kind in "iu" and (tokens or (self.example is None and not eight_bit)):
            return torch.from_numpy(array.astype(np.int64))
        dtype = torch.float32 if self.example is None else self.example.dtype
        with np.errstate(over="ignore"):  # what becomes infinite is refused by its sample
            tensor = torch.from_numpy(np.array(array, dtype=np.float64 if dtype is torch.float64 else np.float32))
        return (tensor / WHITE if eight_bit and self.scale else tensor).to(dtype)

    def _normalise(self, tensor: Tensor, where: str) -> Tensor:
        for values, apply in ((self.mean, torch.sub), (self.std, torch.div)):
            if not values:
                continue
            if not tensor.is_floating_point():
                raise DataError(f"A mean or a standard deviation was given, but {where} holds tokens; leave them out.")
            if len(values) > 1 and (tensor.ndim < 3 or tensor.shape[1] != len(values)):
                raise ShapeError(
                    f"{len(values)} means or standard deviations were given, but samples of {where} have shape "
                    f"{tuple(tensor.shape[1:])}; give one number, or one per channel."
                )
            along = (1, -1, *[1] * (tensor.ndim - 2)) if len(values) > 1 else (1,)
            tensor = apply(tensor, torch.tensor(values, dtype=tensor.dtype).reshape(along))
        return tensor


def shaping_like(
    like: Inputs | None,
    *,
    scale: bool = True,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> Shaping:
    """The shaping for a network with these example inputs.

    Raises:
        DataError: if it takes several tensors, or a standard deviation is not positive.
    """
    means, deviations = (
        tuple(map(float, () if values is None else [values] if isinstance(values, int | float) else values))
        for values in (mean, std)
    )
    if not all(map(math.isfinite, means)) or not all(0 < deviation < math.inf for deviation in deviations):
        raise DataError(f"Means are finite and standard deviations positive, found {mean!r} and {std!r}; correct them.")
    options: dict[str, Any] = {"scale": scale, "mean": means, "std": deviations}
    if like is None or isinstance(like, Tensor):
        return Shaping(like, **options)
    if isinstance(like, Mapping):
        tensors = {name: value for name, value in like.items() if isinstance(value, Tensor)}
        # A mask comes with the text, or is not needed.
        main = [name for name in tensors if not name.endswith(("mask", "token_type_ids", "position_ids"))]
        if len(main) != 1:
            raise _several_inputs(main)
        constants = {name: value for name, value in like.items() if name not in tensors}
        return Shaping(tensors[main[0]], key=main[0], constants=constants, **options)
    if len(like) != 1 or not isinstance(like[0], Tensor):
        raise _several_inputs([f"argument {place}" for place in range(len(like))])
    return Shaping(like[0], positional=True, **options)


def _several_inputs(names: Sequence[str]) -> DataError:
    return DataError(
        f"The network takes {len(names)} inputs ({', '.join(names) or 'none'}), and data of this kind give one; "
        "call the function from Python with batches of your own."
    )


def _reshape(tensor: Tensor, example: Tensor, where: str) -> Tensor:
    """The batch in the shape of the network's samples."""
    have, want = tuple(tensor.shape[1:]), tuple(example.shape[1:])
    if have == want:
        return tensor
    if not example.is_floating_point():
        if len(have) == len(want):  # texts may have any length
            return tensor
    elif len(have) == 3 and (have[2], have[0], have[1]) == want:
        return tensor.permute(0, 3, 1, 2).contiguous()
    elif math.prod(have) == math.prod(want) and (
        len(want) <= 1 or len(have) == 1 or [n for n in have if n > 1] == [n for n in want if n > 1]
    ):
        return tensor.reshape(len(tensor), *want)
    # Networks that take images with so many channels, or sequences of such vectors, take other sizes too.
    elif (len(have) == len(want) == 3 and have[0] == want[0]) or (len(have) == len(want) == 2 and have[1] == want[1]):
        return tensor
    raise ShapeError(
        f"The network takes samples of shape {want}, and those of {where} have shape {have}, which cannot be brought "
        "into the other in one plain way; reshape them before, or give inputs of another shape for the network."
    )


def require_finite_samples(
    tensor: Tensor, name: str, rows: Sequence[int] | None, what: str = "", given: Any = None
) -> None:
    """Refuse NaN and infinity in samples, or in ``what`` of them (their labels), with the number of the first.

    Args:
        tensor: The samples.
        name: Of the data.
        rows: The numbers of the samples; by default from 0 on.
        what: Which part of the data they are: ``"the labels of "``.
        given: The same numbers as they were before they had the dtype of the tensor.

    Raises:
        DataError: if there are any; says so where only the dtype made them infinite.
    """
    bad = ~tensor.isfinite()
    if not bool(bad.any()):
        return
    place = tuple(bad.nonzero()[0].tolist())
    number = place[0] if rows is None else rows[place[0]]
    where, value = f"{what}{name}, sample {number}", float(tensor[place])
    if given is not None and math.isfinite(np.asarray(given)[place]):
        raise DataError(_too_large(f"There is {float(np.asarray(given)[place]):g} in {where}", tensor.dtype))
    if math.isnan(value):
        raise DataError(f"There is NaN in {where}; take such samples out.")
    if given is None and tensor.dtype is not torch.float64:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise DataError(f"There is infinity, or a number beyond {kind}, in {where}; take such samples out.")
    raise DataError(f"There is infinity in {where}; take such samples out.")


def _too_large(fact: str, dtype: torch.dtype) -> str:
    kind = str(dtype).removeprefix("torch.")
    return f"{fact}, and {kind} ends at {torch.finfo(dtype).max:.3g}; divide the numbers by their spread first."


class Labels(Protocol):
    """Labels of all samples, in memory (a tensor) or in a file: indexing reads those of some samples."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """The labels of these samples, one per row; of any shape each."""


class Samples(Protocol):
    """What a format provides."""

    @property
    def name(self) -> str:
        """How messages call it."""

    @property
    def count(self) -> int:
        """How many samples there are."""

    @property
    def labels(self) -> Labels | None:
        """One per sample, in their order; None if there are none."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, where they have names."""

    def read(self, rows: Sequence[int]) -> Any:
        """The samples of these numbers: an array ``(rows, ...)``, or a mapping of tensors for text."""


@dataclass(frozen=True)
class Batches:
    """Batches of one data set, the same in the same order whenever they are iterated over.

    Each is ``(inputs, labels)``, or inputs alone where there are no labels. Made by `open_data`.

    Attributes:
        samples: Where they are read from.
        rows: The numbers of the samples, in order.
        batch_size: Samples in every batch; only the last may have fewer.
        shaping: What is done to inputs before a network gets them.
        labelled: Whether labels are handed out.
        tokens_as_labels: Whether the tokens of a text are its labels, as language models have them.
    """

    samples: Samples
    rows: tuple[int, ...]
    batch_size: int
    shaping: Shaping
    labelled: bool
    tokens_as_labels: bool = False

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.rows)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, where they have names: label 3 is ``classes[3]``."""
        return self.samples.classes

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        labels = self.samples.labels if self.labelled else None
        for first in range(0, len(self.rows), self.batch_size):
            rows = self.rows[first : first + self.batch_size]
            inputs = self.shaping(self.samples.read(rows), self.samples.name, rows)
            if self.tokens_as_labels:
                tokens = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
                if not isinstance(tokens, Tensor) or tokens.is_floating_point():
                    raise DataError(
                        f"Tokens were to be the labels, but {self.samples.name} has none; give text, and a tokenizer."
                    )
                yield inputs, tokens
            elif labels is not None:
                yield inputs, self._read_labels(labels, rows)
            else:
                yield inputs

    def _read_labels(self, labels: Labels, rows: Sequence[int]) -> Tensor:
        values = labels[torch.tensor(rows)]
        require_finite_samples(values, self.samples.name, rows, "the labels of ")
        return values

    def without_labels(self) -> Batches:
        """The same inputs alone."""
        return replace(self, labelled=False, tokens_as_labels=False)


def class_numbers(values: Sequence[Any], name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers: whole ones as they are, text by its place among all texts, other numbers as float32.

    Raises:
        DataError: if some are missing, or they are of several kinds.

    Example:
        >>> class_numbers(["dog", "cat", "dog"], "pets.jsonl")
        (tensor([1, 0, 1]), ('cat', 'dog'))
    """
    if all(isinstance(value, str) for value in values):
        names = tuple(sorted(set(values)))
        places = {text: place for place, text in enumerate(names)}
        return torch.tensor([places[text] for text in values], dtype=torch.int64), names
    if all(isinstance(value, int) for value in values):  # bool is a kind of int
        large = next((place for place, value in enumerate(values) if not -(2**63) <= value < 2**63), None)
        if large is not None:
            raise DataError(
                f"Label {large} of {name} is {values[large]}, beyond 64 bits; number the classes from 0 on."
            )
        return torch.tensor(list(map(int, values)), dtype=torch.int64), ()
    if not all(isinstance(value, int | float) for value in values):
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise DataError(f"The labels of {name} are of several kinds ({kinds}); give all as numbers or all as text.")
    numbers = torch.tensor(list(map(float, values)), dtype=torch.float32)
    bad = (~numbers.isfinite()).nonzero()
    if len(bad):
        first = int(bad[0])
        if math.isfinite(values[first]):
            raise DataError(_too_large(f"Label {first} of {name} is {values[first]:g}", numbers.dtype))
        raise DataError(f"Label {first} of {name} is not finite; check what wrote it.")
    return numbers, ()
