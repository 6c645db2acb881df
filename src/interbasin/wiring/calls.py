"""Calls of a module, observed whether the module itself is called or its ``forward``.

Hooks fire for ``module(x)``. Some networks write ``module.forward(x)``, which does the same work and fires none. So the
instance's ``forward`` is wrapped as well, and each call is reported once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

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
