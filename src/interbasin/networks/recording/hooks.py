"""Hooks on the modules of one network, and the forward passes that fire them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.batches import describe_arguments
from interbasin.errors import DataError, InterbasinError, WiringError
from interbasin.networks.recording.places import QKV, Place, module_at
from interbasin.networks.recording.readings import ModuleReading, Reading
from interbasin.networks.wiring.calls import observe_calls
from interbasin.networks.wiring.tracing import output_tensors

__all__ = ["Listener", "memory_of", "refuse_randomness", "without_fast_path"]

ARGUMENTS = ("query", "key", "value")  # of `torch.nn.MultiheadAttention`
_lock = threading.Lock()
_recordings: list[bool] = []  # for every recording that is under way, whether the fast path was on when it began


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """A block in which transformers of torch take their ordinary path.

    The fast path of `torch.nn.TransformerEncoder` hands nested tensors from layer to layer where there is a padding
    mask, which have no shape to take rows by, and does not call its layers' modules. The setting is the process's, so
    of recordings in several threads the first switches it and the last one puts it back.
    """
    with _lock:
        _recordings.append(torch.backends.mha.get_fastpath_enabled() if not _recordings else _recordings[0])
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _lock:
            before = _recordings.pop()
            if not _recordings:
                torch.backends.mha.set_fastpath_enabled(before)


class Listener:
    """Calls ``take(reading, rows)`` whenever a forward pass comes by a place that is read; hooks live in a block.

    Modules that a network calls through ``module.forward(...)`` are heard as well. A module may serve two networks that
    run in turn: only what `forward` itself sets off is heard.
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
        self._endings: list[Callable[[], None]] = []
        self._thread: int | None = None

    def __enter__(self) -> Listener:
        try:
            for name, side in self._wanted:
                module = module_at(self._model, Place(name, "input"))
                self._endings.append(self._observe(module, name, side))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._endings:
            self._endings.pop()()

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
                f"{self._called} was called with {describe_arguments(args, kwargs)} and failed "
                f"({type(error).__name__}: {_first_line(error)}); give batches as its forward takes them.{hint}"
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

    def _observe(self, module: nn.Module, name: str, side: str) -> Callable[[], None]:
        def enter(args: Any, kwargs: Any) -> None:
            if side == "input":
                self._heard(module, name, side, [*args, *kwargs.values()])
            else:
                arguments = dict(zip(QKV, (*args, *(kwargs[key] for key in ARGUMENTS[len(args) :])), strict=False))
                self._heard(module, name, side, arguments[side], arguments)

        def leave(output: Any) -> None:
            self._heard(module, name, side, output)

        return observe_calls(module, leave=leave) if side == "output" else observe_calls(module, enter=enter)

    def _heard(
        self, module: nn.Module, name: str, side: str, values: Any, arguments: Mapping[str, Any] | None = None
    ) -> None:
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
            if isinstance(reading, ModuleReading) and arguments is not None:
                _refuse_others(reading, arguments)
            self._take(reading, reading.rows(tensors[0], module))


def _refuse_others(reading: ModuleReading, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of attention that were one tensor in the first batch, are recorded as one, and now are not."""
    for other in reading.shared:
        if memory_of(arguments[other]) != memory_of(arguments[reading.place.side]):
            raise WiringError(
                f"In the first batch {other!r} of {reading.place.module} was made from the same tensor as "
                f"{reading.place.side!r}, and now it is not; record batches of one kind at a time."
            )


def memory_of(tensor: Tensor) -> object:
    """What two tensors that live at the same time share only if they are the same numbers in the same places."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


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
