"""`Correspondence`: which space and which tensor of one network belongs to which of another, and with what share."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from interbasin.correspondence.depth import Similarity
from interbasin.correspondence.names import NameMatch, Names
from interbasin.correspondence.outline import Outline
from interbasin.correspondence.pairs import (
    Order,
    Part,
    SpacePair,
    TensorPair,
    Unmatched,
    compose_orders,
    expand,
    inverse_order,
    merge,
    plain_order,
    split,
    tensor_of,
)
from interbasin.correspondence.roles import Match, RoleMatch
from interbasin.errors import DataError, FileError, InterbasinError, UnknownNameError, WiringError
from interbasin.statistics import LayerwiseMoments
from interbasin.storage import new_folder, read_record, write_record
from interbasin.text import printable
from interbasin.wiring import Wiring
from interbasin.wiring.axes.notation import braces

VERSION = 1
# Shares are fractions such as 1/3, and sums of them are rounded.
ROUNDING = 1e-9
Key = TypeVar("Key", bound=Hashable)
Pair = TypeVar("Pair", SpacePair, TensorPair)
Terms = dict[tuple[Part, Part], tuple[float, Order | None]]
_Blocks = tuple[Collection[str], Collection[str]]  # the names of blocks, of the source and of the target


@dataclass(frozen=True, repr=False)
class Correspondence:
    """Pairs of spaces and of tensors of two networks, which may be of different architectures.

    Made by `by_role`, `by_name` or `by_depth`, or from pairs of your own. The shares of each source sum to 1: a source
    that serves several targets is divided among them. Of several sources that serve one target, each is listed.

    Attributes:
        source, target: The wirings.
        spaces, tensors: The pairs, in the order of the source.
        unmatched_source, unmatched_target: What has no partner, and why. Tensors that a wiring lists as unused are in
            no list. With pairs of your own you may give reasons; what is missing is found.

    Raises:
        UnknownNameError: if a pair names what the wirings do not have.
        WiringError: if pairs contradict each other, or shares do not sum to 1.

    Example:
        >>> import torch
        >>> import interbasin as ib
        >>> nets = [torch.nn.Sequential(torch.nn.Linear(4, n), torch.nn.ReLU(), torch.nn.Linear(n, 2)) for n in (8, 12)]
        >>> Correspondence.by_role(*(ib.wire(net, torch.randn(3, 4)) for net in nets))
        Correspondence(3 of 3 spaces, 4 of 4 tensors)
    """

    source: Wiring
    target: Wiring
    spaces: tuple[SpacePair, ...]
    tensors: tuple[TensorPair, ...]
    unmatched_source: tuple[Unmatched, ...] = ()
    unmatched_target: tuple[Unmatched, ...] = ()

    def __post_init__(self) -> None:
        _require_wirings("A correspondence", self.source, self.target)
        both = (("source", self.source), ("target", self.target))
        fields: dict[str, Any] = {}
        for kind, pairs in (("space", self.spaces), ("tensor", self.tensors)):
            known = [_ranks(wiring, kind) for _, wiring in both]
            order: dict[Any, tuple[int, ...]] = {}
            for pair in pairs:
                for part, ranks, (side, wiring) in zip(pair.parts, known, both, strict=True):
                    if part.name not in ranks:
                        raise UnknownNameError.of(f"{kind} of the {side}", part.name, ranks)
                    order[pair] = (*order.get(pair, ()), ranks[part.name], _start(part, wiring))
            _check_shares(pairs)
            fields[f"{kind}s"] = tuple(sorted(pairs, key=order.__getitem__))
        for end, (side, wiring) in enumerate(both):
            matched = {pair.parts[end] for pair in self.spaces}, {pair.parts[end] for pair in self.tensors}
            fields[f"unmatched_{side}"] = tuple(_list_unmatched(wiring, *matched, getattr(self, f"unmatched_{side}")))
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    # ------------------------------------------------------------------ how it is found

    @classmethod
    def by_role(cls, source: Wiring, target: Wiring) -> Correspondence:
        """Matched by what spaces and tensors do, whatever they are called and however wide they are.

        Blocks of networks of different depth are spread evenly. Names decide only between things that do the same.

        Raises:
            WiringError: if the two networks have nothing in common.
        """
        _require_wirings("by_role", source, target)
        return cls._of_match(RoleMatch(Outline(source), Outline(target)))

    @classmethod
    def by_depth(cls, source: Wiring, target: Wiring, cka: LayerwiseMoments | ArrayLike) -> Correspondence:
        """Matched by role, with the blocks along the monotone path of largest CKA.

        Each block of either network counts once, with the mean CKA to its partners.

        Args:
            source, target: The wirings.
            cka: `LayerwiseMoments` of something in every block, such as ``"encoder.layer.0:output"``; where several
                layers of a block were recorded, their mean counts. Or a matrix, with one row per block of the source
                and one column per block of the target. Networks without blocks, such as MLPs, have their hidden spaces
                in place of blocks.

        Raises:
            DataError, ShapeError: if the CKA does not cover the blocks.
            WiringError: if the two networks have nothing in common.
        """
        _require_wirings("by_depth", source, target)
        outlines = Outline(source), Outline(target)
        similarity = Similarity(cka, (outlines[0].layers, outlines[1].layers))
        match = RoleMatch(*outlines, similarity)
        if not similarity.served:
            blocks = " and ".join(", ".join(outline.layers) or "(none)" for outline in outlines)
            raise DataError(
                f"The CKA is of no layer in the blocks of both networks ({blocks}); record one in each, or use by_role."
            )
        return cls._of_match(match)

    @classmethod
    def by_name(cls, source: Wiring, target: Wiring, names: Names | None = None) -> Correspondence:
        """Matched by equal names of tensors, and by hand; spaces follow from the tensors that lie in them.

        Args:
            source, target: The wirings.
            names: Names of the source's spaces and tensors -> those of the target, instead of equal ones. A key that
                ends with a dot stands for all names below it, and ``{i}`` for a number: ``"encoder.layer.{i}."`` ->
                ``"blocks.{i}."``. Of several keys that fit, the longest counts. A segment of a fused tensor is written
                as a slice: ``"c_attn.weight[:, 0:32]"``. A list divides a source among several targets; None leaves it
                without a partner.

        Raises:
            UnknownNameError: if a name given by hand is not there.
            WiringError: if names given by hand contradict each other, or the two networks have nothing in common.
        """
        _require_wirings("by_name", source, target)
        return cls._of_match(NameMatch(Outline(source), Outline(target), {} if names is None else names))

    @classmethod
    def identity(cls, wiring: Wiring) -> Correspondence:
        """Every space and tensor of a network with itself."""
        spaces = tuple(SpacePair(name, name) for name in wiring.spaces)
        return cls(wiring, wiring, spaces, tuple(TensorPair(name, name) for name in wiring.tensors))

    @classmethod
    def _of_match(cls, match: Match) -> Correspondence:
        source, target = (outline.wiring for outline in match.outlines)
        if not match.terms:
            ours, theirs = (
                f"{len(side.tensors)} (such as {next(iter(side.tensors), '')!r})" for side in (source, target)
            )
            raise WiringError(
                f"The two networks have nothing in common: no tensor of the source's {ours} has a partner among the "
                f"target's {theirs}. Name the pairs by hand, with by_name."
            )
        terms = {parts: (1.0, order) for parts, order in match.terms.items()}
        return cls._from_weights(source, target, dict.fromkeys(match.spaces, 1.0), terms, *match.unmatched)

    @classmethod
    def _from_weights(
        cls,
        source: Wiring,
        target: Wiring,
        spaces: dict[tuple[str, str], float],
        terms: Terms,
        *unmatched: Sequence[Unmatched],
    ) -> Correspondence:
        """From pairs with weights, which become shares: they are divided by the sum over the source's partners."""
        shares = _shares({parts: weight for parts, (weight, _) in terms.items()})
        tensors = (TensorPair.of(*parts, shares[parts], order) for parts, (_, order) in terms.items())
        plain = (replace(pair, order=plain_order(pair, source, target)) for pair in tensors)
        pairs = tuple(SpacePair(*names, share) for names, share in _shares(spaces).items())
        return cls(source, target, pairs, tuple(merge(plain, source, target)), *map(tuple, unmatched))

    # ------------------------------------------------------------------ what it says

    def space_pairs(self, source: str | None = None, target: str | None = None) -> list[SpacePair]:
        """The pairs of a space of the source, of the target, or of both."""
        return self._select("space", self.spaces, source, target)

    def tensor_pairs(self, source: str | None = None, target: str | None = None) -> list[TensorPair]:
        """The pairs of a tensor of the source, of the target, or of both."""
        return self._select("tensor", self.tensors, source, target)

    def _select(self, kind: str, pairs: Iterable[Pair], source: str | None, target: str | None) -> list[Pair]:
        for side, name, wiring in (("source", source, self.source), ("target", target, self.target)):
            if name is not None and name not in _ranks(wiring, kind):
                raise UnknownNameError.of(f"{kind} of the {side}", name, _ranks(wiring, kind))
        return [pair for pair in pairs if source in (None, pair.source) and target in (None, pair.target)]

    @property
    def is_one_to_one(self) -> bool:
        """Whether no space and no tensor has more than one partner."""
        back = self.inverse()
        return all(pair.share == 1 for way in (self, back) for pairs in (way.spaces, way.tensors) for pair in pairs)

    def inverse(self) -> Correspondence:
        """The same pairs from the target to the source, with shares that sum to 1 for each target."""
        spaces = {(pair.target, pair.source): pair.share for pair in self.spaces}
        terms = {
            pair.parts[::-1]: (pair.share, inverse_order(pair, self.source))
            for pair in expand(self.tensors, self.source, self.target)
        }
        return self._from_weights(self.target, self.source, spaces, terms, self.unmatched_target, self.unmatched_source)

    def __matmul__(self, first: Correspondence) -> Correspondence:
        """``b @ a``: from the source of ``a`` by way of its target to the target of ``b``."""
        if not isinstance(first, Correspondence):
            return NotImplemented
        if first.target != self.source:
            raise WiringError(
                "Asked to compose two correspondences, but the target of the first is not the source of the second; "
                "b @ a does a first."
            )
        spaces: dict[tuple[str, str], float] = {}
        for pair in first.spaces:
            for onward in self.space_pairs(source=pair.target):
                names = pair.source, onward.target
                spaces[names] = spaces.get(names, 0.0) + pair.share * onward.share
        terms: Terms = {}
        further: dict[Part, list[TensorPair]] = {}
        for after in expand(self.tensors, self.source, self.target):
            further.setdefault(after.parts[0], []).append(after)
        for before in expand(first.tensors, first.source, first.target):
            for after in further.get(before.parts[1], []):
                parts = before.parts[0], after.parts[1]
                weight = terms.get(parts, (0.0, None))[0] + before.share * after.share
                terms[parts] = weight, compose_orders(before.order, after.order)
        unmatched = (
            [*_same_reason(first.source, "its partner has no partner further on"), *first.unmatched_source],
            [*_same_reason(self.target, "what leads to it has no partner before"), *self.unmatched_target],
        )
        return self._from_weights(first.source, self.target, spaces, terms, *unmatched)

    # ------------------------------------------------------------------ as text and as data

    def __str__(self) -> str:
        """Blocks, spaces and tensors that belong together, and what has no partner and why.

        Pairs in blocks that repeat share a line, as ``encoder.layer.{0..5}.output``.
        """
        blocks = Outline(self.source).block_names, Outline(self.target).block_names
        tables = {"blocks": _list_blocks(self.tensors, blocks)}
        for title, pairs in (("spaces", self.spaces), ("tensors", self.tensors)):
            tables[title] = _fold(((str(pair.parts[0]), str(pair.parts[1]), pair.share) for pair in pairs), blocks)
        text = [repr(self)]
        for title, rows in tables.items():
            text += _columns(title, [(source, f"-> {target}") for source, target in rows])
        for side, names in zip(("source", "target"), blocks, strict=True):
            for kind in ("space", "tensor"):
                missing = (entry for entry in getattr(self, f"unmatched_{side}") if entry.kind == kind)
                rows = _fold(((str(entry.part), entry.reason, 1.0) for entry in missing), (names, ()))
                text += _columns(f"{kind}s of the {side} without a partner", rows)
        return "\n".join(text)

    def __repr__(self) -> str:
        spaces = len({pair.source for pair in self.spaces})
        tensors = len({pair.source for pair in self.tensors} & set(self.source.tensors))
        known = self.source
        return f"Correspondence({spaces} of {len(known.spaces)} spaces, {tensors} of {len(known.tensors)} tensors)"

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's own types. Segments are written as slices: ``"qkv.weight[0:32]"``."""
        return {
            "spaces": [[pair.source, pair.target, pair.share] for pair in self.spaces],
            "tensors": [[*map(str, pair.parts), pair.share, pair.order and list(pair.order)] for pair in self.tensors],
            "unmatched": [
                [[entry.kind, str(entry.part), entry.reason] for entry in side]
                for side in (self.unmatched_source, self.unmatched_target)
            ],
            "source": self.source.to_json(),
            "target": self.target.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Correspondence:
        """The correspondence that `to_json` described."""
        spaces = tuple(SpacePair(*pair) for pair in document["spaces"])
        tensors = tuple(
            TensorPair.of(Part.parse(source), Part.parse(target), share, order and tuple(order))
            for source, target, share, order in document["tensors"]
        )
        unmatched = (
            tuple(Unmatched.of(kind, Part.parse(text), reason) for kind, text, reason in side)
            for side in document["unmatched"]
        )
        wirings = Wiring.from_json(document["source"]), Wiring.from_json(document["target"])
        return cls(*wirings, spaces, tensors, *unmatched)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write ``correspondence.json`` into a new folder, whole or not at all."""
        with new_folder(folder, ("correspondence",), force=force) as temporary:
            write_record(temporary, "correspondence", "correspondence", VERSION, self.to_json(), {})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Correspondence:
        """The correspondence that was saved to ``folder``."""
        document, _ = read_record(folder, "correspondence", "correspondence", VERSION)
        try:
            return cls.from_json(document)
        except (KeyError, TypeError, AttributeError, ValueError, InterbasinError) as error:
            raise FileError(
                f"The correspondence in {folder} is damaged ({error}); copy it again or make it anew."
            ) from error


def _require_wirings(caller: str, *wirings: object) -> None:
    for wiring in wirings:
        if not isinstance(wiring, Wiring):
            raise WiringError(f"{caller} needs two wirings, found {type(wiring).__name__}; use wire(model, inputs).")


# ---------------------------------------------------------------------- shares, and what is in no pair


def _shares(weights: Mapping[tuple[Key, Key], float]) -> dict[tuple[Key, Key], float]:
    totals: dict[Key, float] = {}
    for (source, _), weight in weights.items():
        totals[source] = totals.get(source, 0.0) + weight
    # What sums to 1 already, up to rounding, stays as it is.
    totals = {source: 1.0 if abs(total - 1) < ROUNDING else total for source, total in totals.items()}
    return {pair: weight / totals[pair[0]] for pair, weight in weights.items()}


def _ranks(wiring: Wiring, kind: str) -> dict[str, int]:
    """The names that a wiring knows, in order."""
    names = wiring.spaces if kind == "space" else [*wiring.tensors, *wiring.tied]
    return {name: rank for rank, name in enumerate(names)}


def _start(part: Part, wiring: Wiring) -> int:
    """Where a part starts; a segment has to lie in its tensor."""
    segment = part.segment
    if segment is None:
        return 0
    shape = tensor_of(wiring, part.name).shape
    if segment.axis >= len(shape) or not segment.start < segment.stop <= shape[segment.axis] / segment.blocks:
        raise WiringError(f"There is no segment {part}: the tensor has shape {shape}; give one that lies in it.")
    return segment.start


def _check_shares(pairs: Sequence[SpacePair] | Sequence[TensorPair]) -> None:
    totals: dict[Part, float] = {}
    known = set()
    for pair in pairs:
        source, target = map(str, pair.parts)
        if pair.parts in known:
            raise WiringError(f"{source!r} and {target!r} are paired twice; give the pair once.")
        if not 0 < pair.share <= 1:
            raise WiringError(f"The share of {source!r} that goes to {target!r} is {pair.share}; give one from 0 to 1.")
        known.add(pair.parts)
        totals[pair.parts[0]] = totals.get(pair.parts[0], 0.0) + pair.share
    for part, total in totals.items():
        if abs(total - 1) > ROUNDING:
            raise WiringError(f"The shares of {str(part)!r} sum to {total:.6g}; divide them so that they sum to 1.")
        if part.segment is not None and Part(part.name) in totals:
            raise WiringError(f"{part.name!r} is paired whole, and so is its segment {part}; give one of the two.")


def _list_unmatched(
    wiring: Wiring, spaces: set[Part], tensors: set[Part], known: Iterable[Unmatched]
) -> Iterator[Unmatched]:
    """All of a wiring that is in no pair, with the reasons that are given; segment by segment where some are."""
    missing = [("space", Part(name)) for name in wiring.spaces if Part(name) not in spaces]
    partly = {part.name for part in tensors}
    for name, tensor in wiring.tensors.items():
        segments = [Part(name, segment) for segment, _ in split(tensor) if segment is not None]
        if name not in partly:
            missing.append(("tensor", Part(name)))
        elif Part(name) not in tensors:
            missing += [("tensor", part) for part in segments if part not in tensors]
    reasons = {(entry.kind, entry.part): entry.reason for entry in known}
    named = {(kind, part.name): reason for (kind, part), reason in reasons.items()}
    for kind, part in missing:
        reason = reasons.get((kind, part)) or named.get((kind, part.name), "no pair names it")
        yield Unmatched.of(kind, part, reason)


def _same_reason(wiring: Wiring, reason: str) -> list[Unmatched]:
    names = [("space", name) for name in wiring.spaces] + [("tensor", name) for name in wiring.tensors]
    return [Unmatched(kind, name, reason) for kind, name in names]


# ---------------------------------------------------------------------- as text


def _columns(title: str, rows: Collection[tuple[str, str]]) -> list[str]:
    shown = [(printable(name), printable(rest)) for name, rest in rows]
    width = max((len(name) for name, _ in shown), default=0)
    return ["", f"{title}:", *(f"  {name:<{width}}  {rest}" for name, rest in shown)] if rows else []


def _fold(rows: Iterable[tuple[str, str, float]], blocks: _Blocks) -> list[tuple[str, str]]:
    """One row for all pairs whose names differ in the numbers of blocks alone, with the range of their shares."""
    groups: dict[tuple[str, str], list[tuple[list[str], list[str], float]]] = {}
    for source, target, share in rows:
        (ours, numbers), (theirs, partners) = _numbers(source, blocks[0]), _numbers(target, blocks[1])
        groups.setdefault((ours, theirs), []).append((numbers, partners, share))
    folded = []
    for (source, target), group in groups.items():
        shares = [share for _, _, share in group]
        span = " to ".join(f"{share:.3g}" for share in dict.fromkeys((min(shares), max(shares))))
        divided = "" if set(shares) == {1.0} else f"  share {span}"
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


def _list_blocks(pairs: Iterable[TensorPair], blocks: _Blocks) -> list[tuple[str, str]]:
    """Which blocks of a stack go with which: ``0 -> 0, 1; 1 -> 2``."""
    stacks: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for pair in pairs:
        around = _blocks_around(pair.source, blocks[0]), _blocks_around(pair.target, blocks[1])
        for ours, theirs in zip(*around, strict=False):
            (source, _, number), (target, _, partner) = ours.rpartition("."), theirs.rpartition(".")
            stacks.setdefault((source, target), {}).setdefault(number, {})[partner] = None
    return [
        (source, f"{target}  " + "; ".join(f"{number} -> {', '.join(partners)}" for number, partners in stack.items()))
        for (source, target), stack in stacks.items()
    ]


def _blocks_around(name: str, blocks: Collection[str]) -> list[str]:
    """The blocks that something lies in, from the outside in."""
    parts = name.split(".")
    return [prefix for place in range(len(parts)) if (prefix := ".".join(parts[: place + 1])) in blocks]
