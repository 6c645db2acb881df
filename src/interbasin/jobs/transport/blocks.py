r"""A network with more blocks: new ones between its own, as the seed makes a source as deep as the target.

The paper [rinaldi:26, section 4.4] puts a new block behind each one, halfway to the next,
:math:`\tfrac12 \theta_i + \tfrac12 \theta_{i+1}`, and behind the last a copy of it. Base and tuned network are made
longer alike, and so is the update, which is the difference of the two. What comes out is a worse network than before:
it only says which blocks belong together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.checkpoints.in_memory import HeldTensors, tensors_of
from interbasin.errors import WiringError
from interbasin.jobs.transport.updates.adapter import Kind
from interbasin.jobs.transport.updates.reading import Picked
from interbasin.jobs.transport.updates.update import Update
from interbasin.text import list_names, plural
from interbasin.wiring.trace.copying import copied

# What modules and configurations call the number of a block, and how many there are.
_NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number")
_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "depth")
_DECODER_COUNTS = ("num_decoder_layers", "decoder_layers")


def spread(blocks: int, depth: int) -> list[tuple[int, float]]:
    """For each of ``depth`` blocks the one of ``blocks`` that it comes from, and how far it lies towards the next.

    Every gap, and the place behind the last block, gets as many new blocks. What is left over goes to gaps between
    blocks that are spread evenly.

    Example:
        >>> spread(2, 4)
        [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.0)]
        >>> spread(3, 5)
        [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5), (2, 0.0)]
    """
    everywhere, rest = divmod(depth - blocks, blocks)
    more = [(2 * place + 1) * (blocks - 1) // (2 * rest) for place in range(rest)]
    places = []
    for block in range(blocks):
        new = everywhere + more.count(block)
        last = block == blocks - 1
        places += [(block, 0.0 if last else step / (new + 1)) for step in range(new + 1)]
    return places


def interpolate_blocks(model: nn.Module, blocks: Sequence[str], depth: int) -> nn.Module:
    """A copy of a network whose stack of blocks is ``depth`` deep: new blocks lie between its own.

    Args:
        model: The network; it stays as it is.
        blocks: The names of its blocks, in order: neighbours in one ``nn.ModuleList`` or ``nn.Sequential``.
        depth: How many blocks there shall be.

    Raises:
        WiringError: if the blocks stand elsewhere, are not built alike, or are more than ``depth``.

    Example:
        >>> net = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(2)))
        >>> deeper = interpolate_blocks(net, ["0", "1"], 4)
        >>> torch.allclose(deeper[1][0].weight, (net[0][0].weight + net[1][0].weight) / 2)
        True
    """
    deeper = copied(model)
    _lengthen(deeper, _Stack.of(model, blocks), depth)
    return deeper


@dataclass(frozen=True)
class Filling:
    """A stack of blocks, and how many it shall have."""

    blocks: tuple[str, ...]
    depth: int

    @property
    def note(self) -> str:
        origins = [block for block, _ in spread(len(self.blocks), self.depth)]
        behind = [name for block, name in enumerate(self.blocks) if origins.count(block) > 1]
        return f"{plural(self.depth - len(self.blocks), 'block')} behind {list_names(behind)}"


@dataclass(frozen=True, eq=False)
class Lengthening:
    """What made the source as deep as the target.

    Attributes:
        source: The source as it was given.
        fillings: Its stacks that became deeper, in the order in which they stand.
    """

    source: nn.Module
    fillings: tuple[Filling, ...]

    def model(self, model: nn.Module) -> nn.Module:
        """A network like the source as it was given, its fine-tune say, made as deep."""
        deeper = copied(model)
        for filling in reversed(self.fillings):  # new blocks move what stands behind them in a container
            _lengthen(deeper, _Stack.of(deeper, filling.blocks), filling.depth)
        return deeper

    def update(self, update: Update) -> Update:
        """The update of the source as it was given, for the deeper one: the difference of the two made longer.

        Factors stay factors; those of a block between two have the ranks of both.
        """
        tensors = HeldTensors(self.source, "the source")
        origins = {name: [(name, 1.0)] for name in (*tensors.entries, *tensors.ties)}
        for filling in reversed(self.fillings):
            longer = _origins(list(origins), _Stack.of(self.source, filling.blocks), filling.depth)
            origins = {
                name: [(old, weight * share) for between, share in parts for old, weight in origins[between]]
                for name, parts in longer.items()
            }
        # Parts of the same weight in the same place of their sums are one update under other names.
        groups: dict[tuple[int, float], dict[str, str]] = {}
        for name, parts in origins.items():
            for place, (old, weight) in enumerate(parts):
                if old in update:
                    groups.setdefault((place, weight), {})[name] = old
        parts_of = [_rename_tensors(update, names) for names in groups.values()] or [update]
        whole = Update.combined(parts_of, [weight for _, weight in groups] or None)
        return replace(whole, label=update.label, notes=update.notes, kinds=_longer_kinds(update.kinds, origins))

    @property
    def note(self) -> str:
        """What a user should know."""
        return (
            f"New blocks were put into the source: {list_names(filling.note for filling in self.fillings)} "
            "(depth='interpolate'). The account is of the update of that deeper network, which does not answer as the "
            "source does."
        )


# ---------------------------------------------------------------------- where blocks stand


@dataclass(frozen=True)
class _Stack:
    """Neighbours in a container: its name, the number of the first, and how many."""

    name: str
    first: int
    count: int

    @classmethod
    def of(cls, model: nn.Module, blocks: Sequence[str]) -> _Stack:
        parents = {block.rpartition(".")[0] for block in blocks}
        parent = parents.pop() if parents else ""
        container = model.get_submodule(parent) if not parents else None
        numbers = [block.rpartition(".")[2] for block in blocks]
        children = [name for name, _ in container.named_children()] if container is not None else []
        if (
            not isinstance(container, nn.ModuleList | nn.Sequential)
            or children != [str(number) for number in range(len(children))]
            or not all(number in children for number in numbers)
            or numbers != [str(int(numbers[0]) + place) for place in range(len(numbers))]
        ):
            raise WiringError(
                f"New blocks are put between neighbours in one nn.ModuleList or nn.Sequential, and "
                f"{list_names(blocks) or 'no block'} are none; take depth='cka' or 'even'."
            )
        return cls(parent, int(numbers[0]), len(numbers))

    def rename(self, name: str, number: int) -> str:
        """The tensor of a block by the name that it has in another block of the container."""
        rest = name.removeprefix(self.prefix).partition(".")[2]
        return f"{self.prefix}{number}.{rest}"

    @property
    def prefix(self) -> str:
        return f"{self.name}." if self.name else ""

    def block_of(self, name: str) -> int | None:
        """Which block a tensor belongs to."""
        number = self.number_of(name)
        return number if number is not None and 0 <= number - self.first < self.count else None

    def number_of(self, name: str) -> int | None:
        """Which child of the container a tensor belongs to."""
        if not name.startswith(self.prefix):
            return None
        number, _, rest = name.removeprefix(self.prefix).partition(".")
        return int(number) if number.isdigit() and rest else None


# ---------------------------------------------------------------------- the network


def _lengthen(model: nn.Module, stack: _Stack, depth: int) -> None:
    """Put new blocks into a network, in place."""
    if depth < stack.count:
        raise WiringError(
            f"Asked for {depth} blocks in {stack.name or 'the network'!r}, which has {stack.count}: new blocks make a "
            "network deeper only; take depth='cka', which pairs blocks of a shallower target too."
        )
    for name, first in HeldTensors(model, "the network").ties.items():
        if stack.block_of(name) != stack.block_of(first):
            raise WiringError(
                f"{name} and {first} are one tensor, so that no block of its own can lie between them; take "
                "depth='cka' or 'even'."
            )
    container = model.get_submodule(stack.name)
    assert isinstance(container, nn.ModuleList | nn.Sequential)
    children = list(container)
    old_blocks = children[stack.first : stack.first + stack.count]
    places = spread(stack.count, depth)
    blocks, numbers = list[nn.Module](), list[int]()
    for place, (block, way) in enumerate(places):
        if way:
            blocks.append(_interpolate_block(old_blocks[block], old_blocks[block + 1], way, stack, block))
        else:
            blocks.append(old_blocks[block] if places.index((block, 0.0)) == place else copied(old_blocks[block]))
        numbers.append(block + (way > 0))
    for place, (new, number) in enumerate(zip(blocks, numbers, strict=True)):
        _renumber(new, place - number)
    for _ in range(len(children)):
        del container[0]
    for child in (*children[: stack.first], *blocks, *children[stack.first + stack.count :]):
        container.append(child)
    _recount(model, stack, [block for block, _ in places])


def _interpolate_block(before: nn.Module, behind: nn.Module, way: float, stack: _Stack, block: int) -> nn.Module:
    """The block that lies between two. What only the earlier one has (a table that later ones share) stays with it."""
    new = copied(behind)
    first, second = before.state_dict(), behind.state_dict()
    names = [f"{stack.prefix}{stack.first + block + step}" for step in (0, 1)]
    for name, tensor in second.items():
        if not isinstance(tensor, Tensor):
            continue
        if name not in first or first[name].shape != tensor.shape:
            shapes = [tuple(side[name].shape) if name in side else "not there" for side in (first, second)]
            raise WiringError(
                f"No block lies between {names[0]} and {names[1]}, which are not built alike: {name} is {shapes[0]} "
                f"and {shapes[1]}; take depth='cka' or 'even'."
            )
    with torch.no_grad():
        for name, tensor in new.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.copy_(torch.lerp(first[name], second[name], way))
    return new


def _renumber(block: nn.Module, shift: int) -> None:
    """Tell the modules of a block that it stands elsewhere: caches are numbered by it."""
    for module in block.modules():
        for name in _NUMBERS:
            number = vars(module).get(name)
            if isinstance(number, int) and not isinstance(number, bool):
                setattr(module, name, number + shift)


def _recount(model: nn.Module, stack: _Stack, origins: list[int]) -> None:
    """Correct what the modules around a stack, and their configurations, say of how many blocks there are."""
    parts = stack.name.split(".") if stack.name else []
    around = [model.get_submodule(".".join(parts[:length])) for length in range(len(parts), -1, -1)]
    in_decoder = any("decoder" in part for part in parts)
    earlier_holders: list[Any] = []
    for module in around:
        config = getattr(module, "config", None)
        for holder in (module, config):
            if holder is None or any(holder is other for other in earlier_holders) or not hasattr(holder, "__dict__"):
                continue
            earlier_holders.append(holder)
            counts: tuple[str, ...] = _COUNTS
            if in_decoder and any(hasattr(holder, name) for name in _DECODER_COUNTS):
                # The configuration of a decoder alone counts its blocks under both names.
                alone = holder is config and getattr(holder, "is_decoder", False)
                counts = (*_COUNTS, *_DECODER_COUNTS) if alone else _DECODER_COUNTS
            _correct(holder, counts, stack.count, origins)


def _correct(holder: Any, counts: Sequence[str], count: int, origins: list[int]) -> None:
    known = vars(holder)
    for name, value in list(known.items()):
        if isinstance(value, list | tuple) and "layer" in name and len(value) == count:
            setattr(holder, name, type(value)(value[origin] for origin in origins))
    for name in counts:
        if isinstance(known.get(name), int) and known[name] == count:
            setattr(holder, name, len(origins))


# ---------------------------------------------------------------------- the update


def _origins(tensors: Sequence[str], stack: _Stack, depth: int) -> dict[str, list[tuple[str, float]]]:
    """The names of the deeper network's tensors: for each, those that it is the weighted sum of."""
    origins: dict[str, list[tuple[str, float]]] = {}
    names: dict[int, list[str]] = {}
    for name in tensors:
        number = stack.number_of(name)
        if number is None or number < stack.first:
            origins[name] = [(name, 1.0)]
        elif number >= stack.first + stack.count:
            origins[stack.rename(name, number + depth - stack.count)] = [(name, 1.0)]
        else:
            names.setdefault(number, []).append(name)
    for place, (block, way) in enumerate(spread(stack.count, depth)):
        number = stack.first + block
        for name in names.get(number + (way > 0), []):
            ends = [(stack.rename(name, number), 1 - way), (stack.rename(name, number + 1), way)]
            origins[stack.rename(name, stack.first + place)] = ends if way else ends[:1]
    return origins


def _longer_kinds(kinds: Mapping[str, Kind], origins: Mapping[str, Sequence[tuple[str, float]]]) -> dict[str, Kind]:
    return {name: kinds[parts[0][0]] for name, parts in origins.items() if parts[0][0] in kinds}


def _rename_tensors(update: Update, names: Mapping[str, str]) -> Update:
    """Some tensors of an update, under other names."""
    dense = {new: old for new, old in names.items() if old in update.dense}
    return replace(
        update,
        dense=Picked(tensors_of(update.dense, update.label), dense),
        factors={new: update.factors[old] for new, old in names.items() if old in update.factors},
        transposed=frozenset(new for new, old in names.items() if old in update.transposed),
        tables=frozenset(new for new, old in names.items() if old in update.tables),
    )
