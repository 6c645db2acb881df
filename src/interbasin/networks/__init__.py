"""What a network is made of: its wiring, found by tracing; its activations, recorded; its checkpoints, in and out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interbasin.networks.checkpoints import Checkpoint, open_checkpoint, write_checkpoint
    from interbasin.networks.folding import fold_norms
    from interbasin.networks.models import LoadedModel, load_model
    from interbasin.networks.recording import Recording, record
    from interbasin.networks.wiring import Alignment, Wiring, carry, wire

__all__ = [
    "Alignment",
    "Checkpoint",
    "LoadedModel",
    "Recording",
    "Wiring",
    "carry",
    "fold_norms",
    "load_model",
    "open_checkpoint",
    "record",
    "wire",
    "write_checkpoint",
]

_FOLDERS = ("checkpoints", "folding", "models", "recording", "wiring")
_HOMES = {
    "Alignment": "wiring",
    "Checkpoint": "checkpoints",
    "LoadedModel": "models",
    "Recording": "recording",
    "Wiring": "wiring",
    "carry": "wiring",
    "fold_norms": "folding",
    "load_model": "models",
    "open_checkpoint": "checkpoints",
    "record": "recording",
    "wire": "wiring",
    "write_checkpoint": "checkpoints",
}


def __getattr__(name: str) -> Any:
    # A checkpoint can be read without what traces networks, and the other way round.
    if name in _FOLDERS:
        return importlib.import_module(f"interbasin.networks.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"interbasin.networks.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'interbasin.networks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
