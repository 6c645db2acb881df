"""One batch of example inputs, as the arguments of a call."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from torch import Tensor, nn

from interbasin.errors import WiringError

__all__ = ["Inputs", "bound_inputs", "cloned"]

Inputs: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any]"
Given = TypeVar("Given")


def bound_inputs(model: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One batch as positional and keyword arguments. Caches of decoding are switched off where there is a switch."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    if isinstance(inputs, Tensor):
        args, kwargs = (inputs,), {}
    elif isinstance(inputs, Mapping):
        args, kwargs = (), dict(inputs)
    elif isinstance(inputs, Sequence) and not isinstance(inputs, str):
        args, kwargs = tuple(inputs), {}
    else:
        raise WiringError(
            f"The example inputs must be a tensor, a tuple of arguments or a mapping of keyword arguments, found "
            f"{type(inputs).__name__}; give one batch as the network's forward takes it."
        )
    strange = [name for name in kwargs if not isinstance(name, str)]
    if strange:
        raise WiringError(
            f"A mapping of example inputs holds keyword arguments by name, found the key {strange[0]!r}; give a tuple "
            "for positional arguments."
        )
    forward = next((vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)), None)
    code = getattr(forward, "__code__", None)
    if code is not None and "use_cache" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        kwargs.setdefault("use_cache", False)
    return args, kwargs


def cloned(given: Given) -> Given:
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
