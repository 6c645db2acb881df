"""Networks of timm: ``timm:NAME@weights``."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch

from interbasin.checkpoints import Checkpoint, open_checkpoint
from interbasin.errors import DataError, UnknownNameError
from interbasin.extras import import_extra
from interbasin.models.base import LoadedModel, load_weights, map_checkpoint, without_numbers, working_dtype_of
from interbasin.randomness import generator_of
from interbasin.text import one_line

BATCH = 2


def load_timm(
    text: str, name: str, weights: Path | None, *, strict: bool = True, seed: int = 0, in_files: bool = False
) -> LoadedModel:
    """A network of timm with as many classes and input channels as its weights have."""
    timm = import_extra("timm", f"Loading {text}", "timm")
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), 5, cutoff=0.0)
        raise UnknownNameError.of("architecture of timm", name, near)
    checkpoint = None if weights is None else open_checkpoint(weights)
    try:
        with without_numbers(wanted=in_files and checkpoint is not None):
            model = timm.create_model(name, pretrained=False)
            sizes = {} if checkpoint is None else _sizes(model.pretrained_cfg, checkpoint, model.state_dict())
            if sizes:
                model = timm.create_model(name, pretrained=False, **sizes)
    # Every architecture has its own conditions, and its own way to complain.
    except Exception as error:
        raise DataError(
            f"timm could not make {name} ({type(error).__name__}: {one_line(error)}); make it with a factory instead: "
            "package.module:factory@weights."
        ) from error
    put_in = map_checkpoint if in_files else load_weights
    unused = () if checkpoint is None else put_in(model, checkpoint, f"timm's {name}", strict=strict)
    channels, *sides = model.pretrained_cfg.get("input_size") or (3, 224, 224)
    shape = (BATCH, sizes.get("in_chans", channels), *sides)
    inputs = torch.randn(shape, generator=generator_of(seed)).to(working_dtype_of(model))
    return LoadedModel(model.eval(), inputs, checkpoint, text, name, unused)


def _sizes(settings: dict[str, Any], checkpoint: Checkpoint, own: dict[str, Any]) -> dict[str, int]:
    """What of the weights' shapes is a matter of choice: the number of classes, and of input channels."""
    sizes = {}
    for key, option, axis in (("classifier", "num_classes", 0), ("first_conv", "in_chans", 1)):
        layers = settings.get(key) or ()
        for layer in (layers,) if isinstance(layers, str) else layers:
            name = f"{layer}.weight"
            if name in checkpoint and name in own and checkpoint.shape(name)[axis] != own[name].shape[axis]:
                sizes[option] = checkpoint.shape(name)[axis]
    return sizes
