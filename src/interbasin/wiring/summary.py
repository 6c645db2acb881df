"""A wiring in short: the share that can move, what stays fixed and why, and repeated layers grouped."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from interbasin.wiring.axes.notation import braces
from interbasin.wiring.axes.spaces import BOUNDARY, Axis, Grid, In, Reason, Row, Space, Still, leaves

if TYPE_CHECKING:
    from interbasin.wiring.wiring import Wiring

_NO_REASON = Reason("unknown", "no reason was noted")


def parameter_sizes(wiring: Wiring, model: nn.Module) -> dict[str, int]:
    """The number of entries of every parameter; tied parameters count once, under the name that the wiring uses."""
    return {wiring.tied.get(name, name): parameter.numel() for name, parameter in model.named_parameters()}


# ---------------------------------------------------------------------- what can move


def coverage(wiring: Wiring) -> float:
    """`Wiring.coverage`: of all axes that could lie in a space, the share that can move, weighted by parameters."""
    moved = counted = 0.0
    for tensor in wiring.tensors.values():
        numel = float(torch.Size(tensor.shape).numel())
        for axis in tensor.axes:
            moves, could = _shares(axis, wiring.spaces)
            moved, counted = moved + moves * numel, counted + could * numel
    return moved / counted if counted else 1.0


def share_moved(wiring: Wiring, sizes: Mapping[str, int]) -> float:
    """The share of all parameters that some map can move.

    Args:
        wiring: Of the network.
        sizes: Number of entries of every parameter, as `parameter_sizes` gives it.
    """
    moved = 0.0
    for name, size in sizes.items():
        still = 1.0
        for axis in wiring.tensors[name].axes if name in wiring.tensors else ():
            still *= 1 - _shares(axis, wiring.spaces)[0]
        moved += (1 - still) * size
    return moved / max(sum(sizes.values()), 1)


def _shares(axis: Axis, spaces: Mapping[str, Space]) -> tuple[float, float]:
    """The share of an axis that moves, and the share that could."""
    if isinstance(axis, Still):
        return 0.0, 0.0 if axis.why.kind in BOUNDARY or axis.size == 1 else 1.0
    if isinstance(axis, In):
        space = spaces[axis.space]
        if not space.is_fixed:
            return 1.0, 1.0
        return 0.0, 0.0 if space.because is not None and space.because.kind in BOUNDARY else 1.0
    shares = [_shares(part, spaces) for part in axis.parts]
    if isinstance(axis, Grid):
        return max(moves for moves, _ in shares), max(could for _, could in shares)
    weights = [part.size for part in axis.parts] if isinstance(axis, Row) else [1] * len(shares)
    total = max(sum(weights), 1)
    return (
        sum(moves * weight for (moves, _), weight in zip(shares, weights, strict=True)) / total,
        sum(could * weight for (_, could), weight in zip(shares, weights, strict=True)) / total,
    )


# ---------------------------------------------------------------------- what does not, and why


@dataclass(frozen=True)
class FixedAxes:
    """The axes that stay fixed for one reason.

    Attributes:
        kind: The kind of the reason, to count by.
        why: The reason, without the module where it arose.
        lowers_coverage: False for the network's inputs and outputs, kernels, tables and positions.
        axes: Where: ``"fc.weight[0]"``.
        spaces: The spaces among them.
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


def fixed_axes(wiring: Wiring, sizes: Mapping[str, int]) -> list[FixedAxes]:
    """All axes that do not move, by reason: first what lowers the coverage, then what holds most parameters."""
    # Reason and whether it lowers the coverage -> tensor -> axis -> share of the axis.
    shares_by_reason: dict[tuple[str, str, bool], dict[str, dict[int, float]]] = {}
    spaces: dict[tuple[str, str, bool], dict[str, None]] = {}
    for name, tensor in wiring.tensors.items():
        for place, axis in enumerate(tensor.axes):
            moves = _shares(axis, wiring.spaces)[0] == 1
            for leaf, share in leaves(axis):
                if isinstance(leaf, Still):
                    # A factor that stays, of an axis that moves along another one, is no loss.
                    why, lost = leaf.why, leaf.size > 1 and not moves
                elif wiring.spaces[leaf.space].is_fixed:
                    why, lost = wiring.spaces[leaf.space].because or _NO_REASON, not moves
                else:
                    continue
                key = (why.kind, _without_module(why), lost and why.kind not in BOUNDARY)
                shares = shares_by_reason.setdefault(key, {}).setdefault(name, {})
                shares[place] = shares.get(place, 0.0) + share
                if not isinstance(leaf, Still):
                    spaces.setdefault(key, {})[leaf.space] = None
    reasons = [
        FixedAxes(
            *key,
            axes=tuple(f"{name}[{place}]" for name, shares in tensors.items() for place in shares),
            spaces=tuple(spaces.get(key, {})),
            parameters=round(
                sum(sizes.get(name, 0) * min(max(shares.values()), 1.0) for name, shares in tensors.items())
            ),
        )
        for key, tensors in shares_by_reason.items()
    ]
    return sorted(reasons, key=lambda reason: (not reason.lowers_coverage, -reason.parameters))


def _without_module(why: Reason) -> str:
    """A reason without the module where it arose, so that all layers say the same."""
    return re.sub(r" \([^()]*\)$" if why.kind == "unknown" else r" in [^()]+(?=\)$)", "", why.text)


# ---------------------------------------------------------------------- repeated layers


@dataclass(frozen=True)
class SpaceGroup:
    """A space, or several that are alike in layers that repeat: ``blocks.{0..11}.mlp.fc1``."""

    name: str
    spaces: tuple[Space, ...]

    @property
    def first(self) -> Space:
        return self.spaces[0]

    @property
    def tensors(self) -> set[str]:
        """All tensors that lie in one of its spaces."""
        return {name for space in self.spaces for name in tensors_at((*space.writes, *space.reads, *space.scales))}


def group_layers(spaces: Sequence[Space], modules: Collection[str]) -> list[SpaceGroup]:
    """Group the spaces whose names differ only in the numbers of layers, in the order of ``spaces``.

    Args:
        spaces: Grouped where width, group and the numbers of tensors agree.
        modules: Names of the network's modules: a number in a name counts layers if the name up to it is one of these.
            The parts of a fused projection, which are numbered too, stay apart.
    """
    groups: dict[Any, tuple[list[tuple[str, ...]], list[Space]]] = {}
    for space in spaces:
        groups[space.name] = [(part,) for part in space.name.split(".")], [space]
    for place in range(max((len(parts) for parts, _ in groups.values()), default=0)):
        merged: dict[Any, tuple[list[tuple[str, ...]], list[Space]]] = {}
        for parts, members in groups.values():
            layered = place < len(parts) and all(_counts_layers(space.name, place, modules) for space in members)
            rest = tuple(None if layered and position == place else part for position, part in enumerate(parts))
            group_parts, group_members = merged.setdefault((_features(members[0]), rest), (list(parts), []))
            if layered and group_members:
                group_parts[place] = (*group_parts[place], *parts[place])
            group_members.extend(members)
        groups = merged
    return [SpaceGroup(".".join(map(braces, parts)), tuple(members)) for parts, members in groups.values()]


def _features(space: Space) -> tuple[Any, ...]:
    """What spaces of one group have in common."""
    return space.width, space.describe(), len(space.writes), len(space.reads), len(space.scales)


def _counts_layers(name: str, place: int, modules: Collection[str]) -> bool:
    parts = name.split(".")[: place + 1]
    return parts[-1].isdigit() and ".".join(parts) in modules


def tensors_at(places: Sequence[str]) -> set[str]:
    """The tensors of places such as ``"fc.weight[0]"``."""
    return {place.rpartition("[")[0] for place in places}
