"""The map that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from interbasin.maps.base import Map, whole_width


@final
class Identity(Map):
    """The identity of a space.

    Example:
        >>> Identity(3)(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 2., 3.])
    """

    kind = "identity"

    def __init__(self, width: int) -> None:
        width = whole_width(width, "The width of an Identity")
        self._set(source_width=width, target_width=width)

    @property
    def matrix(self) -> Tensor:
        return torch.eye(self.source_width, dtype=torch.float64)

    @property
    def rank(self) -> int:
        return self.source_width

    @property
    def is_isometric(self) -> bool:
        return True

    @property
    def dtype(self) -> None:
        return None

    def inverse(self) -> Identity:
        return self

    def dual(self) -> Identity:
        return self

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Identity:
        return self

    def _act(self, x: Tensor) -> Tensor:
        # A copy: every other map returns new memory, and a caller who writes into the result must not reach the input.
        return x.clone()

    def _record(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"width": self.source_width}, {}

    @classmethod
    def _restore(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Identity:
        return cls(document["width"])
