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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.batches import WithoutLabels, outputs_of, reporter_of, require_reiterable
from interbasin.checkpoints import Checkpoint
from interbasin.checkpoints.delta import add
from interbasin.checks import require_finite, require_whole
from interbasin.correspondence import Correspondence
from interbasin.errors import DataError
from interbasin.jobs.transport.bases import Bases, Depth, Heads, Outputs, Pair, relate
from interbasin.jobs.transport.journal import Journal, holding_state
from interbasin.jobs.transport.networks import require_base, require_inputs
from interbasin.jobs.transport.task import Options
from interbasin.jobs.transport.theseus.carrier import Carrier, Moved, table_of
from interbasin.jobs.transport.theseus.heads import HeadCluster
from interbasin.jobs.transport.theseus.maps import NeededMaps, fit_maps, observe, seek
from interbasin.jobs.transport.theseus.rules import MapFitter, SecondMoments, SpaceMap, Unobserved, procrustes
from interbasin.jobs.transport.theseus.stored_maps import NUMBER, StoredMaps
from interbasin.jobs.transport.updates.fine_tunes import read_fine_tune, weights_of_merge
from interbasin.jobs.transport.updates.reading import FOLDER
from interbasin.jobs.transport.updates.ties import refuse_names_apart
from interbasin.jobs.transport.updates.update import Update
from interbasin.outcome import Outcome, Stopwatch, new_outcome, refuse_outcome_in_the_way
from interbasin.text import plural

MEMORY = 2**30
NOT_JUDGED = "Nothing is judged: there is no verdict, and alpha is as it was given. Measure on data of your own."
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
    """What a transport on disk left. Nothing was judged, so that there is no verdict.

    Attributes:
        moved: What became of each tensor of the source's update; empty after a dry run.
        stages: What was estimated before.
        outcome: The folder, read again: the update, the account and, where that was asked for, the model. None after a
            dry run.
        is_low_rank: Whether the update is an adapter.
        notes: What a user should know.
    """

    moved: tuple[Moved, ...]
    stages: Stages
    outcome: Outcome | None
    is_low_rank: bool
    notes: tuple[str, ...] = ()


@holding_state
def transport_on_disk(
    source: nn.Module,
    tuned: Any,
    target: nn.Module,
    data: Any,
    folder: str | os.PathLike[str] | None = None,
    *,
    alpha: float = 1.0,
    memory: int = MEMORY,
    model: bool = False,
    like: Checkpoint | str | os.PathLike[str] | None = None,
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
    merge: str = "task-arithmetic",
    merge_weights: Sequence[float] | None = None,
    density: float | None = None,
    dry_run: bool = False,
    force: bool = False,
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    request: Mapping[str, Any] | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: Callable[[str], object] | bool | None = None,
) -> Written:
    """Carry a fine-tune of ``source`` to ``target`` by Theseus and write it, in bounded memory. Nothing is judged.

    Give networks whose weights lie in files (``load_model(..., in_files=True)`` or `interbasin.models.map_weights`),
    and ``tuned`` as a path. What is written is what `prepare_transport` and ``apply`` give, to rounding.

    Args:
        source, target: The base models.
        tuned: The fine-tune of the source, as for `interbasin.transport`.
        data: Inputs, without labels or with. They are read once for each pass.
        folder: A new folder for the outcome: ``update.safetensors``, or ``adapter`` if the fine-tune is a LoRA, and the
            table of what moved. It appears whole or not at all. A dry run needs none.
        alpha: What the update is multiplied with.
        memory: Bytes that statistics and maps may take at once. Less means more passes over the data.
        model: Also write the target with the update, to ``folder/model``; ``like`` is the checkpoint whose
            configuration and tokenizer are copied along.
        base: The MODEL that the update belongs to, for those who load it.
        dry_run: Only estimate: `Written.stages` says what it would take, and nothing is written.
        force: Replace an earlier outcome.
        inputs: Name to path of the networks and data, for the outcome; the files behind them are hashed.
        request: What was asked, for the outcome, where that is more than these arguments.
        state: A folder to keep fitted maps in until the outcome is there: a run that was killed goes on from there, to
            the same bytes. It is for one process at a time.
        progress: Called with a line of text on the way; the first says what it will take. True for lines on stderr.
        scale, outputs, centered, tokens, mask, unobserved, heads, depth, correspondence, merge, merge_weights, density:
            As for `interbasin.transport`.

    Raises:
        DataError: If alpha or the memory is no number that can be, and as `interbasin.transport` does.
        FileError: If something is in the way.

    Example:
        >>> nets = [nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 2)) for n in (8, 12)]
        >>> folder = Path(tempfile.mkdtemp()) / "out"
        >>> written = transport_on_disk(nets[0], {"2.bias": torch.ones(2)}, nets[1], torch.randn(64, 4), folder)
        >>> Update.of(folder, nets[1]).tensor("2.bias")
        tensor([1., 1.])
    """
    settings = {
        "method": "theseus",
        "variant": "spaces",
        "alpha": require_finite("alpha", alpha, least=-100, most=100),
        "memory": require_whole("memory", memory, least=1),
        "scale": scale,
        "outputs": outputs,
        "centered": centered,
        "unobserved": unobserved,
        "heads": heads,
        "depth": depth,
        "merge": merge,
        "merge_weights": weights_of_merge(merge_weights),
        "density": density,
    }
    Options(centered, scale, unobserved, tokens, mask).check()
    require_reiterable(data, "Transport")
    if folder is None and not dry_run:
        raise DataError("A transport on disk was asked for without a folder to write to; give one, or dry_run=True.")
    if folder is not None:
        refuse_outcome_in_the_way(folder, force=force)
    report, watch = reporter_of(progress), Stopwatch()
    with watch("wire"):
        require_base(source, "source")
        require_base(target, "target")
        require_inputs(WithoutLabels(data).first())
        update = read_fine_tune(tuned, source, merge=merge, weights=merge_weights, density=density)
        refuse_names_apart(update, source, "call interbasin.transport without memory=")
        for name in update.dense if folder is not None and not dry_run else ():
            update.dense[name]  # refuses what is not finite now, and not after hours of recording
        bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
        update = bases.lengthen(update)
        needed_maps = seek(bases)
        stages = _plan(bases, needed_maps, update, data, memory)
    report(str(stages))
    notes = (*update.notes, *bases.notes, *_note_memory(stages, memory), NOT_JUDGED)
    if dry_run or folder is None:
        return Written((), stages, None, update.is_low_rank, notes)
    saying = {**settings, **{name: value for name, value in (request or {}).items() if name not in settings}}
    elapsed = sum(watch.timings.values())
    fitter = MapFitter(procrustes, unobserved, scale == "rms")
    with (
        new_outcome(folder, job="transport", request=saying, inputs=inputs, force=force, elapsed=elapsed) as draft,
        tempfile.TemporaryDirectory(prefix=".maps-", dir=draft.folder) as beside,
    ):
        shelf = Path(beside)
        if state is not None:
            facts = {
                "places": needed_maps.pairs_to_record,
                "heads": bases.heads,
                "tokens": tokens,
                "centered": centered,
            }
            networks = bases.source, bases.target
            shelf = Journal.at(state).maps(networks, data, how=(unobserved, scale), mask=mask, **facts)
        maps = StoredMaps(shelf, memory // 2)
        maps.keep("shared", fit_maps(bases, NeededMaps({}, (), {}), {}))  # what the networks share
        pending = _PendingMaps(bases, _without_kept(needed_maps, maps), fitter)
        with watch("record"):
            for number, places in enumerate(stages.passes):
                pairs = [pair for pair in places if pair in pending.needed_maps.pairs_to_record]
                report(f"pass {number + 1} of {len(stages.passes)} over the data{'' if pairs else ', done before'}")
                moments = observe(bases, data, pairs, tokens=tokens, mask=mask, grams=False) if pairs else {}
                for pair in pairs:
                    for name, fitted in pending.add(pair, SecondMoments.of(moments.pop(pair), centered=centered)):
                        maps.keep(name, fitted)
        report("carrying the update, a tensor at a time")
        with watch("carry"):
            carried = Carrier(bases, maps, needed_maps.missing).carry(update, lazily=True)
            delta = carried.update if alpha == 1 else carried.update.scaled(alpha)
            place = FOLDER if delta.is_low_rank else "."
            with draft.filled(FOLDER if delta.is_low_rank else "update", "file", place=place) as into:
                notes = (*notes, *delta.write(into, base=base, model=target))
            if model:
                report("writing the model")
                draft.write_checkpoint(add(target, delta.tensors), place="model", like=like)
        draft.table("moved", table_of(carried.moved))
        draft.metrics.update(
            share_moved=carried.share("moved") + carried.share("kept"),
            share_skipped=carried.share("skipped"),
            share_unobserved=carried.unobserved_share,
            alpha=settings["alpha"],
        )
        draft.timings.update(watch.timings)
        draft.notes.extend(notes)
    return Written(carried.moved, stages, draft.outcome, delta.is_low_rank, notes)


def _note_memory(stages: Stages, memory: int) -> list[str]:
    if stages.memory <= memory:
        return []
    return [
        f"About {stages.memory / 1e6:,.3g} MB are needed beside a batch's activations, more than the "
        f"{memory / 1e6:,.3g} MB that memory= allows, for the largest tensors and spaces have to fit one by one."
    ]


# ---------------------------------------------------------------------- what it takes


def _plan(bases: Bases, needed_maps: NeededMaps, update: Update, data: Any, memory: int) -> Stages:
    """Which spaces are recorded together, and an estimate of memory and time."""
    sizes = {pair: _size(bases, unit) for unit, pairs in _units(needed_maps) for pair in pairs}
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


def _units(needed_maps: NeededMaps) -> Iterator[tuple[Pair, tuple[Pair, ...]]]:
    """What maps are fitted of, one after the other: a pair of spaces, and what is recorded for it."""
    yield from needed_maps.plain.items()
    for cluster in needed_maps.heads:
        yield cluster.pairs[0], tuple(cluster.pairs_to_record)


def _size(bases: Bases, pair: Pair) -> int:
    source, target = bases.spaces(pair)
    return NUMBER * source.width * target.width


# ---------------------------------------------------------------------- maps, as what they are fitted of arrives


def _without_kept(needed_maps: NeededMaps, maps: StoredMaps) -> NeededMaps:
    """The maps that are still to be fitted; the others are taken up from disk."""
    plain = {pair: places for pair, places in needed_maps.plain.items() if not maps.restore(_group(pair))}
    heads = tuple(cluster for cluster in needed_maps.heads if not maps.restore(_group(cluster.heads)))
    return replace(needed_maps, plain=plain, heads=heads)


def _group(pair: Pair) -> str:
    """The name under which maps that are fitted together are kept: the pair's, or that of the heads."""
    return f"{pair[0]} -> {pair[1]}"


@dataclass
class _Pool:
    """The moments of one pair of spaces at several places, added up as they come.

    `SecondMoments.pool` does the same with all of them at once.
    """

    parts: int = 0
    total: SecondMoments | None = None
    energies: tuple[float, float] = (0.0, 0.0)

    def add(self, part: SecondMoments) -> None:
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
                rank_bound=self.total.rank_bound + unit.rank_bound,
            )
        self.parts += 1
        self.energies = self.energies[0] + sizes[0] ** 2, self.energies[1] + sizes[1] ** 2

    def second_moments(self) -> SecondMoments:
        assert self.total is not None
        a, b = (energy / self.parts for energy in self.energies)
        squares = self.total.squares[0] * a, self.total.squares[1] * b
        return replace(self.total, cross=self.total.cross * math.sqrt(a * b), squares=squares)


@dataclass
class _PendingMaps:
    """The maps that are not fitted yet, and the moments of their spaces so far."""

    bases: Bases
    needed_maps: NeededMaps
    fitter: MapFitter
    pools: dict[Pair, _Pool] = field(default_factory=dict)
    blocks: dict[Pair, SecondMoments] = field(default_factory=dict)

    def add(self, recorded: Pair, second_moments: SecondMoments) -> Iterator[tuple[str, dict[Pair, SpaceMap]]]:
        """The maps that can be fitted now that one more pair was recorded, and the name of each group of them."""
        for pair, places in self.needed_maps.plain.items():
            if recorded in places and len(places) == 1:
                yield _group(pair), {pair: self.fitter.fit(second_moments)}
            elif recorded in places:
                pool = self.pools.setdefault(pair, _Pool())
                pool.add(second_moments)
                if pool.parts == len(places):
                    yield _group(pair), {pair: self.fitter.fit(self.pools.pop(pair).second_moments())}
        for cluster in self.needed_maps.heads:
            if recorded in cluster.pairs_to_record:
                self.blocks[recorded] = second_moments
                yield from self._fit(cluster)

    def _fit(self, cluster: HeadCluster) -> Iterator[tuple[str, dict[Pair, SpaceMap]]]:
        pairs = cluster.pairs_to_record
        if all(pair in self.blocks for pair in pairs):
            blocks = {pair: self.blocks.pop(pair) for pair in pairs}
            yield _group(cluster.heads), cluster.fit(self.bases, blocks, self.fitter)
