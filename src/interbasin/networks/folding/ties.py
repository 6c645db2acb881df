"""Tensors that several modules share: given a copy each for folding, and shared again where they came out equal."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["tie_again", "untie"]


def untie(model: nn.Module) -> list[tuple[str, ...]]:
    """Give tensors that several modules share a copy each, so that one can be folded into and the other not."""
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
            for name in list(owners.values())[1:]:
                path, _, local = name.rpartition(".")
                owner = model.get_submodule(path)
                old = getattr(owner, local)
                setattr(owner, local, nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad))
    return ties


def tie_again(model: nn.Module, ties: list[tuple[str, ...]]) -> None:
    """Share again what came out equal; where a head and a table parted, the configuration is told so."""
    for first, *others in ties:
        for name in others:
            path, _, local = name.rpartition(".")
            if torch.equal(model.get_parameter(first), model.get_parameter(name)):
                setattr(model.get_submodule(path), local, model.get_parameter(first))
            elif getattr(getattr(model, "config", None), "tie_word_embeddings", False):
                model.config.tie_word_embeddings = False  # type: ignore[union-attr]
