"""Putting what a folding leaves in the place of norms and scalings, into the network at hand or a fresh one."""

from __future__ import annotations

import torch
from torch import nn

from interbasin.errors import CheckpointError
from interbasin.networks.folding.folding import Folding, Replacement, keep_folding
from interbasin.networks.folding.ties import tie, untie
from interbasin.networks.folding.unit import SpelledNorm, UnitNorm

__all__ = ["add_bias", "put", "rebuild"]


def put(model: nn.Module, name: str, replacement: Replacement) -> nn.Module:
    """Replace the module ``name``, under every name it has: a module can be used in several places."""
    old = model.get_submodule(name)
    like = next(old.parameters(), None)
    new = _made(replacement, torch.ones(1) if like is None else like).train(old.training)
    for parent in list(model.modules()):
        for label, child in list(parent._modules.items()):
            if child is old:
                parent._modules[label] = new
    return new


def add_bias(layer: nn.Linear) -> None:
    """A bias of zeros for a layer that has none."""
    layer.bias = nn.Parameter(torch.zeros(layer.out_features, dtype=layer.weight.dtype, device=layer.weight.device))


def rebuild(model: nn.Module, folding: Folding, what: str) -> None:
    """Make a fresh network of the same architecture ready for folded weights; ``what`` is what messages call it.

    Raises:
        CheckpointError: if the network has not the modules and tensors that were folded.
    """
    missing = "a module"
    try:
        untie(model)
        for missing, replacement in folding.replaced.items():
            put(model, missing, replacement)
        for missing in folding.biases:
            layer = model.get_submodule(missing)
            if not isinstance(layer, nn.Linear):
                raise AttributeError
            add_bias(layer)
        for names in folding.ties:
            missing = names[0]
            tie(model, names)
    except AttributeError as error:
        raise CheckpointError(
            f"The weights are of a folded network in which {missing} was replaced, got a bias or was tied, and {what} "
            "has no such part; these are the weights of another network."
        ) from error
    keep_folding(model, folding)


def _made(replacement: Replacement, like: torch.Tensor) -> nn.Module:
    width, epsilon, axis = replacement.width, replacement.epsilon, replacement.axis
    if replacement.kind == "nothing":
        return nn.Identity()
    if replacement.kind == "unit":
        return UnitNorm(width, epsilon, like, axis)
    centring = replacement.kind == "spelled-centring"
    unit = nn.LayerNorm(width, eps=epsilon, elementwise_affine=False) if centring else UnitNorm(width, epsilon, like)
    return SpelledNorm(unit, nn.Linear(width, width, device=like.device, dtype=like.dtype), axis)
