"""``carry``: a network, or any mapping of tensors named like its own, in the coordinates of an alignment.

`carry_with_account` also says what became of each tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from interbasin.checkpoints.lora import PREFIX, Factor, Ranks, factor_of, is_dora_name, plain_name, refuse_another_rank
from interbasin.errors import DataError, InterbasinError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity, Map
from interbasin.text import list_names, plural
from interbasin.wiring.account import (
    Carried,
    Misfit,
    Shape,
    SquaredNorms,
    Status,
    TargetShapes,
    TensorAccount,
    quote_names,
    shape_misfit,
)
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.axes.spaces import BOUNDARY, Axis, In, Reason, Role, Space, Still, leaves, spaces_in
from interbasin.wiring.mover import Mover
from interbasin.wiring.trace.copying import copied, forget_what_was_derived
from interbasin.wiring.trace.preflight import memory_of, named_tensors, names_kept
from interbasin.wiring.wiring import Wiring

Model = TypeVar("Model", bound=nn.Module)
_RANK = Reason("structure", "the rank of a low-rank update lies along it")


@overload
def carry(
    subject: Model,
    alignment: Alignment | Wiring,
    maps: Mapping[str, Map] | None = None,
    *,
    target: Any = None,
    partial: bool = False,
) -> Model: ...
@overload
def carry(
    subject: Mapping[str, Tensor],
    alignment: Alignment | Wiring,
    maps: Mapping[str, Map] | None = None,
    *,
    target: Any = None,
    partial: bool = False,
) -> dict[str, Tensor]: ...
def carry(
    subject: Any,
    alignment: Alignment | Wiring,
    maps: Mapping[str, Map] | None = None,
    *,
    target: Any = None,
    partial: bool = False,
) -> Any:
    """``subject`` in the coordinates of ``alignment``; what was given stays as it is.

    Written axes move by the map of their space, read axes by its dual, gains by its size: ``W' = M_out W M_in^-1``.
    Parameters, buffers, updates (differences of weights) and the factors of a LoRA all move by the same rule. Maps
    beyond the group of a space are allowed, and approximate; but a network keeps its inputs and outputs, so that a map
    of a space that is fixed because these lie in it moves mappings of tensors only.

    Args:
        subject: A network, which comes back as a new network of the same class; or a mapping of tensors named as in its
            state dict, which comes back as a dict. Either may also be of the same network with a LoRA of PEFT on it, or
            the LoRA alone: its names are understood.
        alignment: Maps and the wiring they belong to; or the wiring alone, with ``maps`` beside it.
        maps: Space -> map. Spaces without one stay as they are.
        target: What the result is for, if that is known: a network, its wiring, or a mapping of names to tensors or
            shapes. Every tensor must then come out in the shape that the target has under the same name.
        partial: Tensors may be missing, as from an update of some layers. Otherwise a mapping that holds most of the
            network and lacks a tensor is warned of: as a state dict it would be half in the old coordinates.

    Raises:
        UnknownNameError, ShapeError: for a tensor or a space that the wiring does not know, or of another size; and
            for a tensor that the target does not have, or has in another shape.
        WiringError: for a network whose tensors are shared otherwise than in the one that was wired, a map of its
            inputs or outputs, or an adapter that is no LoRA.
        DataError: for values that are no tensors, or that hold no numbers that the maps could mix.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from interbasin.wiring.wire import wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x = torch.randn(3, 4)
        >>> other = carry(net, wire(net, x).sample(seed=1))
        >>> torch.allclose(other(x), net(x), atol=1e-6)
        True
    """
    carrier = _Carrier(_as_alignment(alignment, maps), target)
    if isinstance(subject, nn.Module):
        return _carry_network(subject, carrier)
    if isinstance(subject, Mapping):
        carried = {name: _require(carrier.carry(name, tensor)) for name, tensor in _iterate_tensors(subject)}
        if not partial:
            _warn_of_absent(carrier.alignment.wiring, carried)
        return carried
    raise WiringError(
        f"carry moves networks and mappings of tensors, found {type(subject).__name__}; give a torch.nn.Module or a "
        "state dict, read from its file first where it lies in one."
    )


def carry_with_account(
    tensors: Mapping[str, Tensor],
    alignment: Alignment | Wiring,
    maps: Mapping[str, Map] | None = None,
    *,
    target: Any = None,
    skip_misfits: bool = False,
) -> Carried:
    """What `carry` gives for a mapping of tensors, and an account: what became of each, why, its share of the norm.

    Args:
        tensors: Weights or an update, named as in the state dict of the network that was wired.
        alignment: As for `carry`.
        maps: As for `carry`.
        target: As for `carry`.
        skip_misfits: Leave out what the target does not have, or has in another shape, and say so in the account,
            where `carry` raises.

    Raises:
        UnknownNameError, ShapeError, WiringError, DataError: as `carry` does; also for tensors that hold NaN.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from interbasin.wiring.wire import wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> result = carry_with_account(net.state_dict(), wire(net, torch.randn(3, 4)).sample())
        >>> [(entry.name, entry.status, entry.reason) for entry in result.account][2:]
        [('2.weight', 'moved', "through the map of '0'"), ('2.bias', 'kept', "no map of 'output'")]
        >>> round(result.share("moved") + result.share("kept"), 6)
        1.0
    """
    if not isinstance(tensors, Mapping):
        raise WiringError(
            f"An account is given of a mapping of tensors, found {type(tensors).__name__}; give model.state_dict() for "
            "a network."
        )
    carrier = _Carrier(_as_alignment(alignment, maps), target)
    carried: dict[str, Tensor] = {}
    rows: list[tuple[str, Status, str]] = []
    norms = SquaredNorms()
    first_names: dict[str, tuple[str | None, str]] = {}
    for name, tensor in _iterate_tensors(tensors):
        place = carrier.place(name, tensor)
        status, reason = carrier.describe(place)
        own = _own_name(name, carrier.alignment.wiring)
        first_own, first = (own, name) if own is None else first_names.setdefault(place.home, (own, name))
        if first_own == own:  # what PEFT keeps of one tensor in two modules is not tied
            norms.add(name, tensor, place.factor)
        else:
            reason += f"; tied to {first}, which has its share"
        result = carrier.carry(name, tensor, place)
        if skip_misfits and isinstance(result, Misfit):
            status, reason = "skipped", result.reason
        else:
            carried[name] = _require(result)
        rows.append((name, status, reason))
    shares = norms.shares()
    return Carried(carried, tuple(TensorAccount(*row, shares.get(row[0], 0.0)) for row in rows))


def _as_alignment(alignment: Any, maps: Any) -> Alignment:
    if isinstance(alignment, Wiring):
        if maps is not None and not isinstance(maps, Mapping):
            raise WiringError(f"maps must be a dict {{space: Map}}, got {type(maps).__name__}.")
        return Alignment(alignment, dict(maps or {}))
    if not isinstance(alignment, Alignment):
        raise WiringError(
            f"carry takes an alignment, or a wiring with maps beside it, found {type(alignment).__name__}; make one "
            "with wiring.sample(), or Alignment(wiring, maps)."
        )
    if maps is not None:
        raise WiringError(
            "carry was given an alignment, which has its maps, and maps beside it; give the alignment alone, or its "
            "wiring with the other maps."
        )
    return alignment


def _iterate_tensors(subject: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, one after the other, so that those that lie in files are read one by one."""
    for name in subject:
        if not isinstance(name, str):
            raise DataError(
                f"Tensors are carried by their names, found the key {name!r}; name them as the network does."
            )
        tensor = subject[name]
        if not isinstance(tensor, Tensor):
            hint = "give torch.from_numpy(...) of it" if type(tensor).__module__ == "numpy" else "leave it out"
            raise DataError(f"carry moves tensors, but {name} is a {type(tensor).__name__}; {hint}.")
        yield name, tensor


def _warn_of_absent(wiring: Wiring, names: Iterable[str]) -> None:
    """Warn of tensors that a mapping lacks, if it holds most of them; a LoRA and single tensors are no state dicts."""
    listed = [_listed(name, wiring) for name in names]
    absent = [name for name in wiring.tensors if name not in listed]
    if absent and None not in listed and len(absent) < len(wiring.tensors) / 2:
        warnings.warn(
            f"The mapping that was carried lacks {list_names(absent)}, of {plural(len(wiring.tensors), 'tensor')} that "
            "the wiring knows. Loaded into a network, the rest would be in other coordinates than these; carry all of "
            "model.state_dict(), or say partial=True for an update that leaves them out.",
            stacklevel=3,
        )


def _carry_network(model: nn.Module, carrier: _Carrier) -> nn.Module:
    _refuse_moved_ends(carrier.alignment)
    wiring = carrier.alignment.wiring
    moved = copied(model)
    forget_what_was_derived(moved)
    named = named_tensors(moved)
    stored = set(names_kept(moved))
    _refuse_absent(wiring, named)
    # Of the network itself: parameters that are views of the same memory part when they are copied.
    _refuse_other_ties(wiring, named_tensors(model))
    done: set[object] = set()
    with torch.no_grad():
        for name, tensor in named.items():
            # Tables and masks that no checkpoint holds are none of the wiring's business.
            if memory_of(tensor) in done or (name not in stored and _listed(name, wiring) is None):
                continue
            done.add(memory_of(tensor))
            place = carrier.place(name, tensor)
            if place.axes is None and carrier.target is None:
                continue
            new = _require(carrier.carry(name, tensor, place))
            if new.shape != tensor.shape:
                raise ShapeError(
                    f"{name} would change from {tuple(tensor.shape)} to {tuple(new.shape)}, and a network keeps its "
                    "shapes; carry a mapping of its tensors instead: carry(model.state_dict(), alignment)."
                )
            tensor.copy_(new)
    return moved


# ---------------------------------------------------------------------- one tensor


@dataclass(frozen=True)
class _Place:
    """Where a tensor stands in a wiring.

    Attributes:
        home: The name that the wiring lists it under; of a factor, the tensor that it updates.
        axes: What its axes are made of; None for what does not move at all.
        factor: What its name says, if it is a factor of a low-rank update.
        updated: Along which axis of the updated tensor the factor lies.
    """

    home: str
    axes: tuple[Axis, ...] | None
    factor: Factor | None = None
    updated: int = 0


class _Carrier:
    """An alignment at work: where each tensor stands, what becomes of it, and whether the target can take it."""

    def __init__(self, alignment: Alignment, target: Any) -> None:
        self.alignment = alignment
        self.target = None if target is None else TargetShapes(target)
        self.mover = Mover(alignment.wiring.spaces, alignment.maps)
        self.ranks: Ranks = {}

    def place(self, name: str, tensor: Tensor) -> _Place:
        """Where a tensor stands in the wiring, which has to know it, and in this shape."""
        wiring = self.alignment.wiring
        listed = _listed(name, wiring)
        if listed is not None:
            if listed not in wiring.tensors:
                return _Place(listed, None)
            _require_shape(name, wiring.tensors[listed].shape, tensor)
            return _Place(listed, wiring.tensors[listed].axes)
        factor = factor_of(name)
        updated = None if factor is None else _listed(factor.weight, wiring)
        if factor is None or updated is None:
            known = [*wiring.tensors, *wiring.tied, *wiring.unused, *wiring.constants]
            raise _adapter_error(name) or UnknownNameError.of("tensor in the wiring", name, known)
        refuse_another_rank(factor, tuple(tensor.shape), self.ranks)
        if updated not in wiring.tensors:
            return _Place(updated, None, factor, int((factor.letter == "A") is not factor.of_table))
        axes = wiring.tensors[updated].axes
        return _Place(updated, _factor_axes(factor, tensor, axes), factor, _updated_axis(factor, tensor, axes))

    def carry(self, name: str, tensor: Tensor, place: _Place | None = None) -> Tensor | Misfit:
        """The tensor in the new coordinates, or why the target cannot take it."""
        place = place or self.place(name, tensor)
        expected = None
        if self.target is not None:
            expected = self._expected(name, tensor, place, self.target)
            if expected is None:
                return self.target.absent(name)
        new = tensor.detach().clone() if place.axes is None else self.mover.move(tensor, place.axes, name)
        if expected is not None and tuple(new.shape) != expected:
            return shape_misfit(name, place.axes or (), tuple(new.shape), expected, self.alignment)
        return new

    @staticmethod
    def _expected(name: str, tensor: Tensor, place: _Place, target: TargetShapes) -> Shape | None:
        own = target.get(name)
        if own is not None or place.factor is None:
            return own
        updated = target.get(place.factor.weight)
        return None if updated is None else _factor_shape(place.factor, tensor, place.updated, updated)

    def describe(self, place: _Place) -> tuple[Status, str]:
        """What becomes of a tensor if nothing stands against it, and why."""
        wiring = self.alignment.wiring
        if place.axes is None:
            return "kept", "it is a constant" if place.home in wiring.constants else "the traced call does not use it"
        spaces = spaces_in(place.axes)
        if not spaces:
            return "kept", "it lies in no space"
        mapped = [name for name in spaces if name in self.mover.maps]
        without = [name for name in spaces if name not in mapped]
        if not mapped:
            return "kept", f"no map of {quote_names(without)}"
        through = f"through the map{'s' if len(mapped) > 1 else ''} of {quote_names(mapped)}"
        inside = [name for name in without if not _is_end(wiring.spaces[name])]
        return "moved", through + (f"; no map of {quote_names(inside)}" if inside else "")


def _require(result: Tensor | Misfit) -> Tensor:
    if isinstance(result, Misfit):
        raise result.error
    return result


def _is_end(space: Space) -> bool:
    """Whether the network's inputs or outputs lie in a space."""
    return space.is_fixed and space.because is not None and space.because.kind in BOUNDARY


def _listed(name: str, wiring: Wiring) -> str | None:
    """The name under which the wiring lists a tensor, if it does."""
    own = _own_name(name, wiring)
    return None if own is None else wiring.tied.get(own, own)


def _own_name(name: str, wiring: Wiring) -> str | None:
    known = (wiring.tensors, wiring.tied, wiring.unused, wiring.constants)
    if any(name in names for names in known):
        return name
    plain = plain_name(name)
    return plain if any(plain in names for names in known) else None


# ---------------------------------------------------------------------- the factors of a LoRA


def _factor_axes(factor: Factor, tensor: Tensor, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """What the axes of a factor are made of, where those of the tensor that it updates are ``axes``.

    Raises:
        ShapeError: if it is no factor of such a tensor.
    """
    own = axes[_updated_axis(factor, tensor, axes)]
    if tensor.shape[1 if factor.letter == "A" else 0] != own.size:
        raise ShapeError(
            f"{factor.name} has shape {tuple(tensor.shape)}, but the layer it updates is {own.size} wide there; is it "
            "the adapter of this network?"
        )
    if factor.is_bias:
        return (own,)
    still = Still(factor.rank(tuple(tensor.shape)), _RANK)
    laid = (still, own) if factor.letter == "A" else (own, still)
    kernel = axes[2:] if factor.letter == "A" else (Still(1, _RANK),) * (tensor.ndim - 2)
    return (*laid, *kernel)[: tensor.ndim]


def _updated_axis(factor: Factor, tensor: Tensor, axes: tuple[Axis, ...]) -> int:
    """Along which axis of the tensor that it updates a factor lies: 0 or 1.

    Raises:
        ShapeError: if it is no factor of such a tensor.
    """
    if len(axes) < 2 or tensor.ndim < (1 if factor.is_bias else 2):
        raise ShapeError(
            f"{factor.name} is a factor of a low-rank update of a tensor with {len(axes)} axes; two are needed."
        )
    # A weight of (in, out), as a table of (rows, width) is: its update is (B A)^T, A (rank, in) and B (out, rank).
    turned = factor.of_table or _stands_upside_down(axes[0], axes[1], factor, tensor)
    return int((factor.letter == "A") is not turned)


def _factor_shape(factor: Factor, tensor: Tensor, axis: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a factor of this rank has if it lies along ``axis`` of an updated tensor of ``shape``."""
    if factor.is_bias:
        return (shape[axis],)
    rank = factor.rank(tuple(tensor.shape))
    if factor.letter == "A":
        return (rank, shape[axis], *shape[2:])[: tensor.ndim]
    return (shape[axis], rank, *([1] * (tensor.ndim - 2)))


def _adapter_error(name: str) -> InterbasinError | None:
    """The error for a tensor of an adapter that cannot be carried through the wiring of the network beneath."""
    if is_dora_name(name):
        return WiringError(
            f"{name} belongs to a DoRA, whose magnitudes are lengths of rows of the updated weight and follow no map "
            "of their own. Wire the network with its adapter on (wire(peft_model, inputs)), or merge it first "
            "(peft_model.merge_and_unload()) and carry that."
        )
    if name.startswith(PREFIX):
        return WiringError(
            f"{name} is a tensor of an adapter, but neither a factor of a LoRA nor a tensor of the network that was "
            "wired. Wire the network with its adapter on (wire(peft_model, inputs)), or merge it first "
            "(peft_model.merge_and_unload()) and carry that."
        )
    return None


def _stands_upside_down(first: Axis, second: Axis, factor: Factor, tensor: Tensor) -> bool:
    """Whether a weight reads along its first axis: by the sizes if they tell, else by what its axes are made of."""
    own = tensor.shape[1 if factor.letter == "A" else 0]
    upright, turned = (second, first) if factor.letter == "A" else (first, second)
    if first.size != second.size:
        return own == turned.size and own != upright.size
    return _share_read(first) > _share_read(second)


def _share_read(axis: Axis) -> float:
    return sum(share for leaf, share in leaves(axis) if isinstance(leaf, In) and leaf.role is Role.READ)


# ---------------------------------------------------------------------- what is refused


def _refuse_moved_ends(alignment: Alignment) -> None:
    for name, mapping in alignment.maps.items():
        space = alignment.wiring.spaces[name]
        if _is_end(space) and not isinstance(mapping, Identity):
            raise WiringError(
                f"Space {name!r} is fixed ({space.because}), and a network that is carried keeps what it takes in and "
                f"puts out; leave its map out. If other coordinates are meant there too, as for another network, carry "
                "the tensors: carry(model.state_dict(), alignment)."
            )


def _refuse_absent(wiring: Wiring, named: Mapping[str, Tensor]) -> None:
    there = {_listed(name, wiring) for name in named}
    for name in wiring.tensors:
        if name not in there:
            raise UnknownNameError.of("tensor of the network", name, named)


def _refuse_other_ties(wiring: Wiring, named: Mapping[str, Tensor]) -> None:
    """A tensor that the network shares and the wiring does not would move twice; the other way round, not at all."""
    homes: dict[object, tuple[str, str]] = {}
    for name, tensor in named.items():
        home = _listed(name, wiring)
        if home is None or home in wiring.constants:
            continue
        first, known = homes.setdefault(memory_of(tensor), (name, home))
        if known != home:
            raise WiringError(
                f"{first} and {name} are one tensor in this network, but two in the one that was wired, so that it "
                "would move twice; wire this network."
            )
    for name, tensor in named.items():
        tied_to = wiring.tied.get(_own_name(name, wiring) or "")
        if tied_to is not None and tied_to in named and memory_of(named[tied_to]) != memory_of(tensor):
            raise WiringError(
                f"{tied_to} and {name} are two tensors in this network, but one in the one that was wired, whose maps "
                "suit both at once; wire this network."
            )


def _require_shape(name: str, shape: tuple[int, ...], tensor: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)}, but the wiring was made with {shape}; wire this network."
        )
