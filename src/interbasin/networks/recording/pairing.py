"""The activations of one batch, paired as they come by, and let go as soon as their last partner has come."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from interbasin.errors import DataError, FileError, InterbasinError, ShapeError
from interbasin.networks.recording.characters import pieces, pooled_pieces
from interbasin.networks.recording.masks import Masks
from interbasin.networks.recording.plan import Key, Plan
from interbasin.networks.recording.readings import Reading
from interbasin.networks.recording.surroundings import ordinary_arithmetic
from interbasin.networks.recording.tokens import Tokens, matched, pooled
from interbasin.statistics import LayerwiseMoments, PairedMoments
from interbasin.statistics.accumulation import Accumulator
from interbasin.statistics.moments import SOURCE, TARGET

__all__ = ["Manner", "Pairing", "Seen", "Sums"]


@dataclass(frozen=True)
class Seen:
    """What was seen of a reading: ``(batch, positions..., width)``, and which rows count (None: all)."""

    values: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Manner:
    """How rows are made from what is seen."""

    pool: str | None = None
    tokens: Tokens | None = None


@dataclass
class Sums:
    """The statistics that grow: one for each pair, or one for all layers."""

    pairs: list[PairedMoments]
    layers: LayerwiseMoments | None = None

    @classmethod
    def empty(cls, plan: Plan, grams: bool) -> Sums:
        """Those that a plan needs."""
        return cls(
            [PairedMoments(grams=grams or derived) for derived in plan.pairs().values()],
            None if plan.layers is None else LayerwiseMoments(),
        )

    @property
    def states(self) -> list[Accumulator]:
        """As values, to be kept or summed."""
        return [moments._state for moments in self._all]

    def go_on(self, states: Sequence[Accumulator], kept: Path) -> None:
        """Start from the sums that were kept in a folder.

        Raises:
            FileError: if they are not such as these.
        """
        alike = len(states) == len(self._all) and (
            self.layers is not None
            or all((*one.sources, *one.targets) == (SOURCE, TARGET) for one in states if one.count)
        )
        if not alike:
            raise FileError(
                f"The state in {kept} is damaged: it holds {len(states)} sums, which are not those of its "
                f"{len(self._all)} pairs; remove it to start anew."
            )
        for moments, state in zip(self._all, states, strict=True):
            moments._state = state

    @property
    def _all(self) -> Sequence[PairedMoments | LayerwiseMoments]:
        return self.pairs if self.layers is None else [self.layers]


@dataclass
class Pairing:
    """One batch.

    Attributes:
        plan: What is paired with what.
        sums: What the rows are added to.
        manner: How rows are made.
        masks, sizes, offsets: Of each network's inputs.
        fetch: Makes the other network run until something of it is there.
    """

    plan: Plan
    sums: Sums
    manner: Manner
    masks: Sequence[Masks]
    sizes: Sequence[int | None]
    offsets: Sequence[Tensor | None]
    fetch: Callable[[Callable[[], bool]], None] | None = None
    present: dict[Key, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pairs = list(self.plan.pairs())
        self._open: dict[Key, list[int]] = {}
        for position, (x, y) in enumerate(self._pairs):
            for key in dict.fromkeys((x, y)):
                self._open.setdefault(key, []).append(position)
        self._pieces: tuple[Tensor, Tensor, int] | None = None

    def put(self, network: int, reading: Reading, rows: Tensor) -> None:
        """Something came by; it is not copied yet."""
        mask = self.masks[network].fitting(reading.place.module, rows.shape[:-1])
        if self.manner.pool is not None and rows.shape[0] != self.sizes[network]:
            raise ShapeError(
                f"Asked to pool what is seen at {reading.place}, where rows have shape {tuple(rows.shape[:-1])} for "
                f"{self.sizes[network]} inputs; record a place where the inputs stand on the first axis."
            )
        self.present[network, reading] = _pooled(Seen(rows, mask), self.manner.pool)

    def pair(self, network: int, reading: Reading) -> None:
        """Add it to the statistics with every partner that is there, or can be fetched."""
        key = (network, reading)
        for position in list(self._open.get(key, ())):
            x, y = self._pairs[position]
            other = x if key == y else y
            if other not in self.present and self.fetch is not None:
                self.fetch(lambda other=other: other in self.present)  # type: ignore[misc]
            if other in self.present:
                self._add(position, self.present[x], self.present[y])
                for done in dict.fromkeys((x, y)):
                    self._open[done].remove(position)
                    if not self._open[done]:
                        del self.present[done]

    def keep(self, network: int, reading: Reading) -> None:
        """The network goes on, and may write over what it gave: copy it if it still waits for a partner."""
        seen = self.present.get((network, reading))
        if seen is not None:
            self.present[network, reading] = Seen(seen.values.clone(), seen.mask)

    def close(self) -> None:
        """The batch is over: statistics of all layers are formed now, when all of them are there."""
        if self.plan.layers is None or self.sums.layers is None:
            return
        sides = [{name: self.present[key] for name, key in side.items()} for side in self.plan.layers]
        with _told("recording all layers"):
            rows = self._all_rows(sides)
            if all(len(one) for side in rows for one in side.values()):
                self.sums.layers.update(*rows)

    # ------------------------------------------------------------------ rows

    def _add(self, position: int, x: Seen, y: Seen) -> None:
        recorded = self.plan.recorded
        pair = self._pairs[position]
        names = next(names for names, (a, b) in self.plan.asked.items() if (recorded(a), recorded(b)) == pair)
        with _told(f"recording {names[0]!r} (source) with {names[1]!r} (target)"):
            source, target = self._rows(x, y)
            if len(source):
                self.sums.pairs[position].update(source, target)

    def _rows(self, x: Seen, y: Seen) -> tuple[Tensor, Tensor]:
        """Paired rows of two sides."""
        if x is y:
            rows = _counting(x)
            return rows, rows
        tokens = self.manner.tokens
        if tokens is not None and tokens.mode == "offsets" and x.values.ndim == y.values.ndim == 3:
            one, other, count = self._by_characters()
            return pooled_pieces(x.values, one, count), pooled_pieces(y.values, other, count)
        if not _same_rows(x, y):
            x, y = _agreeing([x, y], [0, 1], tokens)
        return _masked(x, y)

    def _all_rows(self, sides: list[dict[str, Seen]]) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Rows of all layers of both sides, which all have to agree."""
        seen = [one for side in sides for one in side.values()]
        tokens = self.manner.tokens
        if tokens is not None and tokens.mode == "offsets":
            one, other, count = self._by_characters()
            rows = [
                pooled_pieces(part.values, belongs, count)
                for side, belongs in zip(sides, (one, other), strict=True)
                for part in side.values()
            ]
        else:
            if not all(_same_rows(seen[0], one) for one in seen):
                seen = _agreeing(seen, [0] * len(sides[0]) + [1] * len(sides[1]), tokens)
            rows = [_masked(seen[0], one)[1] for one in seen]
        found = iter(rows)
        first, second = ({name: next(found) for name in side} for side in sides)
        return first, second

    def _by_characters(self) -> tuple[Tensor, Tensor, int]:
        if self._pieces is None:
            source, target = self.offsets[0], self.offsets[-1]
            if source is None or target is None:
                raise DataError(
                    "tokens='offsets' aligns tokens by the characters they cover, but the batch says nothing of them; "
                    "give mappings with 'offset_mapping' (tokenizers make it with return_offsets_mapping=True)."
                )
            masks = [
                masks.fitting("", offsets.shape[:2])
                for masks, offsets in ((self.masks[0], source), (self.masks[-1], target))
            ]
            self._pieces = pieces(source, target, masks)
        return self._pieces


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """Sums are formed in here; an error says of which spaces it speaks."""
    with ordinary_arithmetic():
        try:
            yield
        except InterbasinError as error:
            raise type(error)(f"{where}: {error}") from error


def _pooled(seen: Seen, how: str | None) -> Seen:
    """One row an input; inputs that are nothing but padding do not count."""
    if how is None:
        return seen
    counts = None if seen.mask is None else seen.mask.flatten(1).any(dim=1)
    return Seen(pooled(seen.values, how, seen.mask), counts)


def _same_rows(x: Seen, y: Seen) -> bool:
    """Whether rows pair as they are: equal shapes, or one of them flattened."""
    one, other = tuple(x.values.shape[:-1]), tuple(y.values.shape[:-1])
    if math.prod(one) != math.prod(other):
        return False
    flattened = min(len(one), len(other)) == 1
    return one == other or flattened or (one[0] == other[0] and min(len(one), len(other)) == 2)


def _agreeing(seen: Sequence[Seen], sides: Sequence[int], tokens: Tokens | None) -> list[Seen]:
    """The same with equal numbers of tokens, in the way that was asked for."""
    shapes = [tuple(one.values.shape[:-1]) for one in seen]
    listed = " and ".join(str(shape) for shape in dict.fromkeys(shapes))
    if tokens is None or tokens.mode == "offsets":
        raise ShapeError(
            f"rows of shapes {listed} do not pair; if the networks cut the same inputs into different numbers of "
            "tokens, pass tokens='interpolate2d' (patches of images), 'interpolate', 'mean' or 'offsets' (text), or "
            "pool='mean'."
        )
    if len({shape[0] for shape in shapes}) > 1:
        raise ShapeError(f"rows of shapes {listed} are not of the same number of inputs; give both networks the same.")
    if tokens.mode == "mean":
        return [_pooled(one, "mean") for one in seen]
    if any(one.mask is not None and not bool(one.mask.all()) for one in seen):
        raise DataError(
            f"Interpolating {listed} tokens would mix padding into what counts; use tokens='mean' or 'offsets', or "
            "pool='mean'."
        )
    return [Seen(values) for values in matched([one.values for one in seen], sides, tokens)]


def _masked(x: Seen, y: Seen) -> tuple[Tensor, Tensor]:
    """The rows that count. Where only one side has a mask, it is for both."""
    if x.mask is not None and y.mask is not None:
        counts = [mask.flatten(1).sum(dim=1) if mask.ndim > 1 else mask.sum()[None] for mask in (x.mask, y.mask)]
        if counts[0].shape == counts[1].shape and not torch.equal(counts[0].cpu(), counts[1].cpu()):
            raise ShapeError(
                f"the masks leave {int(counts[0].sum())} rows of the source and {int(counts[1].sum())} of the target, "
                "not the same number for each input; if the tokens differ, align them with tokens='offsets'."
            )
    rows = []
    for one, other in ((x, y), (y, x)):
        mask = one.mask if one.mask is not None else other.mask
        rows.append(_counting(Seen(one.values, mask)))
    return rows[0], rows[1]


def _counting(seen: Seen) -> Tensor:
    flat = seen.values.flatten(0, -2)
    return flat if seen.mask is None else flat[seen.mask.flatten().to(flat.device)]
