"""The folder of a folded network, as far as weights go: what it holds for transformers alone, or what keeps that away.

A folded network has no gains in the norms whose gains went into other layers. The class of transformers that it came
from has, and reads such a folder in one of two ways:

- It has a place for all that is stored. Then *fillers* stand beside the weights, gains of one and biases of zero, with
  which the class computes the same. `open_checkpoint` leaves them out, and the writer puts them in again.
- It has none, for the bias of a head for instance. It would drop that, warn at most, and compute something else. Then
  the weights are in ``folded_model.safetensors``, which no loader of transformers looks for, and the architecture in
  the configuration is one that nobody has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interbasin.checkpoints.checkpoint import Checkpoint, Entry, read_json
from interbasin.errors import CheckpointError
from interbasin.storage import write_document

if TYPE_CHECKING:
    from interbasin.checkpoints.checkpoint import Bytes

# Among the configurations, so that what copies those copies it too.
FOLDING = "folding_config.json"
CONFIGURATION = "config.json"
STEM = "folded_model"  # in place of "model"
ARCHITECTURE = "Folded"  # before the name of the class
FILLERS, CENTRED = "fillers", "centred"
DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Filler:
    """A tensor that is the same number everywhere.

    Attributes:
        value: One for a gain, zero for a bias and for the gain of a norm that adds one to it.
        width: How many times.
    """

    value: int
    width: int

    def stored_as(self, kind: str) -> Bytes:
        """Its bytes in a dtype, by torch's name of it."""
        if kind == "bfloat16":  # which NumPy does not have: the upper half of a float32
            halves = np.full(self.width, self.value, "<f4").view(np.uint16)[1::2]
            return np.ascontiguousarray(halves).view(np.uint8)
        return np.full(self.width, self.value, kind).view(np.uint8)


@dataclass(frozen=True)
class FoldedFolder:
    """What the mark in a folder says about its weights.

    Attributes:
        fillers: Name -> what transformers needs beside the weights; None if its class cannot hold the network.
        centred: Whether norms took the mean of their streams away, which folding does in the weights. Layer norms of
            transformers do it again, which changes nothing as long as there is none; in a stream that was turned, or
            whose weights were changed, there is. So only `save_folded`, which tries it, writes such fillers.
    """

    fillers: Mapping[str, Filler] | None = None
    centred: bool = False

    @classmethod
    def read(cls, folder: Path) -> FoldedFolder | None:
        """What a folder says; None if its network is not folded.

        Raises:
            CheckpointError: if the mark is damaged.
        """
        if not (folder / FOLDING).is_file():
            return None
        document = read_json(folder / FOLDING)
        named = document.get(FILLERS)
        if named is None:
            return cls()
        try:
            fillers = {name: Filler(*fields) for name, fields in named.items()}
        except (AttributeError, TypeError):
            fillers = {"": Filler(0, 0)}
        if not all(_is_sound(filler) for filler in fillers.values()):
            raise CheckpointError(f"{folder / FOLDING} is damaged in what it calls {FILLERS}; save the network again.")
        return cls(fillers, document.get(CENTRED) is not False)

    def to_json(self) -> dict[str, Any]:
        fillers = None if self.fillers is None else {name: [one.value, one.width] for name, one in self.fillers.items()}
        return {FILLERS: fillers, CENTRED: self.centred}


def _is_sound(filler: Filler) -> bool:
    return type(filler.value) is int and filler.value in (0, 1) and type(filler.width) is int and filler.width > 0


def is_folded(checkpoint: Checkpoint) -> bool:
    """Whether weights are those of a folded network."""
    return checkpoint.folder is not None and (checkpoint.folder / FOLDING).is_file()


def without_fillers(checkpoint: Checkpoint) -> Checkpoint:
    """The weights of a folder alone, after a look at the fillers among them.

    Raises:
        CheckpointError: if a filler holds other numbers: somebody gave the norms gains again.
    """
    folded = None if checkpoint.folder is None else FoldedFolder.read(checkpoint.folder)
    fillers = {} if folded is None or folded.fillers is None else folded.fillers
    present = {name: filler for name, filler in fillers.items() if name in checkpoint.entries}
    for name, filler in present.items():
        entry = checkpoint.entries[name]
        fits = entry.shape == (filler.width,) and entry.kind in DTYPES
        if not fits or not np.array_equal(checkpoint.bytes_of(name), filler.stored_as(entry.kind)):
            raise CheckpointError(
                f"{checkpoint.path} says in {FOLDING} that norms are folded and {name} is {filler.value} throughout, "
                "but other numbers are stored there: the weights were changed since. Remove that file to open them as "
                "those of a network that is not folded."
            )
    if not present:
        return checkpoint
    kept = {name: entry for name, entry in checkpoint.entries.items() if name not in present}
    return replace(checkpoint, entries=kept, sources={name: checkpoint.sources[name] for name in kept})


@dataclass
class FillersToWrite:
    """Follows the names that are written into a folder like a folded one, and says what is to be written after them."""

    folded: FoldedFolder | None
    _missing: dict[str, Filler] = field(default_factory=dict)
    _kind: str = "float32"

    def __post_init__(self) -> None:
        self._missing = dict((self.folded and self.folded.fillers) or {})

    def follow(self, name: str, entry: Entry) -> None:
        """A tensor is written."""
        self._missing.pop(name, None)
        if entry.kind in DTYPES:
            self._kind = entry.kind

    def rest(self) -> Iterator[tuple[str, Entry, Bytes]]:
        """The fillers that were not among the tensors, in the dtype of those; none where they would not hold."""
        if self.folded is None or self.folded.centred:
            return
        for name, filler in list(self._missing.items()):
            stored = filler.stored_as(self._kind)
            del self._missing[name]
            yield name, Entry(self._kind, (filler.width,), stored.nbytes // filler.width), stored

    @property
    def keeps_away(self) -> bool:
        """Whether transformers has to be kept from what was written."""
        return self.folded is not None and (self.folded.fillers is None or bool(self._missing))


def refuse_to_transformers(folder: Path) -> None:
    """Have the configuration in ``folder`` name an architecture that nobody has."""
    path = folder / CONFIGURATION
    if path.is_file():
        settings = read_json(path)
        named = settings.get("architectures")
        name = str(named[0]) if isinstance(named, list) and named else ""
        write_document(path, settings | {"architectures": [ARCHITECTURE + name.removeprefix(ARCHITECTURE)]})


def without_refusal(settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration of a folded network with the architecture that it was folded from."""
    named = settings.get("architectures")
    if not isinstance(named, list):
        return settings
    names = [str(name).removeprefix(ARCHITECTURE) for name in named]
    return settings | {"architectures": [name for name in names if name]}


def describe_folder(folder: Path, network: str) -> str | None:
    """What a user should know of a folder that was written, if its network is folded: whether transformers loads it.

    Args:
        folder: Where it is now.
        network: How the sentence calls it.
    """
    if not (folder / FOLDING).is_file():
        return None
    words = f"{network} is folded: the gains of its norms are in the layers that read them."
    if not (folder / CONFIGURATION).is_file():
        return f"{words} Only interbasin builds it again."
    if any(folder.glob(f"{STEM}*.safetensors")):
        return (
            f"{words} Its class of transformers has no place for all of it, and would compute something else. So "
            f"transformers refuses the folder ({STEM}.safetensors); load it as a MODEL of interbasin, or by load_model."
        )
    return f"{words} Ones stand in their places, with which transformers loads the folder and computes the same."
