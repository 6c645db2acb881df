"""Moving gains and biases into what reads them, factors into what writes them, and means out of a stream."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.maps import Linear
from interbasin.models.folding import SpelledNorm, add_bias, replace_module
from interbasin.wiring.axes.spaces import Axis, Role
from interbasin.wiring.folding.plan import Elementary, Plan
from interbasin.wiring.mover import Mover
from interbasin.wiring.trace.preflight import named_tensors
from interbasin.wiring.wiring import Wiring


def absorb(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Fold as planned; the linear layers that got a bias come back."""
    wiring, tensors = plan.wiring, named_tensors(model)
    biases: dict[str, None] = {}
    for name in plan.scalings:
        _scale_writers(tensors, wiring, plan.places[name].before, plan.elementary[name].gain)
    done: set[str] = set()
    for name in plan.norms:
        after = plan.places[name].after
        if after is not None and after not in done:
            done.add(after)
            biases |= dict.fromkeys(_scale_readers(model, tensors, wiring, after, plan.elementary[name]))
    centred = {stream for stream, kind in plan.streams.items() if kind == "layer"}
    for stream in centred:
        _centre_writers(tensors, wiring, stream)
    for name in plan.scalings:
        before, after = plan.places[name].before, plan.places[name].after
        if before is not None and after in centred:
            _centre_writers(tensors, wiring, before)
    for name, replacement in plan.replacements().items():
        new = replace_module(model, name, replacement)
        if isinstance(new, SpelledNorm):
            _spell(new.gain, plan.elementary[name], centred=plan.places[name].after in centred)
    return tuple(biases)


def _spell(layer: nn.Linear, norm: Elementary, centred: bool) -> None:
    """The gain and bias of a norm as a linear layer, whose result has no mean where it is added to a stream of none."""
    weight, bias = torch.diag(norm.gain), torch.zeros_like(norm.gain) if norm.bias is None else norm.bias
    if centred:
        weight, bias = weight - weight.mean(0), bias - bias.mean()
    layer.weight.copy_(weight)
    assert layer.bias is not None
    layer.bias.copy_(bias)


class _Scaling:
    """Multiplies the units of a space by numbers of their own; stands in for a map while tensors are moved."""

    def __init__(self, factors: Tensor) -> None:
        self.factors = factors
        self.source_width = factors.numel()

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factors.to(x)


def _moved(tensor: Tensor, axes: tuple[Axis, ...], wiring: Wiring, space: str, role: Role, factors: Tensor) -> Tensor:
    mover = Mover(wiring.spaces, {space: Linear(torch.ones(1, 1))})
    mover._sided = {(space, side): _Scaling(torch.ones_like(factors)) for side in Role}  # type: ignore[misc]
    mover._sided[space, role] = _Scaling(factors)  # type: ignore[assignment]
    return mover.move(tensor.double(), axes)


def _touching(wiring: Wiring, places: tuple[str, ...]) -> dict[str, list[int]]:
    touched: dict[str, list[int]] = {}
    for place in places:
        name, _, axis = place.rpartition("[")
        touched.setdefault(name, []).append(int(axis.rstrip("]")))
    return touched


def _scale_readers(
    model: nn.Module, tensors: Mapping[str, Tensor], wiring: Wiring, space: str, norm: Elementary
) -> list[str]:
    biases = []
    for name, places in _touching(wiring, wiring.spaces[space].reads).items():
        tensor, axes = tensors[name], wiring.tensors[name].axes
        if norm.bias is not None:
            shifted = _moved(tensor, axes, wiring, space, Role.READ, 1 + norm.bias) - tensor.double()
            called = any(place.startswith(f"{name.rpartition('.')[0]}:input:") for place in wiring.activations)
            if _add_to_bias(model, name, places[0], shifted, called):
                biases.append(name.rpartition(".")[0])
        tensor.copy_(_moved(tensor, axes, wiring, space, Role.READ, norm.gain))
    return biases


def _scale_writers(tensors: Mapping[str, Tensor], wiring: Wiring, space: str | None, gain: Tensor) -> None:
    assert space is not None
    for name in _touching(wiring, wiring.spaces[space].writes):
        tensors[name].copy_(_moved(tensors[name], wiring.tensors[name].axes, wiring, space, Role.WRITE, gain))


def _centre_writers(tensors: Mapping[str, Tensor], wiring: Wiring, stream: str) -> None:
    width = wiring.spaces[stream].width
    centre = Linear(torch.eye(width, dtype=torch.float64) - 1 / width)
    mover = Mover(wiring.spaces, {stream: centre})
    for name in _touching(wiring, wiring.spaces[stream].writes):
        tensors[name].copy_(mover.move(tensors[name].double(), wiring.tensors[name].axes))


def _add_to_bias(model: nn.Module, name: str, axis: int, shifted: Tensor, called: bool) -> bool:
    """What the reader makes of the norm's bias goes into its own; whether that had to be made comes back."""
    path, _, local = name.rpartition(".")
    owner = model.get_submodule(path)
    amount = shifted.sum(axis)
    label = "bias" if local == "weight" else local.replace("weight", "bias")
    bias = getattr(owner, label, None)
    padded = any(size not in (0, "valid") for size in _tuple(getattr(owner, "padding", 0)))
    if amount.ndim > 1 and not padded:
        amount = amount.flatten(1).sum(1)
    if not called:
        # Then a bias there would be of no use either.
        raise WiringError(
            f"The bias of a norm is read by {name}, which the network uses without calling its {type(owner).__name__}, "
            "so that layer has no bias to take it in; call the layer itself, with a bias of its own, or keep to "
            "permutations in its stream, which need no folding."
        )
    if amount.ndim != 1 or (bias is None and not isinstance(owner, nn.Linear)):
        raise WiringError(
            f"The bias of a norm is read by {name}, a {type(owner).__name__} that has no bias to take it in; give that "
            "layer a bias of zeros first."
        )
    if bias is None:
        assert isinstance(owner, nn.Linear)
        add_bias(owner)
        owner.bias.copy_(amount)
        return True
    bias.copy_(bias.double() + amount)
    return False


def _tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
