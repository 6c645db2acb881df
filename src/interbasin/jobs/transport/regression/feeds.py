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
from interbasin.jobs.transport.regression.tables import find_added_rows
from interbasin.jobs.transport.rows import Watcher, argument_at, input_rows, pair_rows, reading_at


class Chain:
    """The batches of several data sets, one after the other."""

    def __init__(self, *parts: Iterable[Any]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._parts)


@dataclass
class Feed:
    """Batches of one kind: layers aim at tuned A for them or, for generic inputs that are kept, at the base.

    Attributes:
        current: The target, with the layers that are fitted so far.
        base: The target as it was.
        tuned: The source after fine-tuning.
        data: The batches.
        tokens: Where the networks cut inputs into different numbers of tokens.
        mask: Which tokens count.
        is_task: Whether layers aim at tuned A.
        source: A before fine-tuning. With it, layers aim at B's own activations and what fine-tuning changed in A's.
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
        activations = _BatchActivations(self, stage, goals, inputs)
        for layer in stage:
            rows, target, mask = activations.collect_rows(layer)
            flat = [each.flatten(0, -2) for each in (rows, target)]
            if mask is not None:
                flat = [each[mask.flatten().to(each.device)] for each in flat]
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


class _BatchActivations:
    """What each of the networks computes for one batch at the places of a stage.

    Attributes:
        current: Of the network that is fitted: what its layers read, and the streams that they write.
        goal: Of the network that layers aim at: tuned A for task inputs, else the base.
        source: Of A before fine-tuning, where layers aim at a shift.
        base: Of the base, where layers aim at a shift or keep some of its units.
    """

    def __init__(self, feed: Feed, stage: Sequence[Layer], goals: Mapping[Layer, Goal], inputs: Any) -> None:
        self.feed, self.goals, self.inputs = feed, goals, inputs
        self.masks = masks_of(inputs, feed.mask, device_of(feed.current))
        streams = [layer for layer in stage if layer.aim == "stream"]
        reads = [argument_at(layer.reads) for layer in stage if not layer.is_table]
        outputs = [reading_at(layer.output) for layer in streams if not layer.is_table]
        places = [reading_at(layer.at[1]) for layer in streams]
        self.current = _read_activations(feed.current, [*reads, *outputs, *places], inputs)
        self.goal_side = 0 if feed.is_task else 1
        goal_readings = [reading_at(layer.at[self.goal_side]) for layer in stage]
        if feed.is_task:
            goal_readings += [reading_at(place) for layer in stage for _, place in layer.earlier]
        self.goal = _read_activations(feed.tuned if feed.is_task else feed.base, goal_readings, inputs)
        shift_layers = {layer for layer in stage if self.has_shift_goal(layer)}
        self.source = _read_activations(feed.source, goal_readings, inputs) if feed.source and shift_layers else {}
        base_layers = shift_layers | {layer for layer in stage if self._kept_columns(layer) is not None}
        base_readings = [reading_at(layer.at[1]) for layer in stage if layer in base_layers]
        self.base = _read_activations(feed.base, base_readings, inputs) if base_readings else {}

    def has_shift_goal(self, layer: Layer) -> bool:
        """Whether a layer aims at B's own activations and A's change. The last one aims at tuned A's answers."""
        return self.feed.is_task and self.feed.source is not None and layer.aim != "output"

    def collect_rows(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a layer reads, what it should write, and which of the rows count (None: all)."""
        if layer.aim != "stream":
            return self._collect_output_rows(layer)
        return self._collect_table_rows(layer) if layer.is_table else self._collect_stream_rows(layer)

    def _collect_table_rows(self, table: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of a table: which of its rows is added, and what that row should be for the stream to reach its goal."""
        stream = self.current[reading_at(table.at[1])]
        goal = self.goal[reading_at(table.at[self.goal_side])].double()
        rows, is_added = self._table_indicators(table, stream)
        output = rows @ table.weight_in(self.feed.current)[0].mT.to(rows)
        rest = stream.double() - output
        mask = self._row_mask(table, rows)
        rows = torch.cat([rows, is_added[..., None].to(rows)], -1)
        rows_by_side = [(rows, 1), (goal, 0), (rest, 1), *self._rows_before_tuning(table)]
        rows, goal, rest, *before = _pair_rows(rows_by_side, self.feed.tokens)
        is_added = rows[..., -1] > 0.5
        mask = is_added if mask is None else is_added & mask
        return rows[..., :-1], self._apply_goal(table, goal, before) - rest, mask

    def _collect_stream_rows(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of a layer that writes a stream: what it should add for the stream to reach its goal."""
        stream = self.current[reading_at(layer.at[1])]
        goal = self.goal[reading_at(layer.at[self.goal_side])].double()
        rows = input_rows(self.feed.current.get_submodule(layer.target), self.current[argument_at(layer.reads)])
        output = self.current[reading_at(layer.output)]
        mask = self._row_mask(layer, rows)
        indicators = None if layer.beside is None else self._table_indicators(layer.beside, stream)[0]
        stream, goal = _cut_positions(stream, layer, 1), _cut_positions(goal, layer, self.goal_side)
        output = output.flatten(1, -2) if output.ndim > stream.ndim else output
        rest = stream.double() - output.reshape(stream.shape).double()
        rows = rows.reshape(*stream.shape[:-1], -1)
        if indicators is not None:
            rows = torch.cat([rows.to(indicators), _cut_positions(indicators, layer, 1)], -1)
        tokens = self.feed.tokens
        if tokens is not None and tokens.prefix is not None and layer.positions is not None:
            tokens = replace(tokens, prefix=(0, 0))  # what stands before the patches was left out
        rows_before = [(_cut_positions(each, layer, side), side) for each, side in self._rows_before_tuning(layer)]
        rows, goal, rest, *before = _pair_rows([(rows, 1), (goal, 0), (rest, 1), *rows_before], tokens)
        return rows, self._apply_goal(layer, goal, before) - rest, mask

    def _collect_output_rows(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of a layer that writes no stream: what its outputs should be."""
        rows = input_rows(self.feed.current.get_submodule(layer.target), self.current[argument_at(layer.reads)])
        mask = self._row_mask(layer, rows)
        rows_by_side = [
            (_flatten_positions(rows), 1),
            (self._output_rows(layer, self.goal, self.goal_side), 0),
            *self._rows_before_tuning(layer),
        ]
        kept_columns = self._kept_columns(layer)
        if kept_columns is not None:
            rows_by_side.append((self._output_rows(layer, self.base, 1), 1))
        rows, goal, *others = _pair_rows(rows_by_side, self.feed.tokens)
        target = self._apply_goal(layer, goal, others)
        if kept_columns is not None:
            target = target.clone()
            target[..., kept_columns] = others[-1][..., kept_columns]
        return rows, target, mask

    def _kept_columns(self, layer: Layer) -> Tensor | None:
        """The columns of a layer's output that aim at those of the base on task inputs."""
        return self.goals[layer].kept_columns if self.feed.is_task else None

    def _apply_goal(self, layer: Layer, rows: Tensor, before: Sequence[Tensor]) -> Tensor:
        """What a layer aims at. For a shift, ``before`` begins with A's and B's rows before fine-tuning."""
        goal = self.goals[layer]
        target = goal(rows, self.feed.is_task)
        return target - goal(before[0], True) + before[1] if self.has_shift_goal(layer) else target

    def _rows_before_tuning(self, layer: Layer) -> list[tuple[Tensor, int]]:
        """Where a layer aims at a shift, the rows of A (0) and of B (1) before fine-tuning, each with its side."""
        if not self.has_shift_goal(layer):
            return []
        bases = enumerate((self.source, self.base))
        if layer.aim == "stream":
            return [(activations[reading_at(layer.at[side])].double(), side) for side, activations in bases]
        return [(self._output_rows(layer, activations, side), side) for side, activations in bases]

    def _output_rows(self, layer: Layer, activations: Mapping[Reading, Tensor], side: int) -> Tensor:
        """What a layer of A (0) or of B (1) puts out; of A together with the layers whose work it has to do."""
        rows, columns = activations[reading_at(layer.at[side])], layer.columns[side]
        rows = rows if columns is None else rows[..., columns]
        if side == 0 and layer.earlier:
            rows = torch.cat([*(activations[reading_at(place)] for _, place in layer.earlier), rows], -1)
        return _flatten_positions(rows).double()

    def _row_mask(self, layer: Layer, rows: Tensor) -> Tensor | None:
        return None if self.masks is None else self.masks.fitting(layer.target, rows.shape[:-1])

    def _table_indicators(self, table: Layer, stream: Tensor) -> tuple[Tensor, Tensor]:
        """For each position the row of a table that is added there, as a one among zeros, and whether there is one."""
        assert table.axis is not None
        index = find_added_rows(self.feed.current, table.tensors[1], table.axis, table.at[1], self.inputs)
        if index is None:
            raise DataError(
                f"The rows of {table.tensors[1]} were added to the stream as they are in the first inputs, and now "
                "they are not; give inputs of one kind at a time."
            )
        is_added = index >= 0
        count = table.weight_in(self.feed.current)[0].shape[1]
        return one_hot(index.clamp(min=0), count).double() * is_added[..., None], is_added


def _read_activations(network: nn.Module, readings: Sequence[Reading], inputs: Any) -> Mapping[Reading, Tensor]:
    """The activations of a network at some places, each read once."""
    return Watcher(network, list(dict.fromkeys(readings))).run(inputs)


def _cut_positions(rows: Tensor, layer: Layer, side: int) -> Tensor:
    """Rows of the source (0) or of the target (1) at the positions that the layer adds something to."""
    if layer.positions is None:
        return rows
    return rows.flatten(1, -2)[:, list(layer.positions[side])]


def _flatten_positions(rows: Tensor) -> Tensor:
    """Positions of an image one after the other."""
    return rows.flatten(1, -2) if rows.ndim > 3 else rows


def _pair_rows(rows_by_side: Sequence[tuple[Tensor, int]], tokens: Tokens | None) -> list[Tensor]:
    """Rows of A (0) and of B (1), in equal numbers."""
    rows, sides = zip(*rows_by_side, strict=True)
    return pair_rows(rows, sides, tokens)
