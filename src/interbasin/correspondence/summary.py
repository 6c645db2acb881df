"""A correspondence as text: pairs in blocks that repeat share a line, as ``encoder.layer.{0..5}.output``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from interbasin.correspondence.outline import Outline
from interbasin.wiring.axes.notation import braces

if TYPE_CHECKING:
    from interbasin.correspondence.correspondence import Correspondence

Blocks = tuple[Collection[str], Collection[str]]  # the names of blocks, of the source and of the target


def summarize(pairs: Correspondence) -> str:
    """Blocks, spaces and tensors that belong together, and what has no partner and why."""
    blocks = Outline(pairs.source).block_names, Outline(pairs.target).block_names
    tables = {
        "blocks": _list_blocks(pairs, blocks),
        "spaces": _fold(((pair.source, pair.target, pair.share) for pair in pairs.spaces), blocks),
        "tensors": _fold(((str(pair.parts[0]), str(pair.parts[1]), pair.share) for pair in pairs.tensors), blocks),
    }
    text = [repr(pairs)]
    for title, rows in tables.items():
        text += _columns(title, [(source, f"-> {target}") for source, target in rows])
    for side, names in zip(("source", "target"), blocks, strict=True):
        for kind in ("space", "tensor"):
            missing = (entry for entry in getattr(pairs, f"unmatched_{side}") if entry.kind == kind)
            rows = _fold(((str(entry.part), entry.reason, 1.0) for entry in missing), (names, ()))
            text += _columns(f"{kind}s of the {side} without a partner", rows)
    return "\n".join(text)


def _columns(title: str, rows: Collection[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return ["", f"{title}:", *(f"  {name:<{width}}  {rest}" for name, rest in rows)] if rows else []


def _fold(rows: Iterable[tuple[str, str, float]], blocks: Blocks) -> list[tuple[str, str]]:
    """One row for all pairs whose names differ in the numbers of blocks alone, with the range of their shares."""
    groups: dict[tuple[str, str], list[tuple[list[str], list[str], float]]] = {}
    for source, target, share in rows:
        (ours, numbers), (theirs, partners) = _numbers(source, blocks[0]), _numbers(target, blocks[1])
        groups.setdefault((ours, theirs), []).append((numbers, partners, share))
    folded = []
    for (source, target), group in groups.items():
        shares = sorted({share for _, _, share in group})
        span = " to ".join(f"{share:.3g}" for share in dict.fromkeys((shares[0], shares[-1])))
        divided = "" if shares == [1.0] else f"  share {span}"
        partner = _fill(target, [partners for _, partners, _ in group])
        folded.append((_fill(source, [numbers for numbers, _, _ in group]), partner + divided))
    return folded


def _numbers(name: str, blocks: Collection[str]) -> tuple[str, list[str]]:
    """A name with marks in place of the numbers of blocks, and the numbers."""
    parts, numbers = name.split("."), []
    for block in _blocks_around(name, blocks):
        numbers.append(parts[block.count(".")])
        parts[block.count(".")] = "\0"
    return ".".join(parts), numbers


def _fill(name: str, numbers: list[list[str]]) -> str:
    for place in range(name.count("\0")):
        name = name.replace("\0", braces(sorted({row[place] for row in numbers}, key=int)), 1)
    return name


def _list_blocks(pairs: Correspondence, blocks: Blocks) -> list[tuple[str, str]]:
    """Which blocks of a stack go with which: ``0 -> 0, 1; 1 -> 2``."""
    stacks: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for pair in pairs.tensors:
        around = _blocks_around(pair.source, blocks[0]), _blocks_around(pair.target, blocks[1])
        for (source, _, number), (target, _, partner) in (
            (ours.rpartition("."), theirs.rpartition(".")) for ours, theirs in zip(*around, strict=False)
        ):
            stacks.setdefault((source, target), {}).setdefault(number, {})[partner] = None
    return [
        (source, f"{target}  " + "; ".join(f"{number} -> {', '.join(partners)}" for number, partners in stack.items()))
        for (source, target), stack in stacks.items()
    ]


def _blocks_around(name: str, blocks: Collection[str]) -> list[str]:
    """The blocks that something lies in, from the outside in."""
    parts = name.split(".")
    return [prefix for place in range(len(parts)) if (prefix := ".".join(parts[: place + 1])) in blocks]
