"""Two networks matched by the roles of their blocks, spaces and tensors, whatever these are called.

From the outside in: stacks of blocks first, then the spaces that a pair of blocks owns, then the slots that write, read
or scale paired spaces. Two spaces can be partners if they are used alike; two slots, if their axes lie in paired spaces
in the same roles. Where several fit, the most alike are taken: names and the order of the data decide between equals.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from interbasin.correspondence.depth import Similarity, even_path
from interbasin.correspondence.outline import Block, Entry, Outline, Slot, Stack, Term, words_of
from interbasin.correspondence.pairs import Order, Part, Unmatched
from interbasin.wiring import Role
from interbasin.wiring.axes.spaces import Axis, spaces_in

Item = TypeVar("Item")
Touched = dict[str, frozenset[int]]  # which of the paired stacks a space is used in
VERBS = {Role.WRITE: "writes", Role.READ: "reads", Role.SCALE: "scales"}
FORBIDDEN = -1e6
PLACE = 0.01  # what one place in the order of the data weighs: it decides between equals


class Match:
    """The spaces and tensors of two outlines that correspond, each kind of match in its own way.

    Attributes:
        outlines: Of the source and of the target.
        spaces: Pairs of names.
        terms: Pairs of tensors or segments, and the order of the axes.
        unmatched: Of the source and of the target: what has no partner, and why; the last reason counts.
    """

    def __init__(self, source: Outline, target: Outline) -> None:
        self.outlines = (source, target)
        self.spaces: dict[tuple[str, str], None] = {}
        self.terms: dict[tuple[Part, Part], Order | None] = {}
        self.unmatched: tuple[list[Unmatched], list[Unmatched]] = ([], [])

    def pair_factors(self, ours: Axis, theirs: Axis) -> list[tuple[str, str]]:
        """Pairs of the heads, angles and other factors of two axes that correspond, from the outside in."""
        names, rest = (
            [name for name in spaces_in([axis]) if name not in outline.roles]
            for outline, axis in zip(self.outlines, (ours, theirs), strict=True)
        )
        source, target = (outline.wiring.spaces for outline in self.outlines)
        pairs = []
        for name in names:
            alike = (place for place, other in enumerate(rest) if target[other].is_fixed == source[name].is_fixed)
            place = next(alike, None)
            if place is not None:
                pairs.append((name, rest[place]))
                rest = rest[place + 1 :]
        return pairs


class RoleMatch(Match):
    """Two outlines matched by role; without a similarity, blocks are spread evenly."""

    def __init__(self, source: Outline, target: Outline, similarity: Similarity | None = None) -> None:
        super().__init__(source, target)
        self._similarity = similarity
        self._lone_blocks: tuple[list[tuple[str, Block]], list[tuple[str, Block]]] = ([], [])
        self._match_blocks(source.root, target.root)
        self._match_ties()
        self._match_bare_spaces()
        for side in (0, 1):
            self._give_reasons(side)

    # ------------------------------------------------------------------ blocks

    def _match_blocks(self, source: Block, target: Block) -> None:
        stacks = _assign(source.stacks, target.stacks, self._score_stacks)
        for side, block in enumerate((source, target)):
            lone = [stack for stack in block.stacks if not any(stack is pair[side] for pair in stacks)]
            self._lone_blocks[side].extend((stack.name, block) for stack in lone for block in stack.blocks)
        self._match_spaces(source, target, stacks)
        self._match_slots(source, target, stacks)
        for pair in stacks:
            for blocks in self._block_pairs(pair[0].blocks, pair[1].blocks):
                self._match_blocks(*blocks)

    def _score_stacks(self, source: Stack, target: Stack) -> float | None:
        first = source.blocks[0], target.blocks[0]
        ours, theirs = (Counter(block.outline.roles[name].use for name in block.all_spaces()) for block in first)
        common = (ours & theirs).total()
        return common / max(ours.total(), theirs.total()) + _likeness(source.name, target.name) if common else None

    def _block_pairs(self, source: Sequence[Block], target: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
        """Which blocks of two stacks go together. Without CKA, runs of blocks that are built alike stay apart."""
        runs = _runs(source), _runs(target)
        if self._similarity is not None or len(runs[0]) != len(runs[1]):
            runs = [source], [target]
        for run, partner in zip(*runs, strict=True):
            path = self._path([block.name for block in run], [block.name for block in partner])
            yield from ((run[i], partner[j]) for i, j in path)

    def _path(self, source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
        even = even_path(len(source), len(target))
        return even if self._similarity is None or len(even) == 1 else self._similarity.path(source, target)

    # ------------------------------------------------------------------ spaces

    def _match_spaces(self, source: Block, target: Block, stacks: Sequence[tuple[Stack, Stack]]) -> None:
        roles = self.outlines[0].roles, self.outlines[1].roles
        touched = [
            {
                name: frozenset(rank for rank, pair in enumerate(stacks) if block.outline.touches(name, pair[side]))
                for name in block.spaces
            }
            for side, block in enumerate((source, target))
        ]

        def likeness(ours: str, theirs: str) -> float:
            stacks_alike = 3 * _overlap(touched[0][ours], touched[1][theirs])
            names_alike = _likeness(_inside(ours, source), _inside(theirs, target))
            return roles[0][ours].likeness(roles[1][theirs]) + stacks_alike + names_alike

        def score(ours: Sequence[str], theirs: Sequence[str]) -> float | None:
            used_alike = roles[0][ours[0]].use == roles[1][theirs[0]].use and self._kinds_agree(ours[0], theirs[0])
            return likeness(ours[0], theirs[0]) if used_alike else None

        for ours, theirs in _assign(_chains(source, touched[0]), _chains(target, touched[1]), score):
            self.spaces.update(dict.fromkeys((ours[i], theirs[j]) for i, j in self._path(ours, theirs)))
        if source.name:
            self._match_halves(source, target, likeness)
        else:
            self._match_split_streams(source, target, touched)

    def _match_halves(self, source: Block, target: Block, likeness: Callable[[str, str], float]) -> None:
        """Spaces of a block that one network writes and reads, and the other keeps apart, as flat values can be."""
        left = self._spaces_left(source, target)
        for verb in ("written", "read"):
            ours, theirs = (
                [name for name in names if getattr(outline.roles[name], verb) and not outline.roles[name].compared]
                for outline, names in zip(self.outlines, left, strict=True)
            )
            self.spaces.update(dict.fromkeys(_assign(ours, theirs, likeness)))

    def _match_split_streams(self, source: Block, target: Block, touched: Sequence[Touched]) -> None:
        """Streams that are one space here and two there, as those of an encoder and a decoder can be."""
        pairs = self._pairs(source, target)
        for side, names in enumerate(self._spaces_left(source, target)):
            roles = self.outlines[side].roles
            for name in names:
                whole = [
                    pair
                    for pair in pairs
                    if roles[name].use == roles[pair[side]].use == (True, True, False)
                    and touched[side][name]
                    and touched[side][name] <= touched[1 - side][pair[1 - side]]
                ]
                if len(whole) == 1:
                    self.spaces[(name, whole[0][1]) if side == 0 else (whole[0][0], name)] = None

    def _pairs(self, source: Block, target: Block) -> list[tuple[str, str]]:
        return [pair for pair in itertools.product(source.spaces, target.spaces) if pair in self.spaces]

    def _spaces_left(self, source: Block, target: Block) -> list[list[str]]:
        """The spaces of two blocks that have no partner in the other one."""
        pairs = self._pairs(source, target)
        return [
            [name for name in block.spaces if not any(name == pair[side] for pair in pairs)]
            for side, block in enumerate((source, target))
        ]

    # ------------------------------------------------------------------ slots

    def _match_slots(self, source: Block, target: Block, stacks: Sequence[tuple[Stack, Stack]]) -> None:
        classes: list[dict[Any, list[Slot]]] = [{}, {}]
        behind: list[dict[tuple[int, int], list[bool]]] = [{}, {}]  # which stacks a slot comes after
        for side, block in enumerate((source, target)):
            starts = [block.outline.position(pair[side]) for pair in stacks]
            for slot in block.slots:
                classes[side].setdefault(_signature(block.outline, slot), []).append(slot)
                behind[side][slot.position] = [slot.position > start for start in starts]

        def score(ours: Slot, theirs: Slot) -> float | None:
            segments = ours.main.part.segment is not None and theirs.main.part.segment is not None
            if (
                self._order(ours.main, theirs.main) is None
                or not self._kinds_agree(ours.position, theirs.position)
                or not _could_agree(ours, theirs)
                or (ours.placed and theirs.placed and behind[0][ours.position] != behind[1][theirs.position])
                or (segments and _copies(ours, source) != _copies(theirs, target))
            ):
                return None
            return (
                2 * _likeness(_inside(ours.name, source), _inside(theirs.name, target))
                + (len(ours.terms) == len(theirs.terms))
                + ([entry.role for entry in ours.main.moving] == [entry.role for entry in theirs.main.moving])
            )

        for ours, theirs in itertools.product(*(slots.values() for slots in classes)):
            for pair in _assign(ours, theirs, score):
                self._match_terms(*pair)

    def _kinds_agree(self, source: str | tuple[int, int], target: str | tuple[int, int]) -> bool:
        ours, theirs = self.outlines[0].kinds.get(source), self.outlines[1].kinds.get(target)
        return ours is None or theirs is None or ours == theirs

    def _match_terms(self, source: Slot, target: Slot) -> None:
        def score(ours: Term, theirs: Term) -> float | None:
            if (ours is source.main) != (theirs is target.main) or self._order(ours, theirs) is None:
                return None
            return float(ours.part.name.rpartition(".")[2] == theirs.part.name.rpartition(".")[2])

        for ours, theirs in _assign(source.terms, target.terms, score):
            order = self.terms[ours.part, theirs.part] = self._order(ours, theirs)
            for axis, origin in enumerate(order or ()):
                if origin is not None:
                    self.spaces.update(dict.fromkeys(self.pair_factors(ours.axes[origin], theirs.axes[axis])))

    def _order(self, source: Term, target: Term) -> Order | None:
        """For each axis of the target's tensor the source's that does the same, or None if they do not correspond."""
        still, target_still = source.still, target.still
        while len(still) != len(target_still):
            longer = still if len(still) > len(target_still) else target_still
            single = [entry for entry in longer if entry.size == 1]
            if not single:
                return None
            longer.remove(single[0])
        moving = target.moving
        for candidates in itertools.permutations(source.moving) if len(source.moving) == len(moving) else ():
            # Spaces that differ have partners that differ: what leads from a space to itself has such a partner.
            pairs = {(ours.space, theirs.space) for ours, theirs in zip(candidates, moving, strict=True)}
            apart = len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)
            if apart and all(map(self._agree, candidates, moving)):
                entries = zip([*moving, *target_still], [*candidates, *still], strict=True)
                order = {theirs.axis: ours.axis for theirs, ours in entries}
                return tuple(order.get(axis) for axis in range(len(target.axes)))
        return None

    def _agree(self, source: Entry, target: Entry) -> bool:
        ours, theirs = (
            outline.roles.get(entry.space or "") for outline, entry in zip(self.outlines, (source, target), strict=True)
        )
        if ours is None or theirs is None:
            return ours is theirs and source.role is target.role
        same_role = source.role is target.role or (ours.compared and theirs.compared)
        return same_role and source.fused == target.fused and (source.space, target.space) in self.spaces

    # ------------------------------------------------------------------ what is left

    def _match_ties(self) -> None:
        """Tensors that the source ties to another one and the target does not: each name has a partner of its own.

        An output layer that is not tied to the table of embeddings has the shape of that table.
        """
        source, target = (outline.wiring for outline in self.outlines)
        matched = {theirs.name for _, theirs in self.terms}
        for alias, name in source.tied.items():
            shapes = [target.tensors[theirs.name].shape for ours, theirs in self.terms if ours.name == name]
            free = [name for name, tensor in target.tensors.items() if tensor.shape in shapes and name not in matched]
            if free:
                partner = max(free, key=lambda name: _likeness(alias, name))
                self.terms[Part(alias), Part(partner)] = None
                matched.add(partner)

    def _match_bare_spaces(self) -> None:
        """Spaces in which no tensor lies, by their names."""
        source, target = (
            {name for name, space in outline.wiring.spaces.items() if not (space.writes or space.reads or space.scales)}
            for outline in self.outlines
        )
        self.spaces.update(dict.fromkeys((name, name) for name in sorted(source & target)))

    def _give_reasons(self, side: int) -> None:
        outline, unmatched = self.outlines[side], self.unmatched[side]
        paired, matched = {pair[side] for pair in self.spaces}, {pair[side] for pair in self.terms}
        for name in outline.wiring.spaces:
            if name not in paired:
                reason = "the other network does not cut its axes into such factors"
                if name in outline.roles:
                    use = outline.roles[name].describe()
                    reason = f"no space that is left in the other network is used alike ({use})"
                unmatched.append(Unmatched("space", name, self._lone_reason(side, name) or reason))
        for slot in outline.slots:
            for term in slot.terms:
                if term.part not in matched:
                    reason = self._lone_reason(side, slot.name) or self._reason(side, slot, term)
                    unmatched.append(Unmatched.of("tensor", term.part, reason))

    def _lone_reason(self, side: int, name: str) -> str | None:
        stacks = (stack for stack, block in self._lone_blocks[side] if block.holds(name))
        return next((f"the other network has no stack of blocks like {stack!r}" for stack in stacks), None)

    def _reason(self, side: int, slot: Slot, term: Term) -> str:
        if term is not slot.main:
            if any(pair[side] == slot.main.part for pair in self.terms):
                return f"the partner of its module has no {term.part.name.rpartition('.')[2]!r}"
            return self._reason(side, slot, slot.main)
        partners = [{pair[1 - side] for pair in self.spaces if pair[side] == entry.space} for entry in term.moving]
        for entry, names in zip(term.moving, partners, strict=True):
            if not names:
                return f"the space that it {VERBS[entry.role or Role.WRITE]} has no partner"
        if len({entry.space for entry in term.moving}) > 1 and set.intersection(*partners):
            return "the spaces that it joins are one space in the other network"
        return "nothing that is left in the other network does the same"


def _assign(
    source: Sequence[Item], target: Sequence[Item], score: Callable[[Item, Item], float | None]
) -> list[tuple[Item, Item]]:
    """The one-to-one pairs of the largest total score, in order where scores are equal. None: not a pair."""
    table = np.full((len(source), len(target)), FORBIDDEN)
    for (i, ours), (j, theirs) in itertools.product(enumerate(source), enumerate(target)):
        value = score(ours, theirs)
        if value is not None:
            table[i, j] = value - PLACE * abs(i - j)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return [(source[i], target[j]) for i, j in zip(rows, columns, strict=True) if table[i, j] > FORBIDDEN]


def _overlap(source: frozenset[Any], target: frozenset[Any]) -> float:
    return len(source & target) / max(len(source | target), 1)


def _likeness(source: str, target: str) -> float:
    """How alike two names are, between 0 and 1: by the words that they share, and whether they are the same."""
    return (_overlap(words_of(source), words_of(target)) + (source == target)) / 2


def _inside(name: str, block: Block) -> str:
    return name[len(block.name) + 1 :] if block.name and block.holds(name) else name


def _runs(blocks: Sequence[Block]) -> list[Sequence[Block]]:
    """Blocks that follow each other and have the same slots: the first of a stage often has more."""
    known = blocks[0].outline.roles

    def act(slot: Slot) -> list[Any]:
        roles = [(str(entry.role), known.get(entry.space or "")) for entry in slot.main.moving]
        return sorted((role, () if space is None else space.use) for role, space in roles)

    return [list(run) for _, run in itertools.groupby(blocks, lambda block: sorted(map(act, block.slots)))]


def _chains(block: Block, touched: Touched) -> list[list[str]]:
    """The spaces of a block; those that are used alike and follow one another, as in an MLP, are one chain."""
    chains, roles = {name: [name] for name in block.spaces}, block.outline.roles
    for before, after in block.outline.links:
        if before in chains and after in chains and chains[before] is not chains[after]:
            # Alike but for being scaled, and the group.
            alike = roles[before][:6] == roles[after][:6] and touched[before] == touched[after]
            joined = sorted(chains[before] + chains[after], key=block.spaces.index) if alike else []
            chains.update(dict.fromkeys(joined, joined))
    return [list(names) for names in dict.fromkeys(tuple(chain) for chain in chains.values())]


def _signature(outline: Outline, slot: Slot) -> tuple[Any, ...]:
    """The spaces that a slot acts on, with roles; queries and keys, which differ by the dual alone, share one."""
    entries = []
    for entry in slot.main.moving:
        role = outline.roles.get(entry.space or "")
        entries.append(("" if role is None else entry.space, "" if role and role.compared else str(entry.role)))
    return tuple(sorted(entries))


def _could_agree(source: Slot, target: Slot) -> bool:
    """Whether two slots are not what their names and sizes tell apart: norms at the beginning, tables and tokens."""
    words = words_of(source.name), words_of(target.name)
    if source.is_norm and ("embed" in words[0]) != ("embed" in words[1]):
        return False
    long = [sum(entry.size > 1 for entry in slot.main.still) for slot in (source, target)]
    return len(source.main.moving) != 1 or long[0] == long[1] or words[0] == words[1]


def _copies(slot: Slot, block: Block) -> int:
    """How many segments of one tensor do the same, as the gates of a recurrent layer do."""
    act = [(entry.space, entry.role) for entry in slot.main.entries]
    return sum(
        other.name == slot.name and [(entry.space, entry.role) for entry in other.main.entries] == act
        for other in block.slots
    )
