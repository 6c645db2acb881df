"""Spaces from atoms: which axes lie in them, in which role, on what they depend, and what they are called."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
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
Terms = Mapping[str, Sequence[Term]]


@dataclass
class _Root:
    """What is gathered about one root atom: the axes that lie in it, and the atoms that its map depends on."""

    atom: Atom
    places: list[tuple[str, int, Role]] = field(default_factory=list)
    name: str = ""
    within: list[Atom] = field(default_factory=list)


Roots = dict[Atom, _Root]


@dataclass(frozen=True)
class Named:
    """Spaces by name, and what the axes of tensors and of activations are made of."""

    spaces: dict[str, Space]
    tensors: dict[str, tuple[Axis, ...]]
    activations: dict[str, tuple[Axis, ...]]


def name_spaces(axes: Axes, tensors: Terms, activations: Terms, seen: Mapping[Atom, Role]) -> Named:
    """Names for all that the parameters in ``tensors`` are made of."""
    terms = {name: axes.settle(dims) for name, dims in tensors.items()}
    terms = {name: axes.settle(dims) for name, dims in terms.items()}  # what a later tensor said counts for all
    roots: Roots = {}
    for name, dims in terms.items():
        for place, term in enumerate(dims):
            for leaf in axes.leaves(term):
                root = roots.setdefault(leaf.space, _Root(leaf.space))
                if (name, place, leaf.role) not in root.places:
                    root.places.append((name, place, leaf.role))
    for where, shown in activations.items():
        # Where modules were walked around, a stream may be written by them alone, and by no tensor.
        for term in shown:
            for leaf in axes.leaves(term):
                roots.setdefault(leaf.space, _Root(leaf.space, name=where.rpartition(":")[0]))
    turned = _find_turned(axes, roots, seen)
    for atom in turned:
        roots[atom].places = [(name, place, flip(role)) for name, place, role in roots[atom].places]
    _settle_dependence(axes, roots)
    roots = _spaces_only(roots)
    _name(axes, roots, terms)
    names = {atom: root.name for atom, root in roots.items()}
    spaces: dict[str, Space] = {}
    for root in roots.values():
        space = _space(root, names)
        spaces[root.name] = _join(spaces[root.name], space) if root.name in spaces else space
    translation = _Translation(names, turned)
    settled = {place: axes.settle(dims) for place, dims in activations.items()}
    return Named(
        spaces,
        {name: translation.axes(dims) for name, dims in terms.items()},
        {
            place: translation.axes(dims)
            for place, dims in settled.items()
            if any(leaf.space in names for term in dims for leaf in axes.leaves(term))
        },
    )


def _find_turned(axes: Axes, roots: Roots, seen: Mapping[Atom, Role]) -> set[Atom]:
    """Roots that stand the wrong way round: activations follow the map, so what they follow is called writing."""
    orientation: dict[Atom, Role] = {}
    for atom, role in seen.items():
        for leaf in axes.leaves(whole(atom, role)):
            orientation.setdefault(leaf.space, leaf.role)
    # What no activation stands for meets the network's input: it is read, nothing writes it.
    outside = {atom for atom in roots if atom.because is not None and atom.because.kind == "input"}
    return {atom for atom in roots if orientation.get(atom, Role.READ if atom in outside else None) is Role.READ}


def _settle_dependence(axes: Axes, roots: Roots) -> None:
    order = {atom: position for position, atom in enumerate(roots)}
    for root in roots.values():
        if root.atom.group is not Group.FIXED:
            root.within = sorted((atom for atom in axes.allowed(root.atom) if atom in order), key=order.__getitem__)
    # Two that depend on each other cannot both: the one that comes first, the outer one, gives way.
    for root in roots.values():
        later = [other for other in root.within if order[root.atom] < order[other]]
        root.within = [other for other in root.within if other not in later or root.atom not in roots[other].within]
    # Blocks that change places differently from block to block of others take what is inside them along. So what is
    # inside must know the others too; where it does not, the blocks change places alike everywhere.
    changed = True
    while changed:
        changed = False
        for root in roots.values():
            for other in root.within:
                known = [atom for atom in roots[other].within if atom in root.within]
                if known != roots[other].within:
                    roots[other].within, changed = known, True
    for other in _carriers(roots):
        if not contains(Group.PERMUTATION, other.group):
            # Blocks with maps of their own can change places, but cannot be mixed.
            other.group, other.because = meet(other.group, Group.PERMUTATION), _BLOCKS


def _carriers(roots: Roots) -> set[Atom]:
    """The atoms from block to block of which others differ."""
    return {other for root in roots.values() for other in root.within}


def _spaces_only(roots: Roots) -> Roots:
    """Without kernels, positions and rows of tables, unless something depends on them from block to block."""
    carriers = _carriers(roots)
    return {
        atom: root
        for atom, root in roots.items()
        if atom in carriers or atom.group is not Group.FIXED or atom.because is None or atom.because.kind not in PLACES
    }


# ---------------------------------------------------------------------- names


def _name(axes: Axes, roots: Roots, terms: Terms) -> None:
    """Name every space: the first module that writes it, and what part of its axis it is where that is needed."""
    carriers = _carriers(roots)
    taken: set[str] = set()
    inputs: dict[int, str] = {}
    for root in roots.values():
        if not root.places:
            continue
        because = root.atom.because if root.atom.group is Group.FIXED else None
        end = because.kind if because is not None and because.kind in ENDS else None
        shared = end == "input" and root.atom not in carriers
        if shared and root.atom.size in inputs:
            # Everything that reads the network's input meets it anew: one name for inputs of one width.
            root.name = inputs[root.atom.size]
            continue
        name, place, _ = _first_writer(root, terms)
        suffix = _part(axes, root.atom, terms[name][place])
        if root.atom in carriers:
            # Convolutions have groups, and whatever else is cut into blocks calls them heads.
            suffix += ".groups" if any(len(terms[tensor]) > 2 for tensor, _, _ in root.places) else ".heads"
        root.name = free_name(end or module_of(name) + suffix, taken)
        taken.add(root.name)
        if shared:
            inputs[root.atom.size] = root.name


def free_name(wish: str, taken: Collection[str]) -> str:
    """The name, with a number behind it if it is taken."""
    numbered = (f"{wish}.{count}" for count in itertools.count(2))
    return next(name for name in itertools.chain([wish], numbered) if name not in taken)


def module_of(tensor: str) -> str:
    """The module that a tensor belongs to, or its own name where that says more."""
    module, _, last = tensor.rpartition(".")
    return (module or tensor) if last in ("weight", "bias") else tensor


def _first_writer(root: _Root, terms: Terms) -> tuple[str, int, Role]:
    """Of the axes that lie in an atom the first one that writes it: of a matrix, and of a weight, if there is one."""

    def rank(place: tuple[str, int, Role]) -> tuple[bool, bool, bool]:
        name, _, role = place
        is_vector = sum(term.size > 1 for term in terms[name]) < 2
        return role is not Role.WRITE, is_vector, not name.endswith("weight")

    return min(root.places, key=rank)


def _part(axes: Axes, atom: Atom, term: Term) -> str:
    """Which segment of its axis an atom is, as ``.0``, ``.1``: fused projections have several."""
    term = axes.resolve(term)
    if isinstance(term, Grid):
        return "".join(_part(axes, atom, part) for part in term.parts if isinstance(part, Row | Each))
    for position, part in enumerate(term.parts if isinstance(term, Row | Each) else ()):
        if any(leaf.space is atom for leaf in axes.leaves(part)):
            return f".{position}" + _part(axes, atom, part)
    return ""


# ---------------------------------------------------------------------- spaces and axes


def _space(root: _Root, names: Mapping[Atom, str]) -> Space:
    sides: dict[Role, list[str]] = {role: [] for role in Role}
    for name, place, role in root.places:
        sides[role].append(f"{name}[{place}]")
    return Space(
        name=root.name,
        size=root.atom.size,
        within=tuple(names[other] for other in root.within),
        blocks=math.prod(other.size for other in root.within),
        group=root.atom.group,
        writes=tuple(sides[Role.WRITE]),
        reads=tuple(sides[Role.READ]),
        scales=tuple(sides[Role.SCALE]),
        because=root.atom.because,
    )


def _join(one: Space, other: Space) -> Space:
    """Two spaces of one name: the same one, met in two places."""
    return replace(
        one, writes=one.writes + other.writes, reads=one.reads + other.reads, scales=one.scales + other.scales
    )


def flip(role: Role) -> Role:
    """The role for a space that is turned around."""
    return Role.READ.of(role)


@dataclass
class _Translation:
    """Terms of atoms as axes of named spaces."""

    names: Mapping[Atom, str]
    turned: set[Atom]
    keys: dict[Atom, int] = field(default_factory=dict)

    def axes(self, terms: Sequence[Term]) -> tuple[Axis, ...]:
        return tuple(map(self._axis, terms))

    def _axis(self, term: Term) -> Axis:
        if isinstance(term, In):
            if term.space not in self.names:
                return Still(term.size, term.space.because or _SINGLE)
            role = flip(term.role) if term.space in self.turned else term.role
            return In(self.names[term.space], role, term.size)
        if isinstance(term, Row):
            key = None if term.key is None else self._key(term.key)
            return Row(self.axes(term.parts), key)
        if isinstance(term, Grid):
            return Grid(self.axes(term.parts))
        if isinstance(term, Each):
            return Each(self._key(term.key), self.axes(term.parts))
        if isinstance(term, Same):
            return Still(term.size, _SINGLE if term.size == 1 else _SAME)
        return term

    def _key(self, row: Atom) -> int:
        return self.keys.setdefault(row, len(self.keys))
