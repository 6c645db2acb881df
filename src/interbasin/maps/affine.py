"""Maps with an offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from interbasin.arrays import as_tensor, copy_row_major, narrowed, working_dtype
from interbasin.errors import MapError, ShapeError
from interbasin.maps.base import MAPPED, Map, require_finite_entries, require_floating, to_floating
from interbasin.maps.linear import Linear


@final
class Affine(Map):
    """A linear map and an offset: ``m(x) == x @ m.matrix.mT + m.offset``.

    The linear part keeps its kind: that of a rotation still has an exact inverse and keeps the lengths of differences.
    ``dual()`` is that of the linear part, for weights that read the space. Whoever carries a network must also move the
    biases behind them by what the offset does.

    Args:
        linear: A matrix of shape ``(target, source)``, or a linear map.
        offset: Shape ``(target,)``.

    Example:
        >>> shift = Affine([[1.0, 0.0], [0.0, 1.0]], [5.0, -1.0])
        >>> shift.inverse()(shift(torch.tensor([1.0, 2.0])))
        tensor([1., 2.])
    """

    kind = "affine"
    _linear: Map
    _offset: Tensor

    def __init__(self, linear: object, offset: object) -> None:
        part = linear if isinstance(linear, Map) else Linear(linear)
        if isinstance(part, Affine):
            raise MapError("The linear part of an Affine map is affine itself; compose the two with @ instead.")
        shift = as_tensor(offset, "The offset of an Affine map")
        if shift.shape != (part.target_width,):
            raise ShapeError(
                f"An Affine map needs {part.target_width} offsets, one per unit, got {tuple(shift.shape)}."
            )
        shift = to_floating(shift)
        shift = require_finite_entries(shift.to(dtype=part.dtype or shift.dtype), "The offset of an Affine map")
        self._set(_linear=part, _offset=copy_row_major(shift))
        self._set(target_width=part.target_width, source_width=part.source_width)

    @property
    def matrix(self) -> Tensor:
        return self._linear.matrix

    @property
    def offset(self) -> Tensor:
        """What is added after the matrix, shape ``(target,)``."""
        return self._offset.clone()

    @property
    def linear(self) -> Map:
        """The map without its offset."""
        return self._linear

    @property
    def rank(self) -> int:
        return self._linear.rank

    @property
    def is_isometric(self) -> bool:
        return False

    @property
    def dtype(self) -> torch.dtype:
        return self._offset.dtype

    def inverse(self) -> Affine:
        back = self._linear.inverse()
        return Affine(back, -back(self._offset))

    def dual(self) -> Map:
        return self._linear.dual()

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Affine:
        return Affine(self._linear.to(dtype=dtype, device=device), self._offset.to(device=device, dtype=dtype))

    def _act(self, x: Tensor) -> Tensor:
        moved = self._linear._act(require_floating(x).to(working_dtype(x.dtype, self._offset.dtype)))
        return narrowed(moved + self._offset.to(device=moved.device, dtype=moved.dtype), x.dtype, MAPPED)

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        document, tensors = self._linear._described()
        return {"linear": document}, {"offset": self._offset, **{f"linear.{name}": t for name, t in tensors.items()}}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Affine:
        from interbasin.maps.files import restore

        own = {name.removeprefix("linear."): t for name, t in tensors.items() if name.startswith("linear.")}
        return cls(restore(document["linear"], own), tensors["offset"])
