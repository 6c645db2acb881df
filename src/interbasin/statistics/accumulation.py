r"""The sums behind every statistic: streaming, mergeable, bounded by the widths and never by the number of rows.

For source layers :math:`x_i` and target layers :math:`y_j`, paired row by row, this keeps the count, the sums, the sums
of squares (or whole Gram matrices) of each layer, and the cross-products :math:`\sum (y_j - t)(x_i - s)^\top` of each
pair.

Two choices keep the numbers good. Products are formed in the data's precision over at most `CHUNK_ROWS` rows and the
results added in float64, so round-off does not grow with the length of the run. And everything is taken about a
*provisional origin* (:math:`s, t`: the mean of the first batch): means that are large beside the spread, ordinary in
networks, would otherwise cost float32 products most of their digits when the centred moments are formed [chan:79
discuss the choice of origin]. Moving to another origin afterwards is exact algebra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from interbasin.arrays import as_tensor, working_dtype
from interbasin.errors import DataError, ShapeError

__all__ = ["Accumulator", "Side"]

CHUNK_ROWS = 4096


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

    def centered(self, count: int) -> Tensor:
        """Sums of squares (or the Gram matrix) about the mean."""
        if self.square.ndim == 1:
            return self.square - self.total.square() / count
        return self.square - torch.outer(self.total, self.total) / count

    def plus(self, other: Side) -> Side:
        return Side(self.origin, self.total + other.total, self.square + other.square)


@dataclass
class Accumulator:
    """The state that `PairedMoments` and `LayerwiseMoments` share. Layers are named; only `update` changes it."""

    grams: bool
    count: int = 0
    batches: int = 0
    precision: float = 0.0  # the coarsest machine epsilon that any product was formed in
    sources: dict[str, Side] = field(default_factory=dict)
    targets: dict[str, Side] = field(default_factory=dict)
    crosses: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # (source, target) -> (target, source) sums

    def update(self, sources: Mapping[str, object], targets: Mapping[str, object]) -> None:
        """Add one batch. If it is refused, nothing has changed."""
        xs = {name: self._rows(values, f"the source {name!r}") for name, values in sources.items()}
        ys = {name: self._rows(values, f"the target {name!r}") for name, values in targets.items()}
        self._check_pairing(xs, ys)
        if self.count == 0:
            origins = {side: {n: _origin(t) for n, t in rows.items()} for side, rows in (("x", xs), ("y", ys))}
        else:
            origins = {
                "x": {n: side.origin for n, side in self.sources.items()},
                "y": {n: side.origin for n, side in self.targets.items()},
            }
        added = self._sums_of_batch(xs, ys, origins["x"], origins["y"])
        if self.count == 0:
            self.sources, self.targets, self.crosses = added.sources, added.targets, added.crosses
        else:
            self._add(added)
        self.count += added.count
        self.batches += 1
        self.precision = max(self.precision, added.precision)

    def merge(self, other: Accumulator) -> Accumulator:
        """The state that one pass over the rows of both would have given, up to float64 round-off."""
        if self.grams != other.grams:
            raise DataError(
                "Statistics with and without Gram matrices cannot be merged; collect both with the same grams=."
            )
        if not self.count or not other.count:
            return (other if other.count else self).copy()
        for kind, mine, theirs in (("source", self.sources, other.sources), ("target", self.targets, other.targets)):
            widths = (
                {name: side.width for name, side in mine.items()},
                {name: side.width for name, side in theirs.items()},
            )
            if widths[0] != widths[1]:
                raise ShapeError(
                    f"Statistics of different spaces cannot be merged: {kind} widths {widths[0]} and {widths[1]}."
                )
        merged = self.copy()
        merged._add(other.about(merged))
        merged.count += other.count
        merged.batches += other.batches
        merged.precision = max(self.precision, other.precision)
        return merged

    def copy(self) -> Accumulator:
        crosses = {pair: cross.clone() for pair, cross in self.crosses.items()}
        return replace(self, sources=dict(self.sources), targets=dict(self.targets), crosses=crosses)

    def about(self, other: Accumulator) -> Accumulator:
        """The same sums about the origins of another accumulator of the same layers."""
        sources = {
            name: side.about(other.sources[name].origin.to(side.origin), self.count)
            for name, side in self.sources.items()
        }
        targets = {
            name: side.about(other.targets[name].origin.to(side.origin), self.count)
            for name, side in self.targets.items()
        }
        crosses = {
            (source, target): cross_about(
                cross,
                self.sources[source],
                self.targets[target],
                sources[source].origin,
                targets[target].origin,
                self.count,
            )
            for (source, target), cross in self.crosses.items()
        }
        return replace(self, sources=sources, targets=targets, crosses=crosses)

    # ------------------------------------------------------------------ one batch

    def _rows(self, values: object, what: str) -> Tensor:
        tensor = as_tensor(values, f"Batch {self.batches} of {what}")
        if not tensor.is_floating_point():
            raise DataError(
                f"Batch {self.batches} of {what} must be floating-point, found {tensor.dtype}; convert it with "
                f".float()."
            )
        if tensor.ndim < 2 or tensor.shape[-1] == 0:
            raise ShapeError(
                f"Batch {self.batches} of {what} must have shape (..., width) with at least two axes, found "
                f"{tuple(tensor.shape)}; give a single vector as one row, x[None]."
            )
        if tensor.numel() == 0:
            raise DataError(
                f"Batch {self.batches} of {what} is empty (shape {tuple(tensor.shape)}); leave empty batches out."
            )
        return tensor

    def _check_pairing(self, xs: dict[str, Tensor], ys: dict[str, Tensor]) -> None:
        if not xs or not ys:
            raise DataError("Statistics need at least one source layer and one target layer, found none.")
        leading = {
            name: tuple(rows.shape[:-1]) for name, rows in {**xs, **{f"{n} (target)": t for n, t in ys.items()}}.items()
        }
        first_name, first = next(iter(leading.items()))
        for name, shape in leading.items():
            # (batch, tokens) beside (batch * tokens,) is the same rows flattened; (2, 3) beside (3, 2) is a mistake.
            same_rows = _product(shape) == _product(first) and (len(shape) == 1 or len(first) == 1)
            if shape != first and not same_rows:
                raise ShapeError(
                    f"Batch {self.batches} is not paired: {first_name!r} has rows of shape {first} and {name!r} of "
                    f"shape "
                    f"{shape}; row i of both sides must come from the same input."
                )
        for kind, rows, known in (("source", xs, self.sources), ("target", ys, self.targets)):
            if self.count and {n: t.shape[-1] for n, t in rows.items()} != {n: s.width for n, s in known.items()}:
                raise ShapeError(
                    f"Batch {self.batches} of the {kind} has widths { {n: t.shape[-1] for n, t in rows.items()} }, "
                    f"earlier "
                    f"batches { {n: s.width for n, s in known.items()} }; one object holds the statistics of the "
                    f"same spaces only."
                )

    def _sums_of_batch(
        self, xs: dict[str, Tensor], ys: dict[str, Tensor], x_origins: dict[str, Tensor], y_origins: dict[str, Tensor]
    ) -> Accumulator:
        total: Accumulator | None = None
        flat_x = {name: rows.reshape(-1, rows.shape[-1]) for name, rows in xs.items()}
        flat_y = {name: rows.reshape(-1, rows.shape[-1]) for name, rows in ys.items()}
        rows = next(iter(flat_x.values())).shape[0]
        for start in range(0, rows, CHUNK_ROWS):
            chunk_x = {name: values[start : start + CHUNK_ROWS] for name, values in flat_x.items()}
            chunk_y = {name: values[start : start + CHUNK_ROWS] for name, values in flat_y.items()}
            sums = _sums_of_chunk(chunk_x, chunk_y, x_origins, y_origins, self.grams)
            if not sums._is_finite():
                self._refuse_bad_values(chunk_x, "source", start)
                self._refuse_bad_values(chunk_y, "target", start)
                # Every value is finite, so the products overflowed their precision.
                sums = _sums_of_chunk(chunk_x, chunk_y, x_origins, y_origins, self.grams, torch.float64)
                if not sums._is_finite():
                    raise DataError(
                        f"Batch {self.batches} has values so large that their products overflow float64; scale the "
                        f"data down."
                    )
            if total is None:
                total = sums
            else:
                total._add(sums)
                total.count += sums.count
                total.precision = max(total.precision, sums.precision)
        assert total is not None
        return total

    def _is_finite(self) -> bool:
        # A NaN or an infinity in a column makes that column's sum NaN or infinite: the data need no pass of their own.
        tensors = [side.total for side in (*self.sources.values(), *self.targets.values())]
        tensors += [side.square for side in (*self.sources.values(), *self.targets.values())]
        tensors += list(self.crosses.values())
        return all(bool(torch.isfinite(tensor.sum())) for tensor in tensors)

    def _refuse_bad_values(self, chunk: dict[str, Tensor], kind: str, start: int) -> None:
        for name, rows in chunk.items():
            finite = torch.isfinite(rows)
            if bool(finite.all()):
                continue
            columns = torch.nonzero(~finite.all(dim=0)).flatten().tolist()
            row = start + int(torch.nonzero(~finite.all(dim=1)).flatten()[0])
            label = "" if name == kind else f" {name!r}"
            shown = ", ".join(str(column) for column in columns[:8]) + (", ..." if len(columns) > 8 else "")
            raise DataError(
                f"Batch {self.batches} of the {kind}{label} holds NaN or infinity in {len(columns)} of "
                f"{rows.shape[1]} columns "
                f"({shown}), first in row {row}; remove those rows or mend the model that made them. Nothing was added."
            )

    def _add(self, other: Accumulator) -> None:
        self.sources = {name: side.plus(other.sources[name]) for name, side in self.sources.items()}
        self.targets = {name: side.plus(other.targets[name]) for name, side in self.targets.items()}
        for pair, cross in other.crosses.items():
            self.crosses[pair] += cross


def cross_about(
    cross: Tensor, source: Side, target: Side, source_origin: Tensor, target_origin: Tensor, count: int
) -> Tensor:
    """A cross-product about other origins: sum (y+e)(x+d)^T = C + S_y d^T + e S_x^T + n e d^T."""
    d = source.origin - source_origin
    e = target.origin - target_origin
    return cross + torch.outer(target.total, d) + torch.outer(e, source.total) + count * torch.outer(e, d)


def _sums_of_chunk(
    xs: dict[str, Tensor],
    ys: dict[str, Tensor],
    x_origins: dict[str, Tensor],
    y_origins: dict[str, Tensor],
    grams: bool,
    dtype: torch.dtype | None = None,
) -> Accumulator:
    """The sums of a few thousand rows, in the data's precision (float32 for the half types)."""
    working = dtype or working_dtype(*(t.dtype for t in xs.values()), *(t.dtype for t in ys.values()))
    shifted_x = {name: _shift(rows, x_origins[name], working) for name, rows in xs.items()}
    shifted_y = {name: _shift(rows, y_origins[name], working) for name, rows in ys.items()}
    sums = Accumulator(grams=grams, count=next(iter(xs.values())).shape[0], precision=torch.finfo(working).eps)
    for source, x in shifted_x.items():
        for target, y in shifted_y.items():
            sums.crosses[source, target] = _float64(y.mT @ x.to(y.device))
    # Last, because without Gram matrices the squares are formed in place.
    sums.sources = {name: _side_in_place(rows, x_origins[name], grams) for name, rows in shifted_x.items()}
    sums.targets = {name: _side_in_place(rows, y_origins[name], grams) for name, rows in shifted_y.items()}
    return sums


def _side_in_place(rows: Tensor, origin: Tensor, gram: bool) -> Side:
    # Sums as products with ones: a matrix-vector product reads the rows once, at the speed of memory; reductions over
    # the first axis were up to forty times slower.
    ones = torch.ones(1, rows.shape[0], dtype=rows.dtype, device=rows.device)
    total = (ones @ rows)[0]
    square = rows.mT @ rows if gram else (ones @ rows.square_())[0]
    return Side(origin, _float64(total), _float64(square))


def _shift(rows: Tensor, origin: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.to(dtype) - origin.to(device=rows.device, dtype=dtype)


def _origin(rows: Tensor) -> Tensor:
    """The provisional origin: the mean of (the head of) the first batch, rounded to the precision of the products."""
    head = rows.reshape(-1, rows.shape[-1])[:CHUNK_ROWS].to(working_dtype(rows.dtype))
    mean = head.mean(dim=0)
    # A batch that is about to be refused must not choke here first.
    return _float64(torch.where(torch.isfinite(mean), mean, 0))


def _float64(tensor: Tensor) -> Tensor:
    # Some accelerators have no float64; their sums are kept on the CPU.
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(torch.float64)


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for length in shape:
        result *= length
    return result


def named_sides(sides: Mapping[str, Side], prefix: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of some sides under the names that files use."""
    for position, side in enumerate(sides.values()):
        yield f"{prefix}.{position}.origin", side.origin
        yield f"{prefix}.{position}.total", side.total
        yield f"{prefix}.{position}.square", side.square
