"""Batch norms of a merged network: their running statistics, estimated anew on data.

Statistics that are merged like weights are those of no network: half-way between two the activations are others. They
can only be had by running the merged network, so it is built here, which a merge from disk to disk otherwise avoids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from interbasin.batch_norm import has_batch_norm, reset_batch_norm
from interbasin.batches import describe_size, require_reiterable
from interbasin.checkpoints.checkpoint import Checkpoint, Entry, LazyTensors
from interbasin.checkpoints.in_memory import bytes_in
from interbasin.errors import DataError, WiringError
from interbasin.models import load_model

if TYPE_CHECKING:
    from interbasin.checkpoints.checkpoint import Bytes

# What a batch norm keeps of the batches it has seen.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Model = TypeVar("Model", bound=nn.Module)


def reset_module(merge: Callable[[], Model], first: nn.Module, data: Any) -> Model:
    """The module that ``merge`` makes, with its statistics reset; what cannot be reset is refused before."""
    _require_statistics(first, data)
    return reset_batch_norm(merge(), data)


def reset_on_disk(
    model: Any, checkpoint: Checkpoint, data: Any, merged: LazyTensors, entries: Mapping[str, Entry]
) -> tuple[dict[str, Bytes], str]:
    """The running statistics that a merged network has, by name, as bytes; and the amount of the data, in words.

    Args:
        model: The first MODEL of the merge, by which the network is built.
        checkpoint: Its weights.
        data: Batches to estimate the statistics on.
        merged: All tensors of the merged network, in the dtypes of the model.
        entries: The dtypes that statistics are to be stored in.

    Raises:
        DataError: if it is no MODEL, or has no batch norms.
        WiringError: if its tensors have other names in the network than on disk.
    """
    if not isinstance(model, str | os.PathLike):
        raise DataError(
            f"To reset statistics the first model is given as a MODEL that can be built, found a "
            f"{type(model).__name__}; give a folder of transformers, timm:NAME@weights or "
            "package.module:factory@weights."
        )
    network = load_model(os.fspath(model)).model
    _require_statistics(network, data)
    own = network.state_dict()
    for name in checkpoint:
        if name not in own or own[name].dtype != checkpoint.dtype(name):
            raise WiringError(
                f"{name} of {checkpoint.label} has another name or dtype in the network that is built from it, so its "
                "statistics cannot be reset as they are stored; merge without reset=, load the result and use "
                "interbasin.batch_norm.reset_batch_norm."
            )
    network.load_state_dict(merged.state_dict(), strict=False)
    tensors = reset_batch_norm(network, data).state_dict()
    places = (f"{name}." if name else "" for name, module in network.named_modules() if isinstance(module, _BatchNorm))
    names = [place + statistic for place in places for statistic in STATISTICS if place + statistic in entries]
    return {name: bytes_in(tensors[name].to(entries[name].dtype)) for name in names}, describe_size(data)


def _require_statistics(model: nn.Module, data: Any) -> None:
    require_reiterable(data, "Resetting statistics")
    if not has_batch_norm(model):
        raise DataError(
            f"Running statistics of batch norms were to be reset, but {type(model).__name__} keeps none; leave reset= "
            "out, or for a network between two others use interbasin.batch_norm.repair."
        )
