"""Hooks on the modules of one network, and the forward passes that fire them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from interbasin.errors import DataError, InterbasinError, WiringError
from interbasin.networks.recording.batches import described
from interbasin.networks.recording.places import Place, module_at
from interbasin.networks.recording.readings import Reading
from interbasin.networks.wiring.tracing import output_tensors

__all__ = ["Listener", "refuse_randomness"]


class Listener:
    """Calls ``take(reading, rows)`` whenever a forward pass comes by a place that is read; hooks live in a block.

    A module may serve two networks that run in turn: only what `forward` itself sets off is heard.
    """

    def __init__(
        self, model: nn.Module, readings: Iterable[Reading], take: Callable[[Reading, Tensor], None], called: str
    ) -> None:
        self._model = model
        self._called = called
        self._take = take
        self._wanted: dict[tuple[str, str], dict[int, list[Reading]]] = {}
        for reading in readings:
            place = reading.place
            self._wanted.setdefault((place.module, place.side), {}).setdefault(place.call, []).append(reading)
        self._calls: dict[tuple[str, str], int] = {}
        self._handles: list[RemovableHandle] = []
        self._thread: int | None = None

    def __enter__(self) -> Listener:
        try:
            for name, side in self._wanted:
                module = module_at(self._model, Place(name, "input"))
                self._handles.append(self._hook(module, name, side))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any], hint: str = "") -> None:
        """One pass, without gradients.

        Args:
            args, kwargs: What the network is called with.
            hint: What else may be wrong, if the network cannot be called so.

        Raises:
            DataError: if the network raises something.
            WiringError: if a place was not come by.
        """
        self._calls = dict.fromkeys(self._wanted, 0)
        self._thread = threading.get_ident()
        try:
            with torch.inference_mode():
                self._model(*args, **kwargs)
        # Whoever has fewer inputs at a time to offer will want to know memory from the rest.
        except (InterbasinError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise DataError(
                f"{self._called} was called with {described(args, kwargs)} and failed ({type(error).__name__}: "
                f"{_first_line(error)}); give batches as its forward takes them.{hint}"
            ) from error
        finally:
            self._thread = None
        for (name, side), calls in self._wanted.items():
            found = self._calls[name, side]
            if found <= max(calls):
                times = "not called" if not found else f"called {found} time(s)"
                raise WiringError(
                    f"Asked to record {name}:{side}:{max(calls)} of {type(self._model).__name__}, but in this forward "
                    f"pass that module was {times}; record another place, or give inputs that lead through it."
                )

    def _hook(self, module: nn.Module, name: str, side: str) -> RemovableHandle:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._heard(module, name, side, [*args, *kwargs.values()])

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._heard(module, name, side, output)

        if side == "input":
            return module.register_forward_pre_hook(enter, with_kwargs=True)
        return module.register_forward_hook(leave)

    def _heard(self, module: nn.Module, name: str, side: str, values: Any) -> None:
        if self._thread != threading.get_ident():
            return
        call = self._calls[name, side]
        self._calls[name, side] = call + 1
        readings = self._wanted[name, side].get(call, ())
        if not readings:
            return
        tensors = output_tensors(values)
        if not tensors:
            raise WiringError(
                f"Asked to record {name}:{side}:{call}, but no floating-point tensor passes there; record "
                "another place."
            )
        for reading in readings:
            self._take(reading, reading.rows(tensors[0], module))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")


def refuse_randomness(model: nn.Module) -> None:
    """Refuse a network whose calls do not agree with one another, because it is being trained."""
    for name, module in model.named_modules():
        if module.training and _is_random(module):
            raise WiringError(
                f"{type(model).__name__} is in training mode and {name or type(module).__name__!r} is random there (or "
                "takes its statistics from the batch), so what is recorded would be too; call model.eval() first."
            )


def _is_random(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    kind = type(module).__name__.lower()
    rates = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if "drop" in kind or "stochasticdepth" in kind:
        return any(rates.get(name, 0) > 0 for name in ("p", "prob", "rate", "drop_prob"))
    # Networks that call the functional form keep the rate beside it: attention_dropout, dropout, ...
    return any("drop" in name and value > 0 for name, value in rates.items())
