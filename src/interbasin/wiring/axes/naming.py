"""Spaces from atoms: which axes lie in them, in which role, on what they depend, and what they are called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from interbasin.wiring.axes.axes import Axes
from interbasin.wiring.axes.groups import Group, contains, meet
from interbasin.wiring.axes.spaces import (
    PLACES,
    Atom,
    Axis,
    Each,
    Grid,
    In,
    Reason,
    Role,
    Row,
    Same,
    Space,
    Still,
    Term,
)
from interbasin.wiring.axes.terms import whole

# Fixed because the network's own input or output lies there: called that.
ENDS = frozenset({"input", "output"})
_SINGLE = Reason("position", "it is one entry long")
_SAME = Reason("structure", "it is the same all along")
_BLOCKS = Reason("structure", "each of its blocks has a map of its own")


@dataclass
class _Found:
    """What is gathered about one root atom."""

    atom: Atom
    places: list[tuple[str, int, Role]] = field(default_factory=list)
    name: str = ""
    within: list[Atom] = field(default_factory=list)


@dataclass(frozen=True)
class Named:
    """Spaces by name, and what the axes of tensors and of activations are made of."""

    spaces: dict[str, Space]
    tensors: dict[str, tuple[Axis, ...]]
    activations: dict[str, tuple[Axis, ...]]


def name_spaces(
    axes: Axes,
    tensors: Mapping[str, Sequence[Term]],
    activations: Mapping[str, Sequence[Term]],
    seen: Mapping[Atom, Role],
) -> Named:
    """Names for all that the parameters in ``tensors`` are made of."""
    terms = {name: axes.settle(dims) for name, dims in tensors.items()}
    terms = {name: axes.settle(dims) for name, dims in terms.items()}
    found: dict[Atom, _Found] = {}
    for name, dims in terms.items():
        for place, term in enumerate(dims):
            for leaf in axes.leaves(term):
                entry = found.setdefault(leaf.space, _Found(leaf.space))
                if (name, place, leaf.role) not in entry.places:
                    entry.places.append((name, place, leaf.role))
    for where, met in activations.items():
        # Where modules were walked around, a stream may be written by them alone, and by no tensor.
        for term in met:
            for leaf in axes.leaves(term):
                found.setdefault(leaf.space, _Found(leaf.space, name=where.rpartition(":")[0]))
    turned = _turned(axes, found, seen)
    _settle_dependence(axes, found)
    found = _spaces_only(found)
    _call(axes, found, terms, turned)
    names = {atom: entry.name for atom, entry in found.items()}
    spaces: dict[str, Space] = {}
    for entry in found.values():
        space = _space(entry, names, turned)
        spaces[entry.name] = _joined(spaces[entry.name], space) if entry.name in spaces else space
    translate = _Translation(names, turned)
    return Named(
        spaces,
        {name: tuple(translate.axis(term) for term in dims) for name, dims in terms.items()},
        {
            place: tuple(translate.axis(term) for term in dims)
            for place, dims in ((place, axes.settle(dims)) for place, dims in activations.items())
            if any(leaf.space in names for term in dims for leaf in axes.leaves(term))
        },
    )


def _turned(axes: Axes, found: Mapping[Atom, _Found], seen: Mapping[Atom, Role]) -> set[Atom]:
    """Roots that stand the wrong way round: activations follow the map, so what they follow is called writing."""
    orientation: dict[Atom, Role] = {}
    for atom, role in seen.items():
        for leaf in axes.leaves(whole(atom, role)):
            orientation.setdefault(leaf.space, leaf.role)
    # What no activation stands for meets the network's input: it is read, nothing writes it.
    outside = {atom for atom in found if atom.because is not None and atom.because.kind == "input"}
    return {
        atom for atom in found if orientation.get(atom) is Role.READ or (atom in outside and atom not in orientation)
    }


def _settle_dependence(axes: Axes, found: Mapping[Atom, _Found]) -> None:
    order = {atom: position for position, atom in enumerate(found)}
    for entry in found.values():
        if entry.atom.group is not Group.FIXED:
            entry.within = sorted((one for one in axes.allowed(entry.atom) if one in order), key=order.__getitem__)
    # Two that depend on each other cannot both: the one that comes first, the outer one, gives way.
    for entry in found.values():
        entry.within = [
            other
            for other in entry.within
            if not (entry.atom in found[other].within and order[entry.atom] < order[other])
        ]
    _close(found)
    for entry in found.values():
        for other in entry.within:
            if not contains(Group.PERMUTATION, other.group):
                # Blocks with maps of their own can change places, but cannot be mixed.
                other.group, other.because = meet(other.group, Group.PERMUTATION), _BLOCKS


def _close(found: Mapping[Atom, _Found]) -> None:
    """Blocks that change places differently from block to block of others take what is inside them along.

    So what is inside must know the others too; where it does not, the blocks change places alike everywhere.
    """
    changed = True
    while changed:
        changed = False
        for entry in found.values():
            for other in entry.within:
                known = [one for one in found[other].within if one in entry.within]
                if known != found[other].within:
                    found[other].within, changed = known, True


def _spaces_only(found: dict[Atom, _Found]) -> dict[Atom, _Found]:
    """Without kernels, positions and rows of tables, unless something depends on them from block to block."""
    carriers = {other for entry in found.values() for other in entry.within}
    return {
        atom: entry
        for atom, entry in found.items()
        if atom in carriers or atom.group is not Group.FIXED or atom.because is None or atom.because.kind not in PLACES
    }


def _call(axes: Axes, found: Mapping[Atom, _Found], terms: Mapping[str, Sequence[Term]], turned: set[Atom]) -> None:
    """A name for every space: the first module that writes it, and what part of its axis it is where that is needed."""
    carriers = {other for entry in found.values() for other in entry.within}
    taken: set[str] = set()
    inputs: dict[int, str] = {}
    for entry in found.values():
        if not entry.places:
            continue
        because = entry.atom.because if entry.atom.group is Group.FIXED else None
        end = because.kind if because is not None and because.kind in ENDS else None
        if end == "input" and entry.atom not in carriers and entry.atom.size in inputs:
            # Everything that reads the network's input meets it anew: one name for inputs of one width.
            entry.name = inputs[entry.atom.size]
            continue
        name, place, _ = _first_writer(entry, terms, turned)
        suffix = _part(axes, entry.atom, terms[name][place])
        if entry.atom in carriers:
            # Convolutions have groups, and whatever else is cut into blocks calls them heads.
            convolved = any(len(terms[tensor]) > 2 for tensor, _, _ in entry.places)
            suffix += ".groups" if convolved else ".heads"
        wish = end or module_of(name) + suffix
        free = wish
        count = 2
        while free in taken:
            free = f"{wish}.{count}"
            count += 1
        taken.add(free)
        entry.name = free
        if end == "input" and entry.atom not in carriers:
            inputs[entry.atom.size] = free


def module_of(tensor: str) -> str:
    """The module that a tensor belongs to, or its own name where that says more."""
    module, _, last = tensor.rpartition(".")
    return (module or tensor) if last in ("weight", "bias") else tensor


def _first_writer(entry: _Found, terms: Mapping[str, Sequence[Term]], turned: set[Atom]) -> tuple[str, int, Role]:
    writer = Role.READ if entry.atom in turned else Role.WRITE
    ranked = sorted(
        range(len(entry.places)),
        key=lambda position: (
            entry.places[position][2] is not writer,
            sum(term.size > 1 for term in terms[entry.places[position][0]]) < 2,
            not entry.places[position][0].endswith("weight"),
            position,
        ),
    )
    return entry.places[ranked[0]]


def _part(axes: Axes, atom: Atom, term: Term) -> str:
    """Which segment of its axis an atom is, as ``.0``, ``.1``: fused projections have several."""
    term = axes.resolve(term)
    if isinstance(term, Grid):
        return "".join(_part(axes, atom, part) for part in term.parts if isinstance(part, Row | Each))
    for position, part in enumerate(term.parts if isinstance(term, Row | Each) else ()):
        if any(leaf.space is atom for leaf in axes.leaves(part)):
            return f".{position}" + _part(axes, atom, part)
    return ""


def _space(entry: _Found, names: Mapping[Atom, str], turned: set[Atom]) -> Space:
    sides: dict[Role, list[str]] = {role: [] for role in Role}
    for name, place, role in entry.places:
        sides[_flip(role) if entry.atom in turned else role].append(f"{name}[{place}]")
    return Space(
        name=entry.name,
        size=entry.atom.size,
        within=tuple(names[other] for other in entry.within),
        blocks=math.prod(other.size for other in entry.within),
        group=entry.atom.group,
        writes=tuple(sides[Role.WRITE]),
        reads=tuple(sides[Role.READ]),
        scales=tuple(sides[Role.SCALE]),
        because=entry.atom.because,
    )


def _joined(one: Space, other: Space) -> Space:
    """Two spaces of one name: the same one, met in two places."""
    return replace(
        one, writes=one.writes + other.writes, reads=one.reads + other.reads, scales=one.scales + other.scales
    )


def _flip(role: Role) -> Role:
    return Role.READ.of(role)


@dataclass
class _Translation:
    """Terms about atoms as axes about named spaces."""

    names: Mapping[Atom, str]
    turned: set[Atom]
    keys: dict[Atom, int] = field(default_factory=dict)

    def axis(self, term: Term) -> Axis:
        if isinstance(term, In):
            if term.space not in self.names:
                return Still(term.size, term.space.because or _SINGLE)
            role = _flip(term.role) if term.space in self.turned else term.role
            return In(self.names[term.space], role, term.size)
        if isinstance(term, Row):
            key = None if term.key is None else self._key(term.key)
            return Row(tuple(self.axis(part) for part in term.parts), key)
        if isinstance(term, Grid):
            return Grid(tuple(self.axis(part) for part in term.parts))
        if isinstance(term, Each):
            return Each(self._key(term.key), tuple(self.axis(part) for part in term.parts))
        if isinstance(term, Same):
            return Still(term.size, _SINGLE if term.size == 1 else _SAME)
        return term

    def _key(self, row: Atom) -> int:
        return self.keys.setdefault(row, len(self.keys))
