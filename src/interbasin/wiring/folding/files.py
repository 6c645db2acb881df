"""Folded networks on disk: the weights, and beside them what was folded, so that `load_model` builds them again."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from interbasin.checkpoints import write_checkpoint
from interbasin.checkpoints.write import copy_companions, find_companions
from interbasin.errors import FileError, WiringError
from interbasin.extras import is_transformers_model
from interbasin.models.folding import FOLDING, folding_of, write_folding
from interbasin.storage import as_path, write_document


def save_folded(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> None:
    """Write a network that `fold_norms` made (or one that was carried from it) to a new folder.

    `load_model` builds it again from there: the folder of a network of ``transformers`` by its own name, any other as
    the weights of its architecture, ``timm:NAME@folder`` or ``package.module:factory@folder``. The libraries' own
    loaders do not know what was folded, and should not be used on it.

    Args:
        model: The folded network.
        path: The folder, whole or not at all.
        like: A folder whose tokenizer, licence and other configuration to copy along.
        force: Replace what this function wrote there. Anything else is never replaced.

    Raises:
        WiringError: if the network is not a folded one, or one whose code comes with it.
        FileError: if ``path`` exists, or cannot be written.
    """
    folding = folding_of(model)
    if as_path(path).suffix == ".safetensors":
        raise FileError(f"A folded network is saved as a folder, found {path}; give a name without .safetensors.")
    library = sys.modules["transformers"] if is_transformers_model(model) else None
    _refuse_what_cannot_be_built(model, library)
    with tempfile.TemporaryDirectory() as made:
        beside = Path(made)
        if like is not None:
            source = as_path(like)
            if not source.is_dir():
                raise FileError(f"like= names a folder to copy a tokenizer from, and {source} is none; leave it out.")
            copy_companions([name for name in find_companions(source) if name != FOLDING], source, beside)
        if library is not None:
            _write_configuration(model, beside)
        write_folding(beside, folding, None if library is None else library.__version__)
        write_checkpoint(path, model.state_dict(), like=beside, force=force)


def _refuse_what_cannot_be_built(model: nn.Module, library: Any) -> None:
    if hasattr(model, "peft_config"):
        raise WiringError(
            f"{type(model).__name__} has an adapter on it, which a folded network is not saved with; merge it first "
            "(merge_and_unload()), and fold that."
        )
    if library is not None and not hasattr(library, type(model).__name__):
        raise WiringError(
            f"{type(model).__name__} is not a class of transformers {library.__version__}, so that nothing could build "
            "it again from a folder; save its weights with a factory: package.module:factory@folder."
        )


def _write_configuration(model: Any, folder: Path) -> None:
    settings: Mapping[str, Any] = model.config.to_dict()
    write_document(folder / "config.json", {**settings, "architectures": [type(model).__name__]})
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        write_document(folder / "generation_config.json", generation.to_dict())
