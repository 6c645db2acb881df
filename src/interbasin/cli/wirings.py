"""A wiring told shortly: layers that repeat on one line, the share that moves, and what does not by its reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interbasin.wiring import Reason, Space, Wiring
    from interbasin.wiring.axes.spaces import Axis


@dataclass(frozen=True)
class Line:
    """One line for people: a space, or several that are alike in layers that repeat."""

    name: str
    spaces: tuple[Space, ...]

    @property
    def first(self) -> Space:
        return self.spaces[0]

    @property
    def tensors(self) -> set[str]:
        """All tensors that lie in one of its spaces."""
        return {name for one in self.spaces for name in tensors_at((*one.writes, *one.reads, *one.scales))}


def fold(spaces: Sequence[Space], modules: Collection[str]) -> list[Line]:
    """Lines in the order of ``spaces``, with one for all whose names differ in the numbers of layers alone.

    Args:
        spaces: To fold where width, group and the numbers of tensors agree.
        modules: Names of the network's modules: a number in a name counts layers if the name up to it is one of these.
            The parts of a fused projection, which are numbered too, stay apart.
    """
    from interbasin.wiring.axes.notation import braces

    groups: dict[Any, tuple[list[tuple[str, ...]], list[Space]]] = {}
    for space in spaces:
        groups[space.name] = [(part,) for part in space.name.split(".")], [space]
    for place in range(max((len(parts) for parts, _ in groups.values()), default=0)):
        merged: dict[Any, tuple[list[tuple[str, ...]], list[Space]]] = {}
        for parts, members in groups.values():
            layered = place < len(parts) and all(_counts_layers(one.name, place, modules) for one in members)
            rest = tuple(None if layered and position == place else part for position, part in enumerate(parts))
            known = merged.setdefault((_alike(members[0]), rest), (list(parts), []))
            if layered and known[1]:
                known[0][place] = (*known[0][place], *parts[place])
            known[1].extend(members)
        groups = merged
    return [Line(".".join(map(braces, parts)), tuple(members)) for parts, members in groups.values()]


def _alike(space: Space) -> tuple[Any, ...]:
    return space.width, space.describe(), len(space.writes), len(space.reads), len(space.scales)


def _counts_layers(name: str, place: int, modules: Collection[str]) -> bool:
    parts = name.split(".")[: place + 1]
    return parts[-1].isdigit() and ".".join(parts) in modules


def tensors_at(places: Sequence[str]) -> set[str]:
    """The tensors of places such as ``"fc.weight[0]"``."""
    return {place.rpartition("[")[0] for place in places}


# ---------------------------------------------------------------------- what moves, and what does not and why


def share_moved(wiring: Wiring, sizes: Mapping[str, int]) -> float:
    """The share of all parameters that some map can move.

    Args:
        wiring: Of the network.
        sizes: Number of entries of every parameter, by the name that the wiring lists it under.
    """
    moved = 0.0
    for name, size in sizes.items():
        still = 1.0
        for axis in wiring.tensors[name].axes if name in wiring.tensors else ():
            still *= 1 - _moving(axis, wiring)
        moved += (1 - still) * size
    return moved / max(sum(sizes.values()), 1)


def _moving(axis: Axis, wiring: Wiring) -> float:
    """The share of an axis that lies in spaces that move."""
    from interbasin.wiring.axes.spaces import Each, Grid, In, Row

    if isinstance(axis, In):
        return float(not wiring.spaces[axis.space].is_fixed)
    if isinstance(axis, Grid):
        return max(_moving(part, wiring) for part in axis.parts)
    if isinstance(axis, Row | Each):
        shares = [(_moving(part, wiring), part.size if isinstance(axis, Row) else 1) for part in axis.parts]
        return sum(share * weight for share, weight in shares) / max(sum(weight for _, weight in shares), 1)
    return 0.0


@dataclass(frozen=True)
class Fixed:
    """What one reason holds in place.

    Attributes:
        kind: The reason's word to count by.
        why: The reason, without the module it was met in.
        lowers_coverage: False for the network's own ends, kernels, tables and positions.
        axes: Where: ``"fc.weight[0]"``.
        spaces: Those of the axes that are in a space.
        parameters: How many parameters lie along these axes.
    """

    kind: str
    why: str
    lowers_coverage: bool
    axes: tuple[str, ...]
    spaces: tuple[str, ...]
    parameters: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "axes": list(self.axes), "spaces": list(self.spaces)}


def fixed(wiring: Wiring, sizes: Mapping[str, int]) -> list[Fixed]:
    """All axes that do not move, by reason: first what lowers the coverage, and of equals what holds more."""
    from interbasin.wiring.axes.spaces import BOUNDARY, Reason, Still, leaves

    unsaid = Reason("unknown", "no reason was noted")
    # Reason and whether it lowers the coverage -> tensor -> axis -> share of the axis.
    found: dict[tuple[str, str, bool], dict[str, dict[int, float]]] = {}
    spaces: dict[tuple[str, str, bool], dict[str, None]] = {}
    for name, tensor in wiring.tensors.items():
        for place, axis in enumerate(tensor.axes):
            moving = _moving(axis, wiring) == 1
            for leaf, share in leaves(axis):
                if isinstance(leaf, Still):
                    # A factor that stays, of an axis that moves along another one, is no loss.
                    why, long = leaf.why, leaf.size > 1 and not moving
                elif wiring.spaces[leaf.space].is_fixed:
                    why, long = wiring.spaces[leaf.space].because or unsaid, not moving
                else:
                    continue
                key = (why.kind, _plain(why), long and why.kind not in BOUNDARY)
                shares = found.setdefault(key, {}).setdefault(name, {})
                shares[place] = shares.get(place, 0.0) + share
                if not isinstance(leaf, Still):
                    spaces.setdefault(key, {})[leaf.space] = None
    reasons = [
        Fixed(
            *key,
            axes=tuple(f"{name}[{place}]" for name, shares in tensors.items() for place in shares),
            spaces=tuple(spaces.get(key, {})),
            parameters=round(
                sum(sizes.get(name, 0) * min(max(shares.values()), 1.0) for name, shares in tensors.items())
            ),
        )
        for key, tensors in found.items()
    ]
    return sorted(reasons, key=lambda one: (not one.lowers_coverage, -one.parameters))


def _plain(why: Reason) -> str:
    """A reason without the module it was met in, so that all layers say the same."""
    return re.sub(r" \([^()]*\)$" if why.kind == "unknown" else r" in [^()]+(?=\)$)", "", why.text)
