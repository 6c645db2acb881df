"""What was seen in two spaces at once: `PairedMoments`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from interbasin.arrays import Array
from interbasin.errors import DataError
from interbasin.statistics.accumulation import Accumulator, Side, cross_about, load_accumulator, save_accumulator
from interbasin.statistics.batches import add_batch
from interbasin.text import plural

SOURCE, TARGET = "source", "target"


class Moments:
    """What `PairedMoments` and `LayerwiseMoments` share: the sums, how they merge, and their files."""

    _state: Accumulator

    def merge(self, other: Self) -> Self:
        """New moments, as one pass over the rows of both would have given."""
        if not isinstance(other, type(self)):
            name = type(self).__name__
            raise DataError(f"{name} merge with {name}, got {type(other).__name__}.")
        return self._of_state(self._state.merge(other._state))

    def save(
        self, folder: str | os.PathLike[str], *, force: bool = False, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write the moments, exactly, to a folder from which `load` goes on. ``notes`` are JSON for your own use."""
        save_accumulator(self._state, folder, force=force, notes=notes)

    @property
    def count(self) -> int:
        """The number of (paired) rows."""
        return self._state.count

    @classmethod
    def _of_state(cls, state: Accumulator) -> Self:
        moments = cls()
        moments._state = state
        return moments


class PairedMoments(Moments):
    r"""Streaming first and second moments of paired rows :math:`x` (source) and :math:`y` (target).

    Memory is bounded by the two widths. Batches may be float16, bfloat16, float32 or float64, tensors or arrays, of
    shape ``(..., width)``; products are formed in their precision (float32 for the half types) and summed in float64.

    Args:
        grams: Also keep the two Gram matrices. Fits that need them say so (`least_squares`, `cca`); `procrustes` and
            `assignment` do without, at a third of the cost.

    Example:
        >>> moments = PairedMoments()
        >>> for _ in range(3):
        ...     moments.update(torch.ones(10, 4), torch.ones(10, 2))
        >>> moments.count, moments.cross(centered=False).shape
        (30, torch.Size([2, 4]))
    """

    def __init__(self, *, grams: bool = False) -> None:
        self._state = Accumulator(grams=grams)

    @classmethod
    def of(cls, source: Array, target: Array, *, grams: bool = True) -> PairedMoments:
        """The moments of two arrays of paired rows."""
        return cls.of_batches([(source, target)], grams=grams)

    @classmethod
    def of_batches(cls, batches: Iterable[tuple[Array, Array]], *, grams: bool = True) -> PairedMoments:
        """The moments of a stream of pairs of batches."""
        moments = cls(grams=grams)
        for source, target in batches:
            moments.update(source, target)
        return moments

    # ------------------------------------------------------------------ collecting

    def update(self, source: Array, target: Array) -> None:
        """Add a batch of paired rows. A batch that is refused leaves the moments as they were.

        Raises:
            DataError: if a value is NaN or infinite (the message names the batch and the columns), or nothing is there.
            ShapeError: if the rows are not paired or a width differs from earlier batches.
        """
        self._state = add_batch(self._state, {SOURCE: source}, {TARGET: target})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> PairedMoments:
        """The moments that were saved to ``folder``."""
        return cls.load_with_notes(folder)[0]

    @classmethod
    def load_with_notes(cls, folder: str | os.PathLike[str]) -> tuple[PairedMoments, dict[str, Any]]:
        """The moments that were saved to ``folder``, and the notes saved beside them."""
        state, notes = load_accumulator(folder)
        if list(state.sources) not in ([], [SOURCE]) or list(state.targets) not in ([], [TARGET]):
            raise DataError(f"The statistics in {folder} are of several layers; load them with LayerwiseMoments.load.")
        return cls._of_state(state), notes

    # ------------------------------------------------------------------ what was seen

    @property
    def batches(self) -> int:
        """The number of batches."""
        return self._state.batches

    @property
    def has_grams(self) -> bool:
        """Whether the Gram matrices are kept."""
        return self._state.grams

    @property
    def precision(self) -> float:
        """Machine epsilon of the coarsest precision that products were formed in."""
        return self._state.precision

    @property
    def source_width(self) -> int:
        return self._source.width

    @property
    def target_width(self) -> int:
        return self._target.width

    @property
    def mean_source(self) -> Tensor:
        return self._source.origin + self._source.total / self.count

    @property
    def mean_target(self) -> Tensor:
        return self._target.origin + self._target.total / self.count

    def cross(self, *, centered: bool = True) -> Tensor:
        r"""The cross-product :math:`\sum y x^\top`, shape ``(target, source)``: a sum, not divided by the count."""
        cross = self._state.crosses[SOURCE, TARGET] if self.count else self._nothing()
        if centered:
            return cross - torch.outer(self._target.total, self._source.total.to(cross.device)) / self.count
        zeros = torch.zeros_like(self._source.origin), torch.zeros_like(self._target.origin)
        return _representable(cross_about(cross, self._source, self._target, *zeros, self.count))

    def gram_source(self, *, centered: bool = True) -> Tensor:
        r""":math:`\sum x x^\top`, shape ``(source, source)``, a sum. Only with ``grams=True``."""
        return self._gram(self._source, centered)

    def gram_target(self, *, centered: bool = True) -> Tensor:
        r""":math:`\sum y y^\top`, shape ``(target, target)``, a sum. Only with ``grams=True``."""
        return self._gram(self._target, centered)

    def squares_source(self, *, centered: bool = True) -> Tensor:
        """The sum of squares of each source unit; always there."""
        return self._squares(self._source, centered)

    def squares_target(self, *, centered: bool = True) -> Tensor:
        """The sum of squares of each target unit; always there."""
        return self._squares(self._target, centered)

    def rank_tolerance(self, width: int) -> float:
        """The share of the largest eigenvalue below which a direction of a ``width`` wide space is round-off.

        A matrix of independent rounding errors has a norm that grows with the root of its width.
        """
        return max(8.0, math.sqrt(width)) * max(self.precision, torch.finfo(torch.float64).eps)

    def rank_bound(self, *, centered: bool = True) -> int:
        """The largest rank that this many rows can give the cross-product."""
        return max(0, min(self.count - int(centered), self.source_width, self.target_width))

    def __repr__(self) -> str:
        if not self.count:
            return "PairedMoments(empty)"
        grams = ", grams" if self.has_grams else ""
        return f"PairedMoments({self.target_width} <- {self.source_width}, {plural(self.count, 'row')}{grams})"

    # ------------------------------------------------------------------ inside

    @property
    def _source(self) -> Side:
        return self._state.sources[SOURCE] if self.count else self._nothing()

    @property
    def _target(self) -> Side:
        return self._state.targets[TARGET] if self.count else self._nothing()

    def _nothing(self) -> Any:
        raise DataError("These moments are empty; call update(x, y) first.")

    def _gram(self, side: Side, centered: bool) -> Tensor:
        if not self.has_grams:
            raise DataError("These moments hold no Gram matrices; collect them with PairedMoments(grams=True).")
        return _second_moments(side, self.count, centered)

    def _squares(self, side: Side, centered: bool) -> Tensor:
        square = _second_moments(side, self.count, centered)
        diagonal = square if square.ndim == 1 else torch.diagonal(square)
        # A constant unit can come out a rounding error below zero.
        return diagonal.clamp(min=0).clone()


def _second_moments(side: Side, count: int, centered: bool) -> Tensor:
    if centered:
        return side.centered(count)
    return _representable(side.about(torch.zeros_like(side.origin), count).square)


def _representable(sums: Tensor) -> Tensor:
    # About the mean all is well, or the batch would have been refused; about zero a huge mean can still overflow.
    if not bool(torch.isfinite(sums).all()):
        raise DataError("The means are so large that sums about zero overflow float64; use centered=True, or scale.")
    return sums
