"""Networks on disk, as merging reads them: names and shapes at once, numbers a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol

from interbasin.errors import CheckpointError
from interbasin.jobs.merge.numbers import Array
from interbasin.networks.checkpoints.checkpoint import Checkpoint, Entry
from interbasin.networks.checkpoints.lora import refuse_factors
from interbasin.networks.checkpoints.opening import open_checkpoint

__all__ = ["Network", "StoredNetwork", "open_network"]


class Network(Protocol):
    """What merging asks of a network. One whose tensors are carried into other coordinates as they are read will do."""

    @property
    def label(self) -> str:
        """What messages call it."""
        ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All its tensors, tied names included."""
        ...

    @property
    def ties(self) -> Mapping[str, str]:
        """Name -> name of the tensor that it stands for."""
        ...

    def bytes_of(self, name: str) -> Array:
        """A tensor, as the bytes it is stored in."""
        ...

    def reading(self, name: str) -> AbstractContextManager[Callable[[int, Array], Array]]:
        """The same a stretch at a time; see `Checkpoint.reading`."""
        ...


@dataclass(frozen=True)
class StoredNetwork:
    """A checkpoint as it is, or carried into other coordinates: then ``carried`` has the bytes of its tensors."""

    label: str
    checkpoint: Checkpoint
    entries: Mapping[str, Entry]
    carried: Mapping[str, Array] | None = None

    @property
    def ties(self) -> Mapping[str, str]:
        return self.checkpoint.ties

    def bytes_of(self, name: str) -> Array:
        return self.checkpoint.bytes_of(name) if self.carried is None else self.carried[name]

    def reading(self, name: str) -> AbstractContextManager[Callable[[int, Array], Array]]:
        if self.carried is None:
            return self.checkpoint.reading(name)
        held = self.carried[name]

        def read(start: int, room: Array) -> Array:
            room[:] = held[start : start + len(room)]
            return room

        return nullcontext(read)


def open_network(given: str | PathLike[str] | Checkpoint) -> StoredNetwork:
    """The weights of a MODEL: a folder, a file, ``NAME@weights``, or a checkpoint that is open already.

    Raises:
        CheckpointError: if there are none, or they are quantised or those of an adapter.
        DataError: if they are the factors of an adapter.
    """
    found = given if isinstance(given, Checkpoint) else open_checkpoint(_behind(given))
    if found.adapter is not None:
        kind = "a LoRA" if found.adapter.is_lora else f"an adapter ({found.adapter.method})"
        of = f" of {found.adapter.base}" if found.adapter.base else ""
        raise CheckpointError(
            f"{found.path} is {kind}{of} and not a network, and its factors cannot be merged one by one; merge it into "
            "its base first (PEFT: model.merge_and_unload(), then save_pretrained) and give that folder."
        )
    refuse_factors(str(found.path), found)
    return StoredNetwork(str(found.path), found, {name: found.entry(name) for name in found})


def _behind(given: str | PathLike[str]) -> str | PathLike[str]:
    """The weights of a MODEL that names an architecture as well, which is of no use here."""
    if isinstance(given, str) and "@" in given and not Path(given).exists():
        return given.partition("@")[2]
    return given
