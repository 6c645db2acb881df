"""Heads read as one flat space, so that maps can be said that do not keep to them: 4 heads into 6, or free q, k and v.

In a wiring the queries of an attention layer lie along heads by channels: every head has a map of its own, and heads
change places. That is exact, and it is all that is. A flattened wiring has one space for such an axis instead, as wide
as all heads together, and any map of it may be given. None but the identity is exact, since attention looks at heads
one by one: the space is fixed, with that as its reason, and its maps are approximate.

Blocks become one space where they stand inside one axis, in this order and with these roles. So what writes values and
what reads them share a space; queries and keys, which move by a map and its dual in a wiring, have one each; and where
several queries share a value, what the output projection reads is a space of its own. Positions that a weight reads
beside channels stay beside the flat space. Groups that a weight reads block by block (grouped convolutions), and heads
that have an axis or modules of their own, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.naming import flip, free_name, module_of
from interbasin.wiring.axes.spaces import (
    BOUNDARY,
    FLATTENED,
    Axis,
    Each,
    Grid,
    In,
    Role,
    Row,
    Space,
    Still,
    leaves,
    narrow,
    parts_of,
    rebuild,
    spaces_in,
)

if TYPE_CHECKING:
    from interbasin.wiring.wiring import Wiring

# A run of factors inside one axis, or a leaf that stands alone; and which segment of its axis it is: "", ".0", ".2".
Unit = tuple[Axis, ...]
Visit = Callable[[Unit, str], Axis]
Key = tuple[object, ...]


def flatten(wiring: Wiring) -> Wiring:
    """The same tensors, with blocks inside an axis read as one flat, approximate space; see `Wiring.flattened`."""
    blocks = _find_blocks(wiring)
    return _Flattening(wiring, blocks).result() if blocks else wiring


# ---------------------------------------------------------------------- what an axis is cut into


class _Cutter:
    """Cuts axes into runs of factors that blocks are made of, and leaves that stand alone."""

    def __init__(self, wiring: Wiring, blocks: set[str]) -> None:
        self._spaces = wiring.spaces
        self._blocks = blocks
        # What a tensor writes is channels throughout; what it reads may have positions before and behind them.
        self._written = {
            _key_of(tuple(_factors(grid)))
            for tensor in wiring.tensors.values()
            for axis in tensor.axes
            for part in parts_of(axis)
            if isinstance(part, Grid) and not _only_reads(part)
            for grid in (part, *_narrow(part))
        }

    def rewrite(self, axis: Axis, visit: Visit, segment: str = "") -> Axis:
        """The axis with every run, and every leaf outside of one, replaced by what ``visit`` makes of it."""
        if isinstance(axis, Still):
            return axis
        if isinstance(axis, In):
            return visit((axis,), segment)
        if isinstance(axis, Row | Each):
            parts = tuple(self.rewrite(part, visit, f"{segment}.{place}") for place, part in enumerate(axis.parts))
            return Row(parts, axis.key) if isinstance(axis, Row) else Each(axis.key, parts)
        grids = _narrow(axis)
        if grids and not self._blocks.isdisjoint(spaces_in(grids)):
            return self.rewrite(Each(_beside(axis)[0].key, grids), visit, segment)
        factors = tuple(_factors(axis))
        start, stop = self._find_run(factors)
        merged = [visit(factors[start:stop], segment)] if stop > start else []
        before, behind = (
            [self.rewrite(factor, visit, segment) for factor in side] for side in (factors[:start], factors[stop:])
        )
        parts = (*before, *merged, *behind)
        return parts[0] if len(parts) == 1 else Grid(parts)

    def _find_run(self, factors: Unit) -> tuple[int, int]:
        """Where a run begins and ends; both 0 if there is none."""
        if self._blocks.isdisjoint(spaces_in(factors)):
            return 0, 0
        inside = [place for place, factor in enumerate(factors) if not self._is_boundary(factor)]
        start, stop = (0, len(factors)) if _key_of(factors) in self._written else (inside[0], inside[-1] + 1)
        return (start, stop) if stop - start > 1 else (0, 0)

    def _is_boundary(self, factor: Axis) -> bool:
        """Whether positions, or the network's inputs or outputs, lie along all of a factor."""
        for leaf, _ in leaves(factor):
            space = None if isinstance(leaf, Still) else self._spaces[leaf.space]
            if space is not None and (space.name in self._blocks or not space.is_fixed):
                return False
            why = leaf.why if isinstance(leaf, Still) else self._spaces[leaf.space].because
            if why is None or why.kind not in BOUNDARY:
                return False
        return True


def _only_reads(grid: Grid[Axis]) -> bool:
    return all(leaf.role is Role.READ for leaf, _ in leaves(grid) if isinstance(leaf, In))


def _beside(grid: Grid[Axis]) -> list[Each[Axis, int]]:
    """What stands in a grid beside the segments of a row on another axis."""
    factors = tuple(_factors(grid))
    return [factor for factor in factors if isinstance(factor, Each) and factor.key not in _keys(factors)]


def _narrow(grid: Grid[Axis]) -> tuple[Axis, ...]:
    """The grid beside each of those segments; nothing if it is the same beside all of them."""
    beside = _beside(grid)[:1]
    return tuple(narrow(grid, each.key, place) for each in beside for place in range(len(each.parts)))


def _factors(axis: Axis) -> Iterator[Axis]:
    if isinstance(axis, Grid):
        for part in axis.parts:
            yield from _factors(part)
    else:
        yield axis


def _keys(run: Unit) -> set[int]:
    """The rows that stand in a run."""
    return {factor.key for factor in run if isinstance(factor, Row) and factor.key is not None}


# ---------------------------------------------------------------------- which blocks can be read flat


def _find_blocks(wiring: Wiring) -> set[str]:
    """The spaces that stand inside axes together, and can be merged wherever they do."""
    related = {name for space in wiring.spaces.values() if space.within for name in (space.name, *space.within)}
    movable = related | {name for name, space in wiring.spaces.items() if not space.is_fixed}
    cutter = _Cutter(wiring, movable)
    runs: list[set[str]] = []
    alone: set[str] = set()
    stuck: set[str] = set()
    for tensor in wiring.tensors.values():
        beside = [part for axis in tensor.axes for part in parts_of(axis) if isinstance(part, Each)]

        def visit(unit: Unit, segment: str, beside: list[Each[Axis, int]] = beside) -> Axis:
            names = set(spaces_in(unit))
            if len(unit) > 1:
                runs.append(names)
                inside = {id(part) for factor in unit for part in parts_of(factor)}
                others = [one for one in beside if one.key in _keys(unit) and id(one) not in inside]
                if any(len(set(one.parts)) > 1 for one in others):
                    stuck.update(names)  # merged segments can no longer stand beside different spaces
            else:
                alone.update(names)
            # What differs from block to block needs its blocks, and a run of its own holds them.
            stuck.update(name for name in names if not names.issuperset(wiring.spaces[name].within))
            return unit[0]

        for axis in tensor.axes:
            cutter.rewrite(axis, visit)
    blocks: set[str] = set()
    for component in _components([*runs, *({name, *wiring.spaces[name].within} for name in related)]):
        # Two spaces that also stand alone, as tokens and channels of a flattened image do, are no blocks.
        own = [run for run in runs if run <= component and (run & related or (run & movable) - alone)]
        if own and component.isdisjoint(stuck):
            blocks.update(component)
    return blocks


def _components(sets: Iterable[set[str]]) -> list[set[str]]:
    """The sets, with those that overlap joined."""
    joined: list[set[str]] = []
    for names in sets:
        apart = [other for other in joined if other.isdisjoint(names)]
        joined = [*apart, set().union(names, *(other for other in joined if not other.isdisjoint(names)))]
    return joined


# ---------------------------------------------------------------------- the flat spaces


@dataclass
class _Flat:
    """One space to be: the axes that lie in it, and in which roles activations show it."""

    unit: Unit
    places: list[tuple[str, int, Role, str]] = field(default_factory=list)
    seen: set[Role] = field(default_factory=set)
    name: str = ""

    @property
    def single(self) -> str | None:
        """The space that this is what is left of, if it is no merger of several."""
        return self.unit[0].space if len(self.unit) == 1 and isinstance(self.unit[0], In) else None


class _Flattening:
    """The flat spaces of a wiring, found first and put in place then."""

    def __init__(self, wiring: Wiring, blocks: set[str]) -> None:
        self.wiring = wiring
        self.blocks = blocks
        self.cutter = _Cutter(wiring, blocks)
        self.flats: dict[Key, _Flat] = {}
        # Gains last: they follow the space that others show.
        for gains in (False, True):
            for name, tensor in wiring.tensors.items():
                for place, axis in enumerate(tensor.axes):
                    self.cutter.rewrite(axis, self._gather(name, place, gains))
        for axes in wiring.activations.values():
            for axis in axes:
                self.cutter.rewrite(axis, self._look)
        self._name()

    def result(self) -> Wiring:
        tensors = {
            name: replace(tensor, axes=self._axes(tensor.axes, module_of(name)))
            for name, tensor in self.wiring.tensors.items()
        }
        spaces = {name: space for name, space in self.wiring.spaces.items() if name not in self.blocks}
        spaces |= {flat.name: self._space(flat) for flat in self.flats.values()}
        activations = {place: self._axes(axes, "") for place, axes in self.wiring.activations.items()}
        return replace(
            self.wiring,
            spaces=spaces,
            tensors=tensors,
            activations={
                place: axes
                for place, axes in activations.items()
                if any(not spaces[name].is_fixed or spaces[name].is_flattened for name in spaces_in(axes))
            },
        )

    # ------------------------------------------------------------------ finding them

    def _gather(self, tensor: str, place: int, gains: bool) -> Visit:
        def visit(unit: Unit, segment: str) -> Axis:
            if not self.blocks.isdisjoint(spaces_in(unit)) and _scales(unit) is gains:
                key, role = self._identify(unit, module_of(tensor))
                self.flats.setdefault(key, _Flat(unit)).places.append((tensor, place, role, segment))
            return unit[0]

        return visit

    def _look(self, unit: Unit, segment: str) -> Axis:
        key, role = self._identify(unit, "")
        if key in self.flats:
            self.flats[key].seen.add(role)
        return unit[0]

    def _identify(self, unit: Unit, module: str) -> tuple[Key, Role]:
        """Which flat space a unit is, and its role in it: units that differ by all their roles at once are the same."""
        if _scales(unit):
            return self._scaled(unit, module), Role.SCALE
        first = next(leaf for factor in unit for leaf, _ in leaves(factor) if isinstance(leaf, In))
        return _key_of(unit, first.role), first.role

    def _scaled(self, unit: Unit, module: str) -> Key:
        """The space that a gain scales: by its own, queries and keys look alike, so what its module is given tells."""
        alike = [key for key, flat in self.flats.items() if _key_of(flat.unit) == _key_of(unit)]
        shown: list[Key] = []

        def visit(shown_unit: Unit, segment: str) -> Axis:
            if not _scales(shown_unit):
                shown.append(self._identify(shown_unit, "")[0])
            return shown_unit[0]

        for place, axes in self.wiring.activations.items():
            if place.rpartition(":")[0].rpartition(":")[0] == module:
                for axis in axes:
                    self.cutter.rewrite(axis, visit)
        return next((key for key in shown if key in alike), alike[0] if alike else _key_of(unit))

    def _name(self) -> None:
        """Names after the module that writes, as in every wiring; what is left of a space keeps its name if it can."""
        taken = {name for name in self.wiring.spaces if name not in self.blocks}
        for flat in sorted(self.flats.values(), key=lambda flat: flat.single is not None):
            if self._is_turned(flat):
                flat.places = [(tensor, place, flip(role), segment) for tensor, place, role, segment in flat.places]
            tensor, _, role, segment = min(flat.places, key=self._rank)
            wish = module_of(tensor) + segment + (".input" if role is Role.READ else "")
            if flat.single is not None and flat.single not in taken:
                wish = flat.single
            flat.name = free_name(wish, taken)
            taken.add(flat.name)

    def _rank(self, place: tuple[str, int, Role, str]) -> tuple[bool, bool, bool, bool]:
        """Matrices that write come first, and weights before what is not called one."""
        tensor, _, role, _ = place
        is_vector = sum(size > 1 for size in self.wiring.tensors[tensor].shape) < 2
        return role is not Role.WRITE, role is not Role.READ, is_vector, not tensor.endswith("weight")

    @staticmethod
    def _is_turned(flat: _Flat) -> bool:
        """Whether it stands the wrong way round: what activations follow is called writing."""
        return Role.READ in flat.seen and Role.WRITE not in flat.seen

    # ------------------------------------------------------------------ putting them in place

    def _space(self, flat: _Flat) -> Space:
        sides: dict[Role, dict[str, None]] = {role: {} for role in Role}
        for tensor, place, role, _ in flat.places:
            sides[role][f"{tensor}[{place}]"] = None
        before = None if flat.single is None else self.wiring.spaces[flat.single]
        return Space(
            name=flat.name,
            size=Grid(flat.unit).size,
            within=(),
            blocks=1,
            group=Group.FIXED,
            writes=tuple(sides[Role.WRITE]),
            reads=tuple(sides[Role.READ]),
            scales=tuple(sides[Role.SCALE]),
            because=before.because if before is not None and before.is_fixed else FLATTENED,
        )

    def _axes(self, axes: tuple[Axis, ...], module: str) -> tuple[Axis, ...]:
        swallowed: set[int] = set()

        def visit(unit: Unit, segment: str) -> Axis:
            if self.blocks.isdisjoint(spaces_in(unit)):
                return unit[0]
            swallowed.update(_keys(unit))
            key, role = self._identify(unit, module)
            if key not in self.flats:
                return Still(Grid(unit).size, FLATTENED)
            flat = self.flats[key]
            return In(flat.name, flip(role) if self._is_turned(flat) else role, Grid(unit).size)

        rewritten = [self.cutter.rewrite(axis, visit) for axis in axes]
        return tuple(_without_rows(axis, swallowed) for axis in rewritten)


def _without_rows(axis: Axis, swallowed: set[int]) -> Axis:
    """The axis where rows were merged whose segments it stood beside, alike beside all of them."""
    rebuilt = rebuild(axis, lambda part: _without_rows(part, swallowed))
    if isinstance(rebuilt, Each) and rebuilt.key in swallowed and len(set(rebuilt.parts)) == 1:
        return rebuilt.parts[0]
    return rebuilt


def _scales(unit: Unit) -> bool:
    return any(isinstance(leaf, In) and leaf.role is Role.SCALE for factor in unit for leaf, _ in leaves(factor))


def _key_of(unit: Unit, against: Role | None = None) -> Key:
    """What a unit is made of: its spaces and sizes in order, with their roles against that of the first, if given."""
    # Alone, a space has no other role to differ from.
    return tuple(_key(factor, against if len(unit) > 1 else None) for factor in unit)


def _key(factor: Axis, against: Role | None) -> Key:
    if isinstance(factor, Still):
        return ("still", factor.size)
    if isinstance(factor, In):
        return ("in", factor.space, None if against is None else against.of(factor.role))
    return (type(factor).__name__, *(_key(part, against) for part in factor.parts))
