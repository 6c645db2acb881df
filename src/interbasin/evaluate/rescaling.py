r"""How little the scale of an encoding matters: the rescale injection and the norms of the paper behind `translate`.

Relative projection loses the length of rows. That does not matter where the network behind them answers the same at any
scale: with a linear head and softmax, :math:`\alpha W x + b` is a temperature. Whether it holds inside a network is
measured by setting the rows of one layer to length 1 and then to :math:`\alpha`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.arrays import Array, as_tensor
from interbasin.batches import require_reiterable
from interbasin.checks import require_whole
from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.evaluate.performance import Loss, Performance, measure_performance
from interbasin.wiring.trace.copying import copy_for_evaluation

# The places of the distribution's own measures.
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Rescaling:
    """How a network does on rows whose length was set.

    Attributes:
        modules: Whose outputs were rescaled, one at a time.
        factors: The lengths that were set.
        performances: One for each module and factor: ``performances[i][j]``.
        untouched: How the network does by itself.
        mean_norms: The mean length of each module's own rows.
    """

    modules: tuple[str, ...]
    factors: tuple[float, ...]
    performances: tuple[tuple[Performance, ...], ...]
    untouched: Performance
    mean_norms: tuple[float, ...]

    @property
    def accuracies(self) -> Tensor:
        """``(modules, factors)``."""
        shares = [[performance.accuracy for performance in row] for row in self.performances]
        return torch.tensor([[math.nan if share is None else share for share in row] for row in shares])


def rescaled(
    model: nn.Module,
    data: Any,
    modules: Sequence[str] | str,
    factors: Sequence[float],
    loss: Loss | None = None,
    *,
    relative: bool = False,
) -> Rescaling:
    """Loss and accuracy with the outputs of a module set to length 1 and multiplied by a factor, module by module.

    Args:
        model: The network. It stays as it is.
        data: Batches to iterate over more than once, with labels.
        modules: Names of modules whose output is a tensor ``(..., width)``, or begins with one; ``""`` is the input of
            the network.
        factors: The lengths to set, one for all rows at a time.
        loss: As in `performance`.
        relative: Factors are shares of the module's own mean length.

    Raises:
        UnknownNameError: if there is no such module.
        DataError: if there is no factor, or one is not finite, or a module is not called or gives no tensor.
    """
    names = (modules,) if isinstance(modules, str) else tuple(modules)
    require_reiterable(data, "Rescaling")
    network = copy_for_evaluation(model)
    known = dict(network.named_modules())
    for name in names:
        if name not in known:
            raise UnknownNameError.of("module", name, known)
    factors = tuple(float(factor) for factor in factors)
    if not factors or not all(map(math.isfinite, factors)):
        raise DataError(f"factors must be finite numbers, one at least, got {list(factors)}; try [0.1, 1, 10].")
    untouched = measure_performance(network, data, loss)
    rows, lengths = [], []
    for name in names:
        lengths.append(_mean_norm(network, known[name], name, data, loss))
        row = []
        for factor in factors:
            with _hook_rows(known[name], name, _set_length(factor * lengths[-1] if relative else factor)):
                row.append(measure_performance(network, data, loss))
        rows.append(tuple(row))
    return Rescaling(names, factors, tuple(rows), untouched, tuple(lengths))


@contextmanager
def _hook_rows(module: nn.Module, name: str, change: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Meanwhile ``change`` gets the rows that a module gives (the whole network: takes) and their lengths."""

    def apply(value: Any) -> Any:
        if isinstance(value, tuple | list) and value:
            return type(value)([apply(value[0]), *value[1:]])
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim == 0:
            where = f"What {name} gives" if name else "What the network takes"
            raise DataError(f"{where} is no tensor of rows but {type(value).__name__}; choose another module.")
        return change(value, torch.linalg.vector_norm(value, dim=-1, keepdim=True))

    if name:
        handle = module.register_forward_hook(lambda _, __, output: apply(output))
    else:
        handle = module.register_forward_pre_hook(lambda _, inputs: apply(inputs))
    try:
        yield
    finally:
        handle.remove()


def _set_length(length: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda rows, lengths: rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny) * length


def _mean_norm(network: nn.Module, module: nn.Module, name: str, data: Any, loss: Loss | None) -> float:
    sums: list[Tensor] = []

    def add(rows: Tensor, lengths: Tensor) -> Tensor:
        sums.append(torch.stack([lengths.double().sum(), torch.tensor(float(lengths.numel()))]))
        return rows

    with _hook_rows(module, name, add):
        measure_performance(network, data, loss)
    if not sums:
        raise DataError(f"{name} is not called on these data; choose a module that is.")
    total = torch.stack(sums).sum(0)
    return float(total[0] / total[1])


@dataclass(frozen=True)
class Norms:
    """How long rows are.

    Attributes:
        mean, deviation: Of the lengths.
        skewness: 0 for a symmetric distribution.
        quantiles: The share of rows that are shorter -> the length.
        counts, edges: A histogram; ``edges`` has one more.
    """

    mean: float
    deviation: float
    skewness: float
    quantiles: dict[float, float]
    counts: tuple[int, ...]
    edges: tuple[float, ...]


def norms(rows: Array, bins: int = 40, *, centered: bool = False) -> Norms:
    """The distribution of the lengths of rows, ``(rows, width)``; about their mean if asked.

    Raises:
        ShapeError: if they are not rows, or there are none.
        DataError: if they hold NaN or infinity, or ``bins`` is no number of bins.

    Example:
        >>> norms(torch.eye(3)).mean
        1.0
    """
    values = as_tensor(rows, "The rows")
    if values.ndim != 2 or not values.numel():
        raise ShapeError(f"The rows must be (rows, width), got shape {tuple(values.shape)}.")
    bins, wide = require_whole("bins", bins, least=1, most=1_000_000), values.double()
    if not torch.isfinite(wide).all():
        raise DataError("The rows hold NaN or infinity, which have no length; leave those rows out.")
    lengths = torch.linalg.vector_norm(wide - wide.mean(0) if centered else wide, dim=1)
    mean, deviation = float(lengths.mean()), float(lengths.std(correction=0))
    skewness = float(((lengths - mean) / deviation).pow(3).mean()) if deviation > 1e-12 * mean else 0.0
    low, high = float(lengths.min()), float(lengths.max())
    high = high if high > low else low + max(abs(low), 1.0) * 1e-6
    counts = torch.histc(lengths, bins, low, high)
    return Norms(
        mean,
        deviation,
        skewness,
        {share: float(torch.quantile(lengths[:1_000_000], share)) for share in _QUANTILES},
        tuple(int(count) for count in counts),
        tuple(low + (high - low) * place / bins for place in range(bins + 1)),
    )
