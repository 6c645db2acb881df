"""Statistics of activations that no longer fit the weights, put right: batch norms reset, and REPAIR.

The mean of two networks has activations of smaller variance than either, because they are not quite aligned; from layer
to layer it collapses. Where there are batch norms, their running statistics are estimated anew. Where there are none,
every output of a linear layer or convolution is scaled and shifted to the statistics that lie between those of the two
networks [jordan:23].

Both take one pass over the data, in which each batch is normalised by its own statistics, as in training, while those
of all rows together are gathered. With a single batch the result is exact; with several, a layer was fed by layers that
were normalised batch by batch.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from interbasin.activations.places import width_axis
from interbasin.arrays import working_dtype
from interbasin.batches import BATCH_SIZE, Progress, WithoutLabels, outputs_of, progress_bar, require_reiterable
from interbasin.checks import require_finite
from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.wiring.trace.copying import copied, copy_for_evaluation

Model = TypeVar("Model", bound=nn.Module)


@dataclass
class Spread:
    """Mean and variance of every channel over all rows so far; merged, not averaged, over batches."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def add(self, values: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Add a batch whose channels stand on ``axis``; its own mean and (biased) variance, in float64."""
        rows = values.detach().movedim(axis, -1).flatten(0, -2)
        variance, mean = torch.var_mean(rows.to(working_dtype(rows.dtype)), dim=0, correction=0)
        mean, variance = mean.double(), variance.double()
        count = self.count + len(rows)
        shift = mean - self.mean.to(mean.device)
        # Rows about the new mean: those of both parts about their own, and what lies between the two means.
        self.squares = (
            self.squares.to(mean.device) + variance * len(rows) + shift.square() * (self.count * len(rows) / count)
        )
        self.mean = self.mean.to(mean.device) + shift * (len(rows) / count)
        self.count = count
        return mean, variance

    def variance(self, correction: int = 0) -> Tensor:
        return self.squares / max(self.count - correction, 1)

    @property
    def deviation(self) -> Tensor:
        return self.variance().sqrt()

    def require_finite(self, what: str) -> None:
        if not bool(torch.isfinite(self.mean).all() & torch.isfinite(self.squares).all()):
            raise DataError(
                f"{what} is NaN or infinite, so it has no statistics; check the data and the weights before it."
            )


# ---------------------------------------------------------------------- batch norms


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a network keeps running statistics of batches."""
    return bool(_batch_norms(model))


def reset_batch_norm(
    model: Model, data: Any, *, batch_size: int = BATCH_SIZE, progress: Progress = None, finite: bool = True
) -> Model:
    """A copy whose batch norms have the running statistics of these data; the network given stays as it is.

    Mean and variance are those of all rows together, whatever the momentum. A network without batch norms comes back as
    a plain copy; so do batch norms that no batch comes by, and those that keep no statistics.

    Args:
        model: The network.
        data: Batches to iterate over, labels and all if they have some, or a tensor to be cut into batches.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches are done.
        finite: Refuse statistics that are NaN or infinite, instead of writing them.

    Raises:
        DataError: if there are no data, a batch has a single row, or activations are not finite.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(1))
        >>> data = [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [6.0]])]
        >>> reset_batch_norm(model, data)[0].running_mean
        tensor([3.])
    """
    work, result = copy_for_evaluation(model), copied(model)
    norms = _batch_norms(work)
    if not norms:
        return result
    spreads = {name: Spread() for name in norms}

    def enter(name: str, norm: _BatchNorm, args: Any, kwargs: Any) -> None:
        values = next(iter((*args, *kwargs.values())))
        if values.numel() == values.shape[1]:
            raise DataError(f"Batch norm {name!r} was given a single row, which has no variance; give larger batches.")
        _write_statistics(norm, *spreads[name].add(values, 1))

    with contextlib.ExitStack() as hooks:
        for name, norm in norms.items():
            hooks.enter_context(norm.register_forward_pre_hook(functools.partial(enter, name), with_kwargs=True))
        batches = _run_batches(work, data, batch_size, progress)
    for name, norm in _batch_norms(result).items():
        spread = spreads[name]
        if not spread.count:
            continue
        if finite:
            spread.require_finite(f"What batch norm {name!r} was given")
        _write_statistics(norm, spread.mean, spread.variance(correction=1))
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.fill_(batches)
    return result


def _write_statistics(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)


def _batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    }


# ---------------------------------------------------------------------- REPAIR


def repair(
    model: Model,
    a: nn.Module,
    b: nn.Module,
    t: float,
    data: Any,
    *,
    batch_size: int = BATCH_SIZE,
    progress: Progress = None,
) -> Model:
    r"""A copy of a network between two others, with activations of the size that lies between theirs [jordan:23].

    A network with batch norms has them reset. In any other, each output channel of every linear layer and convolution
    is scaled and shifted so that its mean is :math:`(1 - t) \mu_a + t \mu_b` and its standard deviation :math:`(1 - t)
    \sigma_a + t \sigma_b` over the data; the change is written into weights and biases, so the class stays the same. Of
    a layer without a bias only the deviation can be put right. Layers that are called more than once per pass, or
    share their weight with another, are left alone, and so are channels that do not vary.

    Args:
        model: At ``t`` between ``a`` and ``b``, as `interbasin.interpolate` makes it. None of the three changes.
        a, b: The networks at its ends.
        t: Where between them.
        data: Batches to iterate over, labels and all if they have some, or a tensor to be cut into batches.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many batches of a pass are done.

    Raises:
        DataError: if there are no data, they can be read only once, or ``t`` is no number.
        WiringError, ShapeError: if the networks are not of one architecture.
    """
    t = require_finite("t", t)
    if isinstance(model, nn.Module) and has_batch_norm(model):
        return reset_batch_norm(model, data, batch_size=batch_size, progress=progress)
    require_reiterable(data, "REPAIR")
    work = copy_for_evaluation(model)
    layers = _layers(work)
    ends = []
    for end in (a, b):
        network = copy_for_evaluation(end)
        _require_same_layers(work, network, layers)
        ends.append(_spreads(network, layers, data, batch_size, progress))
    once = [name for name in layers if name in ends[0] and name in ends[1]]
    wanted = {
        name: (
            torch.lerp(ends[0][name].mean, ends[1][name].mean, t),
            torch.lerp(ends[0][name].deviation, ends[1][name].deviation, t),
        )
        for name in once
    }
    spreads = {name: Spread() for name in once}

    def correct(name: str, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        axis = width_axis(module, output.ndim)
        mean, variance = spreads[name].add(output, axis)
        scale, shift = _correction(mean, variance.sqrt(), *wanted[name], shifts=module.bias is not None)
        whole = output.movedim(axis, -1)
        return (whole * scale.to(whole) + shift.to(whole)).movedim(-1, axis)

    with contextlib.ExitStack() as hooks:
        for name in once:
            hooks.enter_context(work.get_submodule(name).register_forward_hook(functools.partial(correct, name)))
        _run_batches(work, data, batch_size, progress)
    result = copied(model)
    for name in once:
        layer, spread = result.get_submodule(name), spreads[name]
        scale, shift = _correction(spread.mean, spread.deviation, *wanted[name], shifts=layer.bias is not None)
        _write_layer(layer, scale, shift)
    return result


def _correction(
    mean: Tensor, deviation: Tensor, wanted_mean: Tensor, wanted_deviation: Tensor, *, shifts: bool
) -> tuple[Tensor, Tensor]:
    """What a channel is multiplied by and what is added then. A channel that does not vary cannot be scaled."""
    varies = deviation > torch.finfo(torch.float32).eps * mean.abs()
    scale = torch.where(varies, wanted_deviation.to(mean) / torch.where(varies, deviation, 1), 1)
    return scale, wanted_mean.to(mean) - mean * scale if shifts else torch.zeros_like(mean)


def _write_layer(layer: nn.Module, scale: Tensor, shift: Tensor) -> None:
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    along = [1] * weight.ndim
    along[1 if isinstance(layer, _ConvTransposeNd) else 0] = -1  # the axis of the outputs
    with torch.no_grad():
        weight.copy_(weight.double() * scale.to(weight.device).reshape(along))
        if isinstance(bias, Tensor):
            bias.copy_(bias.double() * scale.to(bias.device) + shift.to(bias.device))


def _layers(model: nn.Module) -> list[str]:
    """The linear layers and convolutions with a weight that is theirs alone."""
    holders = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd)
        and not (isinstance(module, _ConvTransposeNd) and module.groups > 1)
        and all(holders[id(parameter)] == 1 for parameter in module._parameters.values() if parameter is not None)
        and isinstance(module._parameters.get("weight"), Tensor)
    ]


def _require_same_layers(model: nn.Module, end: nn.Module, layers: Sequence[str]) -> None:
    modules = dict(end.named_modules())
    for name in layers:
        own = model.get_submodule(name).weight
        other = getattr(modules.get(name), "weight", None)
        if not isinstance(other, Tensor):
            raise WiringError(
                f"Asked to repair {type(model).__name__} between two networks, but {type(end).__name__} has no layer "
                f"{name!r}; give the networks it was interpolated from."
            )
        assert isinstance(own, Tensor)
        if own.shape != other.shape:
            raise ShapeError(
                f"The weight of {name!r} has shape {tuple(own.shape)} in the network to repair and "
                f"{tuple(other.shape)} at one end; give the networks it was interpolated from."
            )


def _spreads(
    model: nn.Module, layers: Sequence[str], data: Any, batch_size: int, progress: Progress
) -> Mapping[str, Spread]:
    """Statistics of what the layers give, of those that are called once per pass."""
    spreads = {name: Spread() for name in layers}
    calls = dict.fromkeys(layers, 0)

    def leave(name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        calls[name] += 1
        spreads[name].add(output, width_axis(module, output.ndim))

    with contextlib.ExitStack() as hooks:
        for name in layers:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(functools.partial(leave, name)))
        batches = _run_batches(model, data, batch_size, progress)
    for name, spread in spreads.items():
        spread.require_finite(f"What layer {name!r} of {type(model).__name__} gives")
    return {name: spread for name, spread in spreads.items() if calls[name] == batches}


def _run_batches(model: nn.Module, data: Any, batch_size: int, progress: Progress) -> int:
    """Lead all batches through a network; how many there were."""
    batches = WithoutLabels(data, batch_size)
    done = 0
    with progress_bar(progress, batches, silent=False, what="normalising") as tell, torch.no_grad():
        for index, inputs in enumerate(batches):
            outputs_of(model, inputs, index)
            done = index + 1
            tell(done)
    if not done:
        raise DataError("The data hold no batch at all, so activations have no statistics; give some.")
    return done
