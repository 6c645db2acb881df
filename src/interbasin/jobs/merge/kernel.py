"""The arithmetic of a merge: one tensor of every network, chunk by chunk -> the merged tensor; without torch.

Merging is bound by memory and not by arithmetic. It goes over chunks that fit in a cache, so that no tensor need be in
memory as a whole. NumPy is as fast as torch at that, and is imported in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from interbasin.checkpoints.checkpoint import CODES, KINDS, Entry, LazyTensors, require_same_tensors
from interbasin.checkpoints.lora import refuse_factors
from interbasin.errors import DataError, WiringError
from interbasin.text import list_names

if TYPE_CHECKING:
    from torch import Tensor

    from interbasin.jobs.merge.methods import Recipe

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Precision: TypeAlias = "type[np.floating[Any]]"

CHUNK = 1 << 16  # numbers

# Kind -> how NumPy holds it: bfloat16, which it lacks, as its bits, and complex numbers as pairs of real ones.
STORED: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.float32,
    "complex128": np.float64,
}
# The largest number that each can hold.
LARGEST = {kind: float(np.finfo(dtype).max) for kind, dtype in STORED.items() if kind != "bfloat16"}
LARGEST["bfloat16"] = float(2**127 * (2 - 2**-7))

# What a batch norm of torch calls the mean and variance of the batches it was trained on.
RUNNING = ("running_mean", "running_var")
MERGED_LIKE_WEIGHTS = (
    "are running statistics of batch norms, merged like weights, which fits no network in between; estimate them anew "
    "with reset= (--data DATA --reset 20)"
)
COUNTS_DIFFER = "holds no real numbers and differs; it was taken from one model"


class MergedTensors(LazyTensors):
    """The tensors of a merged network, each computed when it is asked for.

    Args:
        networks: What messages call each network, and its tensors; the base, if there is one, last.
        recipe: How to merge.
        kind: The dtype of the result; None to keep the first model's, tensor by tensor.
        progress: Called with the number of tensors that are done.

    Attributes:
        unchanged: How many tensors were the same everywhere, of those that are done.
        replaced: Tensors that are known already, as bytes, and not merged.

    Raises:
        WiringError, ShapeError, DataError: if the networks are not made of the same tensors, one holds factors of a
            LoRA, or what is tied in the first differs in another.
    """

    def __init__(
        self,
        networks: Sequence[tuple[str, LazyTensors]],
        recipe: Recipe,
        kind: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        for network, tensors in networks:
            refuse_factors(network, tensors)
        require_same_tensors(networks, "merged")
        _require_same_ties(networks)
        self._networks, self._recipe, self._progress = networks, recipe, progress
        first = networks[0][1]
        self.ties = first.ties
        self.entries = dict(first.entries)
        if kind is not None:
            for name, entry in first.entries.items():
                if entry.kind in STORED and not entry.kind.startswith("complex"):
                    self.entries[name] = Entry(kind, entry.shape, KINDS[CODES[kind]][1])
        self.unchanged = self._done = 0
        self.replaced: Mapping[str, Array] = {}
        self._notes: dict[str, list[str]] = {}

    @property
    def notes(self) -> list[str]:
        """Sentences that a user of the network should know, about the tensors that are done."""
        return [f"{list_names(names)} {what}." for what, names in self._notes.items()]

    def chunks(self, name: str) -> Iterator[Array]:
        """The merged tensor in pieces; a piece is good until the next is asked for.

        Raises:
            DataError: if a number comes out that is not finite, or that the dtype cannot hold.
        """
        name = self.stored_name(name)
        if name in self.replaced:
            yield self.replaced[name]
        elif self.entries[name].kind in STORED:
            yield from self._merge(name)
        else:
            yield self._count(name)
        self._done += 1
        if self._progress is not None:
            self._progress(self._done)

    def __getitem__(self, name: str) -> Tensor:
        from interbasin.checkpoints.in_memory import tensor_from  # with torch, which files do without

        return tensor_from(self.chunks(name), self.entry(name))

    def _merge(self, name: str) -> Iterator[Array]:
        with ExitStack() as files:
            operands = [
                Operand(tensors.entry(name), files.enter_context(tensors.reading(name)))
                for _, tensors in self._networks
            ]
            tensor = Operands(operands, self._recipe.has_base, name)
            combine = self._recipe.method.function(tensor, **self._recipe.options)
            networks = [network for network, _ in self._networks]
            yield from _merge_tensor(name, tensor, combine, self.entries[name].kind, networks)
        self.unchanged += not tensor.changed
        if tensor.changed and name.rpartition(".")[2] in RUNNING:
            self._notes.setdefault(MERGED_LIKE_WEIGHTS, []).append(name)
        for note in tensor.notes:
            self._notes.setdefault(note, []).append(name)

    def _count(self, name: str) -> Array:
        """A tensor without real numbers, such as positions or a counter."""
        kind = self.entries[name].kind
        alike = [tensors.bytes_of(name) for _, tensors in self._networks if tensors.entry(name).kind == kind]
        nearer = self._networks[self._recipe.nearer_model][1]
        if any(not np.array_equal(other, alike[0]) for other in alike[1:]):
            self._notes.setdefault(COUNTS_DIFFER, []).append(name)
        return nearer.bytes_of(name) if nearer.entry(name).kind == kind else alike[0]


def _require_same_ties(networks: Sequence[tuple[str, LazyTensors]]) -> None:
    """Refuse a network in which tensors differ that are tied in the first."""
    (first, tied), *others = networks
    for name, stored in tied.ties.items():
        for other, tensors in others:
            if (
                name in tensors
                and tensors.stored_name(name) != tensors.stored_name(stored)
                and not np.array_equal(tensors.bytes_of(name), tensors.bytes_of(stored))
            ):
                raise WiringError(
                    f"{name} is tied to {stored} in {first}, and in {other} they differ; put the other one first."
                )


class Operand:
    """The numbers of one tensor of one network, read chunk by chunk by what `LazyTensors.reading` gives."""

    def __init__(self, entry: Entry, read: Callable[[int, Array], Array]) -> None:
        self.kind = entry.kind  # a key of STORED
        self._read, self._dtype = read, np.dtype(STORED[entry.kind])
        self.length: int = entry.nbytes // self._dtype.itemsize  # complex numbers count twice
        self._buffer = np.empty(CHUNK * self._dtype.itemsize, np.uint8)

    def take(self, part: slice) -> Array:
        """A chunk of the numbers as `STORED` says: not to be written to, and good until the next is taken."""
        size = self._dtype.itemsize
        return self._read(part.start * size, self._buffer[: (part.stop - part.start) * size]).view(self._dtype)

    def wide(self, part: slice, precision: Precision) -> Array:
        """The same in that precision; not to be written to either."""
        return widen(self.take(part), self.kind, precision)


@dataclass(frozen=True, eq=False)
class Chunk:
    """A chunk of a tensor of every model and, if there is one, of the base; in one precision, not to be changed."""

    models: Sequence[Array]
    base: Array | None = None

    def updates(self) -> Iterator[Array]:
        """What each model adds to the base, in new memory."""
        assert self.base is not None
        for model in self.models:
            yield model - self.base


# Merges a chunk. Chunks come in order, each once, without those that are the same in all networks.
Combine: TypeAlias = Callable[[Chunk], Array]


class Operands:
    """One tensor of every network, the base last if there is one: what a method of merging is given.

    Attributes:
        name: What messages call it.
        models: Those of the models.
        base: That of the network that they were all made from; None for methods without one.
        length: How many numbers it has.
        precision: The precision to calculate in: that of the widest, but float32 at least.
        notes: What a user should know of this tensor: ends of sentences that begin with the names of such tensors.
        changed: Whether anything in it differs between the networks, as far as it was merged.
    """

    def __init__(self, operands: Sequence[Operand], has_base: bool, name: str) -> None:
        self.name, self.operands, self.length = name, operands, operands[0].length
        self.models = operands[:-1] if has_base else operands
        self.base = operands[-1] if has_base else None
        wide = any(STORED[operand.kind] is np.float64 for operand in operands)
        self.precision: Precision = np.float64 if wide else np.float32
        self.notes: list[str] = []
        self.changed = False


def _merge_tensor(name: str, tensor: Operands, combine: Combine, kind: str, networks: Sequence[str]) -> Iterator[Array]:
    """The merged tensor in the dtype ``kind``, chunk by chunk; a chunk is good until the next is asked for.

    What is the same in all networks is taken as it is: merging it could only round it, and it need not be finite, as
    masks are not.
    """
    operands, precision = tensor.operands, tensor.precision
    first, alike = operands[0].kind, len({operand.kind for operand in operands}) == 1
    for part in slices(tensor.length):
        stored = [operand.take(part) for operand in operands]
        if not (alike and _all_the_same(stored)):
            wide = [widen(numbers, operand.kind, precision) for numbers, operand in zip(stored, operands, strict=True)]
            # What overflows is refused below, in words.
            with np.errstate(over="ignore", invalid="ignore"):
                values = combine(Chunk(wide) if tensor.base is None else Chunk(wide[:-1], wide[-1]))
            tensor.changed = True
        elif first == kind:
            yield stored[0]
            continue
        else:
            values = widen(stored[0], first, precision)
        # Comparisons with NaN are false, so this finds all that is not finite as well.
        # As numbers of Python: NumPy would round the largest float64 to a narrower kind, where it is infinity.
        if not (float(values.max()) <= LARGEST[kind] and float(values.min()) >= -LARGEST[kind]):
            raise _cannot_hold(name, tensor, kind, networks)
        yield narrow(values, kind)


class WeightedSum:
    """The sum of weight times array. The next sum overwrites it: to ask for new memory would cost most of the time."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights
        self.total = self.term = np.empty(0)

    def __call__(self, arrays: Sequence[Array]) -> Array:
        length, dtype = len(arrays[0]), arrays[0].dtype
        if len(self.total) < length:
            self.total, self.term = np.empty(length, dtype), np.empty(length, dtype)
        total, term = self.total[:length], self.term[:length]
        np.multiply(arrays[0], self.weights[0], out=total)
        for array, weight in zip(arrays[1:], self.weights[1:], strict=True):
            np.multiply(array, weight, out=term)
            total += term
        return total


def slices(length: int) -> Iterator[slice]:
    """Slices of a chunk's length that cover so many numbers, one after the other."""
    for start in range(0, length, CHUNK):
        yield slice(start, min(start + CHUNK, length))


def widen(stored: Array, kind: str, precision: Precision) -> Array:
    """Stored numbers in that precision."""
    if kind == "bfloat16":  # the upper half of a float32
        bits = stored.astype(np.uint32)
        bits <<= 16
        stored = bits.view(np.float32)
    return stored.astype(precision, copy=False)


def narrow(values: Array, kind: str) -> Array:
    """Numbers as they are stored: rounded to the nearest, ties to even.

    Example:
        >>> [hex(bits) for bits in narrow(np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8]), "bfloat16")]
        ['0x3f80', '0x3f80', '0x3f82']
    """
    if kind != "bfloat16":
        return values.astype(STORED[kind], copy=False)
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += bits
    rounded += 0x7FFF
    rounded >>= 16
    return rounded.astype(np.uint16)


def _all_the_same(stored: Sequence[Array]) -> bool:
    """Whether these are the same bit by bit, so that NaN is the same as itself."""
    first, *others = (numbers.view(f"u{numbers.itemsize}") for numbers in stored)
    # Most differ in their first numbers, and need not be compared whole.
    return all(np.array_equal(other[:16], first[:16]) and np.array_equal(other, first) for other in others)


def _cannot_hold(name: str, tensor: Operands, kind: str, networks: Sequence[str]) -> DataError:
    for network, operand in zip(networks, tensor.operands, strict=True):
        for part in slices(operand.length):
            values = operand.wide(part, tensor.precision)
            largest = LARGEST[operand.kind]
            if not (float(values.max()) <= largest and float(values.min()) >= -largest):
                return DataError(f"{name} in {network} holds NaN or infinity; repair or leave out that network.")
    remedy = (
        "ask for another dtype, such as bfloat16 or float32"
        if kind == "float16"
        else "choose smaller weights, or a scale or t nearer to 0"
    )
    return DataError(f"{name} comes out larger than {kind} can hold ({LARGEST[kind]:.4g}); {remedy}.")
