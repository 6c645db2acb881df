"""What every method fits: the standardiser of one space, a linear map, and the standardiser of the other space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from interbasin.errors import FitError
from interbasin.maps import Map
from interbasin.maps.files import restore

BLOCK = 512  # rows that are translated together
ORDINARY = 1e-12, 1e12  # lengths of rows for which float32 suffices; others, and rows at the mean, go in float64
# Rows nearer to the mean than this share of the mean distance have no direction: they are taken to be the mean.
AT_THE_MEAN = 1e-6
# Rows whose lengths differ by no more than this share were normalised on purpose.
_SAME_LENGTH = 1e-3


@dataclass(frozen=True, eq=False)
class Standardiser:
    """The statistics of one space that a translation needs, in float64.

    Attributes:
        mean: Of the rows it was fitted on.
        deviation: Of each dimension, where dimensions are divided by it.
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
        """The statistics of ``rows``, ``(rows, width)``."""
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
        alike = len(rows) > 1 and float(lengths.max() - lengths.min()) <= _SAME_LENGTH * float(lengths.mean())
        norm = float(torch.linalg.vector_norm(centred, dim=1).mean())
        return cls(mean, deviation, unit, norm or 1.0, float(lengths.mean()) if alike and lengths.mean() > 0 else None)

    def transform(self, rows: Tensor) -> Tensor:
        """Rows of the space, standardised."""
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
        """Standardised rows back in the space."""
        if self.unit:
            rows = rows * self.norm
        if self.deviation is not None:
            rows = rows * self.deviation.to(rows)
        return self.scale_to_length(rows + self.mean.to(rows))

    def scale_to_length(self, rows: Tensor) -> Tensor:
        """Rows of the space with the length that all of its rows have, if they have one."""
        if self.length is None:
            return rows
        # In float64: squares of float32 overflow from 1e19 on and vanish below 1e-19.
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
        factors: Tensor = self.length / lengths.clamp(min=1e-300)
        limits = torch.finfo(rows.dtype)
        if bool((factors <= limits.max).all()) and bool((factors >= limits.tiny).all()):
            return rows * factors.to(rows.dtype)
        return (rows * factors).to(rows.dtype)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Its numbers in JSON's own types, and its tensors."""
        tensors = {"mean": self.mean} | ({} if self.deviation is None else {"deviation": self.deviation})
        return {"unit": self.unit, "norm": self.norm, "length": self.length}, tensors

    @classmethod
    def from_json(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Standardiser:
        """What `to_json` gave; a ValueError if numbers are not finite, or lengths not positive."""
        mean, deviation = tensors["mean"], tensors.get("deviation")
        for name, tensor in (("mean", mean), ("deviation", deviation)):
            if tensor is not None and (tensor.shape != (len(mean),) or not bool(torch.isfinite(tensor).all())):
                raise ValueError(f"its {name} is not {len(mean)} finite numbers")
        if deviation is not None and not bool((deviation > 0).all()):
            raise ValueError("a deviation is not positive")
        norm, length = float(document["norm"]), document["length"]
        length = None if length is None else float(length)
        for name, value in (("norm", norm), ("length", length)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"its {name} is {value}")
        return cls(mean, deviation, bool(document["unit"]), norm, length)


@dataclass(frozen=True, eq=False)
class Translation:
    """A fitted translation.

    Attributes:
        source: Standardises the rows that come in.
        map: Linear, from standardised rows of one space to those of the other.
        target: Standardises rows of the other space; here its inverse is used.
        lengths: Where rows are scaled to length 1, give them back how much longer than others they were.
    """

    source: Standardiser
    map: Map
    target: Standardiser
    lengths: bool = False

    @property
    def carries_norms(self) -> bool:
        """Whether long rows come out long; or all rows of the target are of one length, and so is what comes out."""
        return not self.source.unit or self.lengths or self.target.length is not None

    @cached_property
    def matrix(self) -> Tensor:
        """The map, from standardised rows of the source to rows of the target about their mean."""
        matrix = self.map.matrix.double()
        if self.target.deviation is not None:
            matrix = self.target.deviation[:, None] * matrix
        return self.target.norm * matrix if self.target.unit else matrix

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        """All of it as one matrix and one vector, where no row is scaled by its own length."""
        matrix = self.matrix if self.source.deviation is None else self.matrix / self.source.deviation
        return matrix, self.target.mean - matrix @ self.source.mean

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of the source in the target's space, in their own precision; ``(..., width)``."""
        if rows.ndim != 2:
            return self(rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:-1], self.map.target_width)
        translate = self._by_direction(rows) if self.source.unit else self._by_affine_map(rows)
        one_pass = not self.source.unit and self.target.length is None
        if one_pass or len(rows) <= BLOCK or rows.requires_grad:
            return translate(rows)
        # A block's intermediate results stay in the cache; those of all rows would go through memory several times.
        translated = rows.new_empty(len(rows), self.map.target_width)
        for start in range(0, len(rows), BLOCK):
            translated[start : start + BLOCK] = translate(rows[start : start + BLOCK])
        return translated

    def _by_affine_map(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        matrix, offset = (part.to(like) for part in self._affine)
        return lambda rows: self.target.scale_to_length(torch.addmm(offset, rows, matrix.mT))

    def _by_direction(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        """The standardiser, the map and the way back in as few passes over the rows as will do."""
        source, target = self.source, self.target
        start, turn, end = (part.to(like) for part in (source.mean, self.matrix, target.mean))
        wide = like.dtype == torch.float64

        def translate(rows: Tensor) -> Tensor:
            centred = rows - start
            lengths = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
            if not (wide or self._fits_float32(lengths)):
                return self._by_direction(rows.double())(rows.double()).to(rows.dtype)
            shares = torch.full_like(lengths, 1 / source.norm) if self.lengths else 1 / lengths.clamp(min=1e-30)
            directions = centred * torch.where(source.has_direction(lengths), shares, 0)
            return target.scale_to_length(torch.addmm(end, directions, turn.mT))

        return translate

    def _fits_float32(self, lengths: Tensor) -> bool:
        """Whether no square of these lengths, and no product with the target's, leaves the range of float32."""
        least, most = ORDINARY
        return all(least < norm < most for norm in (self.source.norm, self.target.norm)) and bool(
            ((lengths < most) & (lengths > least)).all()
        )

    def inverse(self) -> Translation:
        """The way back; a FitError if something is lost on the way there."""
        lost, width = None, self.map.source_width
        if self.source.unit:
            lost = "the lengths of rows"
        elif self.map.target_width < width:
            lost = f"{width - self.map.target_width} of {width} dimensions"
        elif int(torch.linalg.matrix_rank(self.map.matrix.double())) < width:
            lost = "directions that the map sends to nothing"
        if lost is not None:
            raise FitError(
                f"There is no way back from this translation: it loses {lost}. Fit one from target to source."
            )
        return Translation(self.target, self.map.inverse(), self.source)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of it in JSON's own types, and its tensors."""
        document: dict[str, Any] = {"lengths": self.lengths}
        tensors: dict[str, Tensor] = {}
        parts = {"source": self.source.to_json(), "map": self.map._described(), "target": self.target.to_json()}
        for name, (part, part_tensors) in parts.items():
            document[name] = part
            tensors |= {f"{name}.{key}": tensor for key, tensor in part_tensors.items()}
        return document, tensors

    @classmethod
    def from_json(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Translation:
        """What `to_json` gave."""
        parts: dict[str, dict[str, Tensor]] = {"source": {}, "map": {}, "target": {}}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            parts.setdefault(part, {})[key] = tensor
        source, target = (Standardiser.from_json(document[side], parts[side]) for side in ("source", "target"))
        map = restore(document["map"], parts["map"])
        if (map.source_width, map.target_width) != (len(source.mean), len(target.mean)):
            raise ValueError(
                f"its map leads from {map.source_width} to {map.target_width} dimensions, and its sides have "
                f"{len(source.mean)} and {len(target.mean)}"
            )
        return cls(source, map, target, bool(document["lengths"]))
