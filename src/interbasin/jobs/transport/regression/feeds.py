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
    """Batches of one kind: task inputs, which aim at tuned A, or generic ones, which may aim at the base itself."""

    current: nn.Module
    base: nn.Module
    tuned: nn.Module
    data: Iterable[Any]
    tokens: Tokens | None
    mask: MaskOf
    is_task: bool

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
        kept = [reading_at(layer.at[1]) for layer in stage if feed.is_task and goals[layer].kept is not None]
        self.base = Watcher(feed.base, list(dict.fromkeys(kept))).run(inputs) if kept else {}

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
            rows, aim, rest = pair_rows([rows, aim, rest], (1, 0, 1), self.feed.tokens)
            here = rows[..., -1] > 0.5
            counts = here if counts is None else here & counts
            return rows[..., :-1], self.goals[layer](aim, self.feed.is_task) - rest, counts
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
        rows, aim, rest = pair_rows([rows, aim, rest], (1, 0, 1), tokens)
        return rows, self.goals[layer](aim, self.feed.is_task) - rest, counts

    def own(self, layer: Layer) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a layer reads, what its own outputs should be, and which of the rows count."""
        goal, task = self.goals[layer], self.feed.is_task
        rows = input_rows(self.feed.current.get_submodule(layer.target), self.now[argument_at(layer.reads)])
        counts = self._counts(layer, rows)
        aim = self.aims[reading_at(layer.at[self.side])]
        part = layer.columns[self.side]
        aim = aim if part is None else aim[..., part]
        if task and layer.earlier:
            aim = torch.cat([*(self.aims[reading_at(place)] for _, place in layer.earlier), aim], -1)
        rows = rows.flatten(1, -2) if rows.ndim > 3 else rows
        aim = aim.flatten(1, -2) if aim.ndim > 3 else aim
        rows, aim = pair_rows([rows, aim.double()], (1, 0), self.feed.tokens)
        target = goal(aim, task)
        target = target if goal.columns is None else _spread(target, goal)
        if goal.kept is not None and task:
            mine = self.base[reading_at(layer.at[1])].double()
            mine = mine.flatten(1, -2) if mine.ndim > 3 else mine
            mine = pair_rows([rows, mine], (1, 1), self.feed.tokens)[1]
            target = target.clone()
            target[..., goal.kept] = mine[..., goal.kept]
        return rows, target, counts

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


def _spread(target: Tensor, goal: Goal) -> Tensor:
    """Targets of some columns, with zeros where there is none."""
    assert goal.columns is not None
    whole = target.new_zeros(*target.shape[:-1], goal.width)
    whole[..., goal.columns] = target
    return whole
