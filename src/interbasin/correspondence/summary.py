"""A correspondence as text: pairs in blocks that repeat share a line, as ``encoder.layer.{0..5}.output``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from interbasin.correspondence.outline import Outline
from interbasin.wiring.axes.notation import braces

if TYPE_CHECKING:
    from interbasin.correspondence.correspondence import Correspondence

__all__ = ["summarize"]


def summarize(pairs: Correspondence) -> str:
    """Blocks, spaces and tensors that belong together, and what has no partner and why."""
    blocks = Outline(pairs.source).block_names, Outline(pairs.target).block_names
    spaces = _fold(((pair.source, pair.target, pair.share) for pair in pairs.spaces), blocks)
    tensors = _fold(((str(pair.parts[0]), str(pair.parts[1]), pair.share) for pair in pairs.tensors), blocks)
    text = [repr(pairs), *_columns("blocks", _stacks(pairs, blocks)), *_columns("spaces", spaces)]
    text += _columns("tensors", tensors)
    for side, unmatched, own in zip(
        ("source", "target"), (pairs.unmatched_source, pairs.unmatched_target), blocks, strict=True
    ):
        for kind in ("space", "tensor"):
            rows = _fold(((str(one.part), one.reason, 1.0) for one in unmatched if one.kind == kind), (own, ()))
            text += _columns(
                f"{kind}s of the {side} without a partner", [(name, "", why, "") for name, _, why, _ in rows]
            )
    return "\n".join(text)


def _columns(title: str, rows: Collection[tuple[str, str, str, str]]) -> list[str]:
    if not rows:
        return []
    width = max(len(row[0]) for row in rows)
    return ["", f"{title}:", *(f"  {one:<{width}}  {sign} {other}{share}" for one, sign, other, share in rows)]


def _fold(
    rows: Iterable[tuple[str, str, float]], blocks: tuple[Collection[str], Collection[str]]
) -> list[tuple[str, str, str, str]]:
    """Rows whose names differ in the numbers of blocks alone, as one."""
    together: dict[tuple[str, str], list[tuple[list[str], list[str], float]]] = {}
    for source, target, share in rows:
        ours, theirs = _numbers(source, blocks[0]), _numbers(target, blocks[1])
        together.setdefault((ours[0], theirs[0]), []).append((ours[1], theirs[1], share))
    folded = []
    for (source, target), group in together.items():
        shares = sorted({share for _, _, share in group})
        listed = (
            ""
            if shares == [1.0]
            else "  share " + " to ".join(f"{share:.3g}" for share in shares[:: len(shares) - 1 or 1])
        )
        one, other = _fill(source, [row[0] for row in group]), _fill(target, [row[1] for row in group])
        folded.append((one, "->", other, listed))
    return folded


def _numbers(name: str, blocks: Collection[str]) -> tuple[str, list[str]]:
    """A name with marks in place of the numbers of blocks, and the numbers."""
    parts, numbers = name.split("."), []
    for block in _around(name, blocks):
        numbers.append(parts[block.count(".")])
        parts[block.count(".")] = "\0"
    return ".".join(parts), numbers


def _fill(name: str, numbers: list[list[str]]) -> str:
    for place in range(name.count("\0")):
        name = name.replace("\0", braces(sorted({row[place] for row in numbers}, key=int)), 1)
    return name


def _stacks(pairs: Correspondence, blocks: tuple[Collection[str], Collection[str]]) -> list[tuple[str, str, str, str]]:
    """Which blocks of a stack go with which: ``0 -> 0, 1; 1 -> 2``."""
    stacks: dict[tuple[str, str], dict[str, list[str]]] = {}
    for pair in pairs.tensors:
        for ours, theirs in zip(_around(pair.source, blocks[0]), _around(pair.target, blocks[1]), strict=False):
            (one, _, mine), (other, _, yours) = ours.rpartition("."), theirs.rpartition(".")
            numbers = stacks.setdefault((one, other), {}).setdefault(mine, [])
            if yours not in numbers:
                numbers.append(yours)
    return [
        (one, "->", other, "  " + "; ".join(f"{mine} -> {', '.join(yours)}" for mine, yours in numbers.items()))
        for (one, other), numbers in stacks.items()
    ]


def _around(name: str, blocks: Collection[str]) -> list[str]:
    """The blocks that something lies in, from the outside in."""
    parts = name.split(".")
    return [prefix for place in range(len(parts)) if (prefix := ".".join(parts[: place + 1])) in blocks]
