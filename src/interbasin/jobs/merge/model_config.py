"""What lies beside the weights: whether configurations are of one architecture, and in what they differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from interbasin.checkpoints.faults import listed, read_json
from interbasin.errors import WiringError
from interbasin.storage import write_document

__all__ = ["compare_configurations", "note_dtype"]

CONFIGURATION = "config.json"
# Settings that change nothing in what a network computes.
BESIDES = {
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "_commit_hash",
    "finetuning_task",
    "id2label",
    "label2id",
    "task_specific_params",
}
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def compare_configurations(folders: Sequence[Path]) -> list[str]:
    """What a reader of the result should know of the configurations and tokenizers in these folders.

    Raises:
        WiringError: if they are of different architectures, though their tensors are called the same.
    """
    configured = [
        (folder, read_json(folder / CONFIGURATION)) for folder in folders if (folder / CONFIGURATION).is_file()
    ]
    remarks = []
    for folder, settings in configured[1:]:
        first, expected = configured[0]
        if settings.get("model_type") != expected.get("model_type"):
            raise WiringError(
                f"{first} is of the architecture {expected.get('model_type')} and {folder} of "
                f"{settings.get('model_type')}, which compute differently though their tensors are alike; if they may "
                "be merged, give the weights' files themselves, for which no configuration is read."
            )
        # A setting that is left out stands for a default that is not known here.
        shared = sorted((expected.keys() & settings.keys()) - BESIDES)
        differing = [key for key in shared if json.dumps(expected[key]) != json.dumps(settings[key])]
        if differing:
            remarks.append(
                f"The configurations of {first} and {folder} differ in {listed(differing)}; the merged network has the "
                "first one's."
            )
    for folder in folders[1:]:
        if any(_bytes(folder / name) != _bytes(folders[0] / name) for name in VOCABULARIES):
            remarks.append(
                f"The tokenizers of {folders[0]} and {folder} differ; the merged network has the first one's."
            )
    return remarks


def note_dtype(folder: Path, kind: str) -> None:
    """Have the configuration in ``folder`` say which dtype the weights beside it are in; loaders go by that."""
    path = folder / CONFIGURATION
    if path.is_file():
        settings = read_json(path)
        keys = [key for key in ("dtype", "torch_dtype") if key in settings] or ["torch_dtype"]
        write_document(path, settings | dict.fromkeys(keys, kind))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
