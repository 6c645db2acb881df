"""Tensors that several modules share: given a copy each for folding, and shared again where they came out equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["shared", "tie", "tie_again", "untie"]


def shared(model: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter that several modules share, one a module."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    ties = []
    for names in groups.values():
        owners: dict[int, str] = {}
        for name in names:
            owners.setdefault(id(model.get_submodule(name.rpartition(".")[0])), name)
        if len(owners) > 1:
            ties.append(tuple(owners.values()))
    return ties


def untie(model: nn.Module) -> list[tuple[str, ...]]:
    """Give tensors that several modules share a copy each, so that one can be folded into and the other not."""
    ties = shared(model)
    for _, *others in ties:
        for name in others:
            owner, local = _owner(model, name)
            old = getattr(owner, local)
            setattr(owner, local, nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad))
    return ties


def tie(model: nn.Module, names: Sequence[str]) -> None:
    """Have all of ``names`` be the parameter that the first of them is."""
    for name in names[1:]:
        owner, local = _owner(model, name)
        setattr(owner, local, model.get_parameter(names[0]))


def tie_again(model: nn.Module, ties: list[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Share again what came out equal; the pairs that parted come back.

    Where a head and a table parted, the configuration is told so. Gains that folding took out are neither.
    """
    parted = []
    for names in ties:
        first, *others = [name for name in names if _is_parameter(model, name)] or [""]
        for name in others:
            if torch.equal(model.get_parameter(first), model.get_parameter(name)):
                tie(model, (first, name))
                continue
            parted.append((first, name))
            if getattr(getattr(model, "config", None), "tie_word_embeddings", False):
                model.config.tie_word_embeddings = False  # type: ignore[union-attr]
    return parted


def _is_parameter(model: nn.Module, name: str) -> bool:
    owner, local = _owner(model, name)
    return local in owner._parameters


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, local = name.rpartition(".")
    return model.get_submodule(path), local
