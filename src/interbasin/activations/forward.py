"""Forward passes: what a network is called with, what is heard on the way, and how two networks run step by step."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.activations.places import QKV, ModuleReading, Reading
from interbasin.batches import call_arguments, call_error
from interbasin.errors import DataError, InterbasinError, WiringError
from interbasin.wiring.trace.calls import observe_calls, output_tensors

ARGUMENTS = ("query", "key", "value")  # of `torch.nn.MultiheadAttention`
ROLES = ("source", "target")


# ---------------------------------------------------------------------- what networks are called with


@dataclass(frozen=True)
class Call:
    """One network's share of a batch; ``hint`` is what else may be wrong if it cannot be called so."""

    inputs: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hint: str = ""


@dataclass(frozen=True)
class Caller:
    """The networks, what messages call them, where they live, and how batches are meant.

    ``mask``, ``labelled`` and ``own_inputs`` are those of `record`.
    """

    networks: Sequence[nn.Module]
    names: Sequence[str]
    devices: Sequence[torch.device | None]
    mask: Any
    labelled: bool
    own_inputs: bool

    def calls(self, batch: Any, index: int) -> list[Call]:
        """What each network is called with."""
        if self.labelled:
            batch = _two_parts(batch, index, "inputs and labels", "labelled")[0]
        parts = [batch] * len(self.networks)
        if self.own_inputs and len(self.networks) == 2:
            parts = _two_parts(batch, index, "the source's inputs and the target's", "own_inputs")
        calls = []
        for model, device, inputs in zip(self.networks, self.devices, parts, strict=True):
            if not isinstance(inputs, Tensor | Mapping | Sequence) or isinstance(inputs, str | bytes):
                raise DataError(f"Batch {index} is a {type(inputs).__name__}; give a tensor, a tuple or a mapping.")
            not_for_it: tuple[str, ...] = ()
            if isinstance(self.mask, str) and self.mask not in inspect.signature(model.forward).parameters:
                not_for_it = (self.mask,)
            hint = ""
            if not (self.labelled or self.own_inputs) and isinstance(inputs, list | tuple) and len(inputs) == 2:
                other = " or, if it holds the source's inputs and the target's, own_inputs=True"
                other = other if len(self.networks) == 2 else ""
                hint = f" If a batch is a pair (inputs, labels), pass labelled=True{other}."
            calls.append(Call(inputs, *call_arguments(model, inputs, device, not_for_it), hint))
        return calls


def _two_parts(batch: Any, index: int, what: str, option: str) -> list[Any]:
    if not isinstance(batch, Sequence) or isinstance(batch, str) or len(batch) != 2:
        size = f"{len(batch)} parts" if isinstance(batch, Sequence) else f"a {type(batch).__name__}"
        raise DataError(f"Batch {index} should be a pair of {what}, found {size}; leave {option}=True out.")
    return list(batch)


def require_determinism(model: nn.Module) -> None:
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


# ---------------------------------------------------------------------- hooks


@dataclass
class Listener:
    """Calls ``take(reading, rows)`` whenever a forward pass reaches a place that is read. Made by `listen`.

    A module may serve two networks that run in turn: only what `forward` itself sets off is heard.
    """

    model: nn.Module
    name: str
    take: Callable[[Reading, Tensor], None]
    wanted: Mapping[tuple[str, str], Mapping[int, Sequence[Reading]]]
    calls: dict[tuple[str, str], int] = field(default_factory=dict)
    thread: int | None = None

    def forward(self, call: Call) -> None:
        """One pass, without gradients, which has to reach every place."""
        self.calls = dict.fromkeys(self.wanted, 0)
        self.thread = threading.get_ident()
        try:
            with torch.inference_mode():
                self.model(*call.args, **call.kwargs)
        # Whoever has fewer inputs at a time to offer will want to know memory from the rest.
        except (InterbasinError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise call_error(self.name, call.args, call.kwargs, error, f".{call.hint}") from error
        finally:
            self.thread = None
        for (module, side), calls in self.wanted.items():
            count = self.calls[module, side]
            if count <= max(calls):
                times = "not called" if not count else f"called {count} time(s)"
                raise WiringError(
                    f"Asked to record {module}:{side}:{max(calls)} of {type(self.model).__name__}, but in this forward "
                    f"pass that module was {times}; record another place, or give inputs that lead through it."
                )

    def hear(self, module: nn.Module, key: tuple[str, str], *values: Any) -> None:
        """For hooks: the arguments of a call, or its output."""
        if self.thread != threading.get_ident():
            return
        call = self.calls[key]
        self.calls[key] = call + 1
        readings = self.wanted[key].get(call, ())
        tensors = output_tensors(values) if readings else []
        if readings and not tensors:
            raise WiringError(f"Asked to record {key[0]}:{key[1]}:{call}, but no floating-point tensor passes there.")
        for reading in readings:
            self.take(reading, reading.rows(tensors[0], module))

    def hear_attention(self, module: nn.Module, key: tuple[str, str], args: Any, kwargs: Any) -> None:
        """For hooks: the argument of a call of attention that q, k or v is made from."""
        arguments = dict(zip(QKV, (*args, *(kwargs[name] for name in ARGUMENTS[len(args) :])), strict=False))
        mine = self.thread == threading.get_ident()
        for reading in self.wanted[key].get(self.calls[key], ()) if mine else ():
            for other in reading.shared if isinstance(reading, ModuleReading) else ():
                if memory_of(arguments[other]) != memory_of(arguments[key[1]]):
                    raise WiringError(
                        f"In the first batch {other!r} of {key[0]} was made from the same tensor as {key[1]!r}, and "
                        "now it is not; record batches of one kind at a time."
                    )
        self.hear(module, key, arguments[key[1]])


@contextlib.contextmanager
def listen(
    model: nn.Module, readings: Iterable[Reading], take: Callable[[Reading, Tensor], None], name: str
) -> Iterator[Listener]:
    """A block in which the hooks live. Modules that are called through ``module.forward(...)`` are heard as well.

    ``take`` is called with each reading and its rows, ``(batch, positions..., width)``; ``name`` is for messages.
    """
    wanted: dict[tuple[str, str], dict[int, list[Reading]]] = {}
    for reading in readings:
        place = reading.place
        wanted.setdefault((place.module, place.side), {}).setdefault(place.call, []).append(reading)
    listener = Listener(model, name, take, wanted)
    with without_fast_path(), contextlib.ExitStack() as stack:
        for key in wanted:
            module = model.get_submodule(key[0])
            hear = functools.partial(listener.hear_attention if key[1] in QKV else listener.hear, module, key)
            stack.callback(observe_calls(module, **{"leave" if key[1] == "output" else "enter": hear}))
        yield listener


def memory_of(tensor: Tensor) -> object:
    """What two tensors that live at the same time share only if they are the same numbers in the same places."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


_lock = threading.Lock()
_recordings: list[bool] = []  # for every recording that is under way, whether the fast path was on when it began


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """A block in which transformers of torch take their ordinary path.

    Where there is a padding mask, the fast path of `torch.nn.TransformerEncoder` hands nested tensors from layer to
    layer, which have no shape to take rows by, and does not call the modules of its layers. The setting belongs to the
    process: of recordings in several threads the first switches it off and the last puts it back.
    """
    with _lock:
        _recordings.append(_recordings[0] if _recordings else torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _lock:
            before = _recordings.pop()
            if not _recordings:
                torch.backends.mha.set_fastpath_enabled(before)


# ---------------------------------------------------------------------- two networks step by step


class _AbandonedError(BaseException):
    """Ends a pass that nobody waits for any more."""


@dataclass
class SteppedForward:
    """A forward pass in a thread of its own, which moves from one `rest` to the next and only when it is asked to.

    Two networks are recorded side by side: the target's hook needs the source's activation at the place that belongs to
    it. If the source ran first, all its activations would have to wait for the target in memory. So it runs as a
    generator would, up to the next activation that the target asks for, and waits there, inside its hook. The two never
    run at the same time.
    """

    run: Callable[[], None]
    is_over: bool = False
    is_abandoned: bool = False
    error: BaseException | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __enter__(self) -> SteppedForward:
        work = functools.partial(self._work, thread_context())
        self._thread = threading.Thread(target=work, name="interbasin-source", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_abandoned = True
        self.go.release()
        self._thread.join()

    def until(self, ready: Callable[[], bool]) -> None:
        """Let it run until ``ready()``, asked at each rest, or until it is over; raises what it raised."""
        while not self.is_over and not ready():
            self.go.release()
            self.back.acquire()
        if self.error is not None:
            raise self.error

    def rest(self) -> None:
        """For the pass itself: stop here until there is more to be done."""
        self.back.release()
        self.go.acquire()
        if self.is_abandoned:
            raise _AbandonedError

    def _work(self, context: Sequence[contextlib.AbstractContextManager[object]]) -> None:
        self.go.acquire()
        try:
            if not self.is_abandoned:
                with contextlib.ExitStack() as stack:
                    for part in context:
                        stack.enter_context(part)
                    self.run()
        except _AbandonedError:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self.back.release()


def thread_context() -> list[contextlib.AbstractContextManager[object]]:
    """Contexts that make another thread calculate as this one would: autocast, default device and stream."""
    context: list[Any] = [torch.autocast(kind, dtype=dtype) for kind, dtype in active_autocasts()]
    default = torch.get_default_device()
    if default.type != "cpu":
        context.append(default)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream()
        context += [torch.cuda.device(stream.device), torch.cuda.stream(stream)]
    return context


def active_autocasts() -> list[tuple[str, torch.dtype]]:
    """The kinds of devices that this thread casts for, and to which dtype."""
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), *(["xpu"] if torch.xpu.is_available() else [])]
    return [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """A block that calculates in the precision of its tensors, whatever the caller casts to."""
    with contextlib.ExitStack() as stack:
        for kind, _ in active_autocasts():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
