"""What became of each tensor that was carried, why, and its share of the norm; and what a known target can take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from interbasin.checkpoints.lora import Factor, plain_name
from interbasin.checks import require_choice
from interbasin.errors import DataError, InterbasinError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.axes.spaces import Axis, spaces_in
from interbasin.wiring.mover import require_numbers
from interbasin.wiring.trace.preflight import named_tensors
from interbasin.wiring.wiring import Wiring

Status = Literal["moved", "kept", "skipped"]
Shape = tuple[int, ...]
SHOWN = 4


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
        require_choice("status", status, get_args(Status))
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


# ---------------------------------------------------------------------- a known target


@dataclass(frozen=True)
class Misfit:
    """Why the target cannot take a tensor: a clause for an account, and the error for those who want no account."""

    reason: str
    error: InterbasinError


class TargetShapes:
    """The shapes of a network's tensors by name.

    Args:
        target: A network, its wiring, or a mapping of names to tensors or shapes.

    Raises:
        WiringError: for anything else.
    """

    def __init__(self, target: nn.Module | Wiring | Mapping[str, Any]) -> None:
        self._unsized: tuple[str, ...] = ()
        if isinstance(target, nn.Module):
            self._shapes: Mapping[str, Any] = named_tensors(target)
        elif isinstance(target, Wiring):
            sized = dict(target.tensors)
            sized |= {name: sized[home] for name, home in target.tied.items() if home in sized}
            self._shapes = sized
            self._unsized = (*target.unused, *target.constants, *target.tied)
        elif isinstance(target, Mapping):
            self._shapes = target
        else:
            raise WiringError(
                f"target is a network, its wiring, or a mapping of names to tensors or shapes, found "
                f"{type(target).__name__}; give one of these."
            )
        # A target with a LoRA of PEFT on it has its own weights under longer names.
        self._plain = {plain_name(name): name for name in self._shapes}

    def get(self, name: str) -> Shape | None:
        """The shape of a tensor of the target, if it has one of that name."""
        home = name if name in self._shapes else self._plain.get(plain_name(name))
        if home is None:
            return None
        value = self._shapes[home]
        shape = getattr(value, "shape", value)
        if not isinstance(shape, tuple | list) or not all(isinstance(size, int) for size in shape):
            raise WiringError(
                f"The target's {home} is a {type(value).__name__}; give a tensor, or its shape as a tuple of numbers."
            )
        return tuple(shape)

    def absent(self, name: str) -> Misfit:
        """The misfit of a tensor whose shape in the target is not known."""
        if plain_name(name) in self._unsized:
            reason = "the target's wiring does not tell its shape"
            return Misfit(reason, WiringError(f"{name} cannot be checked: {reason}; give the target network itself."))
        error = UnknownNameError.of("tensor in the target", name, self._shapes)
        return Misfit("the target has no tensor of this name", error)


def shape_misfit(name: str, axes: tuple[Axis, ...], came: Shape, wanted: Shape, alignment: Alignment) -> Misfit:
    """The misfit of a tensor that came out in another shape than the target has.

    Args:
        name: Of the tensor.
        axes: What it is made of.
        came: The shape it came out in.
        wanted: The target's.
        alignment: What it was carried through.
    """
    reason = f"it comes out as {came}, and the target has {wanted}"
    hint = "is it the same layer? Name its partner in the target, or leave it out."
    if len(came) == len(wanted) == len(axes):
        place = next(place for place, size in enumerate(came) if size != wanted[place])
        why, hint = _explain(axes[place], came[place], alignment)
        reason += f"; axis {place} {why}"
    return Misfit(reason, ShapeError(f"{name} does not fit the target: {reason}; {hint}"))


def _explain(axis: Axis, width: int, alignment: Alignment) -> tuple[str, str]:
    """Why an axis has not the width that the target has, and what to try."""
    spaces = spaces_in([axis])
    unmapped = [name for name in spaces if isinstance(alignment.maps.get(name, Identity(1)), Identity)]
    heads = list(dict.fromkeys(above for name in spaces for above in alignment.wiring.spaces[name].within))
    if not spaces:
        return "lies in no space, so that no map changes it", "leave it out, or carry it by hand."
    if heads:
        state = "without a map" if unmapped == spaces else "where each keeps to its map"
        why = f"holds the blocks of {quote_names(heads)}, {state}"
        return why, "for heads of another number or width, give maps of the flat spaces of wiring.flattened()."
    if unmapped:
        return f"lies in {quote_names(unmapped)}, without a map", "give a map to the width that the target has there."
    return f"follows {quote_names(spaces)} to width {width}", "give maps that were fitted onto this target."


def quote_names(names: list[str]) -> str:
    """Names as a sentence has them: ``'a', 'b' and 'c'``; of many, the first."""
    quoted = [repr(name) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        quoted.append(f"{len(names) - SHOWN} more")
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
