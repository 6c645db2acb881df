"""Wiring for reading, and wiring as JSON.

A tensor is a line: what it writes, an arrow, what it reads. ``fc2.weight: fc2 <- fc1``. Gains stand between bars
(``|stream|``), heads by channels in parentheses (``(heads value)``), segments with a plus (``(q + k + v)``), what does
not move as its size. A space that follows the dual in the middle of a written axis, as keys do, has a tilde.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from interbasin.errors import FileError
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Reason, Role, Row, Space, Still, leaves


def line(axes: Sequence[Axis]) -> str:
    """One tensor in the notation.

    Example:
        >>> weight = (In("hidden", Role.WRITE, 8), In("input", Role.READ, 4))
        >>> line(weight)
        'hidden <- input'
    """
    left: list[str] = []
    right: list[str] = []
    for axis in axes:
        reads = all(leaf.role is Role.READ for leaf, _ in leaves(axis) if isinstance(leaf, In))
        moving = any(isinstance(leaf, In) for leaf, _ in leaves(axis))
        (right if reads and moving else left).append(_text(axis, dual="" if reads else "~"))
    if right and not left:
        # What is compared with a tied table is written in the dual of the table's space: it reads on no side.
        left, right = [_text(axes[0], dual="~")], right[1:]
    return " ".join(left) + (" <- " + " ".join(right) if right else "")


def _text(axis: Axis, dual: str) -> str:
    if isinstance(axis, Still):
        return str(axis.size)
    if isinstance(axis, In):
        return f"|{axis.space}|" if axis.role is Role.SCALE else f"{dual if axis.role is Role.READ else ''}{axis.space}"
    joint = {Row: " + ", Grid: " ", Each: " | "}[type(axis)]
    return "(" + joint.join(_text(part, dual) for part in axis.parts) + ")"


def braces(parts: Sequence[str]) -> str:
    """Numbers of layers as a shell would write them.

    Example:
        >>> braces(["0", "1", "2", "3"]), braces(["1", "3", "5"]), braces(["0", "1", "2", "7"]), braces(["fc1"])
        ('{0..3}', '{1..5..2}', '{0..2,7}', 'fc1')
    """
    if len(parts) == 1:
        return parts[0]
    numbers = sorted(map(int, parts))
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1:
        (step,) = steps
        return f"{{{numbers[0]}..{numbers[-1]}{f'..{step}' if step > 1 else ''}}}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "{" + ",".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs) + "}"


# ---------------------------------------------------------------------- JSON


def axis_to_json(axis: Axis) -> dict[str, Any]:
    if isinstance(axis, Still):
        return {"still": axis.size, **_reason(axis.why)}
    if isinstance(axis, In):
        return {"in": axis.space, "role": str(axis.role), "size": axis.size}
    parts = [axis_to_json(part) for part in axis.parts]
    if isinstance(axis, Grid):
        return {"grid": parts}
    return {"row": parts, "key": axis.key} if isinstance(axis, Row) else {"each": parts, "key": axis.key}


def axis_from_json(document: Mapping[str, Any]) -> Axis:
    if "still" in document:
        return Still(document["still"], Reason(document["kind"], document["why"]))
    if "in" in document:
        return In(document["in"], Role(document["role"]), document["size"])
    for name, kind in (("grid", Grid), ("row", Row), ("each", Each)):
        if name in document:
            parts = tuple(axis_from_json(part) for part in document[name])
            if kind is Grid:
                return Grid(parts)
            return Row(parts, document["key"]) if kind is Row else Each(document["key"], parts)
    raise FileError(f"An axis of a saved wiring has none of the known forms: {sorted(document)}; save it again.")


def space_to_json(space: Space) -> dict[str, Any]:
    return {
        "size": space.size,
        "blocks": space.blocks,
        "width": space.width,
        "within": list(space.within),
        "group": str(space.group),
        "writes": list(space.writes),
        "reads": list(space.reads),
        "scales": list(space.scales),
        "because": None if space.because is None else _reason(space.because),
    }


def space_from_json(name: str, document: Mapping[str, Any]) -> Space:
    because = document["because"]
    return Space(
        name=name,
        size=document["size"],
        within=tuple(document["within"]),
        blocks=document["blocks"],
        group=Group(document["group"]),
        writes=tuple(document["writes"]),
        reads=tuple(document["reads"]),
        scales=tuple(document["scales"]),
        because=None if because is None else Reason(because["kind"], because["why"]),
    )


def _reason(reason: Reason) -> dict[str, str]:
    return {"kind": reason.kind, "why": reason.text}
