"""``carry``: a network, or any mapping of tensors named like its own, in the coordinates of an alignment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity, Map
from interbasin.networks.checkpoints.lora import Ranks, factor_of, plain_name, refuse_another_rank
from interbasin.networks.wiring.admission import named_tensors, names_kept
from interbasin.networks.wiring.carry import Mover
from interbasin.networks.wiring.copying import copied, forget_what_was_derived
from interbasin.networks.wiring.lora_axes import factor_axes, refusal
from interbasin.networks.wiring.spaces import BOUNDARY, Axis
from interbasin.networks.wiring.wiring import Alignment, Wiring

__all__ = ["carry"]

Model = TypeVar("Model", bound=nn.Module)


@overload
def carry(subject: Model, alignment: Alignment | Wiring, maps: Mapping[str, Map] | None = None) -> Model: ...
@overload
def carry(
    subject: Mapping[str, Tensor], alignment: Alignment | Wiring, maps: Mapping[str, Map] | None = None
) -> dict[str, Tensor]: ...
def carry(subject: Any, alignment: Alignment | Wiring, maps: Mapping[str, Map] | None = None) -> Any:
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

    Raises:
        UnknownNameError, ShapeError: for a tensor or a space that the wiring does not know, or of another size.
        WiringError: for a network whose tensors are shared otherwise than in the one that was wired, a map of its
            inputs or outputs, or an adapter that is no LoRA.
        DataError: for values that are no tensors, or that hold no numbers that the maps could mix.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from interbasin.networks.wiring.finding import wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> x = torch.randn(3, 4)
        >>> other = carry(net, wire(net, x).sample(seed=1))
        >>> torch.allclose(other(x), net(x), atol=1e-6)
        True
    """
    if isinstance(alignment, Wiring):
        if maps is not None and not isinstance(maps, Mapping):
            raise WiringError(
                f"The maps beside a wiring are a mapping of spaces to maps, found {type(maps).__name__}; name the "
                "space of each."
            )
        alignment = Alignment(alignment, dict(maps or {}))
    elif not isinstance(alignment, Alignment):
        raise WiringError(
            f"carry takes an alignment, or a wiring with maps beside it, found {type(alignment).__name__}; make one "
            "with wiring.sample(), or Alignment(wiring, maps)."
        )
    elif maps is not None:
        raise WiringError(
            "carry was given an alignment, which has its maps, and maps beside it; give the alignment alone, or its "
            "wiring with the other maps."
        )
    if isinstance(subject, nn.Module):
        return _carried_network(subject, alignment)
    if isinstance(subject, Mapping):
        return _carried_tensors(subject, alignment)
    raise WiringError(
        f"carry moves networks and mappings of tensors, found {type(subject).__name__}; give a torch.nn.Module or a "
        "state dict, read from its file first where it lies in one."
    )


def _carried_network(model: nn.Module, alignment: Alignment) -> nn.Module:
    _refuse_moved_ends(alignment)
    wiring = alignment.wiring
    mover = Mover(wiring.spaces, alignment.maps)
    moved = copied(model)
    forget_what_was_derived(moved)
    named = named_tensors(moved)
    stored = set(names_kept(moved))
    _refuse_absent(wiring, named)
    # Of the network itself: parameters that are views of the same memory part when they are copied.
    _refuse_other_ties(wiring, named_tensors(model))
    ranks: Ranks = {}
    done: set[object] = set()
    with torch.no_grad():
        for name, tensor in named.items():
            # Tables and masks that no checkpoint holds are none of the wiring's business.
            if _memory(tensor) in done or (name not in stored and _listed(name, wiring) is None):
                continue
            done.add(_memory(tensor))
            axes = _axes_of(name, tensor, wiring, ranks)
            if axes is None:
                continue
            new = mover.move(tensor, axes, name)
            if new.shape != tensor.shape:
                raise ShapeError(
                    f"{name} would change from {tuple(tensor.shape)} to {tuple(new.shape)}, and a network keeps its "
                    "shapes; carry a mapping of its tensors instead: carry(model.state_dict(), alignment)."
                )
            tensor.copy_(new)
    return moved


def _carried_tensors(tensors: Mapping[Any, Any], alignment: Alignment) -> dict[str, Tensor]:
    mover = Mover(alignment.wiring.spaces, alignment.maps)
    ranks: Ranks = {}
    moved = {}
    for name in tensors:
        if not isinstance(name, str):
            raise DataError(
                f"Tensors are carried by their names, found the key {name!r}; name them as the network does."
            )
        tensor = tensors[name]
        if not isinstance(tensor, Tensor):
            hint = "give torch.from_numpy(...) of it" if type(tensor).__module__ == "numpy" else "leave it out"
            raise DataError(f"carry moves tensors, but {name} is a {type(tensor).__name__}; {hint}.")
        axes = _axes_of(name, tensor, alignment.wiring, ranks)
        moved[name] = tensor.detach().clone() if axes is None else mover.move(tensor, axes, name)
    return moved


def _axes_of(name: str, tensor: Tensor, wiring: Wiring, ranks: Ranks) -> tuple[Axis, ...] | None:
    """What the axes of a tensor are made of, or nothing for one that does not move at all."""
    listed = _listed(name, wiring)
    if listed is not None:
        if listed not in wiring.tensors:
            return None
        _require_shape(name, wiring.tensors[listed].shape, tensor)
        return wiring.tensors[listed].axes
    factor = factor_of(name)
    updated = None if factor is None else _listed(factor.weight, wiring)
    if factor is None or updated is None:
        known = [*wiring.tensors, *wiring.tied, *wiring.unused, *wiring.constants]
        raise refusal(name) or UnknownNameError.of("tensor in the wiring", name, known)
    refuse_another_rank(factor, tuple(tensor.shape), ranks)
    return factor_axes(factor, tensor, wiring.tensors[updated].axes) if updated in wiring.tensors else None


def _listed(name: str, wiring: Wiring) -> str | None:
    """The name under which the wiring lists a tensor, if it does."""
    own = _own_name(name, wiring)
    return None if own is None else wiring.tied.get(own, own)


def _own_name(name: str, wiring: Wiring) -> str | None:
    for wish in (name, plain_name(name)):
        if wish in wiring.tied or wish in wiring.tensors or wish in wiring.unused or wish in wiring.constants:
            return wish
    return None


# ---------------------------------------------------------------------- what is refused


def _refuse_moved_ends(alignment: Alignment) -> None:
    for name, one in alignment.maps.items():
        space = alignment.wiring.spaces[name]
        at_an_end = space.is_fixed and space.because is not None and space.because.kind in BOUNDARY
        if at_an_end and not isinstance(one, Identity):
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
        first, known = homes.setdefault(_memory(tensor), (name, home))
        if known != home:
            raise WiringError(
                f"{first} and {name} are one tensor in this network, but two in the one that was wired, so that it "
                "would move twice; wire this network."
            )
    for name, tensor in named.items():
        tied_to = wiring.tied.get(_own_name(name, wiring) or "")
        if tied_to is not None and tied_to in named and _memory(named[tied_to]) != _memory(tensor):
            raise WiringError(
                f"{tied_to} and {name} are two tensors in this network, but one in the one that was wired, whose maps "
                "suit both at once; wire this network."
            )


def _memory(tensor: Tensor) -> object:
    """What tells tensors apart: the memory they are a view of, and how."""
    if tensor.device.type == "meta" or tensor.layout != torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _require_shape(name: str, shape: tuple[int, ...], tensor: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)}, but the wiring was made with {shape}; wire this network."
        )
