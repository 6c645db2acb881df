"""Which maps two networks need, what is recorded for them, and the maps: one per pair of spaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from interbasin.activations import Tokens, record
from interbasin.activations.pairing import MaskOf
from interbasin.batches import Progress, WithoutLabels
from interbasin.jobs.transport.bases import Bases, Pair, is_observable, writers_of
from interbasin.jobs.transport.theseus.heads import HeadCluster
from interbasin.jobs.transport.theseus.rules import MapFitter, Rule, SecondMoments, SpaceMap, Unobserved, procrustes
from interbasin.maps import Identity
from interbasin.statistics import PairedMoments
from interbasin.wiring import Wiring
from interbasin.wiring.axes.spaces import In, spaces_in

# ---------------------------------------------------------------------- what is recorded


@dataclass(frozen=True)
class NeededMaps:
    """The maps that two networks need.

    Attributes:
        plain: Pairs of spaces without heads, each with what is recorded of it: itself, or for a stream all places
            where modules of both networks read it.
        heads: Pairs of spaces that are divided into heads, those of the same heads together.
        missing: Pairs that no activation shows, each with the reason.
    """

    plain: Mapping[Pair, tuple[Pair, ...]]
    heads: tuple[HeadCluster, ...]
    missing: Mapping[Pair, str]

    @property
    def pairs_to_record(self) -> list[Pair]:
        """What has to be recorded: spaces, and for heads that come in groups what modules put out."""
        places = [pair for places in self.plain.values() for pair in places]
        return list(dict.fromkeys([*places, *(pair for cluster in self.heads for pair in cluster.pairs_to_record)]))


def seek(bases: Bases) -> NeededMaps:
    """Which maps two networks need."""
    carriers = {name for space in bases.wirings[0].spaces.values() for name in space.within}
    plain: dict[Pair, tuple[Pair, ...]] = {}
    inside: dict[Pair, list[Pair]] = {}
    missing: dict[Pair, str] = {}
    for entry in bases.correspondence.spaces:
        pair = (entry.source, entry.target)
        source, target = bases.spaces(pair)
        if bases.is_shared(pair) or pair[0] in carriers:
            continue
        if source.within and target.within:
            inside.setdefault((source.within[0], target.within[0]), []).append(pair)
            continue
        places = _stream_places(bases, pair)
        unseen = [
            f"no activation of the {side} shows the whole of {name!r}"
            for side, name, wiring in zip(("source", "target"), pair, bases.wirings, strict=True)
            if not places and not is_observable(wiring, name)
        ]
        if unseen:
            missing[pair] = unseen[0]
        else:
            plain[pair] = places or (pair,)
    clusters = [HeadCluster.of(bases, heads, pairs) for heads, pairs in inside.items()]
    for cluster in clusters:
        missing |= {pair: "no activation shows its heads" for pair in cluster.pairs if not cluster.pairs_to_record}
    return NeededMaps(plain, tuple(cluster for cluster in clusters if cluster.pairs_to_record), missing)


def _stream_places(bases: Bases, pair: Pair) -> tuple[Pair, ...]:
    """Where modules that belong together read a space that several modules write.

    No single place shows a stream whole: early ones lack what later layers add, and behind a norm one direction is
    missing. All of them together do, before norms and behind them; where no gain tells which modules are norms, before
    whatever reads the stream and where recording would take it.
    """
    source, target = bases.spaces(pair)
    if min(len(writers_of(wiring, name)) for wiring, name in zip(bases.wirings, pair, strict=True)) < 2:
        return ()
    tensors = bases.correspondence.tensors
    headed = bases.with_heads.wirings  # a flattened wiring forgets where spaces that are fixed stand
    for axes in ((source.scales, target.scales), (source.reads, target.reads)):
        names = [{axis.rpartition("[")[0] for axis in side} for side in axes]
        modules = dict.fromkeys(
            (entry.source.rpartition(".")[0], entry.target.rpartition(".")[0])
            for entry in tensors
            if entry.source in names[0] and entry.target in names[1]
        )
        places = tuple(
            (f"{a}:{side}", f"{b}:{side}")
            for a, b in modules
            for side in (("input", "output") if axes[0] is source.scales else ("input",))
            if all(
                _stands_at(wiring, f"{module}:{side}:0", space)
                for wiring, module, space in zip(headed, (a, b), pair, strict=True)
            )
        )
        if places:
            are_observable = all(is_observable(wiring, name) for wiring, name in zip(bases.wirings, pair, strict=True))
            return places if axes[0] is source.scales or not are_observable else (pair, *places)
    return ()


def _stands_at(wiring: Wiring, place: str, space: str) -> bool:
    """Whether a space stands whole at a place, along the axis that recording takes for the width."""
    axes = wiring.activations.get(place, ())
    inside = [place for place, axis in enumerate(axes) if spaces_in([axis])]
    last = axes[inside[0]] if len(inside) == 1 else None
    return isinstance(last, In) and last.space == space and inside[0] in (1, len(axes) - 1)


def observe(
    bases: Bases,
    data: Any,
    pairs: Iterable[Pair],
    *,
    tokens: str | Tokens | None = None,
    mask: MaskOf = None,
    grams: bool,
    progress: Progress = None,
    state: Any = None,
) -> dict[Pair, PairedMoments]:
    """The moments of the base networks' activations in pairs of spaces (or at pairs of places).

    Rules other than `procrustes` need ``grams``.
    """
    pairs = list(pairs)
    if not pairs:
        return {}
    recorded = record(
        (bases.source, bases.target),
        WithoutLabels(data),
        pairs,
        wirings=bases.wirings if bases.source is not bases.target else (bases.wirings[0],),
        grams=grams,
        tokens=tokens,
        mask=mask,
        progress=progress,
        state=state,
    )
    return {pair: recorded.moments[pair] for pair in pairs}


# ---------------------------------------------------------------------- the maps


def fit_maps(
    bases: Bases,
    needed_maps: NeededMaps,
    moments: Mapping[Pair, PairedMoments],
    rule: Rule = procrustes,
    *,
    centered: bool = True,
    unobserved: Unobserved = "complete",
    scale: bool = False,
) -> dict[Pair, SpaceMap]:
    """The map of every pair of spaces that needs one, and the identity for what the networks share.

    Args:
        bases: The networks.
        needed_maps: Which maps are needed.
        moments: Of what was recorded for them; with Gram matrices, unless the rule is `procrustes`.
        rule: What makes a map of second moments.
        centered: Look at activations about their means.
        unobserved: ``"complete"``: directions without activations have an arbitrary partner, so that norms are kept;
            ``"drop"``: they are mapped to zero.
        scale: Multiply each map by how much larger the target's activations are. Norms are no longer kept.
    """
    maps: dict[Pair, SpaceMap] = {}
    for entry in bases.correspondence.spaces:
        if bases.is_shared(entry):
            width = bases.spaces(entry)[0].width
            maps[entry.source, entry.target] = SpaceMap(Identity(width), width, width, "the networks share it")
    fitter = MapFitter(rule, unobserved, scale)
    second_moments = {pair: SecondMoments.of(each, centered=centered) for pair, each in moments.items()}
    for pair, places in needed_maps.plain.items():
        maps[pair] = fitter.fit(SecondMoments.pool([second_moments[place] for place in places]))
    for cluster in needed_maps.heads:
        maps |= cluster.fit(bases, {pair: second_moments[pair] for pair in cluster.pairs_to_record}, fitter)
    return maps
