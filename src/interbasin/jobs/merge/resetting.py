"""Batch norms of a merged network: their running statistics, estimated anew on data.

Statistics that are merged like weights are those of no network: half-way between two the activations are others. They
can only be had by running the merged network, so it is built here, which a merge from disk to disk otherwise avoids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from interbasin.batches import describe_size, require_reiterable
from interbasin.errors import DataError, WiringError
from interbasin.jobs.merge.numbers import Array
from interbasin.jobs.merge.stored import StoredNetwork
from interbasin.networks.models import load_model
from interbasin.networks.normalisation import has_batch_norm, reset_batch_norm

__all__ = ["Resetting", "built_for_reset", "reset_module"]

# What a batch norm keeps of the batches it has seen.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Model = TypeVar("Model", bound=nn.Module)


def reset_module(merge: Callable[[], Model], first: nn.Module, data: Any) -> Model:
    """The module that ``merge`` makes, with its statistics reset; what cannot be reset is refused before."""
    _require_statistics(first, data)
    return reset_batch_norm(merge(), data)


@dataclass(frozen=True, eq=False)
class Resetting:
    """The network that merged weights belong to, and the data that its statistics are estimated on."""

    model: nn.Module
    data: Any

    @property
    def amount(self) -> str:
        """Of the data, in words."""
        return describe_size(self.data)

    def statistics(self, merged: Mapping[str, Array], kinds: Mapping[str, str]) -> dict[str, Array]:
        """The running statistics that the network has with these weights, by name, as bytes.

        Args:
            merged: All tensors of the merged network, as bytes, in the dtypes of the model.
            kinds: The dtypes that statistics are to be stored in.
        """
        own = self.model.state_dict()
        self.model.load_state_dict({name: _tensor(merged[name], own[name]) for name in merged}, strict=False)
        found = reset_batch_norm(self.model, self.data).state_dict()
        places = (f"{name}." if name else "" for name, one in self.model.named_modules() if isinstance(one, _BatchNorm))
        names = [place + kept for place in places for kept in STATISTICS if place + kept in merged]
        return {name: _bytes(found[name].to(getattr(torch, kinds[name]))) for name in names}


def built_for_reset(given: Any, network: StoredNetwork, data: Any) -> Resetting:
    """The first MODEL of a merge, built.

    Raises:
        DataError: if it is no MODEL, or has no batch norms.
        WiringError: if its tensors have other names in the network than on disk.
    """
    if not isinstance(given, str | os.PathLike):
        raise DataError(
            f"To reset statistics the first model is given as a MODEL that can be built, found a "
            f"{type(given).__name__}; give a folder of transformers, timm:NAME@weights or "
            "package.module:factory@weights."
        )
    model = load_model(os.fspath(given)).model
    _require_statistics(model, data)
    own = model.state_dict()
    for name, entry in network.entries.items():
        if name not in own or str(own[name].dtype).removeprefix("torch.") != entry.kind:
            raise WiringError(
                f"{name} of {network.label} has another name or dtype in the network that is built from it, so its "
                "statistics cannot be reset as they are stored; merge without reset=, load the result and use "
                "interbasin.networks.reset_batch_norm."
            )
    return Resetting(model, data)


def _require_statistics(model: nn.Module, data: Any) -> None:
    require_reiterable(data, "Resetting statistics")
    if not has_batch_norm(model):
        raise DataError(
            f"Running statistics of batch norms were to be reset, but {type(model).__name__} keeps none; leave reset= "
            "out, or for a network between two others use interbasin.networks.repair."
        )


def _tensor(stored: Array, like: Tensor) -> Tensor:
    held = torch.from_numpy(np.array(stored, copy=True).view(np.uint8))
    return held.view(like.dtype).reshape(like.shape)


def _bytes(tensor: Tensor) -> Array:
    found: Array = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found
