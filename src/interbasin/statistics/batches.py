r"""From a batch of paired rows to the sums of it: the checks, and the arithmetic that keeps the numbers good.

Products are formed in the data's precision over at most `CHUNK_ROWS` rows and the results added in float64, so that
round-off does not grow with the length of the run. And everything is taken about a *provisional origin*, the mean of
the first batch: means that are large beside the spread, ordinary in networks, would otherwise cost float32 products
most of their digits when the centred moments are formed [chan:79 discuss the choice of origin].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from interbasin.arrays import as_tensor, working_dtype
from interbasin.errors import DataError, ShapeError
from interbasin.statistics.accumulation import Accumulator, Side

CHUNK_ROWS = 4096
# Rows, evenly spread over the first batch, whose mean is the provisional origin. It has to lie near the mean beside the
# spread, and that of 256 rows lies within about a sixteenth of it; the mean of thousands took as long as a shift.
ORIGIN_ROWS = 256
# Sums of squares below this come from products that were rounded to a few digits or to nothing, by machine epsilon.
FAINT = {torch.finfo(torch.float32).eps: 1e-26, torch.finfo(torch.float64).eps: 1e-290}

Rows = dict[str, Tensor]


def add_batch(state: Accumulator, sources: Mapping[str, object], targets: Mapping[str, object]) -> Accumulator:
    """The state with one more batch, for each layer by name.

    Raises:
        DataError, ShapeError: if the batch cannot be used; the message names it, and ``state`` is what it was.
    """
    xs = {name: _rows(values, _label("source", name), state.batches) for name, values in sources.items()}
    ys = {name: _rows(values, _label("target", name), state.batches) for name, values in targets.items()}
    _check_pairing(xs, ys, state.batches)
    _check_widths(xs, "source", state.sources, state.batches)
    _check_widths(ys, "target", state.targets, state.batches)
    device = next(iter(xs.values())).device
    xs, ys = (
        {name: values.reshape(-1, values.shape[-1]).to(device) for name, values in rows.items()} for rows in (xs, ys)
    )
    x_origins, y_origins = (
        {name: sides[name].origin if sides else _origin(values) for name, values in rows.items()}
        for rows, sides in ((xs, state.sources), (ys, state.targets))
    )
    added = _sums_of_batch(xs, ys, x_origins, y_origins, state)
    return added if state.count == 0 else state.plus(added)


# ---------------------------------------------------------------------- checks


def _label(kind: str, name: str) -> str:
    return f"the {kind}" if name == kind else f"the {kind} layer {name!r}"


def _rows(values: object, label: str, batch: int) -> Tensor:
    what = f"Batch {batch} of {label}"
    tensor = as_tensor(values, what)
    if not tensor.is_floating_point():
        raise DataError(f"{what} must be floating-point, got {tensor.dtype}; convert it with .float().")
    if tensor.ndim < 2 or tensor.shape[-1] == 0:
        raise ShapeError(
            f"{what} must have shape (rows, width), got {tuple(tensor.shape)}; give one vector as x[None]."
        )
    if tensor.numel() == 0:
        raise DataError(f"{what} is empty (shape {tuple(tensor.shape)}); leave empty batches out.")
    return tensor


def _check_pairing(xs: Rows, ys: Rows, batch: int) -> None:
    if not xs or not ys:
        raise DataError("Statistics need at least one source layer and one target layer, got none.")
    leading = {_label("source", name): tuple(rows.shape[:-1]) for name, rows in xs.items()}
    leading |= {_label("target", name): tuple(rows.shape[:-1]) for name, rows in ys.items()}
    first_label, first = next(iter(leading.items()))
    for label, shape in leading.items():
        # (batch, tokens) beside (batch * tokens,) is the same rows flattened; (2, 3) beside (3, 2) is a mistake.
        same_rows = math.prod(shape) == math.prod(first) and (len(shape) == 1 or len(first) == 1)
        if shape != first and not same_rows:
            shapes = f"{first_label} has rows of shape {first} and {label} of shape {shape}"
            raise ShapeError(f"Batch {batch} is not paired: {shapes}; row i of both must come from the same input.")


def _check_widths(rows: Rows, kind: str, known: Mapping[str, Side], batch: int) -> None:
    widths = {name: tensor.shape[-1] for name, tensor in rows.items()}
    earlier = {name: side.width for name, side in known.items()}
    if known and widths != earlier:
        raise ShapeError(f"Batch {batch} of the {kind} has widths {widths}, but earlier batches {earlier}.")


def _refuse_bad_values(chunk: Rows, kind: str, batch: int, first: int) -> None:
    for name, rows in chunk.items():
        finite = torch.isfinite(rows)
        if bool(finite.all()):
            continue
        columns = torch.nonzero(~finite.all(dim=0)).flatten().tolist()
        row = first + int(torch.nonzero(~finite.all(dim=1)).flatten()[0])
        shown = ", ".join(str(column) for column in columns[:8]) + (", ..." if len(columns) > 8 else "")
        raise DataError(
            f"Batch {batch} of {_label(kind, name)} holds NaN or infinity in {len(columns)} of {rows.shape[1]} columns "
            f"({shown}), first in row {row} counted from the start, and was not added; remove such rows."
        )


# ---------------------------------------------------------------------- arithmetic


def _sums_of_batch(xs: Rows, ys: Rows, x_origins: Rows, y_origins: Rows, state: Accumulator) -> Accumulator:
    total = Accumulator(grams=state.grams)
    for start in range(0, len(next(iter(xs.values()))), CHUNK_ROWS):
        chunk_x = {name: values[start : start + CHUNK_ROWS] for name, values in xs.items()}
        chunk_y = {name: values[start : start + CHUNK_ROWS] for name, values in ys.items()}
        sums = _sums_of_chunk(chunk_x, chunk_y, x_origins, y_origins, state.grams)
        is_finite = _is_finite(sums)
        if not is_finite:
            _refuse_bad_values(chunk_x, "source", state.batches, state.count + start)
            _refuse_bad_values(chunk_y, "target", state.batches, state.count + start)
        if not is_finite or _is_faint(sums, FAINT[sums.precision]):
            # Every value is finite, so it was the products that left the range of their precision.
            sums = _sums_of_chunk(chunk_x, chunk_y, x_origins, y_origins, state.grams, torch.float64)
            if not _is_finite(sums):
                raise DataError(
                    f"Batch {state.batches} has values so large that their products overflow float64; scale the data "
                    "down."
                )
            if _is_faint(sums, FAINT[sums.precision]):
                raise DataError(
                    f"Batch {state.batches} has values so small that their products vanish in float64; scale the data "
                    "up."
                )
        total = sums if total.count == 0 else _absorb(total, sums)
    return replace(total, batches=1)


def _absorb(total: Accumulator, sums: Accumulator) -> Accumulator:
    """``total.plus(sums)`` in the memory of ``total``, which nobody else holds yet."""
    for pair, cross in sums.crosses.items():
        total.crosses[pair].add_(cross)
    for mine, added in ((total.sources, sums.sources), (total.targets, sums.targets)):
        for name, side in added.items():
            mine[name].total.add_(side.total)
            mine[name].square.add_(side.square)
    return replace(total, count=total.count + sums.count, precision=max(total.precision, sums.precision))


def _sums_of_chunk(
    xs: Rows, ys: Rows, x_origins: Rows, y_origins: Rows, grams: bool, dtype: torch.dtype | None = None
) -> Accumulator:
    """The sums of a few thousand rows, in the data's precision (float32 for the half types)."""
    working = dtype or working_dtype(*(t.dtype for t in xs.values()), *(t.dtype for t in ys.values()))
    shifted_x = {name: _shift(rows, x_origins[name], working) for name, rows in xs.items()}
    shifted_y = {name: _shift(rows, y_origins[name], working) for name, rows in ys.items()}
    crosses = {(i, j): _float64(y.mT @ x) for i, x in shifted_x.items() for j, y in shifted_y.items()}
    # The sides come last, because without Gram matrices their squares are formed in place.
    return Accumulator(
        grams=grams,
        count=len(next(iter(xs.values()))),
        precision=torch.finfo(working).eps,
        sources={name: _side_in_place(rows, x_origins[name], grams) for name, rows in shifted_x.items()},
        targets={name: _side_in_place(rows, y_origins[name], grams) for name, rows in shifted_y.items()},
        crosses=crosses,
    )


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
    """The provisional origin: the mean of rows of the first batch, rounded to the precision of the products."""
    some = rows[:: -(-len(rows) // ORIGIN_ROWS)]
    mean = some.to(working_dtype(rows.dtype)).mean(dim=0)
    # A batch that is about to be refused must not choke here first.
    return _float64(torch.where(torch.isfinite(mean), mean, 0))


def _is_finite(sums: Accumulator) -> bool:
    # A NaN or an infinity in a column makes that column's sum NaN or infinite: the data need no pass of their own.
    sides = (*sums.sources.values(), *sums.targets.values())
    tensors = [*(side.total for side in sides), *(side.square for side in sides), *sums.crosses.values()]
    return all(bool(torch.isfinite(tensor.sum())) for tensor in tensors)


def _is_faint(sums: Accumulator, limit: float) -> bool:
    """Whether the squares of some unit that is not constant are (nearly) lost below the range of the precision."""
    for side in (*sums.sources.values(), *sums.targets.values()):
        squares = side.square if side.square.ndim == 1 else torch.diagonal(side.square)
        if bool(((squares < limit) & ((squares > 0) | (side.total != 0))).any()):
            return True
    return False


def _float64(tensor: Tensor) -> Tensor:
    # Some accelerators have no float64; their sums are kept on the CPU.
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(torch.float64)
