"""The state of a recording that is under way, so that a run that was killed goes on where it stopped.

It holds the sums, exactly, how many batches are in them, a hash over those batches, and what was asked for. A run that
goes on reads the same batches again without calling the networks, and refuses to if they are others.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.batches import whole_number
from interbasin.errors import DataError, FileError
from interbasin.networks.recording.distributed import rank, world_size
from interbasin.networks.recording.recording import HOLDS, load_sums, save_sums
from interbasin.networks.wiring.admission import named_tensors
from interbasin.statistics.accumulation import Accumulator
from interbasin.storage import as_path, refuse_what_is_in_the_way

__all__ = ["Kept", "State", "digest_of", "weights_of"]

Result = TypeVar("Result")
ATTEMPTS = 5
SAMPLES = 256  # entries of a tensor that its hash holds as they are


@dataclass(frozen=True)
class Kept:
    """What a state holds."""

    sums: list[Accumulator]
    batches: int
    digest: str


def weights_of(model: nn.Module) -> dict[str, str]:
    """What tells a network from another: the classes of its modules, and a cheap hash of its tensors."""
    modules = "; ".join(f"{name} {type(one).__qualname__}" for name, one in model.named_modules())
    return {
        "class": type(model).__name__,
        "modules": hashlib.sha256(modules.encode()).hexdigest(),
        "tensors": digest_of(named_tensors(model)),
    }


class State:
    """A folder that is written every so often; each process has its own inside it."""

    def __init__(self, folder: str | os.PathLike[str], request: dict[str, Any], every: int) -> None:
        if whole_number(every) < 1:
            raise DataError(f"The state is saved every so many batches, found every={every!r}; give at least one.")
        self.folder = as_path(folder)
        if world_size() > 1:
            self.folder = self.folder / f"process-{rank()}-of-{world_size()}"
        self.request = request
        self.every = every

    def load(self) -> Kept | None:
        """What there is to go on from, or None.

        Raises:
            DataError: if it is the state of another request.
            FileError: if something else is in the way.
        """
        return _patiently(self._load)

    def _load(self) -> Kept | None:
        if not (self.folder / "recording.json").exists():
            if self.folder.is_dir() and any(self.folder.iterdir()):
                raise FileError(
                    f"Asked to keep the state of a recording in {self.folder}, but that folder holds other things; "
                    "choose another."
                )
            refuse_what_is_in_the_way(self.folder, HOLDS, force=True)
            return None
        sums, notes = load_sums(self.folder)
        asked = notes.get("request")
        if asked != self.request:
            parts = asked if isinstance(asked, dict) else {}
            differing = [name for name, value in self.request.items() if parts.get(name) != value]
            raise DataError(
                f"The state in {self.folder} belongs to another recording: it differs in {', '.join(differing)}; "
                "choose another folder, or remove it to start anew."
            )
        refuse_what_is_in_the_way(self.folder, HOLDS, force=True)
        try:
            return Kept(sums, int(notes["batches"]), str(notes["digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"The state in {self.folder} is damaged ({error}); remove it to start anew.") from error

    def save(self, kept: Kept) -> None:
        """Write the state in place of the last one."""
        notes = {"request": self.request, "batches": kept.batches, "digest": kept.digest}
        _patiently(lambda: save_sums(self.folder, kept.sums, notes, force=True))


def _patiently(act: Callable[[], Result]) -> Result:
    """The result of ``act``, which is tried again if another run put its state in place at the same moment.

    Two runs of the same recording may share a folder: each state is whole, and any of them can be gone on from.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return act()
        except FileError:
            time.sleep(0.02 * 2**attempt)
    return act()


def digest_of(value: Any, before: str = "") -> str:
    """A hash of a batch, or of weights: of each tensor the shape, a sample, and the sum of all its bits.

    Hashing every byte would take longer than many a forward pass. The sum notices any one entry that has changed, the
    sample that entries have changed places.
    """
    digest = hashlib.sha256(before.encode())
    for name, part in _parts(value, ""):
        if not isinstance(part, Tensor):
            digest.update(f"{name} {part!r};".encode(errors="backslashreplace"))
            continue
        digest.update(f"{name} {part.dtype} {tuple(part.shape)};".encode())
        if part.layout == torch.strided and not part.is_quantized and part.device.type != "meta":
            flat = part.detach().resolve_conj().resolve_neg().flatten()
            sample = flat[:: max(1, flat.numel() // SAMPLES)].cpu()
            digest.update(sample.contiguous().view(torch.uint8).numpy().tobytes())
            digest.update(f"{_sum_of_bits(flat)};".encode())
    return digest.hexdigest()


def _sum_of_bits(flat: Tensor) -> int:
    """The sum of all entries, read as whole numbers of the same size."""
    whole = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(whole.contiguous().view(kinds[whole.element_size()]).sum())


def _parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch and the plain values beside them, by name; nothing of other objects is compared."""
    if isinstance(value, Tensor) or value is None or isinstance(value, str | bool | int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _parts(part, f"{name}.{position}")
