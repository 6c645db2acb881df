"""What every method makes: rows brought to a common footing, one linear map, and the footing of the other space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from interbasin.errors import FitError
from interbasin.jobs.translate.standardiser import Standardiser
from interbasin.maps import Map
from interbasin.maps.files import restore

BLOCK = 512  # rows that are translated together
ORDINARY = 1e-12, 1e12  # lengths of rows for which float32 suffices; others, and rows at the mean, go in float64


class Translation:
    """A fitted translation.

    Args:
        source: The side that rows come from.
        map: Linear, from the footing of one side to that of the other.
        target: The side that they go to.
        lengths: Where rows are brought to length 1, give them back how much longer than others they were.
    """

    def __init__(self, source: Standardiser, map: Map, target: Standardiser, lengths: bool = False) -> None:
        self.source, self.map, self.target, self.lengths = source, map, target, lengths

    @property
    def source_width(self) -> int:
        return self.source.width

    @property
    def target_width(self) -> int:
        return self.target.width

    @property
    def carries_norms(self) -> bool:
        """Whether long rows come out long; or all rows of the target are of one length, and so is what comes out."""
        return not self.source.unit or self.lengths or self.target.length is not None

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor]:
        """All of it as one matrix and one vector, where no row is scaled by its own length."""
        matrix = self.map.matrix.double()
        if self.target.deviation is not None:
            matrix = self.target.deviation[:, None] * matrix
        if self.target.unit:
            matrix = self.target.norm * matrix
        if self.source.deviation is not None:
            matrix = matrix / self.source.deviation
        return matrix, self.target.mean - matrix @ self.source.mean

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of the source in the target's space, in their own precision; ``(..., width)``."""
        moved = self._by_direction(rows) if self.source.unit else self._by_affine_map(rows)
        one_pass = not self.source.unit and self.target.length is None
        if one_pass or rows.ndim != 2 or len(rows) <= BLOCK or rows.requires_grad:
            return moved(rows)
        # A block's intermediate results stay in the cache; those of all rows would go through memory several times.
        made = rows.new_empty(len(rows), self.target_width)
        for start in range(0, len(rows), BLOCK):
            made[start : start + BLOCK] = moved(rows[start : start + BLOCK])
        return made

    def _by_affine_map(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        matrix, offset = (one.to(like) for one in self._affine)

        def moved(rows: Tensor) -> Tensor:
            return self.target.in_length(_affine(rows, matrix, offset))

        return moved

    def _by_direction(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        """The standardiser, the map and the way back in as few passes over the rows as will do."""
        source, target = self.source, self.target
        start, turn, end = (one.to(like) for one in (source.mean, self._turn, target.mean))
        wide = like.dtype == torch.float64

        def moved(rows: Tensor) -> Tensor:
            centred = rows - start
            lengths = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
            if not (wide or self._ordinary(lengths)):
                return self._by_direction(rows.double())(rows.double()).to(rows.dtype)
            shares = torch.full_like(lengths, 1 / source.norm) if self.lengths else 1 / lengths.clamp(min=1e-30)
            directions = centred * torch.where(source.has_direction(lengths), shares, 0)
            return target.in_length(_affine(directions, turn, end))

        return moved

    def _ordinary(self, lengths: Tensor) -> bool:
        """Whether no square of these lengths, and no product with the target's, leaves the range of float32."""
        least, most = ORDINARY
        return all(least < one < most for one in (self.source.norm, self.target.norm)) and bool(
            ((lengths < most) & (lengths > least)).all()
        )

    @cached_property
    def _turn(self) -> Tensor:
        """The map, with the mean length of the target's rows."""
        return self.map.matrix.double() * self.target.norm

    def back(self) -> Translation:
        """The way back, where there is one.

        Raises:
            FitError: if something is lost on the way there.
        """
        lost = (
            "the lengths of rows"
            if self.source.unit
            else f"{self.source_width - self.target_width} of {self.source_width} dimensions"
            if self.target_width < self.source_width
            else "directions that the map sends to nothing"
            if int(torch.linalg.matrix_rank(self.map.matrix.double())) < self.source_width
            else None
        )
        if lost is not None:
            raise FitError(
                f"There is no way back from this translation: it loses {lost}. Fit one in the other direction instead."
            )
        return Translation(self.target, self.map.inverse(), self.source)

    # ------------------------------------------------------------------ as data

    def described(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All of it in JSON's own types, and its tensors."""
        document: dict[str, Any] = {"lengths": self.lengths}
        tensors: dict[str, Tensor] = {}
        for name, (part, own) in {
            "source": self.source.described(),
            "map": self.map._described(),
            "target": self.target.described(),
        }.items():
            document[name] = part
            tensors |= {f"{name}.{key}": tensor for key, tensor in own.items()}
        return document, tensors

    @classmethod
    def restored(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Translation:
        """What `described` told."""

        def of(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(f"{name}."): one for key, one in tensors.items() if key.startswith(f"{name}.")}

        source, target = (Standardiser.restored(document[name], of(name)) for name in ("source", "target"))
        map = restore(document["map"], of("map"))
        if (map.source_width, map.target_width) != (source.width, target.width):
            raise ValueError(
                f"its map leads from {map.source_width} to {map.target_width} dimensions, and its sides have "
                f"{source.width} and {target.width}"
            )
        return cls(source, map, target, bool(document["lengths"]))


def _affine(rows: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    flat = torch.addmm(offset, rows.reshape(-1, rows.shape[-1]), matrix.mT)
    return flat.reshape(*rows.shape[:-1], len(offset))
