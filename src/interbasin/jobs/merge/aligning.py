"""Networks that were trained apart, brought into the coordinates of the first one before they are merged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, WiringError
from interbasin.jobs.merge.numbers import Array
from interbasin.jobs.merge.stored import StoredNetwork
from interbasin.jobs.rebasin import rebasin
from interbasin.networks.models import load_model

__all__ = ["aligned_modules", "aligned_networks"]

Model = TypeVar("Model", bound=nn.Module)


def aligned_modules(models: Sequence[Model], method: str, inputs: Any, seed: int) -> list[Model]:
    """All models in the coordinates of the first."""
    if inputs is None:
        raise DataError("Networks are aligned by tracing them on one batch; give inputs= beside align=.")
    first, *others = models
    return [first, *(rebasin(other, first, inputs, method, seed=seed).model for other in others)]  # type: ignore[list-item]


def aligned_networks(
    given: Sequence[Any], networks: Sequence[StoredNetwork], method: str, inputs: Any, seed: int
) -> tuple[list[StoredNetwork], str]:
    """The same of networks on disk, whose MODEL strings tell how they are built; the numbers are then in memory.

    Returns:
        The networks, and a sentence for who uses what they are merged into.
    """
    for one in given:
        if not isinstance(one, str | os.PathLike):
            raise DataError(
                f"To be aligned, networks are given as MODELs that can be built, found a {type(one).__name__}; give a "
                "folder of transformers, timm:NAME@weights or package.module:factory@weights."
            )
    first, *others = (load_model(os.fspath(one)) for one in given)
    batch = first.require_inputs() if inputs is None else inputs
    made, exact = [networks[0]], True
    for network, other in zip(networks[1:], others, strict=True):
        aligned = rebasin(other.model, first.model, batch, method, seed=seed)
        exact = exact and aligned.alignment.is_exact
        made.append(replace(network, carried=_stored(aligned.model, network)))
    told = f"All models were brought into the coordinates of the first by {method}"
    approximate = "; its maps are approximate, so that those that were merged do not compute quite what was given"
    return made, f"{told}{'' if exact else approximate}."


def _stored(model: nn.Module, network: StoredNetwork) -> dict[str, Array]:
    """The tensors of a network under the names, and in the dtypes, of its checkpoint."""
    own = model.state_dict()
    carried = {}
    for name, entry in network.entries.items():
        if name not in own:
            raise WiringError(
                f"{name} of {network.label} has another name in the network that is built from it, so it cannot be "
                "merged as it is stored; align it with `interbasin rebasin` first, and merge what that writes."
            )
        carried[name] = _bytes(own[name].to(getattr(torch, entry.kind)))
    return carried


def _bytes(tensor: Tensor) -> Array:
    found: Array = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found
