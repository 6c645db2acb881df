"""The rows that layers are fitted on, batch by batch: what a layer reads in the target, and what it should write."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf, masks_of
from interbasin.activations.places import Reading
from interbasin.batches import device_of
from interbasin.errors import DataError
from interbasin.jobs.transport.regression.goals import Goal
from interbasin.jobs.transport.regression.layers import Layer
from interbasin.jobs.transport.regression.ridge import Sums
from interbasin.jobs.transport.regression.tables import rows_added
from interbasin.jobs.transport.rows import Watcher, argument_at, input_rows, pair_rows, reading_at


class Chain:
    """The batches of several data, one after the other."""

    def __init__(self, *parts: Iterable[Any]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._parts)


@dataclass
class Feed:
    """Batches of one kind: task inputs, which aim at tuned A, or generic ones, which may aim at the base itself.

    With a ``source``, A before fine-tuning, layers aim at B's own activations and what fine-tuning changed in A's.
    """

    current: nn.Module
    base: nn.Module
    tuned: nn.Module
    data: Iterable[Any]
    tokens: Tokens | None
    mask: MaskOf
    is_task: bool
    source: nn.Module | None = None

    def add_batch(
        self, stage: Sequence[Layer], goals: Mapping[Layer, Goal], inputs: Any, sums: Mapping[Layer, Sums]
    ) -> None:
        """Add the rows of one batch to the sums of each layer of a stage."""
        shown = _Shown(self, stage, goals, inputs)
        for layer in stage:
            rows, target, counts = shown.stream(layer) if layer.aim == "stream" else shown.own(layer)
            flat = [each.flatten(0, -2) for each in (rows, target)]
            if counts is not None:
                flat = [each[counts.flatten().to(each.device)] for each in flat]
            self._require_numbers(layer, flat)
            if len(flat[0]):
                sums[layer].add(flat[0], flat[1])

    def _require_numbers(self, layer: Layer, flat: Sequence[Tensor]) -> None:
        if all(bool(each.isfinite().all()) for each in flat):
            return
        inputs = "task" if self.is_task else "generic"
        is_target = not self.is_task or not bool(flat[0].isfinite().all())
        raise DataError(
            f"On {inputs} inputs {'the target' if is_target else 'the tuned source'} shows NaN or infinity at "
            f"{layer.target!r}, so that it cannot be fitted; remove such inputs, or repair the network."
        )


class _Shown:
    """What the networks show of one batch at the places of a stage."""

    def __init__(self, feed: Feed, stage: Sequence[Layer], goals: Mapping[Layer, Goal], inputs: Any) -> None:
        self.feed, self.goals, self.inputs = feed, goals, inputs
        self.masks = masks_of(inputs, feed.mask, device_of(feed.current))
        streams = [layer for layer in stage if layer.aim == "stream"]
        reads = [argument_at(layer.reads) for layer in stage if not layer.is_table]
        outputs = [reading_at(layer.output) for layer in streams if not layer.is_table]
        places = [reading_at(layer.at[1]) for layer in streams]
        self.now = Watcher(feed.current, list(dict.fromkeys([*reads, *outputs, *places]))).run(inputs)
        self.side = 0 if feed.is_task else 1
        wanted = [reading_at(layer.at[self.side]) for layer in stage]
        if feed.is_task:
            wanted += [reading_at(place) for layer in stage for _, place in layer.earlier]
        self.aims = Watcher(feed.tuned if feed.is_task else feed.base, list(dict.fromkeys(wanted))).run(inputs)
        shifted = {layer for layer in stage if self.is_shifted(layer)}
        self.before = Watcher(feed.source, list(dict.fromkeys(wanted))).run(inputs) if feed.source and shifted else {}
        kept = {layer for layer in stage if feed.is_task and goals[layer].kept is not None}
        own = [reading_at(layer.at[1]) for layer in stage if layer in kept | shifted]
        self.base = Watcher(feed.base, list(dict.fromkeys(own))).run(inputs) if own else {}

    def is_shifted(self, layer: Layer) -> bool:
        """Whether a layer aims at B's own activations and A's change. The last one aims at tuned A's answers."""
        return self.feed.is_task and self.feed.source is not None and layer.aim != "output"

    def stream(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a layer reads, what it should write for the stream to reach its goal, and which of the rows count."""
        stream = self.now[reading_at(layer.at[1])]
        aim = self.aims[reading_at(layer.at[self.side])].double()
        if layer.is_table:
            rows, here = self._indicators(layer, stream)
            # What the table itself adds, and where it does.
            output = rows @ layer.weight_in(self.feed.current)[0].mT.to(rows)
            rest = stream.double() - output
            counts = self._counts(layer, rows)
            rows = torch.cat([rows, here[..., None].to(rows)], -1)
            shown = [(rows, 1), (aim, 0), (rest, 1), *self._before(layer)]
            rows, aim, rest, *before = _pair(shown, self.feed.tokens)
            here = rows[..., -1] > 0.5
            counts = here if counts is None else here & counts
            return rows[..., :-1], self._goal(layer, aim, before) - rest, counts
        rows = input_rows(self.feed.current.get_submodule(layer.target), self.now[argument_at(layer.reads)])
        output = self.now[reading_at(layer.output)]
        counts = self._counts(layer, rows)
        beside = None if layer.beside is None else self._indicators(layer.beside, stream)[0]
        stream, aim = _at_positions(stream, layer, 1), _at_positions(aim, layer, self.side)
        output = output.flatten(1, -2) if output.ndim > stream.ndim else output
        rest = stream.double() - output.reshape(stream.shape).double()
        rows = rows.reshape(*stream.shape[:-1], -1)
        if beside is not None:
            rows = torch.cat([rows.to(beside), _at_positions(beside, layer, 1)], -1)
        tokens = self.feed.tokens
        if tokens is not None and tokens.prefix is not None and layer.positions is not None:
            tokens = replace(tokens, prefix=(0, 0))  # what stands before the patches was left out
        shown = [(_at_positions(each, layer, side), side) for each, side in self._before(layer)]
        rows, aim, rest, *before = _pair([(rows, 1), (aim, 0), (rest, 1), *shown], tokens)
        return rows, self._goal(layer, aim, before) - rest, counts

    def own(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a layer reads, what its own outputs should be, and which of the rows count."""
        rows = input_rows(self.feed.current.get_submodule(layer.target), self.now[argument_at(layer.reads)])
        counts = self._counts(layer, rows)
        shown = [(_flat(rows), 1), (self._written(layer, self.aims, self.side), 0), *self._before(layer)]
        kept = self.goals[layer].kept if self.feed.is_task else None
        if kept is not None:
            shown.append((self._written(layer, self.base, 1), 1))
        rows, aim, *others = _pair(shown, self.feed.tokens)
        target = self._goal(layer, aim, others)
        if kept is not None:
            target = target.clone()
            target[..., kept] = others[-1][..., kept]
        return rows, target, counts

    def _goal(self, layer: Layer, aim: Tensor, before: Sequence[Tensor]) -> Tensor:
        """What a layer aims at: ``before`` begins with A's rows and B's own before fine-tuning, where it is shifted."""
        goal = self.goals[layer]
        target = goal(aim, self.feed.is_task)
        return target - goal(before[0], True) + before[1] if self.is_shifted(layer) else target

    def _before(self, layer: Layer) -> list[tuple[Tensor, int]]:
        """The rows of A and of B as they were, and whose they are, where a layer aims at a shift."""
        if not self.is_shifted(layer):
            return []
        if layer.aim == "stream":
            return [(shown[reading_at(layer.at[side])].double(), side) for side, shown in self._bases]
        return [(self._written(layer, shown, side), side) for side, shown in self._bases]

    @property
    def _bases(self) -> Iterator[tuple[int, Mapping[Reading, Tensor]]]:
        return enumerate((self.before, self.base))

    def _written(self, layer: Layer, shown: Mapping[Reading, Tensor], side: int) -> Tensor:
        """What a layer of A (0) or of B (1) writes; of A with what other layers do whose work it has to do."""
        rows, part = shown[reading_at(layer.at[side])], layer.columns[side]
        rows = rows if part is None else rows[..., part]
        if side == 0 and layer.earlier:
            rows = torch.cat([*(shown[reading_at(place)] for _, place in layer.earlier), rows], -1)
        return _flat(rows).double()

    def _counts(self, layer: Layer, rows: Tensor) -> Tensor | None:
        return None if self.masks is None else self.masks.fitting(layer.target, rows.shape[:-1])

    def _indicators(self, table: Layer, stream: Tensor) -> tuple[Tensor, Tensor]:
        """For each position the row of a table that is added there, as a one among zeros, and whether there is one."""
        assert table.axis is not None
        index = rows_added(self.feed.current, table.tensors[1], table.axis, table.at[1], self.inputs)
        if index is None:
            raise DataError(
                f"The rows of {table.tensors[1]} were added to the stream as they are in the first inputs, and now "
                "they are not; give inputs of one kind at a time."
            )
        here = index >= 0
        count = table.weight_in(self.feed.current)[0].shape[1]
        return one_hot(index.clamp(min=0), count).double() * here[..., None], here


def _at_positions(rows: Tensor, layer: Layer, side: int) -> Tensor:
    """Rows of the source (0) or of the target (1) where the layer adds something."""
    if layer.positions is None:
        return rows
    return rows.flatten(1, -2)[:, list(layer.positions[side])]


def _flat(rows: Tensor) -> Tensor:
    """Positions of an image one after the other."""
    return rows.flatten(1, -2) if rows.ndim > 3 else rows


def _pair(shown: Sequence[tuple[Tensor, int]], tokens: Tokens | None) -> list[Tensor]:
    """Rows of A (0) and of B (1), in equal numbers."""
    rows, sides = zip(*shown, strict=True)
    return pair_rows(rows, sides, tokens)
