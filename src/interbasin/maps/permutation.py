"""Maps that only move entries, with or without a change of sign. They never become dense matrices to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, final

import torch
from torch import Tensor

from interbasin.arrays import as_tensor
from interbasin.errors import DataError, MapError, ShapeError
from interbasin.maps.base import Map, require_width

UNMATCHED = -1


class _Rearrangement(Map):
    """What these maps share: they keep lengths, have no precision of their own, and each is its own dual."""

    @property
    def is_isometric(self) -> bool:
        return True

    @property
    def dtype(self) -> None:
        return None

    def dual(self) -> Self:
        return self

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        return self


@final
class Identity(_Rearrangement):
    """The identity of a space.

    Example:
        >>> Identity(3)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 2., 3.])
    """

    kind = "identity"

    def __init__(self, width: int) -> None:
        width = require_width("The width of an Identity", width)
        self._set(source_width=width, target_width=width)

    @property
    def matrix(self) -> Tensor:
        return torch.eye(self.source_width, dtype=torch.float64)

    @property
    def rank(self) -> int:
        return self.source_width

    def inverse(self) -> Identity:
        return self

    def _act(self, x: Tensor) -> Tensor:
        # A copy: every other map returns new memory, and a caller who writes into the result must not reach the input.
        return x.clone()

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"width": self.source_width}, {}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Identity:
        return cls(document["width"])


class _Matching(_Rearrangement):
    """Maps with an index: target unit ``i`` comes from source unit ``index[i]``, or from none."""

    _index: Tensor

    @property
    def index(self) -> Tensor:
        """``index[i]`` is the source unit that becomes target unit ``i``, or -1."""
        return self._index.clone()

    @property
    def rank(self) -> int:
        return int((self._index != UNMATCHED).sum())


@final
class Permutation(_Matching):
    """Target unit ``i`` is source unit ``index[i]``.

    For unequal widths, or after dropping units, it is a partial matching: ``index[i] == -1`` leaves target unit ``i``
    zero, and source units that no entry names are lost. The inverse is the transposed matching.

    Args:
        index: One source unit (or -1) for each target unit, no source unit twice.
        source_width: Width of the source; by default that of the target.

    Example:
        >>> p = Permutation([2, 0, 1])
        >>> p(torch.tensor([10.0, 20.0, 30.0]))
        tensor([30., 10., 20.])
        >>> p.inverse()(p(torch.tensor([10.0, 20.0, 30.0])))
        tensor([10., 20., 30.])
    """

    kind = "permutation"

    def __init__(self, index: object, source_width: int | None = None) -> None:
        checked, width = _check_index(index, source_width)
        self._set(_index=checked, target_width=checked.numel(), source_width=width)

    @property
    def matrix(self) -> Tensor:
        return _dense(self._index, torch.ones(self.target_width, dtype=torch.float64), self.source_width)

    def inverse(self) -> Permutation:
        return Permutation(_transpose(self._index, self.source_width), source_width=self.target_width)

    def _act(self, x: Tensor) -> Tensor:
        return _gather(x, self._index)

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"index": self._index}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Permutation:
        return cls(tensors["index"], source_width=document["source_width"])


@final
class SignedPermutation(_Matching):
    """Target unit ``i`` is ``sign[i]`` times source unit ``index[i]``: the exact group behind an odd non-linearity.

    Args:
        index: As for `Permutation`.
        sign: +1 or -1 for each target unit.
        source_width: Width of the source; by default that of the target.

    Example:
        >>> SignedPermutation([1, 0], [1, -1])(torch.tensor([3.0, 4.0]))
        tensor([ 4., -3.])
    """

    kind = "signed-permutation"
    _sign: Tensor

    def __init__(self, index: object, sign: object, source_width: int | None = None) -> None:
        checked, width = _check_index(index, source_width)
        signs = as_tensor(sign, "The sign of a signed permutation")
        if signs.shape != checked.shape:
            raise ShapeError(
                f"A signed permutation needs {checked.numel()} signs, one per target unit, got {tuple(signs.shape)}."
            )
        if not bool(((signs == 1) | (signs == -1)).all()):
            raise MapError("The signs of a signed permutation must be +1 or -1; use Linear for other factors.")
        self._set(_index=checked, _sign=signs.to(device="cpu", dtype=torch.int8).clone())
        self._set(target_width=checked.numel(), source_width=width)

    @property
    def sign(self) -> Tensor:
        """The sign that target unit ``i`` gets: an int8 tensor of +1 and -1."""
        return self._sign.clone()

    @property
    def matrix(self) -> Tensor:
        return _dense(self._index, self._sign.to(torch.float64), self.source_width)

    def inverse(self) -> SignedPermutation:
        index = _transpose(self._index, self.source_width)
        sign = torch.where(index == UNMATCHED, 1, self._sign[index.clamp(min=0)])
        return SignedPermutation(index, sign, source_width=self.target_width)

    def _act(self, x: Tensor) -> Tensor:
        if not x.dtype.is_signed:
            raise DataError(
                f"A signed permutation changes signs, which {x.dtype} has not; convert the input with .float()."
            )
        return _gather(x, self._index) * self._sign.to(device=x.device, dtype=x.dtype)

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"index": self._index, "sign": self._sign}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SignedPermutation:
        return cls(tensors["index"], tensors["sign"], source_width=document["source_width"])


def compose_indices(later: Tensor, first: Tensor) -> Tensor:
    """The index of "first, then later": entry ``i`` is ``first[later[i]]``, unmatched where either is."""
    return torch.where(later == UNMATCHED, UNMATCHED, first[later.clamp(min=0)])


def _check_index(index: object, source_width: int | None) -> tuple[Tensor, int]:
    values = as_tensor(index, "The index of a permutation")
    if values.ndim != 1 or values.numel() == 0:
        raise ShapeError(
            f"The index of a permutation must be a list of at least one unit, got shape {tuple(values.shape)}."
        )
    if values.is_floating_point() or values.dtype == torch.bool:
        raise MapError(
            f"The index of a permutation must hold whole numbers, got {values.dtype}; use .long() if they are."
        )
    checked = values.to(device="cpu", dtype=torch.int64).clone()
    width = (
        checked.numel() if source_width is None else require_width("The source width of a permutation", source_width)
    )
    if not values.dtype.is_signed and int(checked.min()) < 0:
        raise MapError(f"A permutation of {width} source units names units 0 to {width - 1}, got one above 2**63.")
    matched = checked[checked != UNMATCHED]
    if matched.numel() and (int(matched.min()) < 0 or int(matched.max()) >= width):
        outside = sorted({unit for unit in matched.tolist() if not 0 <= unit < width})
        raise MapError(
            f"A permutation of {width} source units names units 0 to {width - 1} (or -1 for none), got {outside[:5]}; "
            "pass source_width if the source is wider than the target."
        )
    units, counts = torch.unique(matched, return_counts=True)
    if len(units) < len(matched):
        twice = units[counts > 1].tolist()
        raise MapError(f"A permutation uses each source unit at most once, got {twice[:5]} more than once; use Linear.")
    return checked, width


def _gather(x: Tensor, index: Tensor) -> Tensor:
    index = index.to(x.device)
    unmatched = index == UNMATCHED
    if not bool(unmatched.any()):
        return x[..., index]
    gathered = x[..., index.clamp(min=0)]
    gathered[..., unmatched] = 0
    return gathered


def _transpose(index: Tensor, source_width: int) -> Tensor:
    back = torch.full((source_width,), UNMATCHED, dtype=torch.int64)
    matched = torch.nonzero(index != UNMATCHED).flatten()
    back[index[matched]] = matched
    return back


def _dense(index: Tensor, values: Tensor, source_width: int) -> Tensor:
    matrix = torch.zeros(index.numel(), source_width, dtype=torch.float64)
    matched = torch.nonzero(index != UNMATCHED).flatten()
    matrix[matched, index[matched]] = values[matched]
    return matrix
