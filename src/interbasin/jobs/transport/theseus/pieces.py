"""An update piece by piece: what a rule makes of each tensor, or segment, is put where it belongs in the target.

For the rules that know no spaces, only pairs of tensors. Those that do are carried by `carrier.Carrier`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from interbasin.checkpoints.lora import Factors
from interbasin.correspondence.pairs import tensor_of
from interbasin.jobs.transport.bases import Bases
from interbasin.jobs.transport.theseus.carrier import Carriage, Carrier, Moved, Way
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update
from interbasin.wiring.account import Status

# A piece of the source's update, with its axes in the target's order, and its way -> the piece for the target and how
# it was made, or why there is none.
Change = Callable[[Tensor, Way], tuple[Tensor, str] | str]
# The same for the factors of a whole weight of low rank; None: only the product can go.
ChangeFactors = Callable[[Factors, Way], tuple[Factors, str] | None]


def change_pieces(
    bases: Bases, update: Update, change: Change, change_factors: ChangeFactors | None = None, *, label: str
) -> Carriage:
    """The update for the target that a rule makes piece by piece, and what became of each tensor.

    Args:
        bases: The networks.
        update: Of the source.
        change: The rule.
        change_factors: The rule for factors, where it keeps low rank low.
        label: What messages call the result.
    """
    carrier = Carrier(bases, {})
    shapes = {name: tensor.shape for name, tensor in bases.target.state_dict().items()}
    dense: dict[str, Tensor] = {}
    factors: dict[str, Factors] = {}
    transposed: set[str] = set()
    rows: list[tuple[str, str | None, Status, str, float]] = []
    for name in update:
        squared = update.norm_of(name) ** 2
        own = bases.wirings[0].tied.get(name, name)
        tensor_ways = carrier.ways.get(name) or carrier.ways.get(own, [])
        if not tensor_ways:
            rows.append((name, None, "skipped", carrier._why_unmatched(own), squared))
        for way in tensor_ways:
            pair, portion = way.pair, squared / len(tensor_ways)
            is_whole = pair.order is None and pair.source_segment is None and pair.target_segment is None
            if change_factors and name in update.factors and is_whole and pair.target not in factors:
                changed_factors = change_factors(update.factors[name], way)
                if changed_factors is not None:
                    factors[pair.target] = Factors(changed_factors[0].a, pair.share * changed_factors[0].b)
                    if name in update.transposed:
                        transposed.add(pair.target)
                    rows.append((name, str(pair.parts[1]), "moved", changed_factors[1], portion))
                    continue
            changed = change(piece_of(update.tensor(name), way), way)
            if isinstance(changed, str):
                rows.append((name, pair.target, "skipped", changed, portion))
                continue
            start = dense.get(pair.target)
            if start is None:
                start = torch.zeros(shapes[pair.target], dtype=changed[0].dtype, device=changed[0].device)
            dense[pair.target] = start + in_place(pair.share * changed[0], way, start)
            rows.append((name, str(pair.parts[1]), "moved", changed[1], portion))
    for name in factors.keys() & dense.keys():
        whole = Update(factors={name: factors.pop(name)}, transposed=frozenset(transposed & {name}))
        dense[name] = dense[name] + whole.tensor(name).to(dense[name])
    total = sum(row[4] for row in rows) or 1.0
    carried = Update(
        dense=dense,
        factors=factors,
        transposed=frozenset(transposed & factors.keys()),
        tables=frozenset(name for name in factors if kinds_of(bases.target).get(name) == "table"),
        label=label,
        kinds=kinds_of(bases.target),
    )
    return Carriage(carried, tuple(Moved(*row[:4], row[4] / total) for row in rows))


def piece_of(tensor: Tensor, way: Way) -> Tensor:
    """The source's segment of a tensor, with its axes in the target's order."""
    return way.pair.cut(tensor)


def shape_of(way: Way, bases: Bases) -> tuple[int, ...]:
    """The shape of the target's segment."""
    shape = list(tensor_of(bases.wirings[1], way.pair.target).shape)
    segment = way.pair.target_segment
    if segment is not None:
        shape[segment.axis] = segment.blocks * (segment.stop - segment.start)
    return tuple(shape)


def target_piece_of(tensor: Tensor, way: Way) -> Tensor:
    """The target's segment of one of its tensors."""
    return tensor if way.pair.target_segment is None else way.pair.target_segment.cut(tensor)


def in_place(piece: Tensor, way: Way, like: Tensor) -> Tensor:
    """A tensor of the target, zero but for the segment that a piece goes to."""
    segment = way.pair.target_segment
    if segment is None:
        return piece.reshape(like.shape).to(like)
    return segment.paste(torch.zeros_like(like), piece.to(like))
