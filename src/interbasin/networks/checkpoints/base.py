"""What weights on disk are, whatever the format: `Checkpoint`, and the `Source` of one file under it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from interbasin.errors import CheckpointError, UnknownNameError
from interbasin.networks.checkpoints.adapters import Adapter
from interbasin.networks.checkpoints.dtypes import torch_dtype
from interbasin.networks.checkpoints.faults import listed
from interbasin.text import plural

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
    Read: TypeAlias = Callable[[int, Bytes], Bytes]

__all__ = ["Checkpoint", "Entry", "Source"]


@dataclass(frozen=True)
class Entry:
    """What is known of a tensor before it is read.

    Attributes:
        kind: Its dtype by the name that torch has for it: ``"bfloat16"``.
        shape: Its sizes.
        itemsize: Bytes a number.
    """

    kind: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def dtype(self) -> torch.dtype:
        return torch_dtype(self.kind)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


class Source(Protocol):
    """What a format provides for one file."""

    @property
    def path(self) -> Path: ...

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors that the file holds, tied ones once."""
        ...

    @property
    def ties(self) -> Mapping[str, str]:
        """Further names -> the name of the tensor, in this file or another, that they stand for."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """What else the file says of itself."""
        ...

    @property
    def part(self) -> str | None:
        """Under which name the weights were, where the file holds more than them."""
        ...

    @property
    def prefix(self) -> str:
        """What was taken off all names."""
        ...

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names that hold no tensor."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor of that name, in memory of its own."""
        ...

    def bytes_of(self, name: str) -> Bytes:
        """The same as bytes, row by row: for those who get by without torch."""
        ...

    def reading(self, name: str) -> AbstractContextManager[Read]:
        """The same a stretch at a time; see `Checkpoint.reading`."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoint(Mapping[str, "Tensor"]):
    """A network's weights on disk, of which nothing is read but the names, dtypes and shapes.

    Made by `open_checkpoint`. A mapping of names to tensors: indexing reads that one tensor, on the CPU, into memory of
    its own, in the dtype it is stored in. Iterating and ``in`` read nothing.

    Attributes:
        path: What was opened: a file or a folder.
        kind: ``"safetensors"``, ``"torch"``, ``"sharded"`` (an index and several files) or ``"adapter"`` (of PEFT).
        sources: The file of every tensor, tied names left out.
        ties: Name -> name of the tensor that it stands for, for tied weights, which are stored once.
        metadata: Notes in the safetensors headers, text to text.
        folder: The folder, if one was opened; its configuration and tokenizer can be copied along.
        adapter: What ``adapter_config.json`` says, if this is an adapter.
        part: For a torch file that holds more than weights: under which name they were, for example ``"state_dict"``.
        prefix: For a torch file: what all names began with and was taken off, for example ``"module."``.
        left_out: For a torch file: names beside the weights that hold no tensor.
    """

    path: Path
    kind: str
    sources: Mapping[str, Source]
    ties: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    adapter: Adapter | None = None
    part: str | None = None
    prefix: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, tied ones included."""
        return (*self.sources, *self.ties)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with the weights, in the order of their names."""
        return tuple(sorted({source.path for source in self.sources.values()}))

    @property
    def numel(self) -> int:
        """How many numbers there are, tied ones once."""
        return sum(source.entries[name].numel for name, source in self.sources.items())

    @property
    def nbytes(self) -> int:
        """How many bytes they take, tied ones once."""
        return sum(source.entries[name].nbytes for name, source in self.sources.items())

    def entry(self, name: str) -> Entry:
        """Dtype and shape of the tensor of that name, without reading it.

        Raises:
            UnknownNameError: If there is none; lists the nearest.
        """
        stored = self._stored(name)
        return self.sources[stored].entries[stored]

    def dtype(self, name: str) -> torch.dtype:
        return self.entry(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entry(name).shape

    def bytes_of(self, name: str) -> Bytes:
        """The tensor of that name as the bytes it is stored in, in memory of their own; torch is not needed for it.

        Raises:
            UnknownNameError: If there is none; lists the nearest.
        """
        stored = self._stored(name)
        return self.sources[stored].bytes_of(stored)

    def reading(self, name: str) -> AbstractContextManager[Read]:
        """A function that reads stretches of the tensor of that name while the block lasts.

        It takes the first byte of the stretch and memory that it fills, and gives the same memory back.

        Raises:
            UnknownNameError: If there is none; lists the nearest.

        Example:
            >>> import tempfile, numpy, torch
            >>> from interbasin.networks import open_checkpoint, write_checkpoint
            >>> path = tempfile.mkdtemp() + "/some.safetensors"
            >>> write_checkpoint(path, {"x": torch.arange(8.0)})
            >>> with open_checkpoint(path).reading("x") as read:
            ...     print(read(5 * 4, numpy.empty(2 * 4, numpy.uint8)).view("float32"))
            [5. 6.]
        """
        stored = self._stored(name)
        return self.sources[stored].reading(stored)

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors, in memory; tied names share one."""
        tensors = {name: self[name] for name in self.sources}
        return tensors | {name: tensors[stored] for name, stored in self.ties.items()}

    def __getitem__(self, name: str) -> Tensor:
        stored = self._stored(name)
        return self.sources[stored].read(stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.sources) + len(self.ties)

    # What Mapping offers for these two reads the tensor, and expects a KeyError.
    def __contains__(self, name: object) -> bool:
        return name in self.sources or name in self.ties

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        size = f"{plural(len(self), 'tensor')}, {plural(self.numel, 'number')}"
        return f"Checkpoint({str(self.path)!r}, {self.kind}, {size})"

    def _stored(self, name: str) -> str:
        stored = self.ties.get(name, name) if isinstance(name, str) else None
        if stored is None or stored not in self.sources:
            near = difflib.get_close_matches(str(name), self.names, 5, cutoff=0.0)
            raise UnknownNameError.of(f"tensor in {self.path}", name, near)
        return stored


def gathered(path: Path, sources: list[Source]) -> tuple[dict[str, Source], dict[str, str], dict[str, str]]:
    """The tensors, ties and notes of several files, as a checkpoint wants them.

    Raises:
        CheckpointError: If two files hold the same tensor, or a tied name stands for nothing.
    """
    places: dict[str, Source] = {}
    for source in sources:
        twice = [name for name in source.entries if name in places]
        if twice:
            raise CheckpointError(
                f"{path} has {listed(twice)} twice, in {places[twice[0]].path.name} and in {source.path.name}; "
                "remove the files that do not belong to it, or save it again."
            )
        places |= dict.fromkeys(source.entries, source)
    ties = {name: stored for source in sources for name, stored in source.ties.items()}
    lost = [name for name, stored in ties.items() if stored not in places or name in places]
    if lost:
        raise CheckpointError(
            f"{path} says that {listed(lost)} is tied to {ties[lost[0]]}, which does not fit the tensors it holds; "
            "save it again with the program that wrote it."
        )
    return places, ties, {key: value for source in sources for key, value in source.metadata.items()}
