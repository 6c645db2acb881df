"""How a MODEL string is read; this is the one place that knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

from interbasin.checkpoints.lora import CONFIGURATION
from interbasin.errors import CheckpointError

__all__ = ["ModelName", "parse_model"]

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
