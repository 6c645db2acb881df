"""Theseus for networks that are larger than memory: a few spaces at a time, then the update a tensor at a time.

Weights stay in their files, where networks read them (`interbasin.models.map_weights`). The data are read once for as
many spaces as the memory allows; the maps of those go to disk before the next have their turn. Then the update is
carried a tensor at a time, and written as it comes. What is held at once is bounded by the memory that was allowed, the
largest tensors and one batch's activations, and not by the size of a network.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.batches import WithoutLabels, outputs_of, require_reiterable
from interbasin.checkpoints import write_checkpoint
from interbasin.checkpoints.delta import add
from interbasin.checks import require_choice, require_finite, require_whole
from interbasin.correspondence import Correspondence
from interbasin.errors import FileError
from interbasin.jobs.transport.bases import Bases, Depth, Heads, Outputs, Pair, relate
from interbasin.jobs.transport.theseus.carrier import Carrier, Moved
from interbasin.jobs.transport.theseus.heads import HeadCluster
from interbasin.jobs.transport.theseus.maps import Sought, fit_maps, observe, seek
from interbasin.jobs.transport.theseus.rules import How, Seen, SpaceMap, Unobserved, procrustes
from interbasin.jobs.transport.updates.reading import FILE, FOLDER
from interbasin.jobs.transport.updates.update import Update
from interbasin.maps import Map
from interbasin.maps.files import load
from interbasin.storage import as_path
from interbasin.text import plural

MEMORY = 2**30
NUMBER = 8  # bytes of a float64, in which statistics are kept and maps are fitted
# Matrices of a pair of spaces that are there at once while its moments grow, and while its map is fitted; measured.
GROWING, FITTING = 3, 8
# Bytes for each number of a tensor while it is carried: both networks' and their difference, and that in float64.
READING, CARRYING = 12, 24


@dataclass(frozen=True)
class Stages:
    """How a transport on disk goes about it, and what that takes.

    Attributes:
        passes: The pairs of spaces, or of places, that are recorded in each pass over the data.
        memory: About how many bytes are held at once, beside a batch's activations; what lies in files does not count.
        seconds: About how long it takes.
    """

    passes: tuple[tuple[Pair, ...], ...]
    memory: int
    seconds: float

    def __str__(self) -> str:
        times = plural(len(self.passes), "pass", "passes")
        return f"{times} over the data, about {self.memory / 1e6:,.0f} MB and {self.seconds:,.0f} s"


@dataclass(frozen=True, eq=False)
class Written:
    """What a transport on disk left.

    Attributes:
        moved: What became of each tensor of the source's update.
        stages: What was estimated before.
        folder: Where the update, and the model where that was asked for, were written to.
        notes: What a user should know.
    """

    moved: tuple[Moved, ...]
    stages: Stages
    folder: Path
    notes: tuple[str, ...] = ()


def transport_on_disk(
    source: nn.Module,
    tuned: Any,
    target: nn.Module,
    data: Any,
    folder: str | os.PathLike[str],
    *,
    alpha: float = 1.0,
    memory: int = MEMORY,
    model: bool = False,
    like: str | os.PathLike[str] | None = None,
    base: str | os.PathLike[str] | None = None,
    scale: str = "none",
    outputs: Outputs = "auto",
    centered: bool = True,
    tokens: str | Tokens | None = "interpolate2d",
    mask: MaskOf = None,
    unobserved: Unobserved = "complete",
    heads: Heads = "auto",
    depth: Depth = "auto",
    correspondence: Correspondence | Mapping[str, Any] | None = None,
    dry_run: bool = False,
    force: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Written:
    """Carry a fine-tune of ``source`` to ``target`` by Theseus and write it, in bounded memory. Nothing is judged.

    Give networks whose weights lie in files (`interbasin.models.map_weights`), and ``tuned`` as a path. What is
    written is what `prepare_transport` and ``apply`` give, to rounding.

    Args:
        source, target: The base models.
        tuned: The fine-tune of the source, as for `interbasin.transport`.
        data: Inputs, without labels or with. They are read once for each pass.
        folder: For ``update.safetensors``, or ``adapter`` if the fine-tune is a LoRA; it is made where there is none.
        alpha: What the update is multiplied with.
        memory: Bytes that statistics and maps may take at once. Less means more passes over the data.
        model: Also write the target with the update, to ``folder/model``; ``like`` is the checkpoint whose
            configuration and tokenizer are copied along.
        base: The MODEL that the update belongs to, for those who load it.
        dry_run: Only estimate: `Written.stages` says what it would take, and nothing is written.
        force: Replace what this wrote there before.
        progress: Called with a line of text on the way; the first says what it will take.
        scale, outputs, centered, tokens, mask, unobserved, heads, depth, correspondence: As for
            `interbasin.transport`.

    Raises:
        DataError: If alpha or the memory is no number that can be, and as `interbasin.transport` does.
        FileError: If something is in the way.

    Example:
        >>> nets = [nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 2)) for n in (8, 12)]
        >>> folder = tempfile.mkdtemp()
        >>> written = transport_on_disk(nets[0], {"2.bias": torch.ones(2)}, nets[1], torch.randn(64, 4), folder)
        >>> Update.of(folder, nets[1]).tensor("2.bias")
        tensor([1., 1.])
    """
    alpha = require_finite("alpha", alpha, least=-100, most=100)
    require_whole("memory", memory, least=1)
    require_choice("scale", scale, ("none", "rms"))
    require_reiterable(data, "Transport")
    report = progress or (lambda text: None)
    update = Update.of(tuned, source)
    bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
    update = bases.lengthen(update)
    sought = seek(bases)
    stages = _plan(bases, sought, update, data, memory)
    report(str(stages))
    place = as_path(folder)
    for name in (FILE, FOLDER, "model") if not force else ():
        if (place / name).exists():
            raise FileError(f"{place / name} exists already; choose another folder, or ask for it with force=True.")
    if dry_run:
        return Written((), stages, place, update.notes)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".maps-", dir=place) as shelf:
        maps = StoredMaps(Path(shelf), memory // 2)
        maps.keep(fit_maps(bases, Sought({}, (), {}), {}))  # what the networks share
        how = How(procrustes, unobserved, scale == "rms")
        gathered = _Gathered(bases, sought, how)
        for number, pairs in enumerate(stages.passes):
            report(f"pass {number + 1} of {len(stages.passes)} over the data")
            moments = observe(bases, data, pairs, tokens=tokens, mask=mask, grams=False)
            for pair in pairs:
                for fitted in gathered.add(pair, Seen.of(moments.pop(pair), centered=centered)):
                    maps.keep(fitted)
        report("carrying the update, a tensor at a time")
        carried = Carrier(bases, maps, sought.missing).carry(update, lazily=True)
        delta = carried.update if alpha == 1 else carried.update.scaled(alpha)
        where = place / FOLDER if delta.is_low_rank else place
        notes = delta.write(where, base=base, model=target, force=force)
        if model:
            write_checkpoint(place / "model", add(target, delta.tensors), like=like, force=force)
    return Written(carried.moved, stages, place, (*update.notes, *notes))


# ---------------------------------------------------------------------- what it takes


def _plan(bases: Bases, sought: Sought, update: Update, data: Any, memory: int) -> Stages:
    """Which spaces are recorded together, and an estimate of memory and time."""
    sizes = {pair: _size(bases, unit) for unit, pairs in _units(sought) for pair in pairs}
    passes: list[list[Pair]] = []
    room = 0
    for pair, size in sizes.items():
        if not passes or room < size:
            passes.append([])
            room = memory // 2
        passes[-1].append(pair)
        room -= size
    largest = max(sizes.values(), default=0)
    recording = max((sum(sizes[pair] for pair in pairs) for pairs in passes), default=0) + GROWING * largest
    fitting = recording + FITTING * largest
    tensors = [math.prod(update.shape(name)) for name in update.dense]
    biggest = max((tensor.numel() for tensor in bases.target.state_dict().values()), default=0)
    carrying = min(memory // 2, sum(sizes.values())) + READING * max(tensors, default=0)
    carrying += CARRYING * max(biggest, max(tensors, default=0))
    return Stages(tuple(map(tuple, passes)), max(fitting, carrying), _seconds(bases, sizes, len(passes), data))


def _seconds(bases: Bases, sizes: Mapping[Pair, int], passes: int, data: Any) -> float:
    """From the time of one batch through both networks, and of one product of matrices."""
    batches = WithoutLabels(data)
    inputs, count = batches.first(), sum(1 for _ in batches)
    began = time.perf_counter()
    with torch.no_grad():
        for network in (bases.source, bases.target):
            outputs_of(network, inputs, 0)
    forward = time.perf_counter() - began
    square = torch.eye(256, dtype=torch.float64)
    began = time.perf_counter()
    for _ in range(4):
        square = square @ square
    cube = (time.perf_counter() - began) / 4 / 256**3
    # An isometry takes some twenty products of its size; carrying through it, and reading it back, about as many.
    fits = 2 * 20 * cube * math.fsum(math.pow(size / NUMBER, 1.5) for size in sizes.values())
    return passes * count * 1.5 * forward + fits


def _units(sought: Sought) -> Iterator[tuple[Pair, tuple[Pair, ...]]]:
    """What maps are fitted of, one after the other: a pair of spaces, and what is recorded for it."""
    yield from sought.plain.items()
    for cluster in sought.heads:
        yield cluster.pairs[0], tuple(cluster.recorded)


def _size(bases: Bases, pair: Pair) -> int:
    source, target = bases.spaces(pair)
    return NUMBER * source.width * target.width


# ---------------------------------------------------------------------- maps, as what they are fitted of arrives


@dataclass
class _Pool:
    """What was seen of one space at several places, added up as they come; `Seen.pooled` has them all at once."""

    parts: int = 0
    total: Seen | None = None
    energies: tuple[float, float] = (0.0, 0.0)

    def add(self, part: Seen) -> None:
        sizes = part.sizes
        a, b = (1 / size if size else 0.0 for size in sizes)
        unit = replace(
            part, cross=part.cross * (a * b), squares=(part.squares[0] * a * a, part.squares[1] * b * b), grams=None
        )
        if self.total is None:
            self.total = unit
        else:
            self.total = replace(
                unit,
                cross=self.total.cross.add_(unit.cross),
                squares=(self.total.squares[0] + unit.squares[0], self.total.squares[1] + unit.squares[1]),
                tolerance=max(self.total.tolerance, unit.tolerance),
                most=self.total.most + unit.most,
            )
        self.parts += 1
        self.energies = self.energies[0] + sizes[0] ** 2, self.energies[1] + sizes[1] ** 2

    def seen(self) -> Seen:
        assert self.total is not None
        a, b = (energy / self.parts for energy in self.energies)
        squares = self.total.squares[0] * a, self.total.squares[1] * b
        return replace(self.total, cross=self.total.cross * math.sqrt(a * b), squares=squares)


@dataclass
class _Gathered:
    """What was seen so far of spaces whose maps wait for more."""

    bases: Bases
    sought: Sought
    how: How
    pools: dict[Pair, _Pool] = field(default_factory=dict)
    blocks: dict[Pair, Seen] = field(default_factory=dict)

    def add(self, recorded: Pair, seen: Seen) -> Iterator[dict[Pair, SpaceMap]]:
        """The maps that can be fitted now that one more pair was recorded."""
        for pair, places in self.sought.plain.items():
            if recorded in places and len(places) == 1:
                yield {pair: self.how.map_of(seen)}
            elif recorded in places:
                pool = self.pools.setdefault(pair, _Pool())
                pool.add(seen)
                if pool.parts == len(places):
                    yield {pair: self.how.map_of(self.pools.pop(pair).seen())}
        for cluster in self.sought.heads:
            if recorded in cluster.recorded:
                self.blocks[recorded] = seen
                yield from self._fit(cluster)

    def _fit(self, cluster: HeadCluster) -> Iterator[dict[Pair, SpaceMap]]:
        pairs = cluster.recorded
        if all(pair in self.blocks for pair in pairs):
            yield cluster.fit(self.bases, {pair: self.blocks.pop(pair) for pair in pairs}, self.how)


class StoredMaps(Mapping[Pair, SpaceMap]):
    """Maps of pairs of spaces in a folder; those that were used last are in memory as well.

    Args:
        folder: An empty one.
        memory: Bytes of maps that may be in memory.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder, self.memory = folder, memory
        # For each pair what a `SpaceMap` says beside its maps, and the folders of those; some may be one.
        self._kept: dict[Pair, tuple[dict[str, Any], dict[str, Path]]] = {}
        self._recent: dict[Pair, SpaceMap] = {}

    def keep(self, maps: Mapping[Pair, SpaceMap]) -> None:
        """Put some maps on disk."""
        for pair, found in maps.items():
            said = {name: getattr(found, name) for name in ("rank", "full", "why", "scale")}
            folders: dict[int, Path] = {}
            for name, each in _maps_of(found).items():
                if id(each) not in folders:
                    folders[id(each)] = self.folder / f"{len(self._kept)}-{name}"
                    each.save(folders[id(each)])
            self._kept[pair] = said, {name: folders[id(each)] for name, each in _maps_of(found).items()}

    def __getitem__(self, pair: Pair) -> SpaceMap:
        said, folders = self._kept[pair]
        found = self._recent.pop(pair, None)
        if found is None:
            loaded = {folder: load(folder) for folder in dict.fromkeys(folders.values())}
            maps: dict[str, Any] = {name: loaded[folder] for name, folder in folders.items()}
            found = SpaceMap(**said, **maps)
        self._recent[pair] = found  # as the last one
        held = {pair: _bytes_of(each) for pair, each in self._recent.items()}
        for old in list(held)[:-1]:
            if sum(held.values()) <= self.memory:
                break
            del self._recent[old], held[old]
        return found

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, pair: object) -> bool:
        return pair in self._kept


def _maps_of(found: SpaceMap) -> dict[str, Map]:
    return {name: each for name in ("map", "reads", "observed") if (each := getattr(found, name)) is not None}


def _bytes_of(found: SpaceMap) -> int:
    distinct = {id(each): each for each in _maps_of(found).values()}
    return sum(NUMBER * each.source_width * each.target_width for each in distinct.values())
