r"""The sums behind every statistic: their algebra (merging, moving to another origin) and their files.

For source layers :math:`x_i` and target layers :math:`y_j`, paired row by row, this keeps the count, the sums, the sums
of squares (or whole Gram matrices) of each layer, and the cross-products :math:`\sum (y_j - t)(x_i - s)^\top` of each
pair, all about a provisional origin :math:`s, t`; `interbasin.statistics.batches` says why. Moving to another origin is
exact algebra. In files they are ``moments.safetensors`` and ``moments.json``, so that a run can stop and go on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interbasin.errors import DataError, FileError, ShapeError
from interbasin.storage import new_folder, read_record, write_record

FORMAT, VERSION, NAME = "moments", 1, "moments"
HOLDS = ("moments",)

# A layer, and the weight and bias of an affine map of it.
Image = tuple[str, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Side:
    """The sums of one layer about its origin: ``square`` is the Gram matrix, or only its diagonal."""

    origin: Tensor
    total: Tensor
    square: Tensor

    @property
    def width(self) -> int:
        return self.origin.numel()

    def about(self, origin: Tensor, count: int) -> Side:
        """The same sums about another origin: with d the step, sum (x+d)(x+d)^T = G + S d^T + d S^T + n d d^T."""
        step = self.origin - origin
        if self.square.ndim == 1:
            square = self.square + 2 * self.total * step + count * step.square()
        else:
            mixed = torch.outer(self.total, step)
            square = self.square + mixed + mixed.mT + count * torch.outer(step, step)
        return Side(origin, self.total + count * step, square)

    def through(self, weight: Tensor | None, bias: Tensor | None, grams: bool) -> Side:
        """The sums of ``weight @ x + bias``, which need the Gram matrix of x; without a weight those of x itself."""
        if weight is None:
            return Side(self.origin, self.total, self.square if grams or self.square.ndim == 1 else self.square.diag())
        weight = weight.to(self.origin)
        origin = weight @ self.origin
        gram = weight @ self.square @ weight.mT
        origin = origin if bias is None else origin + bias.to(origin)
        return Side(origin, weight @ self.total, gram if grams else gram.diag())

    def centered(self, count: int) -> Tensor:
        """Sums of squares (or the Gram matrix) about the mean."""
        if self.square.ndim == 1:
            return self.square - self.total.square() / count
        return self.square - torch.outer(self.total, self.total) / count

    def plus(self, other: Side) -> Side:
        """The sums of both, which have the same origin."""
        return Side(self.origin, self.total + other.total, self.square + other.square)


@dataclass(frozen=True)
class Accumulator:
    """The state that `PairedMoments` and `LayerwiseMoments` share; layers have names.

    It is a value: adding rows makes a new one, so that an interrupt leaves either the old sums or the new.
    """

    grams: bool
    count: int = 0
    batches: int = 0
    precision: float = 0.0  # the coarsest machine epsilon that any product was formed in
    sources: Mapping[str, Side] = field(default_factory=dict)
    targets: Mapping[str, Side] = field(default_factory=dict)
    crosses: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)  # (source, target): (target, source) sums

    def merge(self, other: Accumulator) -> Accumulator:
        """The state that one pass over the rows of both would have given, up to float64 round-off."""
        if self.grams != other.grams:
            raise DataError("Statistics with and without Gram matrices cannot be merged; collect both with one grams=.")
        if not self.count or not other.count:
            return other if other.count else self
        for kind, mine, theirs in (("source", self.sources, other.sources), ("target", self.targets, other.targets)):
            widths, others = ({name: side.width for name, side in sides.items()} for sides in (mine, theirs))
            if widths != others:
                raise ShapeError(
                    f"Statistics of different spaces cannot be merged: {kind} widths {widths} and {others}."
                )
        return self.plus(other.about(self))

    def plus(self, other: Accumulator) -> Accumulator:
        """The sums of both, whose layers have the same origins."""
        return replace(
            self,
            count=self.count + other.count,
            batches=self.batches + other.batches,
            precision=max(self.precision, other.precision),
            sources={name: side.plus(other.sources[name]) for name, side in self.sources.items()},
            targets={name: side.plus(other.targets[name]) for name, side in self.targets.items()},
            crosses={pair: cross + other.crosses[pair] for pair, cross in self.crosses.items()},
        )

    def through(self, sources: Mapping[str, Image], targets: Mapping[str, Image], grams: bool) -> Accumulator:
        """The sums of affine images of these layers, exactly: with C the cross-product, that of the images is W C V^T.

        Args:
            sources: For the name of each image the layer it is of, and the weight and bias (None: the layer itself).
            targets: The same of the targets.
            grams: Whether to keep their Gram matrices. Those of the layers have to be there.
        """
        crosses = {}
        for source, (x, inner, _) in sources.items():
            for target, (y, outer, _) in targets.items():
                cross = self.crosses[x, y]
                cross = cross if inner is None else cross @ inner.to(cross).mT
                crosses[source, target] = cross if outer is None else outer.to(cross) @ cross
        return replace(
            self,
            grams=grams,
            sources={name: self.sources[x].through(weight, bias, grams) for name, (x, weight, bias) in sources.items()},
            targets={name: self.targets[y].through(weight, bias, grams) for name, (y, weight, bias) in targets.items()},
            crosses=crosses,
        )

    def about(self, other: Accumulator) -> Accumulator:
        """The same sums about the origins of another accumulator of the same layers."""
        sources, targets = (
            {name: side.about(wanted[name].origin.to(side.origin), self.count) for name, side in sides.items()}
            for sides, wanted in ((self.sources, other.sources), (self.targets, other.targets))
        )
        crosses = {}
        for (source, target), cross in self.crosses.items():
            origins = sources[source].origin, targets[target].origin
            crosses[source, target] = cross_about(
                cross, self.sources[source], self.targets[target], *origins, self.count
            )
        return replace(self, sources=sources, targets=targets, crosses=crosses)


def cross_about(
    cross: Tensor, source: Side, target: Side, source_origin: Tensor, target_origin: Tensor, count: int
) -> Tensor:
    """A cross-product about other origins: sum (y+e)(x+d)^T = C + S_y d^T + e S_x^T + n e d^T."""
    d = source.origin - source_origin
    e = target.origin - target_origin
    return cross + torch.outer(target.total, d) + torch.outer(e, source.total) + count * torch.outer(e, d)


# ---------------------------------------------------------------------- files


def save_accumulator(
    state: Accumulator, folder: str | os.PathLike[str], *, force: bool = False, notes: Mapping[str, Any] | None = None
) -> None:
    """Write the sums to ``folder``, whole or not at all; ``notes`` are kept beside them."""
    with new_folder(folder, HOLDS, force=force) as temporary:
        write_into(temporary, state, notes)


def write_into(folder: Path, state: Accumulator, notes: Mapping[str, Any] | None = None) -> None:
    """Write the sums into a folder that is being filled."""
    document, tensors = describe_accumulator(state)
    write_record(folder, NAME, FORMAT, VERSION, {**document, "notes": dict(notes or {})}, tensors)


def describe_accumulator(state: Accumulator) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The sums as a document and tensors, from which `restore_accumulator` makes them again."""
    document = {
        "count": state.count,
        "batches": state.batches,
        "precision": state.precision,
        "grams": state.grams,
        "sources": list(state.sources),
        "targets": list(state.targets),
    }
    tensors: dict[str, Tensor] = {}
    for prefix, sides in (("source", state.sources), ("target", state.targets)):
        for position, side in enumerate(sides.values()):
            tensors |= {f"{prefix}.{position}.{name}": getattr(side, name) for name in ("origin", "total", "square")}
    for i, source in enumerate(state.sources):
        for j, target in enumerate(state.targets):
            tensors[f"cross.{i}.{j}"] = state.crosses[source, target]
    return document, tensors


def load_accumulator(folder: str | os.PathLike[str]) -> tuple[Accumulator, dict[str, Any]]:
    """The sums that were saved to ``folder``, exactly, and the notes beside them."""
    document, tensors = read_record(folder, NAME, FORMAT, VERSION)
    try:
        state = restore_accumulator(document, tensors)
        notes = dict(document["notes"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"The statistics in {folder} are damaged ({error}); copy the folder again or collect them anew."
        ) from error
    return state, notes


def restore_accumulator(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Accumulator:
    """The sums of a document and its tensors.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: if they do not fit together.
    """
    grams, count, batches = bool(document["grams"]), int(document["count"]), int(document["batches"])
    if count < 0 or batches < 0 or (count == 0) != (not document["sources"]) or (count == 0) != (batches == 0):
        raise ValueError(f"{count} rows in {batches} batches of {len(document['sources'])} source layers")
    odd = next((name for name, tensor in tensors.items() if not tensor.is_floating_point()), None)
    if odd is not None or count >= 2**63:
        raise ValueError(f"{count} rows" if odd is None else f"{odd} is of {tensors[odd].dtype}")
    sources = {name: _side(tensors, f"source.{i}", grams) for i, name in enumerate(document["sources"])}
    targets = {name: _side(tensors, f"target.{i}", grams) for i, name in enumerate(document["targets"])}
    crosses = {}
    for i, (source, x) in enumerate(sources.items()):
        for j, (target, y) in enumerate(targets.items()):
            cross = crosses[source, target] = tensors[f"cross.{i}.{j}"]
            if cross.shape != (y.width, x.width):
                raise ValueError(f"cross.{i}.{j} has shape {tuple(cross.shape)}, expected {(y.width, x.width)}")
    return Accumulator(grams, count, batches, float(document["precision"]), sources, targets, crosses)


def _side(tensors: Mapping[str, Tensor], prefix: str, gram: bool) -> Side:
    side = Side(tensors[f"{prefix}.origin"], tensors[f"{prefix}.total"], tensors[f"{prefix}.square"])
    expected = (side.width, side.width) if gram else (side.width,)
    if side.origin.ndim != 1 or side.total.shape != (side.width,) or side.square.shape != expected:
        shapes = f"{tuple(side.total.shape)} and {tuple(side.square.shape)}"
        raise ValueError(f"{prefix} holds shapes {shapes} for width {side.width}")
    return side
