"""What a merge needs built networks for: alignment before it, and running statistics of batch norms after it.

Networks that were trained apart are brought into the coordinates of the first one. Statistics that are merged like
weights fit no network: half-way between two the activations are others, so they are estimated anew on data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from interbasin.batch_norm import has_batch_norm, reset_batch_norm
from interbasin.batches import describe_size, require_reiterable
from interbasin.checkpoints.checkpoint import Checkpoint, Entry, LazyTensors
from interbasin.checkpoints.in_memory import HeldTensors, bytes_in
from interbasin.errors import DataError, WiringError
from interbasin.jobs.rebasin import rebasin
from interbasin.models import load_model

if TYPE_CHECKING:
    from interbasin.checkpoints.checkpoint import Bytes

# What a batch norm keeps of the batches it has seen.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Model = TypeVar("Model", bound=nn.Module)


def _model_string(model: Any, requirement: str) -> str:
    if not isinstance(model, str | os.PathLike):
        raise DataError(
            f"{requirement}, got a {type(model).__name__}; give a folder, timm:NAME@weights or module:factory@weights."
        )
    return os.fspath(model)


# ---------------------------------------------------------------------- alignment


def align_modules(models: Sequence[Model], method: str, inputs: Any, seed: int) -> list[Model]:
    """All models in the coordinates of the first."""
    if inputs is None:
        raise DataError("Networks are aligned by tracing them on one batch; give inputs= beside align=.")
    first, *others = models
    return [first, *(rebasin(other, first, inputs, method, seed=seed).model for other in others)]  # type: ignore[list-item]


def align_checkpoints(
    models: Sequence[Any], checkpoints: Sequence[Checkpoint], method: str, inputs: Any, seed: int
) -> tuple[list[LazyTensors], str]:
    """The same of networks on disk, whose MODEL strings tell how they are built; the numbers are then in memory.

    Returns:
        The tensors of the networks, and a sentence for users of the merged network.
    """
    names = [_model_string(model, "To be aligned, networks must be MODELs that can be built") for model in models]
    first, *others = map(load_model, names)
    batch = first.require_inputs() if inputs is None else inputs
    aligned: list[LazyTensors] = [checkpoints[0]]
    exact = True
    for checkpoint, other in zip(checkpoints[1:], others, strict=True):
        result = rebasin(other.model, first.model, batch, method, seed=seed)
        exact = exact and result.alignment.is_exact
        aligned.append(_as_stored(result.model, checkpoint))
    approximate = "" if exact else "; its maps are approximate, so the aligned networks do not compute quite the same"
    return aligned, f"All models were brought into the coordinates of the first by {method}{approximate}."


def _as_stored(model: nn.Module, checkpoint: Checkpoint) -> HeldTensors:
    """The tensors of a network under the names, and in the dtypes, of its checkpoint."""
    own = model.state_dict()
    for name in checkpoint:
        if name not in own:
            raise WiringError(
                f"{name} of {checkpoint.label} has another name in the network that is built from it, so it cannot be "
                "merged as it is stored; align it with `interbasin rebasin` first, and merge its output."
            )
    tensors = {name: own[name].to(entry.dtype) for name, entry in checkpoint.entries.items()}
    tensors |= {name: tensors[stored] for name, stored in checkpoint.ties.items()}
    return HeldTensors(tensors, checkpoint.label)


# ---------------------------------------------------------------------- batch norms


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
    name = _model_string(model, "To reset statistics, the first model must be a MODEL that can be built")
    network = load_model(name).model
    _require_statistics(network, data)
    own = network.state_dict()
    for name in checkpoint:
        if name not in own or own[name].dtype != checkpoint.dtype(name):
            raise WiringError(
                f"{name} of {checkpoint.label} has another name or dtype in the network that is built from it; merge "
                "without reset=, load the result and use interbasin.batch_norm.reset_batch_norm."
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
