"""The outline of a network, read from its wiring: stacks of blocks, and in each block the spaces and slots it owns.

A *slot* is what one module does to one set of spaces: a linear layer with its bias, a norm, the queries of a fused
projection. A *block* is one of several modules that are numbered and built alike, as ``encoder.layer.3``. A space
belongs to a block if all tensors that lie in it do; the residual stream belongs to the network itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from interbasin.correspondence.pairs import Part, split
from interbasin.wiring import Group, Role, Wiring
from interbasin.wiring.axes.spaces import Axis, Grid, In, Row, leaves

# Modules are built alike if this share of the names in them is the same.
ALIKE = 0.5
# Words that say what a tensor is for: two that differ are no partners.
KINDS = {"query", "key", "value", "position", "type", "token"}
FUSED = ("query", "key", "value")  # the order of three segments that write several spaces, unlike the gates of a GRU
_MODULE_TENSORS = {"weight", "bias", "running_mean", "running_var"}
_SAME_WORD = {
    **dict.fromkeys(("q", "queries", "wq"), "query"),
    **dict.fromkeys(("k", "keys", "wk"), "key"),
    **dict.fromkeys(("v", "values", "wv"), "value"),
    **dict.fromkeys(("pos", "positions", "wpe"), "position"),
    **dict.fromkeys(("tok", "tokens", "word", "words", "wte"), "token"),
    **dict.fromkeys(("emb", "embedding", "embeddings"), "embed"),
    **dict.fromkeys(("ln", "layernorm", "rmsnorm", "batchnorm", "bn"), "norm"),
}


def words_of(name: str) -> frozenset[str]:
    """The words of a dotted name, without numbers, with one spelling for what has many.

    Example:
        >>> sorted(words_of("layer.0.selfAttn.q_proj"))
        ['attn', 'layer', 'proj', 'query', 'self']
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return frozenset(_SAME_WORD.get(word.lower(), word.lower()) for word in words)


class Entry(NamedTuple):
    """What one axis does: the space it mainly lies in, and in which role. ``space`` is None where nothing moves.

    ``fused``: inside each block it lists several segments, and nothing tells which is which.
    """

    axis: int
    size: int
    space: str | None = None
    role: Role | None = None
    fused: bool = False


class Term(NamedTuple):
    """A tensor, or a segment of one, as it acts on spaces."""

    part: Part
    axes: tuple[Axis, ...]
    entries: tuple[Entry, ...]

    @property
    def moving(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.space is not None]

    @property
    def still(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.space is None]


@dataclass(frozen=True)
class Slot:
    """What one module does to one set of spaces."""

    name: str  # of the module, or of a tensor that is a module's own parameter
    terms: tuple[Term, ...]  # its tensors, or the segments of them that belong together
    position: tuple[int, int]  # in the order of the data
    placed: bool  # whether a call of the module tells its position; else it is that of what was registered before it

    @cached_property
    def main(self) -> Term:
        """The weight, where there is one."""
        return max(self.terms, key=lambda term: (len(term.moving), sum(entry.size > 1 for entry in term.still)))

    @property
    def is_norm(self) -> bool:
        return any(entry.role is Role.SCALE for entry in self.main.moving)


class SpaceRole(NamedTuple):
    """How a space is used, apart from names and widths."""

    written: bool  # from other spaces, or from a table
    read: bool
    compared: bool  # written twice, once by the dual, and not read: queries and keys
    table: bool  # written by tables alone
    kernel: bool  # written by convolutions
    within: bool  # in blocks such as heads
    scaled: bool
    group: Group

    @property
    def use(self) -> tuple[bool, bool, bool]:
        """What partners have in common."""
        return self[:3]

    def likeness(self, other: SpaceRole) -> int:
        """How much else two have in common."""
        return sum(mine == yours for mine, yours in zip(self[3:], other[3:], strict=True))

    def describe(self) -> str:
        """Its use in words."""
        if self.compared:
            return "written twice, to be compared"
        verbs = [verb for verb, is_so in (("written", self.written), ("read", self.read)) if is_so]
        return " and ".join(verbs) or "neither written nor read"


@dataclass
class Block:
    """One module of a stack, or the network itself (``name`` is empty)."""

    name: str
    outline: Outline = field(repr=False)
    spaces: list[str] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)

    def holds(self, *names: str) -> bool:
        return not self.name or all(name == self.name or name.startswith(self.name + ".") for name in names)

    def all_spaces(self) -> list[str]:
        """Its spaces and those of the first block of each stack inside, however deep."""
        return [*self.spaces, *(name for stack in self.stacks for name in stack.blocks[0].all_spaces())]


class Stack(NamedTuple):
    """Blocks that are built alike, in the order of the data."""

    name: str
    blocks: list[Block]


class Outline:
    """A wiring as blocks, spaces in their roles, and slots.

    Attributes:
        wiring: It.
        slots: All of them, in the order of the data.
        roles: Of the spaces that some axis mainly lies in. Spaces that count blocks, such as heads, have none.
        kinds: What spaces and slots (by position) are for, where names say so: queries, keys, positions and such.
        root: The network as a block.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._carriers = {other for space in wiring.spaces.values() for other in space.within}
        self.slots = sorted(self._find_slots(), key=lambda slot: slot.position)
        self._touching: dict[str, list[tuple[str, Term]]] = {}
        for slot in self.slots:
            for term in slot.terms:
                for name in dict.fromkeys(entry.space for entry in term.moving):
                    if name is not None and name not in self._carriers:
                        self._touching.setdefault(name, []).append((slot.name, term))
        self._scopes = {name: {slot for slot, _ in terms} for name, terms in self._touching.items()}
        self.roles = {name: self._role(name) for name in self._touching}
        self.kinds = self._find_kinds()
        self.root = Block("", self)
        self._build(self.root)

    # ------------------------------------------------------------------ slots and spaces

    def _find_slots(self) -> Iterator[Slot]:
        calls: dict[str, int] = {}
        for order, where in enumerate(self.wiring.activations):
            calls.setdefault(where.partition(":")[0], order)
        calls.pop("", None)  # what the network itself puts out says nothing about where its own tensors stand
        slots: dict[tuple[str, int], list[Term]] = {}
        for name, tensor in self.wiring.tensors.items():
            for place, (segment, axes) in enumerate(split(tensor)):
                term = Term(Part(name, segment), axes, tuple(self.entries(axes)))
                slots.setdefault((_slot_name(name), place), []).append(term)
        last = -1
        for order, ((name, _), terms) in enumerate(slots.items()):
            module = terms[0].part.name.rpartition(".")[0]
            last = calls.get(module, last)
            yield Slot(name, tuple(terms), (last, order), module in calls)

    def entries(self, axes: Sequence[Axis]) -> Iterator[Entry]:
        """What each axis does: of several spaces along one, the innermost that does not count blocks."""
        for place, axis in enumerate(axes):
            spaces = [leaf for leaf, _ in leaves(axis) if isinstance(leaf, In)]
            own = [leaf for leaf in spaces if leaf.space not in self._carriers] or spaces
            fused = isinstance(axis, Grid) and any(isinstance(part, Row) for part in axis.parts)
            yield Entry(place, axis.size, own[-1].space, own[-1].role, fused) if own else Entry(place, axis.size)

    def outputs(self, term: Term) -> list[Entry]:
        """The axes that a tensor writes: those that follow a map, or where all follow duals the one of fewest users."""
        writes = [
            entry
            for entry in term.moving
            if any(isinstance(leaf, In) and leaf.role is not Role.READ for leaf, _ in leaves(term.axes[entry.axis]))
        ]
        users = {entry: len(self._scopes.get(entry.space or "", ())) for entry in term.moving}
        return writes if writes or len(users) < 2 else [min(users, key=lambda entry: (users[entry], entry.axis))]

    def _role(self, name: str) -> SpaceRole:
        read = table = scaled = kernel = False
        signs: set[Role | None] = set()
        for _, term in self._touching[name]:
            outputs = self.outputs(term)
            for entry in term.moving:
                if entry.space != name:
                    continue
                scaled |= entry.role is Role.SCALE
                if entry not in outputs:
                    read |= bool(outputs)
                elif len(outputs) < len(term.moving) and entry.role is not Role.SCALE:
                    signs.add(entry.role)
                    kernel |= bool(term.still)
                else:
                    table |= len(term.moving) == 1 and any(other.size > 1 for other in term.still)
        space = self.wiring.spaces[name]
        written, compared = table or bool(signs), len(signs) > 1 and not read
        return SpaceRole(written, read, compared, table and not signs, kernel, bool(space.within), scaled, space.group)

    def _find_kinds(self) -> dict[str | tuple[int, int], str]:
        kinds: dict[str | tuple[int, int], str] = {}
        writers: dict[str | None, list[str | None]] = {}
        modules: dict[str, list[Slot]] = {}
        for slot in self.slots:
            modules.setdefault(slot.name, []).append(slot)
        for name, slots in modules.items():
            words = words_of(name)
            # Fused projections have several kinds in their names, and a table of token types is not one of tokens.
            named = sorted({"type"} if "type" in words else words & KINDS)
            spaces = {entry.space for slot in slots for entry in self.outputs(slot.main)}
            by_order = FUSED if len(slots) == len(FUSED) and len(spaces) > 1 else [None] * len(slots)
            for slot, place in zip(slots, by_order, strict=True):
                kind = named[0] if len(named) == 1 else place
                kinds |= {slot.position: kind} if kind else {}
                for entry in self.outputs(slot.main):
                    writers.setdefault(entry.space, []).append(kind)
        return kinds | {name: own[0] for name, own in writers.items() if name and own[0] and len(set(own)) == 1}

    @cached_property
    def links(self) -> set[tuple[str, str]]:
        """Pairs of spaces of which a tensor reads one and writes the other."""
        return {
            (before.space, after.space)
            for slot in self.slots
            for after in self.outputs(slot.main)
            for before in slot.main.moving
            if before.space and after.space and before != after
        }

    def touches(self, space: str, stack: Stack) -> bool:
        """Whether a space is used in one of the blocks of a stack."""
        return any(block.holds(name) for block in stack.blocks for name in self._scopes[space])

    # ------------------------------------------------------------------ blocks

    @property
    def layers(self) -> list[str]:
        """The names of what makes a network deep: its outermost blocks, or without blocks its hidden spaces."""
        blocks = [block.name for stack in self.root.stacks for block in stack.blocks]
        hidden = [name for name in self.root.spaces if self.roles[name].use == (True, True, False)]
        return blocks or [name for name in hidden if not self.roles[name].table]

    @cached_property
    def block_names(self) -> set[str]:
        """The names of all blocks, however deep."""
        waiting, names = [self.root], set[str]()
        while waiting:
            inner = [block for stack in waiting.pop().stacks for block in stack.blocks]
            names.update(block.name for block in inner)
            waiting += inner
        return names

    def position(self, stack: Stack) -> tuple[int, int]:
        """Where a stack begins, in the order of the data."""
        return min(slot.position for slot in self.slots if any(block.holds(slot.name) for block in stack.blocks))

    def _build(self, block: Block) -> None:
        slots = [slot for slot in self.slots if block.holds(slot.name)]
        block.stacks = list(self._stacks(block.name, slots))
        inner = [child for stack in block.stacks for child in stack.blocks]
        block.slots = [slot for slot in slots if not any(child.holds(slot.name) for child in inner)]
        block.spaces = [
            name
            for name, users in self._scopes.items()
            if block.holds(*users) and not any(child.holds(*users) for child in inner)
        ]
        for child in inner:
            self._build(child)
        # A stack of one block that is nothing but a stack is that stack.
        for place, (_, blocks) in enumerate(block.stacks):
            only = blocks[0]
            if len(blocks) == len(only.stacks) == 1 and not only.spaces and not only.slots:
                block.stacks[place] = only.stacks[0]

    def _stacks(self, inside: str, slots: Sequence[Slot]) -> Iterator[Stack]:
        """The outermost numbered modules that are built alike, own a space and hold several slots."""
        numbered: dict[str, dict[int, set[str]]] = {}
        for slot in slots:
            parts = slot.name.split(".")
            for place in range(len(inside.split(".")) if inside else 0, len(parts)):
                if parts[place].isdigit():
                    members = numbered.setdefault(".".join(parts[:place]), {}).setdefault(int(parts[place]), set())
                    inner = ("#" if part.isdigit() else part for part in parts[place + 1 :])
                    members.add(f"{'.'.join(inner)} {len(slot.main.moving)}")
        claimed: list[Block] = []
        for name in sorted(numbered, key=lambda name: name.count(".")):
            if any(block.holds(name) for block in claimed):
                continue
            for run in _runs_alike(numbered[name]):
                blocks = [Block(f"{name}.{number}".lstrip("."), self) for number in run]
                owning = all(any(block.holds(*users) for users in self._scopes.values()) for block in blocks)
                if owning and (len(run) > 1 or len(numbered[name]) == 1):
                    claimed += blocks
                    yield Stack(name, blocks)


def _slot_name(tensor: str) -> str:
    """The module of a weight or a bias; what is left of its name where there are several; a parameter's own name."""
    module, _, last = tensor.rpartition(".")
    if last in _MODULE_TENSORS:
        return module or tensor
    kind = re.search("weight|bias", last)
    return tensor if kind is None else f"{module}.{last[: kind.start()]}{last[kind.end() :]}".strip("._")


def _runs_alike(members: Mapping[int, set[str]]) -> Iterator[list[int]]:
    """Runs of numbers whose modules hold several slots and have most of the names in common with the one before."""
    run: list[int] = []
    for number in sorted(number for number, names in members.items() if len(names) > 1):
        names, before = members[number], members[run[-1] if run else number]
        if len(names & before) < ALIKE * len(names | before):
            yield run
            run = []
        run.append(number)
    if run:
        yield run
