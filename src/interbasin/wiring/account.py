"""What became of each tensor that was carried: moved, kept or skipped, why, and its share of the norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interbasin.checkpoints.lora import Factor
from interbasin.errors import DataError
from interbasin.wiring.mover import require_numbers

Status = Literal["moved", "kept", "skipped"]


@dataclass(frozen=True)
class TensorAccount:
    """What became of one tensor.

    Attributes:
        name: As it was given.
        status: ``"moved"`` through at least one map, ``"kept"`` as it was, or ``"skipped"``: not among the results.
        reason: Why, as a clause to read: the spaces whose maps it went through, or what it lacks.
        share: Its part of the sum of all squared Frobenius norms, of the tensors as they were given. The shares of an
            account add up to 1 (or are all 0, if every tensor is). A tied tensor counts under the first of its names,
            the two factors of a low-rank update count half of their product's norm each, and whole numbers (counts,
            indices) count nothing.
    """

    name: str
    status: Status
    reason: str
    share: float


@dataclass(frozen=True)
class Carried:
    """Tensors that were carried, and the account of it.

    Attributes:
        tensors: Those that were moved or kept, by name.
        account: One entry for each tensor that was given, in their order.
    """

    tensors: Mapping[str, Tensor]
    account: tuple[TensorAccount, ...]

    def share(self, status: Status) -> float:
        """How much of the norm was moved, kept or skipped."""
        return math.fsum(entry.share for entry in self.account if entry.status == status)


class SquaredNorms:
    """Squared Frobenius norms, tensor by tensor, with factors of low-rank updates taken as their products."""

    def __init__(self) -> None:
        self._norms: dict[str, float] = {}
        self._grams: dict[tuple[str, str], list[tuple[str, Tensor]]] = {}

    def add(self, name: str, tensor: Tensor, factor: Factor | None = None) -> None:
        """Count a tensor.

        Raises:
            DataError: if it holds no numbers, or NaN or infinite ones.
        """
        require_numbers(tensor, name)
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if not tensor.is_floating_point():
            self._norms[name] = 0.0
            return
        wide = tensor.detach().to(torch.float64)
        self._norms[name] = float(wide.square().sum())
        if not math.isfinite(self._norms[name]):
            raise DataError(
                f"{name} holds entries that are NaN, infinite or too large to be squared, so that norms have no "
                "shares; repair it, or leave it out."
            )
        if factor is not None and not factor.is_bias:
            rows = (wide if factor.letter == "A" else wide.transpose(0, 1)).flatten(1)
            self._grams.setdefault((factor.layer, factor.adapter), []).append((name, rows @ rows.mT))

    def shares(self) -> dict[str, float]:
        """The share of each tensor that was counted."""
        norms = dict(self._norms)
        for pair in self._grams.values():
            if len(pair) == 2:
                (one, gram), (other, other_gram) = pair
                # The squared norm of B A is the inner product of A A^T and B^T B: both only as large as the rank.
                norms[one] = norms[other] = max(float((gram * other_gram.to(gram)).sum()), 0.0) / 2
        total = math.fsum(norms.values())
        return {name: norm / total if total else 0.0 for name, norm in norms.items()}
