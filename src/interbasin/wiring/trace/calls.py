"""Calls of a module: observed, whether the module itself is called or its ``forward``; and the tensors they return.

Hooks fire for ``module(x)``. Some networks write ``module.forward(x)``, which does the same work and fires none. So the
instance's ``forward`` is wrapped as well, and each call is reported once.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from interbasin.errors import WiringError

Enter = Callable[[tuple[Any, ...], dict[str, Any]], object]
Leave = Callable[[Any], object]
_lock = threading.Lock()


def observe_calls(module: nn.Module, enter: Enter | None = None, leave: Leave | None = None) -> Callable[[], None]:
    """A function that ends the observation and leaves the module as it was.

    Args:
        module: Any but a TorchScript module, which takes no hooks.
        enter: Called with the positional and keyword arguments of each call, after the module's own hooks.
        leave: Called with the output of each call, after the module's own hooks.

    Example:
        >>> import torch
        >>> layer, seen = nn.Linear(2, 3), []
        >>> stop = observe_calls(layer, leave=lambda output: seen.append(tuple(output.shape)))
        >>> _ = layer(torch.zeros(4, 2)), layer.forward(torch.zeros(5, 2))
        >>> stop()
        >>> seen
        [(4, 3), (5, 3)]
    """
    observer = _Observer(enter, leave)
    handles = (
        module.register_forward_pre_hook(observer.before, with_kwargs=True),
        module.register_forward_hook(observer.after),
    )
    with _lock:
        current = vars(module).get("forward")
        tap = current if isinstance(current, _Tap) else _Tap(module)
        tap.observers.append(observer)
        module.forward = tap

    def stop() -> None:
        for handle in handles:
            handle.remove()
        with _lock:
            tap.observers.remove(observer)
            if not tap.observers:
                tap.restore(module)

    return stop


class _Observer:
    """One pair of functions, and the threads whose call has just been reported by a hook."""

    def __init__(self, enter: Enter | None, leave: Leave | None) -> None:
        self.enter, self.leave = enter, leave
        self.reported: set[int] = set()

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.reported.add(threading.get_ident())
        if self.enter is not None:
            self.enter(args, kwargs)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.leave is not None:
            self.leave(output)


class _Tap:
    """In place of a module's ``forward``: reports the calls that no hook has reported."""

    def __init__(self, module: nn.Module) -> None:
        functools.update_wrapper(self, module.forward)
        self.forward = module.forward
        self.own = vars(module).get("forward")
        self.observers: list[_Observer] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        direct = [observer for observer in self.observers if thread not in observer.reported]
        for observer in self.observers:
            observer.reported.discard(thread)
        for observer in direct:
            if observer.enter is not None:
                observer.enter(args, kwargs)
        output = self.forward(*args, **kwargs)
        for observer in direct:
            if observer.leave is not None:
                observer.leave(output)
        return output

    def restore(self, module: nn.Module) -> None:
        if self.own is None:
            del module.forward
        else:
            module.forward = self.own


# ---------------------------------------------------------------------- what a call returned


def output_tensors(output: Any) -> list[Tensor]:
    """The floating-point tensors of whatever a module returned, in order. Caches are not among them."""
    return [tensor for tensor in iterate_tensors(output) if tensor.is_floating_point()]


def iterate_tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in plain containers; whatever else is there is passed over."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for name, part in output.items():
            if name != "past_key_values":
                yield from iterate_tensors(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from iterate_tensors(part)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            if field.name != "past_key_values":
                yield from iterate_tensors(getattr(output, field.name))


# What a network may return beside tensors: it cannot depend on the values of any.
PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.Size, range)


def returned_tensors(model: nn.Module, output: Any) -> list[Tensor]:
    """All tensors of what a call of ``model`` returned, in order. Caches of language models are not outputs.

    Raises:
        WiringError: if there is none, if something in it is not known to be a container, or if a tensor is of a layout
            that is not followed.
    """
    tensors = list(_tensors(output, "", model))
    if not tensors:
        raise WiringError(
            f"{type(model).__name__} returned no tensor (found {_kind(output)}), so there is nothing that maps must "
            "not change; give a network whose forward returns what it computes."
        )
    return tensors


def _tensors(output: Any, where: str, model: nn.Module) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.layout is not torch.strided or output.is_quantized or output.is_nested:
            raise WiringError(
                f"{type(model).__name__} returned a sparse, nested or quantised tensor{where}, which is not followed; "
                "return it dense (tensor.to_dense(), to_padded_tensor() or dequantize())."
            )
        yield output
    elif isinstance(output, PLAIN) or _is_cache(output):
        return
    elif isinstance(output, Mapping):
        for name, part in output.items():
            if not _is_old_cache(output, name, part):
                yield from _tensors(part, f"{where}[{name!r}]", model)
    elif isinstance(output, list | tuple):
        for place, part in enumerate(output):
            yield from _tensors(part, f"{where}[{place}]", model)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            part = getattr(output, field.name)
            if not _is_old_cache(output, field.name, part):
                yield from _tensors(part, f"{where}.{field.name}", model)
    elif type(output) in pytree.SUPPORTED_NODES:
        parts, _ = pytree.SUPPORTED_NODES[type(output)].flatten_fn(output)
        for place, part in enumerate(parts):
            yield from _tensors(part, f"{where}[{place}]", model)
    else:
        raise WiringError(
            f"{type(model).__name__} returned {_kind(output)}{where and f' at output{where}'}, and which tensors it "
            "holds is not known; return tensors in tuples, lists, mappings or dataclasses (torch.utils._pytree."
            "register_pytree_node makes a class known)."
        )


def _kind(output: Any) -> str:
    name = type(output).__name__
    return "None" if output is None else f"an object of class {name}" if name[:1].isupper() else f"a {name}"


def _of_transformers(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "transformers"


def _is_cache(value: Any) -> bool:
    """The objects in which transformers keeps keys and values of tokens that went before."""
    return _of_transformers(value) and "Cache" in type(value).__name__


def _is_old_cache(output: Any, name: Any, part: Any) -> bool:
    """The same in tuples, as older networks of transformers give it."""
    return name == "past_key_values" and _of_transformers(output) and not isinstance(part, Tensor)
