"""The shapes of a known target, and what to say of a tensor that would not fit into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from interbasin.checkpoints.lora import plain_name
from interbasin.errors import InterbasinError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.axes.spaces import Axis, spaces_in
from interbasin.wiring.trace.preflight import named_tensors
from interbasin.wiring.wiring import Wiring

Shape = tuple[int, ...]
SHOWN = 4


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
