"""One door to all networks: `load_model` reads a MODEL string and hands it to the file that knows the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from interbasin.errors import DataError
from interbasin.models.base import LoadedModel
from interbasin.models.given_inputs import given_inputs, refuse_both
from interbasin.models.names import ModelName, parse_model
from interbasin.randomness import generator_of

__all__ = ["load_model"]


def load_model(
    text: str | PathLike[str],
    *,
    inputs: str | PathLike[str] | None = None,
    input_shape: Sequence[int] | None = None,
    base: str | None = None,
    strict: bool = True,
    trust_remote_code: bool = False,
    seed: int = 0,
) -> LoadedModel:
    """The network that a MODEL string names, with its weights, in evaluation mode, and one batch of example inputs.

    Weights are loaded without running anything they bring. Nothing is downloaded unless the environment variable
    ``INTERBASIN_DOWNLOADS`` is 1.

    - A folder that ``transformers`` saved, or a hub id that is in the local cache.
    - A folder with a PEFT adapter: its base is loaded, and the adapter put on.
    - ``timm:NAME@weights.safetensors``; without weights, the network is random.
    - ``package.module:factory@weights.safetensors``: a function without arguments that returns a network, or a network
      and its inputs. The module is looked for in the current folder too.

    Args:
        text: The MODEL.
        inputs: A file with example inputs: ``.npy``, ``.npz``, ``.pt`` or ``.safetensors``; named arrays are keyword
            arguments.
        input_shape: The shape of example inputs, batch first, to draw at random. By default they are made from the
            configuration, where it tells enough, or are the factory's.
        base: The network that an adapter belongs to, in place of the one it names. Only for adapters.
        strict: Whether tensors that the network has no use for are an error. Missing ones always are.
        trust_remote_code: Run Python code that comes with a folder of transformers.
        seed: For what is drawn at random: inputs, and weights where none were given.

    Raises:
        CheckpointError: If there is no such network, or its weights do not fit.
        UnknownNameError: If timm has no such architecture, or there is no such module or factory.
        MissingExtraError: If the library it needs is not installed.
        DataError: If the inputs cannot be used, a factory fails, or there is a base without an adapter.
    """
    generator = generator_of(seed)
    name = parse_model(text)
    if base is not None and name.kind != "adapter":
        raise DataError(
            f"base= (--base) names the network below an adapter, and {text} is no folder with an adapter; leave it out."
        )
    refuse_both(inputs, input_shape)
    loaded = _loaded(str(text), name, base, strict, trust_remote_code, seed)
    if inputs is not None or input_shape is not None:
        loaded = replace(loaded, inputs=given_inputs(loaded.model, inputs, input_shape, generator))
    return loaded


def _loaded(text: str, name: ModelName, base: str | None, strict: bool, trust: bool, seed: int) -> LoadedModel:
    # Networks are initialised from torch's global generator: the seed is set for them, and the state put back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name.kind == "timm":
            from interbasin.models.from_timm import load_timm

            return load_timm(text, name.name, name.weights, strict=strict, seed=seed)
        if name.kind == "factory":
            from interbasin.models.from_factory import load_factory

            return load_factory(text, name.name, name.weights, strict=strict)
        from interbasin.models.from_transformers import load_folder, snapshot

        if name.kind == "adapter":
            from interbasin.models.from_peft import base_of, load_adapter

            folder = Path(name.name)
            beneath = base_of(folder, base)
            under = _loaded(beneath, parse_model(beneath), None, strict, trust, seed)
            return load_adapter(text, folder, under)
        folder = snapshot(name.name) if name.kind == "hub" else Path(name.name)
        return load_folder(text, folder, strict=strict, trust_remote_code=trust, seed=seed)
