"""One side of a translation: how the rows of a space are brought to a common footing, and how they leave it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rows nearer to the mean than this share of the mean distance have no direction: they are taken to be the mean.
AT_THE_MEAN = 1e-6
# Rows whose lengths differ by no more than this share were normalised on purpose.
_ALIKE = 1e-3


@dataclass(frozen=True, eq=False)
class Standardiser:
    """The statistics of one space that a translation needs, in float64.

    Attributes:
        mean: Of the rows it was seen by.
        deviation: Of each dimension, where these are brought to one; None where they are left alone.
        unit: Whether rows are scaled to length 1 about the mean.
        norm: The mean length of rows about the mean.
        length: The length that all rows have about the origin, if they have one: embeddings that were normalised.
    """

    mean: Tensor
    deviation: Tensor | None
    unit: bool
    norm: float
    length: float | None

    @classmethod
    def fit(cls, rows: Tensor, *, unit: bool = False, standardise: bool = False) -> Standardiser:
        """The side of a space from ``rows`` of it, ``(rows, width)``."""
        wide = rows.double()
        mean = wide.mean(0)
        centred = wide - mean
        deviation = None
        if standardise:
            spread = centred.square().mean(0).sqrt()
            # A dimension that does not vary has nothing to be divided by.
            deviation = torch.where(spread > AT_THE_MEAN * spread.max().clamp(min=1e-300), spread, 1.0)
            centred = centred / deviation
        lengths = torch.linalg.vector_norm(wide, dim=1)
        alike = len(rows) > 1 and float(lengths.max() - lengths.min()) <= _ALIKE * float(lengths.mean())
        norm = float(torch.linalg.vector_norm(centred, dim=1).mean())
        return cls(mean, deviation, unit, norm or 1.0, float(lengths.mean()) if alike and lengths.mean() > 0 else None)

    @property
    def width(self) -> int:
        return len(self.mean)

    def transform(self, rows: Tensor) -> Tensor:
        """Rows of the space on the common footing."""
        rows = rows - self.mean.to(rows)
        if self.deviation is not None:
            rows = rows / self.deviation.to(rows)
        if not self.unit:
            return rows
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        directions: Tensor = torch.where(self.has_direction(lengths), rows / lengths.clamp(min=1e-30), 0)
        return directions

    def has_direction(self, lengths: Tensor) -> Tensor:
        """Whether rows of such lengths about the mean are far enough from it to have a direction."""
        return lengths > AT_THE_MEAN * self.norm

    def inverse_transform(self, rows: Tensor) -> Tensor:
        """Rows from the common footing in the space."""
        if self.unit:
            rows = rows * self.norm
        if self.deviation is not None:
            rows = rows * self.deviation.to(rows)
        return self.in_length(rows + self.mean.to(rows))

    def in_length(self, rows: Tensor) -> Tensor:
        """Rows of the space with the length that all of its rows have, if they have one."""
        if self.length is None:
            return rows
        # In float64: squares of float32 overflow from 1e19 on and vanish below 1e-19.
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
        factor: Tensor = self.length / lengths.clamp(min=1e-300)
        return rows * factor.to(rows.dtype) if _within_reach(factor, rows.dtype) else (rows * factor).to(rows.dtype)

    # ------------------------------------------------------------------ as data

    def described(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Its numbers in JSON's own types, and its tensors."""
        tensors = {"mean": self.mean} | ({} if self.deviation is None else {"deviation": self.deviation})
        return {"unit": self.unit, "norm": self.norm, "length": self.length}, tensors

    @classmethod
    def restored(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Standardiser:
        """What `described` told.

        Raises:
            ValueError: if that cannot be: numbers that are not finite, lengths that are not positive.
        """
        found = cls(
            tensors["mean"],
            tensors.get("deviation"),
            bool(document["unit"]),
            float(document["norm"]),
            None if document["length"] is None else float(document["length"]),
        )
        found._check()
        return found

    def _check(self) -> None:
        for name, tensor in (("mean", self.mean), ("deviation", self.deviation)):
            if tensor is None:
                continue
            if tensor.shape != (self.width,) or not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"its {name} is not {self.width} finite numbers")
        if self.deviation is not None and not bool((self.deviation > 0).all()):
            raise ValueError("a deviation is not positive")
        for name, value in (("norm", self.norm), ("length", self.length)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"its {name} is {value}")


def _within_reach(factors: Tensor, dtype: torch.dtype) -> bool:
    """Whether factors survive in that precision, so that no product of twice the width is needed."""
    limits = torch.finfo(dtype)
    return bool((factors <= limits.max).all()) and bool((factors >= limits.tiny).all())
