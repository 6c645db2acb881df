"""Networks that were trained apart, brought into the coordinates of the first one before they are merged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from interbasin.checkpoints.checkpoint import Checkpoint, LazyTensors
from interbasin.checkpoints.in_memory import HeldTensors
from interbasin.errors import DataError, WiringError
from interbasin.jobs.rebasin import rebasin
from interbasin.models import load_model

Model = TypeVar("Model", bound=nn.Module)


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
        The tensors of the networks, and a sentence for who uses what they are merged into.
    """
    for model in models:
        if not isinstance(model, str | os.PathLike):
            raise DataError(
                f"To be aligned, networks are given as MODELs that can be built, found a {type(model).__name__}; give "
                "a folder of transformers, timm:NAME@weights or package.module:factory@weights."
            )
    first, *others = (load_model(os.fspath(model)) for model in models)
    batch = first.require_inputs() if inputs is None else inputs
    aligned: list[LazyTensors] = [checkpoints[0]]
    exact = True
    for checkpoint, other in zip(checkpoints[1:], others, strict=True):
        result = rebasin(other.model, first.model, batch, method, seed=seed)
        exact = exact and result.alignment.is_exact
        aligned.append(_as_stored(result.model, checkpoint))
    approximate = "; its maps are approximate, so that those that were merged do not compute quite what was given"
    return (
        aligned,
        f"All models were brought into the coordinates of the first by {method}{'' if exact else approximate}.",
    )


def _as_stored(model: nn.Module, checkpoint: Checkpoint) -> HeldTensors:
    """The tensors of a network under the names, and in the dtypes, of its checkpoint."""
    own = model.state_dict()
    for name in checkpoint:
        if name not in own:
            raise WiringError(
                f"{name} of {checkpoint.label} has another name in the network that is built from it, so it cannot be "
                "merged as it is stored; align it with `interbasin rebasin` first, and merge what that writes."
            )
    tensors = {name: own[name].to(entry.dtype) for name, entry in checkpoint.entries.items()}
    tensors |= {name: tensors[stored] for name, stored in checkpoint.ties.items()}
    return HeldTensors(tensors, checkpoint.label)
