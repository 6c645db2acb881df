"""Copies of networks, and of what they are called with: all that carrying and tracing change is changed in these."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from interbasin.errors import WiringError

Model = TypeVar("Model", bound=nn.Module)
Value = TypeVar("Value")
Given = ParamSpec("Given")


def copied(model: Model, *, sharing: bool = False) -> Model:
    """A copy of ``model``, with its tensors copied as well, or shared with it.

    Raises:
        WiringError: if something that the model holds cannot be copied.
    """
    memo: dict[int, Any] = {}
    if sharing:
        memo.update({id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]})
    for module in model.modules():
        for value in vars(module).values():
            # What a hook computed from parameters, as pruning does, has a history that torch does not copy.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value if sharing else value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WiringError(
            f"{type(model).__name__} cannot be copied ({reason}), and the given network must stay as it is; remove "
            "what it holds besides tensors and modules."
        ) from error


def copy_for_evaluation(model: Model) -> Model:
    """A copy in evaluation mode: whatever a network keeps or merges for evaluation stays out of the one it is of.

    Raises:
        WiringError: if it is no network, or cannot be copied.
    """
    if not isinstance(model, nn.Module):
        raise WiringError(f"Asked to evaluate a {type(model).__name__}; give a torch.nn.Module.")
    return copied(model).eval()


def forget_what_was_derived(model: nn.Module) -> None:
    """Have a copy drop what it computed from its weights, by way of training mode and back.

    Networks that keep such things for evaluation (a cached product, a low-rank update that is merged into the weight)
    drop them when they go back to training, and some rewrite their weights then: all that reads or traces the weights
    of such a network has to take this step first, or it sees others. The copy must not share its tensors with a
    network that is to stay as it is.
    """
    modes = {id(module): module.training for module in model.modules()}
    try:
        model.train()
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WiringError(
            f"{type(model).__name__} cannot go to training mode and back ({reason}), which is how a copy drops what it "
            "computed from its old weights; make its train() work first."
        ) from error
    for module in model.modules():
        module.training = modes.get(id(module), False)


def remember_buffers(*networks: nn.Module) -> Callable[[], None]:
    """A function that gives networks the buffers again that they have now: some count or keep things when they run."""

    def values_of(buffer: Tensor | None) -> Tensor | None:
        """A copy; None where numbers cannot be compared, and hardly anything writes them."""
        can_be_compared = buffer is not None and buffer.layout == torch.strided and not buffer.is_meta
        return buffer.detach().clone() if buffer is not None and can_be_compared else None

    held = [
        (module, name, buffer, values_of(buffer))
        for module in dict.fromkeys(module for network in networks for module in network.modules())
        for name, buffer in module._buffers.items()
    ]

    def restore() -> None:
        with torch.no_grad():
            for module, name, buffer, before in held:
                if name in module._buffers:
                    module._buffers[name] = buffer
                if buffer is None or before is None or torch.equal(buffer, before):
                    continue
                if buffer.is_inference():  # which nothing writes to outside inference mode
                    module._buffers[name] = before
                else:
                    buffer.copy_(before)

    return restore


def leaving_buffers(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """The function, after which the networks that it was given have the buffers they had; also if it fails.

    Example:
        >>> @leaving_buffers
        ... def run(network: nn.Module) -> None:
        ...     network.train()(torch.randn(8, 2))
        >>> norm = nn.BatchNorm1d(2)
        >>> run(norm)
        >>> norm.running_mean
        tensor([0., 0.])
    """

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Value:
        given = (*args, *kwargs.values())
        restore = remember_buffers(*(value for value in given if isinstance(value, nn.Module)))
        try:
            return function(*args, **kwargs)
        finally:
            restore()

    return call


def clone_arguments(given: Value) -> Value:
    """The same arguments on memory of their own: a call may write into what it is given."""
    memo: dict[int, Any] = {}
    _clone_tensors(given, memo)
    try:
        return copy.deepcopy(given, memo)
    except Exception:
        return given  # something that cannot be copied is no tensor, and is handed on as it is


def _clone_tensors(given: Any, memo: dict[int, Any]) -> None:
    if isinstance(given, Tensor):
        memo[id(given)] = given.detach().clone()
    elif isinstance(given, Mapping):
        for part in given.values():
            _clone_tensors(part, memo)
    elif isinstance(given, list | tuple | set | frozenset):
        for part in given:
            _clone_tensors(part, memo)
