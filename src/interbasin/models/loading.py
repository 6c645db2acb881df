"""`load_model` hands a MODEL string to the file that knows the library; `parse_model` says what the string means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

import torch

from interbasin.checkpoints.lora import CONFIGURATION
from interbasin.errors import CheckpointError, DataError
from interbasin.models.base import LoadedModel
from interbasin.models.example_inputs import given_inputs, refuse_both
from interbasin.randomness import generator_of

TIMM = "timm:"
FACTORY = re.compile(r"(?P<name>[A-Za-z_][\w.]*:[A-Za-z_]\w*)(?:@(?P<weights>.*))?")
HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
FORMS = (
    "a folder or hub id of transformers, a folder with a PEFT adapter, timm:NAME@weights.safetensors, or "
    "package.module:factory@weights.safetensors"
)


@dataclass(frozen=True)
class ModelName:
    """A MODEL string, taken apart.

    Attributes:
        kind: ``"folder"`` and ``"adapter"`` are on this disk; ``"hub"``, ``"timm"`` and ``"factory"`` are names.
        name: The folder, the hub id, timm's name of the architecture, or ``package.module:factory``.
        weights: The file or folder after ``@``.
    """

    kind: Literal["folder", "adapter", "hub", "timm", "factory"]
    name: str
    weights: Path | None = None


def parse_model(text: str | PathLike[str]) -> ModelName:
    """What ``text`` means. What exists on the disk comes before what it could be the name of.

    Raises:
        CheckpointError: If it has none of the forms; lists them.

    Example:
        >>> parse_model("timm:resnet18@weights.safetensors").name
        'resnet18'
        >>> parse_model("my.networks:small").kind
        'factory'
        >>> parse_model("openai-community/gpt2").kind
        'hub'
    """
    text = fspath(text) if isinstance(text, PathLike) else text
    if not isinstance(text, str):
        raise CheckpointError(f"A model is named by text, found a {type(text).__name__}; give {FORMS}.")
    if text.startswith(TIMM):
        name, behind, weights = text.removeprefix(TIMM).partition("@")
        return ModelName("timm", name, _weights(text, weights) if behind else None)
    if not text:
        raise CheckpointError(f"A model was to be loaded, and its name is empty; give {FORMS}.")
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return ModelName("adapter" if (path / CONFIGURATION).is_file() else "folder", str(path))
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, or a home that is unknown
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"The model {text!r} cannot be looked up ({reason}); give {FORMS}.") from error
    if is_file:
        raise CheckpointError(
            f"The model {text!r} is a file of weights, which does not say of which network; name that as well: "
            f"timm:NAME@{text} or package.module:factory@{text}."
        )
    factory = FACTORY.fullmatch(text)
    if factory:
        weights = factory["weights"]
        return ModelName("factory", factory["name"], None if weights is None else _weights(text, weights))
    if HUB.fullmatch(text):
        return ModelName("hub", text)
    raise CheckpointError(f"The model {text!r} is neither a folder that exists nor a name that is known; give {FORMS}.")


def _weights(text: str, weights: str) -> Path:
    if not weights:
        raise CheckpointError(
            f"The model {text!r} names no weights behind its @; name a file or a folder, or leave the @ out."
        )
    try:
        return Path(weights).expanduser()
    except RuntimeError as error:
        raise CheckpointError(
            f"The weights of {text!r} cannot be looked up ({str(error).rstrip('.')}); give their whole path."
        ) from error


def load_model(
    text: str | PathLike[str],
    *,
    inputs: str | PathLike[str] | None = None,
    input_shape: Sequence[int] | None = None,
    base: str | None = None,
    strict: bool = True,
    trust_remote_code: bool = False,
    seed: int = 0,
    in_files: bool = False,
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
        in_files: Leave the weights in their safetensors files, from which the system reads what is used: the network
            may be larger than memory; see `map_weights`. Weights that a factory makes itself are in memory.

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
    loaded = _load(str(text), name, base, strict, trust_remote_code, seed, in_files)
    if inputs is not None or input_shape is not None:
        loaded = replace(loaded, inputs=given_inputs(loaded.model, inputs, input_shape, generator))
    return loaded


def _load(
    text: str, name: ModelName, base: str | None, strict: bool, trust: bool, seed: int, in_files: bool
) -> LoadedModel:
    # Networks are initialised from torch's global generator: the seed is set for them, and the state put back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name.kind == "timm":
            from interbasin.models.from_timm import load_timm

            return load_timm(text, name.name, name.weights, strict=strict, seed=seed, in_files=in_files)
        if name.kind == "factory":
            from interbasin.models.from_factory import load_factory

            return load_factory(text, name.name, name.weights, strict=strict, in_files=in_files)
        from interbasin.models.from_transformers import base_of, load_adapter, load_folder, snapshot

        if name.kind == "adapter":
            folder = Path(name.name)
            beneath = base_of(folder, base)
            below = _load(beneath, parse_model(beneath), None, strict, trust, seed, in_files)
            return load_adapter(text, folder, below)
        folder = snapshot(name.name) if name.kind == "hub" else Path(name.name)
        return load_folder(text, folder, strict=strict, trust_remote_code=trust, seed=seed, in_files=in_files)
