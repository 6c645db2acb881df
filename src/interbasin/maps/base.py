"""What a map between two spaces is, and the one place where its direction is explained.

**Direction.** A map goes source -> target. Its matrix has shape ``(target, source)`` and it acts on the *last axis*:

    m(x) == x @ m.matrix.mT          rows of x are vectors of the source space
    (g @ f)(x) == g(f(x))            first f, then g
    m.inverse()(m(x)) == x           where ``is_exact_inverse``; otherwise the inverse is the pseudo-inverse

**Dual.** Tensors that *write* a space move by its map, tensors that *read* it move by the dual, the inverse transpose:
for a weight ``W`` of shape (out, in), ``W' = M_out W M_in^-1``, so that ``W' (M_in x) = M_out (W x)``. Acting on the
last axis of ``W`` this is ``M_in.dual()(W)``. For (partial) isometries the dual is the map itself.

Papers that write row maps ``T`` (source x target, ``H_A T ~ H_B``) have ``matrix == T.mT``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self, overload

import numpy as np
import torch
from torch import Tensor

from interbasin.arrays import Array, as_tensor, copy_row_major, has_arithmetic, narrowed, working_dtype
from interbasin.checks import require_whole
from interbasin.errors import DataError, MapError, ShapeError
from interbasin.text import plural


class Group(StrEnum):
    """A group of maps of one space, by the name that people read. `interbasin.wiring.axes.groups` orders them."""

    INVERTIBLE = "invertible"
    ORTHOGONAL = "orthogonal"
    SIGNED = "signed permutation"
    PERMUTATION = "permutation"
    SIMILARITY = "rotation and scale"
    ROTATION = "rotation"
    FIXED = "fixed"


class Role(StrEnum):
    """How a tensor's axis follows the map of its space."""

    WRITE = "write"  # by the map
    READ = "read"  # by its dual
    SCALE = "scale"  # by its size: the map without signs, for gains and variances

    def of(self, inner: Role) -> Role:
        """This role of what already has the role ``inner``."""
        if self is Role.SCALE or inner is Role.SCALE:
            return Role.SCALE
        return Role.WRITE if self is inner else Role.READ


MAPPED = "What a map makes of its input"


class Map(ABC):
    """A map from a source space to a target space. Immutable; final subclasses only.

    Attributes:
        kind: The name in files and messages.
        source_width: Width of the space it reads.
        target_width: Width of the space it writes.
    """

    kind: ClassVar[str]
    source_width: int
    target_width: int

    # ------------------------------------------------------------------ what a map is made of

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """The dense matrix, shape ``(target, source)``: a copy, so that the map stays as it is."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of independent directions that come through."""

    @property
    @abstractmethod
    def is_isometric(self) -> bool:
        """Whether it is a partial isometry by kind: every direction is either kept with its length, or dropped."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype | None:
        """The precision of its numbers, or None for maps that only move entries."""

    @abstractmethod
    def inverse(self) -> Map:
        """The map back: the inverse where ``is_exact_inverse``, otherwise the Moore-Penrose pseudo-inverse."""

    @abstractmethod
    def dual(self) -> Map:
        """What read axes get: the inverse transpose (of the linear part, for an affine map)."""

    @abstractmethod
    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """The same map in another precision or on another device."""

    @abstractmethod
    def _act(self, x: Tensor) -> Tensor:
        """Act on the last axis of a tensor whose width is already checked."""

    @abstractmethod
    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `save` writes besides kind and widths."""

    @classmethod
    @abstractmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """The map of a record that `_record` made."""

    # ------------------------------------------------------------------ what every map can do

    @property
    def is_exact_inverse(self) -> bool:
        """Whether ``inverse()`` undoes the map: no direction of the source is lost on the way."""
        return self.rank == self.source_width

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]: ...
    def __call__(self, x: Array) -> Array:
        """``x`` carried to the target space: the last axis goes from ``source_width`` to ``target_width``.

        Tensors come back as tensors and arrays as arrays, in the dtype they came in; products are formed in the wider
        of both precisions.
        """
        if not isinstance(x, Tensor):
            return self(as_tensor(x, "The input of a map")).numpy()
        if x.ndim == 0 or x.shape[-1] != self.source_width:
            raise ShapeError(
                f"{self!r} acts on a last axis of width {self.source_width}, got an input of shape {tuple(x.shape)}."
            )
        if not has_arithmetic(x):
            raise DataError(f"{self!r} cannot calculate with {x.dtype}; convert the input with .float() first.")
        return self._act(x)

    def __matmul__(self, first: Map) -> Map:
        """``g @ f``: first ``f``, then ``g``, as the most special kind that the composition keeps."""
        from interbasin.maps.composition import compose

        return compose(self, first)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the map to a folder: ``map.safetensors`` and ``map.json``, exactly, whole or not at all."""
        from interbasin.maps.files import save

        save(self, folder, force=force)

    def _described(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The record with kind and widths in front: enough for `interbasin.maps.files.restore`."""
        document, tensors = self._record()
        widths = {"source_width": self.source_width, "target_width": self.target_width}
        return {"kind": self.kind, **widths, **document}, tensors

    # ------------------------------------------------------------------ being a value

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Maps are immutable; make a new {type(self).__name__} instead of setting {name!r}.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Maps are immutable; {name!r} of a {type(self).__name__} cannot be deleted.")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, Map)
        (document, tensors), (other_document, other_tensors) = self._described(), other._described()
        return (
            document == other_document
            and tensors.keys() == other_tensors.keys()
            and all(_is_identical(tensors[key], other_tensors[key]) for key in tensors)
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.source_width, self.target_width))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target_width} <- {self.source_width})"


def dense_matrix(values: object, what: str) -> Tensor:
    """A private, finite, floating-point copy of a matrix that a user gave.

    Raises:
        ShapeError, DataError: if it has not two axes, is empty, or is not finite.
    """
    tensor = as_tensor(values, what)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ShapeError(f"{what} must be a matrix (target, source) that is not empty, got {tuple(tensor.shape)}.")
    return copy_row_major(require_finite_entries(to_floating(tensor), what))


def require_width(what: str, width: object) -> int:
    """A width as an ``int``, whatever kind of whole number it came as."""
    number = require_whole(what, width, least=1, error=ShapeError)
    if number >= 2**63:
        raise ShapeError(f"{what} must be below 2**63, got {width!r}.")
    return number


def to_floating(tensor: Tensor) -> Tensor:
    """Whole numbers become float64; floating-point stays as it is."""
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def require_finite_entries(tensor: Tensor, what: str) -> Tensor:
    """The tensor itself, once every entry is known to be finite."""
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise DataError(f"{what} must be finite, got {plural(bad, 'entry that is', 'entries that are')} not.")
    return tensor


def act_densely(matrix: Tensor, x: Tensor) -> Tensor:
    """``x @ matrix.mT`` in the wider of both precisions, returned in the dtype of ``x`` and on its device."""
    working = working_dtype(x.dtype, matrix.dtype)
    product = require_floating(x).to(working) @ matrix.to(device=x.device, dtype=working).mT
    return narrowed(product, x.dtype, MAPPED)


def require_floating(x: Tensor) -> Tensor:
    """``x`` if it is floating-point, else a `DataError`: coefficients would be cut to whole numbers."""
    if not x.is_floating_point():
        raise DataError(f"A map with real coefficients acts on floating-point values, got {x.dtype}; use .float().")
    return x


def require_map(value: object, what: str) -> Map:
    """``value`` if it is a map, else a `MapError`."""
    if not isinstance(value, Map):
        raise MapError(f"{what} must be a map of interbasin.maps, got {type(value).__name__}.")
    return value


def _is_identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
