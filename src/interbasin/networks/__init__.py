"""What a network is made of: its wiring, found by tracing; its activations, recorded; its checkpoints, in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names

if TYPE_CHECKING:
    from interbasin.networks.checkpoints import Checkpoint, open_checkpoint, write_checkpoint
    from interbasin.networks.folding import fold_norms, folding_of, save_folded
    from interbasin.networks.models import LoadedModel, load_model
    from interbasin.networks.normalisation import repair, reset_batch_norm
    from interbasin.networks.paths import interpolate
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
    "folding_of",
    "interpolate",
    "load_model",
    "open_checkpoint",
    "record",
    "repair",
    "reset_batch_norm",
    "save_folded",
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
    "folding_of": "folding",
    "interpolate": "paths",
    "load_model": "models",
    "open_checkpoint": "checkpoints",
    "record": "recording",
    "repair": "normalisation",
    "reset_batch_norm": "normalisation",
    "save_folded": "folding",
    "wire": "wiring",
    "write_checkpoint": "checkpoints",
}

# A checkpoint can be read without what traces networks, and the other way round.
__getattr__, __dir__ = lazy_names(__name__, _FOLDERS, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
