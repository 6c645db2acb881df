"""An update through the maps of the spaces that its tensors lie in, from the source's tensors to the target's."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.checkpoints import Entry, LazyTensors
from interbasin.checkpoints.lora import Factors, product
from interbasin.correspondence.pairs import TensorPair, expand, split, tensor_of
from interbasin.errors import WiringError
from interbasin.jobs.transport.bases import Bases, Pair
from interbasin.jobs.transport.theseus.rules import SpaceMap
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update
from interbasin.maps import Identity
from interbasin.text import list_names
from interbasin.wiring.account import Status
from interbasin.wiring.axes.spaces import Axis, Reason, Still, leaves, spaces_in
from interbasin.wiring.mover import Mover


@dataclass(frozen=True)
class Moved:
    """What became of one tensor's update.

    Attributes:
        source: The tensor of the source.
        target: The tensor (or the segment of one) of the target that it went to; None if it went nowhere.
        status: ``"moved"`` through at least one map, ``"kept"`` as it was, or ``"skipped"``.
        reason: Why, as a clause.
        share: Of the squared norm of the whole update.
        unobserved: Of the tensor's own squared norm, what lies in directions that were never seen.
    """

    source: str
    target: str | None
    status: Status
    reason: str
    share: float
    unobserved: float = 0.0


def table_of(moved: Sequence[Moved]) -> dict[str, list[Any]]:
    """The account as the columns of a table."""
    return {
        "source": [row.source for row in moved],
        "target": [row.target or "-" for row in moved],
        "status": [row.status for row in moved],
        "reason": [row.reason for row in moved],
        "share": [row.share for row in moved],
        "unobserved": [row.unobserved for row in moved],
    }


@dataclass(frozen=True, eq=False)
class Carriage:
    """An update for the target, and the account of it."""

    update: Update
    moved: tuple[Moved, ...]

    def share(self, status: Status) -> float:
        """How much of the update's squared norm was moved, kept or skipped."""
        return math.fsum(row.share for row in self.moved if row.status == status)

    @property
    def unobserved_share(self) -> float:
        """How much of the update's squared norm lies in directions that were never seen."""
        return math.fsum(row.share * row.unobserved for row in self.moved)


@dataclass(frozen=True)
class Way:
    """How one tensor, or a segment of one, goes from the source to the target."""

    pair: TensorPair
    source_axes: tuple[Axis, ...]
    target_axes: tuple[Axis, ...]
    spaces: tuple[Pair, ...]

    @property
    def order(self) -> tuple[int | None, ...]:
        """For each axis of the target the axis of the source."""
        return self.pair.order or tuple(range(len(self.target_axes)))


def ways(bases: Bases) -> list[Way]:
    """The way of every pair of tensors, or of their segments where both are fused."""
    pair_ways = []
    source, target = bases.wirings
    for pair in expand(bases.correspondence.tensors, source, target):
        axes = []
        for wiring, name, segment in (
            (source, pair.source, pair.source_segment),
            (target, pair.target, pair.target_segment),
        ):
            parts = dict(split(tensor_of(wiring, name)))
            axes.append(parts[segment] if segment in parts else tensor_of(wiring, name).axes)
        order = pair.order or tuple(range(len(axes[1])))
        spaces: dict[Pair, None] = {}
        for place, origin in enumerate(order):
            if origin is not None and origin < len(axes[0]):
                ours, theirs = spaces_in([axes[0][origin]]), spaces_in([axes[1][place]])
                if len(ours) == len(theirs):
                    spaces |= dict.fromkeys(zip(ours, theirs, strict=True))
                else:
                    spaces |= dict.fromkeys((name, "") for name in ours)
        pair_ways.append(Way(pair, axes[0], axes[1], tuple(spaces)))
    return pair_ways


class Carrier:
    """Carries tensors along their ways, through the map of each pair of spaces."""

    def __init__(self, bases: Bases, maps: Mapping[Pair, SpaceMap], missing: Mapping[Pair, str] | None = None) -> None:
        self.bases = bases
        self.maps = maps
        self.missing = missing or {}
        self.ways: dict[str, list[Way]] = {}
        for way in ways(bases):
            self.ways.setdefault(way.pair.source, []).append(way)
        self._heads = {name for space in bases.wirings[0].spaces.values() for name in space.within}

    # ------------------------------------------------------------------ one tensor

    def obstacle(self, way: Way) -> str | None:
        """Why a tensor cannot go its way, as a clause, or None."""
        for pair in way.spaces:
            if not pair[1]:
                return f"{pair[0]!r} lies along an axis that is made otherwise in the target"
            if pair in self.missing:
                return self.missing[pair]
            if pair not in self.maps and pair[0] not in self._heads:
                return f"there is no map from {pair[0]!r} to {pair[1]!r}"
        for place, origin in enumerate(way.order):
            if origin is not None:
                ours, theirs = way.source_axes[origin], way.target_axes[place]
                if not spaces_in([ours]) and ours.size != theirs.size:
                    why = next((f" ({leaf.why})" for leaf, _ in leaves(ours) if isinstance(leaf, Still)), "")
                    return f"axis {origin} is {ours.size} long, and {theirs.size} in the target{why}"
        return None

    def move(self, tensor: Tensor, way: Way, *, observed: bool = False) -> Tensor:
        """The source's whole ``tensor`` as it comes to the target; ``observed``: without what was never seen."""
        part = tensor if way.pair.source_segment is None else way.pair.source_segment.cut(tensor)
        moved = self._mover(way, observed).move(part, way.source_axes, str(way.pair.parts[0]))
        return _strength(way.pair) * replace(way.pair, source_segment=None).cut(moved)

    def _mover(self, way: Way, observed: bool) -> Mover:
        space_maps = {pair[0]: self.maps[pair] for pair in way.spaces if pair in self.maps}
        return Mover(
            self.bases.wirings[0].spaces,
            {name: each.observed_map if observed else each.map for name, each in space_maps.items()},
            {name: each.reads for name, each in space_maps.items() if each.reads is not None},
        )

    def describe(self, way: Way) -> tuple[Status, str]:
        """What becomes of a tensor on its way, and why."""
        through = [pair for pair in way.spaces if pair in self.maps and not isinstance(self.maps[pair].map, Identity)]
        if not through:
            return "kept", "the networks share the spaces it lies in" if way.spaces else "it lies in no space"
        names = list_names(a if a == b else f"{a} -> {b}" for a, b in through if a not in self._heads)
        share = f", {way.pair.share:.3g} of it" if way.pair.share != 1 else ""
        return "moved", f"through {names}{share}"

    # ------------------------------------------------------------------ a whole update

    def carry(self, update: Update, *, lazily: bool = False) -> Carriage:
        """The update for the target, and what became of each tensor. Low rank stays low rank.

        ``lazily``: what is dense is carried when it is asked for, each time anew, so that no two need be in memory.
        """
        dense: dict[str, Tensor] = {}
        pieces: dict[str, list[tuple[str, Way]]] = {}
        factors: dict[str, list[Factors]] = {}
        transposed: set[str] = set()
        rows: list[tuple[str, str | None, Status, str, float, float]] = []
        shapes = self._shapes()
        for name in update:
            whole = None if name in update.factors else update.tensor(name)
            norm = update.norm_of(name) if whole is None else torch.linalg.vector_norm(whole, dtype=torch.float64)
            squared = float(norm) ** 2
            first_name = self.bases.wirings[0].tied.get(name, name)  # of a tied tensor the one that the wiring has
            tensor_ways = self.ways.get(name) or self.ways.get(first_name, [])
            if not tensor_ways:
                rows.append((name, None, "skipped", self._why_unmatched(first_name), squared, 0.0))
            for way in tensor_ways:
                target = way.pair.target
                portion = squared / len(tensor_ways)
                obstacle = self.obstacle(way)
                if obstacle is not None:
                    rows.append((name, target, "skipped", obstacle, portion, 0.0))
                    continue
                pair = self._move_factors(update, name, way) if whole is None else None
                if pair is not None:
                    factors.setdefault(target, []).append(pair)
                    if (name in update.transposed) != (way.pair.order is not None and way.order[:2] == (1, 0)):
                        transposed.add(target)
                    unseen = self._unobserved_share_of_factors(update, name, way, pair)
                else:
                    tensor = update.tensor(name) if whole is None else whole
                    pieces.setdefault(target, []).append((name, way))
                    unseen = 0.0
                    if not lazily or self._is_partly_observed(way):
                        moved = self.move(tensor, way)
                        unseen = self._unobserved_share(tensor, way, moved)
                        if not lazily:
                            start = dense.get(target)
                            start = moved.new_zeros(shapes[target]) if start is None else start
                            dense[target] = _paste(way.pair, start, moved)
                rows.append((name, str(way.pair.parts[1]), *self.describe(way), portion, unseen))
        total = sum(row[4] for row in rows)
        moved_rows = tuple(
            Moved(name, target, status, reason, squared / total if total else 0.0, unseen)
            for name, target, status, reason, squared, unseen in rows
        )
        joined = {name: _sum_factors(parts) for name, parts in factors.items()}
        # A fused tensor of which one segment came whole: the sum has no factors.
        beside = {name: _whole(joined.pop(name), name in transposed) for name in set(joined) & set(pieces)}
        for name in set(beside) & set(dense):
            dense[name] = dense[name] + beside[name].reshape(dense[name].shape)
        carried = Update(
            dense=CarriedTensors(self, update, pieces, beside) if lazily else dense,
            factors=joined,
            transposed=frozenset(transposed & joined.keys()),
            tables=frozenset(name for name in joined if name in self._tables()),
            label="the carried update",
            kinds=kinds_of(self.bases.target),
        )
        return Carriage(carried, moved_rows)

    def carry_tensor(self, update: Update, target: str, pieces: Iterable[tuple[str, Way]]) -> Tensor:
        """The update of one tensor of the target, of the tensors of the source that end in it."""
        total = None
        for name, way in pieces:
            moved = self.move(update.tensor(name), way)
            start = moved.new_zeros(self._shapes()[target]) if total is None else total
            total = _paste(way.pair, start, moved)
        assert total is not None  # without pieces there would be no update
        return total

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self.bases.target.state_dict().items()}

    def _tables(self) -> set[str]:
        modules = self.bases.target.named_modules()
        return {f"{name}.weight" for name, module in modules if isinstance(module, nn.Embedding)}

    def _why_unmatched(self, name: str) -> str:
        wiring = self.bases.wirings[0]
        if name in wiring.constants:
            return "it is a constant of the network"
        if name in wiring.unused:
            return "the traced call does not use it"
        for entry in self.bases.correspondence.unmatched_source:
            if entry.kind == "tensor" and entry.name == name:
                return entry.reason
        return "it has no counterpart in the target"

    def _is_partly_observed(self, way: Way) -> bool:
        """Whether some space on the way has directions that were never seen."""
        return any(pair in self.maps and self.maps[pair].observed is not None for pair in way.spaces)

    def _unobserved_share(self, tensor: Tensor, way: Way, moved: Tensor) -> float:
        if not self._is_partly_observed(way):
            return 0.0
        whole, observed_part = float(moved.double().square().sum()), self.move(tensor, way, observed=True)
        return max(0.0, 1 - float(observed_part.double().square().sum()) / whole) if whole else 0.0

    def _unobserved_share_of_factors(self, update: Update, name: str, way: Way, moved: Factors) -> float:
        if not self._is_partly_observed(way):
            return 0.0
        observed_part = self._move_factors(update, name, way, observed=True)
        whole = Update(factors={name: moved}).norm_of(name)
        if not whole or not observed_part:
            return 0.0
        return max(0.0, 1 - (Update(factors={name: observed_part}).norm_of(name) / whole) ** 2)

    def _move_factors(self, update: Update, name: str, way: Way, *, observed: bool = False) -> Factors | None:
        """The factors of an update on their way; None where only the product can go."""
        plain = way.pair.order is None or (len(way.order) == 2 and way.order == (1, 0))
        if not plain:
            return None
        pair = update.factors[name]
        out, into = (1, 0) if name in update.transposed else (0, 1)
        a, b = pair.a, pair.b
        segment = way.pair.source_segment
        if segment is not None:
            factor_segment = replace(segment, axis=1 if segment.axis == into else 0)
            a, b = (factor_segment.cut(a), b) if segment.axis == into else (a, factor_segment.cut(b))
        rank = Still(a.shape[0], _RANK)
        mover = self._mover(way, observed)
        try:
            a = mover.move(a, (rank, way.source_axes[into], *way.source_axes[2:]), name)
            ones = tuple(Still(1, _RANK) for _ in range(b.ndim - 2))
            b = mover.move(b, (way.source_axes[out], rank, *ones), name)
        except WiringError:  # segments of a fused layer that read different spaces have no common factor
            return None
        segment = way.pair.target_segment
        if segment is not None:
            into_b = into if way.pair.order is None else 1 - into
            shape = tensor_of(self.bases.wirings[1], way.pair.target).shape
            factor_segment = replace(segment, axis=1 if segment.axis == into_b else 0)
            if segment.axis == into_b:
                a = factor_segment.paste(a.new_zeros(a.shape[0], shape[into_b], *a.shape[2:]), a)
            else:
                b = factor_segment.paste(b.new_zeros(shape[1 - into_b], *b.shape[1:]), b)
        return Factors(a, _strength(way.pair) * b)


def _strength(pair: TensorPair) -> float:
    """What an update is multiplied with on its way to one of several targets: shares are of its squared norm.

    So the norm of the whole is kept where a layer serves several. Divided by their number instead, updates of blocks
    that serve two lost 1 to 4 points of accuracy.
    """
    return math.sqrt(pair.share)


class CarriedTensors(LazyTensors):
    """Updates for the target, each carried when it is asked for.

    Args:
        carrier: What carries them.
        update: Of the source.
        pieces: For each tensor of the target those of the source that end in it, and their ways.
        beside: What is added to some of them.
    """

    def __init__(
        self,
        carrier: Carrier,
        update: Update,
        pieces: Mapping[str, Sequence[tuple[str, Way]]],
        beside: Mapping[str, Tensor],
    ) -> None:
        self._carrier, self._update, self._pieces, self._beside, self.ties = carrier, update, pieces, beside, {}
        shapes = carrier._shapes()
        self.entries = {}
        for target, parts in pieces.items():
            dtypes = [update.tensors.dtype(name) for name, _ in parts]
            if target in beside:
                dtypes.append(beside[target].dtype)
            self.entries[target] = Entry.of(functools.reduce(torch.promote_types, dtypes), shapes[target])

    @property
    def label(self) -> str:
        return "the carried update"

    def __getitem__(self, name: str) -> Tensor:
        name = self.stored_name(name)
        total = self._carrier.carry_tensor(self._update, name, self._pieces[name])
        if name in self._beside:
            total = total + self._beside[name].reshape(total.shape)
        return total.to(self.dtype(name))


_RANK = Reason("structure", "the rank of a low-rank update lies along it")


def _paste(pair: TensorPair, start: Tensor, part: Tensor) -> Tensor:
    """``start`` with ``part`` added where it belongs: several tensors of the source may end in one of the target."""
    if pair.target_segment is None:
        return start + part.reshape(start.shape)
    return start + pair.target_segment.paste(torch.zeros_like(start), part)


def _sum_factors(parts: list[Factors]) -> Factors:
    """One pair of factors for the sum of several products; those that read alike keep their rank."""
    sums: list[Factors] = []
    for part in parts:
        same = next(
            (
                place
                for place, other in enumerate(sums)
                if other.a.shape == part.a.shape and torch.equal(other.a, part.a)
            ),
            None,
        )
        if same is None:
            sums.append(part)
        else:
            sums[same] = Factors(part.a, sums[same].b + part.b)
    if len(sums) == 1:
        return sums[0]
    return Factors(torch.cat([part.a for part in sums]), torch.cat([part.b for part in sums], dim=1))


def _whole(factors: Factors, transposed: bool) -> Tensor:
    return product(factors.a, factors.b, transposed=transposed)
