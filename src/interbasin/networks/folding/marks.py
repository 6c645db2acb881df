"""The file beside the weights of a folded network that says what was folded."""

from __future__ import annotations

from pathlib import Path

from interbasin.errors import CheckpointError, FileError
from interbasin.networks.checkpoints import Checkpoint
from interbasin.networks.checkpoints.faults import read_json
from interbasin.networks.folding.folding import Folding
from interbasin.storage import FORMAT_PREFIX, write_document

__all__ = ["FOLDING", "is_folded", "read_folding", "write_folding"]

# Among the configurations, so that what copies those copies it too.
FOLDING = "folding_config.json"
FORMAT, VERSION = FORMAT_PREFIX + "folding", 1


def write_folding(folder: Path, folding: Folding, transformers: str | None) -> None:
    """Write the mark into a folder that is being filled, with the version of transformers for its networks."""
    document = {"format": FORMAT, "version": VERSION, "transformers": transformers, **folding.to_json()}
    write_document(folder / FOLDING, document)


def is_folded(checkpoint: Checkpoint) -> bool:
    """Whether weights are those of a folded network."""
    return checkpoint.folder is not None and (checkpoint.folder / FOLDING).is_file()


def read_folding(folder: Path) -> tuple[Folding, str | None]:
    """What was folded in the network that a folder holds, and the version of transformers it was saved with.

    Raises:
        CheckpointError: if that is damaged, or of a later version.
    """
    path = folder / FOLDING
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise CheckpointError(
            f"{path} should be of the format {FORMAT}, version {VERSION}, found {document.get('format')!r}, version "
            f"{document.get('version')!r}; save the network again, or use the version that saved it."
        )
    try:
        version = document.get("transformers")
        return Folding.from_json(document), None if version is None else str(version)
    except FileError as error:
        raise CheckpointError(f"{path} is damaged ({error}); save the network again.") from error
