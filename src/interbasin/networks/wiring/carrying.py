"""``carry``: a network, or any mapping of tensors named like its own, in the coordinates of an alignment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from interbasin.errors import ShapeError, UnknownNameError, WiringError
from interbasin.maps import Map
from interbasin.networks.wiring.admission import named_tensors
from interbasin.networks.wiring.carry import Mover
from interbasin.networks.wiring.copying import copied
from interbasin.networks.wiring.spaces import Axis, In, Reason, Role, Still, leaves
from interbasin.networks.wiring.wiring import Alignment, Wiring

__all__ = ["carry"]

Model = TypeVar("Model", bound=nn.Module)

# The factors of a low-rank update are named after the layer they belong to: A reads what the layer reads, B writes what
# it writes. Embeddings have them the other way round and without ``.weight``.
_LORA = re.compile(r"^(?P<layer>.*)\.lora_(?P<embedding>embedding_)?(?P<factor>[AB])(\.(?!weight$)[^.]+)?(\.weight)?$")
_PREFIX = "base_model.model."
_RANK = Reason("structure", "the rank of a low-rank update lies along it")


@overload
def carry(subject: Model, alignment: Alignment | Wiring, maps: Mapping[str, Map] | None = None) -> Model: ...
@overload
def carry(
    subject: Mapping[str, Tensor], alignment: Alignment | Wiring, maps: Mapping[str, Map] | None = None
) -> dict[str, Tensor]: ...
def carry(subject: Any, alignment: Alignment | Wiring, maps: Mapping[str, Map] | None = None) -> Any:
    """``subject`` in the coordinates of ``alignment``; what was given stays as it is.

    Written axes move by the map of their space, read axes by its dual, gains by its size: ``W' = M_out W M_in^-1``.
    Parameters, buffers, updates (differences of weights) and the factors of a LoRA all move by the same rule.

    Args:
        subject: A network, which comes back as a new network of the same class; or a mapping of tensors named as in its
            state dict (names of a PEFT adapter are understood), which comes back as a dict.
        alignment: Maps and the wiring they belong to; or the wiring alone, with ``maps`` beside it.
        maps: Space -> map. Spaces without one stay as they are.

    Raises:
        UnknownNameError, ShapeError: for a tensor or a space that the wiring does not know, or of another size.

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
        alignment = Alignment(alignment, dict(maps or {}))
    elif not isinstance(alignment, Alignment):
        raise WiringError(
            f"carry takes an alignment, or a wiring with maps beside it, found {type(alignment).__name__}; make one "
            "with wiring.sample(), or Alignment(wiring, maps)."
        )
    if isinstance(subject, nn.Module):
        return _carried_network(subject, alignment)
    if isinstance(subject, Mapping):
        return _carried_tensors(subject, alignment)
    raise WiringError(f"carry moves networks and mappings of tensors, found {type(subject).__name__}.")


def _carried_network(model: nn.Module, alignment: Alignment) -> nn.Module:
    wiring = alignment.wiring
    mover = Mover(wiring.spaces, alignment.maps)
    moved = copied(model)
    _forget_what_was_derived(moved)
    named = named_tensors(moved)
    with torch.no_grad():
        for name, tensor in wiring.tensors.items():
            if name not in named:
                raise UnknownNameError.of("tensor of the network", name, named)
            _require_shape(name, tensor.shape, named[name])
            new = mover.move(named[name], tensor.axes)
            if new.shape != named[name].shape:
                raise ShapeError(
                    f"{name} would change from {tuple(named[name].shape)} to {tuple(new.shape)}, and a network keeps "
                    "its shapes; carry a mapping of its tensors instead."
                )
            named[name].copy_(new)
    return moved


def _forget_what_was_derived(model: nn.Module) -> None:
    """Networks that keep things computed from their weights for evaluation drop them when they go back to training."""
    modes = {name: module.training for name, module in model.named_modules()}
    model.train()
    for name, module in model.named_modules():
        module.training = modes[name]


def _carried_tensors(tensors: Mapping[str, Tensor], alignment: Alignment) -> dict[str, Tensor]:
    mover = Mover(alignment.wiring.spaces, alignment.maps)
    moved = {}
    for name in tensors:
        tensor = tensors[name]
        axes = _axes_of(name, tensor, alignment.wiring)
        moved[name] = tensor.clone() if axes is None else mover.move(tensor, axes)
    return moved


def _axes_of(name: str, tensor: Tensor, wiring: Wiring) -> tuple[Axis, ...] | None:
    """What the axes of a tensor are made of, or nothing for one that does not move at all."""
    known = _listed(name, wiring)
    if known is not None:
        if known in wiring.tensors:
            _require_shape(name, wiring.tensors[known].shape, tensor)
            return wiring.tensors[known].axes
        return None
    factor = _LORA.match(name)
    if factor is not None:
        listed = _listed(f"{factor['layer']}.weight", wiring)
        if listed is not None and listed in wiring.tensors:
            return _factor_axes(name, factor, tensor, wiring.tensors[listed].axes)
    raise UnknownNameError.of("tensor in the wiring", name, [*wiring.tensors, *wiring.unused, *wiring.constants])


def _factor_axes(name: str, factor: re.Match[str], tensor: Tensor, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    if len(axes) < 2 or tensor.ndim < 2:
        raise ShapeError(f"{name} is a factor of a low-rank update of a tensor with {len(axes)} axes; two are needed.")
    first, second, *rest = axes
    if factor["embedding"] or _stands_upside_down(first, second, factor["factor"], tensor):
        # The weight is (in, out), as a table is (rows, width): its update is (B A)^T, A (rank, in) and B (out, rank).
        first, second = second, first
    own = first if factor["factor"] == "B" else second
    rank = tensor.shape[0 if factor["factor"] == "A" else 1]
    still = Still(rank, _RANK)
    laid = (still, own) if factor["factor"] == "A" else (own, still)
    if tensor.shape[1 if factor["factor"] == "A" else 0] != own.size:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)}, but the layer it updates is {own.size} wide there; is it the "
            "adapter of this network?"
        )
    kernel = rest if factor["factor"] == "A" else [Still(1, _RANK)] * (tensor.ndim - 2)
    return (*laid, *kernel)[: tensor.ndim]


def _stands_upside_down(first: Axis, second: Axis, factor: str, tensor: Tensor) -> bool:
    """Whether a weight reads along its first axis: by the sizes if they tell, else by what its axes are made of."""
    own = tensor.shape[1 if factor == "A" else 0]
    upright, turned = (second, first) if factor == "A" else (first, second)
    if first.size != second.size:
        return own == turned.size and own != upright.size
    return _share_read(first) > _share_read(second)


def _share_read(axis: Axis) -> float:
    return sum(share for leaf, share in leaves(axis) if isinstance(leaf, In) and leaf.role is Role.READ)


def _listed(name: str, wiring: Wiring) -> str | None:
    for wish in (name, name.removeprefix(_PREFIX)):
        wish = wiring.tied.get(wish, wish)
        if wish in wiring.tensors or wish in wiring.unused or wish in wiring.constants:
            return wish
    return None


def _require_shape(name: str, shape: tuple[int, ...], tensor: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)}, but the wiring was made with {shape}; wire this network."
        )
