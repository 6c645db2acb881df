"""What the configuration of a PEFT adapter says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interbasin.errors import CheckpointError
from interbasin.networks.checkpoints.faults import read_json
from interbasin.storage import write_document

__all__ = ["CONFIGURATION", "Adapter", "read_adapter", "write_base"]

CONFIGURATION = "adapter_config.json"


@dataclass(frozen=True)
class Adapter:
    """What an adapter is, and of what.

    Attributes:
        method: PEFT's name of the method, for example ``"LORA"``.
        base: The folder or hub id of the network it was trained on, if it says so.
        rank: The inner width of a LoRA; None for other methods.
        alpha: Its scale before division by the rank (or its root); None for other methods.
        targets: The modules it changes: names, or one regular expression.
        settings: The whole configuration.
    """

    method: str
    base: str | None
    rank: int | None
    alpha: float | None
    targets: tuple[str, ...] | str
    settings: Mapping[str, Any] = field(repr=False)


def read_adapter(folder: Path) -> Adapter:
    """The adapter that ``adapter_config.json`` in ``folder`` describes.

    Raises:
        CheckpointError: If it cannot be read or does not describe one.
    """
    path = folder / CONFIGURATION
    settings = read_json(path)
    method, base = settings.get("peft_type"), settings.get("base_model_name_or_path")
    rank, alpha, targets = settings.get("r"), settings.get("lora_alpha"), settings.get("target_modules")
    targets = tuple(targets or ()) if targets is None or isinstance(targets, list) else targets
    names = targets if isinstance(targets, tuple) else (targets,)
    for key, value, fits in (
        ("peft_type", method, isinstance(method, str)),
        ("base_model_name_or_path", base, base is None or isinstance(base, str)),
        ("r", rank, rank is None or type(rank) is int),
        ("lora_alpha", alpha, alpha is None or type(alpha) in (int, float)),
        ("target_modules", targets, all(isinstance(one, str) for one in names)),
    ):
        if not fits:
            raise CheckpointError(
                f"{path} does not describe an adapter of PEFT: {key} is {value!r}; "
                "save the adapter again with its save_pretrained."
            )
    return Adapter(str(method), base or None, rank, alpha, targets, settings)


def write_base(folder: Path, base: str) -> None:
    """Have the adapter in ``folder``, which is being filled, belong to ``base``."""
    settings = {**read_adapter(folder).settings, "base_model_name_or_path": base, "revision": None}
    write_document(folder / CONFIGURATION, settings)
