"""Whether a wiring that was read from a file holds together, so that a damaged one fails at once and by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from interbasin.errors import FileError
from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Reason, Row, Space, Still, parts_of

if TYPE_CHECKING:
    from interbasin.wiring.wiring import Wiring

_PLACE = re.compile(r"^(?P<tensor>.+)\[(?P<axis>\d+)\]$")


def require_sound(wiring: Wiring) -> None:
    """Refuse a wiring whose parts contradict each other.

    Raises:
        FileError: names the space, tensor or activation that is damaged, and how.
    """
    for name, tensor in wiring.tensors.items():
        what = f"tensor {name!r}"
        _require(None if all(map(_size, tensor.shape)) else f"its shape is {list(tensor.shape)}", what)
        if len(tensor.axes) != len(tensor.shape):
            _require(f"it has {len(tensor.axes)} axes and a shape of {len(tensor.shape)} sizes", what)
        for place, axis in enumerate(tensor.axes):
            _require(_fault_of_axis(axis, wiring.spaces), f"axis {place} of {what}")
            if axis.size != tensor.shape[place]:
                _require(f"it is {axis.size} long, and the tensor's shape says {tensor.shape[place]}", what)
        _require(_fault_of_rows(tensor.axes), what)
    for name, space in wiring.spaces.items():
        _require(_fault_of_space(space, wiring), f"space {name!r}")
    for name, axes in wiring.activations.items():
        for axis in axes:
            _require(_fault_of_axis(axis, wiring.spaces), f"activation {name!r}")
    _require(_fault_of_names(wiring), "list of tensors")


def _require(fault: str | None, what: str) -> None:
    if fault is not None:
        raise FileError(f"The {what} of a saved wiring is damaged: {fault}; save the wiring again.")


def _size(value: object) -> bool:
    return type(value) is int and value >= 0


def _words(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, str) for value in values)


def _fault_of_reason(reason: object) -> str | None:
    if isinstance(reason, Reason) and isinstance(reason.kind, str) and isinstance(reason.text, str):
        return None
    return f"its reason is {reason!r}"


def _fault_of_space(space: Space, wiring: Wiring) -> str | None:
    if not _size(space.size) or not space.size:
        return f"its size is {space.size!r}"
    if not _words(space.within) or not all(name in wiring.spaces for name in space.within):
        return f"it differs from block to block of {list(space.within)}, which are not all spaces"
    if space.name in _above(space, wiring.spaces):
        return "it lies within itself"
    sizes = [wiring.spaces[name].size for name in space.within]
    blocks = math.prod(sizes) if all(map(_size, sizes)) else 0
    if space.blocks != blocks or not _size(space.blocks):
        return f"it says it has {space.blocks!r} blocks, and what it lies within makes {blocks}"
    for side in (space.writes, space.reads, space.scales):
        for place in side if isinstance(side, tuple) else (side,):
            match = _PLACE.match(place) if isinstance(place, str) else None
            tensor = None if match is None else wiring.tensors.get(match["tensor"])
            if match is None or tensor is None or int(match["axis"]) >= len(tensor.axes):
                return f"it names {place!r}, which is no axis of a tensor"
    return None if space.because is None else _fault_of_reason(space.because)


def _above(space: Space, spaces: Mapping[str, Space]) -> set[str]:
    """All spaces from block to block of which a space differs, and those of which these do."""
    above: set[str] = set()
    waiting = list(space.within)
    while waiting:
        name = waiting.pop()
        if name in spaces and name not in above:
            above.add(name)
            waiting += [other for other in spaces[name].within if isinstance(other, str)]
    return above


def _fault_of_axis(axis: Axis, spaces: Mapping[str, Space]) -> str | None:
    if isinstance(axis, Still):
        return _fault_of_reason(axis.why) if _size(axis.size) else f"its size is {axis.size!r}"
    if isinstance(axis, In):
        if axis.space not in spaces:
            return f"it lies in {axis.space!r}, which is no space"
        size = spaces[axis.space].size
        return None if axis.size == size else f"it is {axis.size!r} long in {axis.space!r}, which is {size} wide"
    if not axis.parts:
        return "it has no parts"
    for part in axis.parts:
        fault = _fault_of_axis(part, spaces)
        if fault is not None:
            return fault
    if isinstance(axis, Each) and len({part.size for part in axis.parts}) > 1:
        return "what stands beside the segments of a row is not of one length"
    if isinstance(axis, Grid) or (isinstance(axis, Row) and axis.key is None):
        return None
    return None if _size(axis.key) else f"its key is {axis.key!r}"


def _fault_of_rows(axes: tuple[Axis, ...]) -> str | None:
    """What stands beside the segments of a row needs that row, with as many segments."""
    within = [part for axis in axes for part in parts_of(axis)]
    rows = {row.key: len(row.parts) for row in within if isinstance(row, Row) and row.key is not None}
    for one in within:
        if isinstance(one, Each) and one.key in rows and rows[one.key] != len(one.parts):
            return f"{len(one.parts)} parts stand beside a row of {rows[one.key]}"
    return None


def _fault_of_names(wiring: Wiring) -> str | None:
    if not _words(wiring.unused) or not _words(wiring.constants):
        return "the tensors that are not used, or constants, are not all names"
    for name, home in wiring.tied.items():
        if not isinstance(home, str) or home not in {*wiring.tensors, *wiring.unused, *wiring.constants}:
            return f"{name!r} is tied to {home!r}, which is no tensor"
    for name, count in wiring.unknown.items():
        if not _size(count):
            return f"the operator {name!r} was met {count!r} times"
    return None
