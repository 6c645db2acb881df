"""How ``interbasin adapt`` reads data of the new modality: as tensors, with labels that mean the same in each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from interbasin.cli.options import DataReader
from interbasin.text import list_names

if TYPE_CHECKING:
    from torch import Tensor

LISTED = 6  # names that a message shows
OPTIONS = {"train": "--data", "valid": "--valid", "test": "--test"}  # which data are for what


@dataclass
class TargetReader:
    """Reads data of the new modality as tensors; the first that it reads say which label has which number.

    Attributes:
        limit, column, label_column, shape, seed: How each is read.
        classes: The names of labels, by their numbers; none where labels are numbers.
        seen: What was read with labels, in its order: samples -> what for, and the DATA.
    """

    limit: int | None
    column: str | None
    label_column: str | None
    shape: list[int] | None
    seed: int
    classes: tuple[str, ...] = ()
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def read(self, data: str, part: str, *, labelled: bool = True) -> tuple[Tensor, Tensor] | Tensor:
        """Inputs and labels, or inputs alone."""
        import torch

        from interbasin.batches import split_batch
        from interbasin.errors import DataError

        columns = {"column": self.column, "label_column": self.label_column, "labels_needed": labelled}
        reader = DataReader(data, {**columns, "seed": self.seed})
        batches = reader.read(reader.part_if_any(part), self.limit)
        if labelled:
            self._require_new(batches.samples.name, part, data)
        pairs = [split_batch(batch) for batch in batches]
        if not all(isinstance(inputs, torch.Tensor) for inputs, _ in pairs):
            raise DataError(f"The new modality is given as arrays of numbers, and {data} is text; convert it first.")
        inputs = torch.cat([inputs for inputs, _ in pairs]).float()
        if self.shape is not None:
            inputs = self._reshape(inputs, data)
        if not labelled:
            return inputs
        if pairs[0][1] is None:
            raise DataError(
                f"{data} has no labels; give them as y of an .npz file, as a column of a table (--label-column), or as "
                "folders of images."
            )
        return inputs, self._numbers(torch.cat([labels for _, labels in pairs]), batches.classes, data)

    def _require_new(self, samples: str, part: str, data: str) -> None:
        """Refuse samples that were read for another part: errors on what was trained on say nothing."""
        from interbasin.errors import DataError

        file, bracket, split = samples.partition(" (")  # a file with parts is called "d.npz (train)"
        is_split = bracket and split.removesuffix(")") in OPTIONS
        key = os.path.realpath(file) + bracket + split if is_split else os.path.realpath(samples)
        other, _ = self.seen.setdefault(key, (part, data))
        if other != part:
            raise DataError(
                f"{OPTIONS[part]} was to be read from {data}, which has no {part} part, so that its samples are those "
                f"of {OPTIONS[other]} already; give other data, or put x_{part} and y_{part} into an .npz file."
            )

    def _reshape(self, inputs: Tensor, data: str) -> Tensor:
        from interbasin.errors import ShapeError

        try:
            return inputs.reshape(len(inputs), *(self.shape or ()))
        except RuntimeError as error:
            raise ShapeError(
                f"Inputs of {data} have shape {tuple(inputs.shape[1:])}, which cannot be laid out as "
                f"{tuple(self.shape or ())}; give another --shape, or none."
            ) from error

    def _numbers(self, labels: Tensor, classes: tuple[str, ...], data: str) -> Tensor:
        """Labels by the numbers that the first data gave them, where they have names."""
        import torch

        from interbasin.errors import DataError

        if len(self.seen) == 1:
            self.classes = classes
            return labels
        if not self.classes or not classes:
            if _are_names(self.classes or classes):
                first = next(text for _, text in self.seen.values())
                raise DataError(
                    f"{first} has {_describe(self.classes)} and {data} has {_describe(classes)}, so that which number "
                    "is which name is not clear; write the labels in both alike."
                )
            return labels
        foreign = [name for name in classes if name not in self.classes]
        if foreign:
            raise DataError(
                f"{data} has the label {foreign[0]!r}, and --data have {', '.join(self.classes)}; add samples of it "
                "there, or take them out here."
            )
        return torch.tensor([self.classes.index(name) for name in classes])[labels]


def _are_names(classes: tuple[str, ...]) -> bool:
    """Whether classes have names other than their numbers, as the digits have."""
    return classes != tuple(map(str, range(len(classes))))


def _describe(classes: tuple[str, ...]) -> str:
    return f"labels with names ({list_names(classes, LISTED)})" if classes else "labels that are numbers"
