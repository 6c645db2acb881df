"""What data are: samples that can be read by number, and batches of them that can be iterated over more than once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from interbasin.datasets.shaping import Shaping
from interbasin.errors import DataError


class Samples(Protocol):
    """What a format provides."""

    @property
    def name(self) -> str:
        """How messages call it."""

    @property
    def count(self) -> int:
        """How many samples there are."""

    @property
    def labels(self) -> Tensor | None:
        """One a sample, in their order; None if there are none."""

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
            inputs = self.shaping.shaped(self.samples.read(rows), f"{self.samples.name}, from sample {rows[0]} on")
            if self.tokens_as_labels:
                yield inputs, _tokens(inputs, self.samples.name)
            elif labels is not None:
                yield inputs, labels[torch.tensor(rows)]
            else:
                yield inputs

    def without_labels(self) -> Batches:
        """The same inputs alone."""
        return replace(self, labelled=False, tokens_as_labels=False)


def _tokens(inputs: Any, name: str) -> Tensor:
    found = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
    if not isinstance(found, Tensor) or found.is_floating_point():
        raise DataError(f"Tokens were to be the labels, but {name} has none; give text, and a tokenizer for it.")
    return found


def class_numbers(values: Sequence[Any], name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers: whole ones as they are, text by its place among all texts, other numbers as float32.

    Raises:
        DataError: if some are missing, or they are of several kinds.

    Example:
        >>> class_numbers(["dog", "cat", "dog"], "pets.jsonl")
        (tensor([1, 0, 1]), ('cat', 'dog'))
    """
    if all(isinstance(one, str) for one in values):
        names = tuple(sorted(set(values)))
        places = {one: place for place, one in enumerate(names)}
        return torch.tensor([places[one] for one in values], dtype=torch.int64), names
    if all(isinstance(one, int) for one in values):  # bool is a kind of int
        return torch.tensor([int(one) for one in values], dtype=torch.int64), ()
    if all(isinstance(one, int | float) for one in values):
        numbers = torch.tensor([float(one) for one in values], dtype=torch.float32)
        if bool(numbers.isfinite().all()):
            return numbers, ()
        raise DataError(
            f"Label {int((~numbers.isfinite()).nonzero()[0])} of {name} is not finite; check what wrote it."
        )
    kinds = sorted({type(one).__name__ for one in values})
    raise DataError(
        f"The labels of {name} are of several kinds ({', '.join(kinds)}); give all as numbers or all as text."
    )
