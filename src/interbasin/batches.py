"""What a batch is: data as batches, a batch as inputs and labels, and inputs as the arguments of a call.

A batch of exactly two parts is a pair ``(inputs, labels)``; anything else is inputs alone. A network of two positional
arguments is therefore given ``((first, second), labels)``, with None for the labels where there are none, or a mapping.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from interbasin.errors import DataError, InterbasinError, WiringError
from interbasin.text import one_line, plural, printable

# One batch: a tensor, positional arguments, or keyword arguments.
Inputs: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any]"
# True for a bar on stderr, or a function that is called with the number of batches that are done.
Progress = Callable[[int], object] | bool | None

BATCH_SIZE = 128  # for data that are one tensor
OFFSETS = "offset_mapping"  # where tokens start and end in their text; for us, and not for the network
SHOWN = 6  # arguments that a message describes


# ---------------------------------------------------------------------- data


def as_batches(data: object, batch_size: int) -> Iterable[Any]:
    """The batches of ``data``: a tensor is cut, anything else is iterated over.

    Raises:
        DataError: if ``data`` are no batches.
    """
    if isinstance(data, Tensor):
        is_whole = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool)
        if data.ndim == 0 or not is_whole or batch_size < 1:
            raise DataError(f"A tensor of shape {tuple(data.shape)} cannot be cut into batches of {batch_size!r}.")
        return torch.split(data, int(batch_size)) if len(data) else ()
    if isinstance(data, np.ndarray):
        raise DataError(
            f"The data are a tensor or batches, found an array of shape {data.shape}; use torch.from_numpy(array)."
        )
    if isinstance(data, Mapping) or not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise DataError(
            f"The data are batches to iterate over, found one {type(data).__name__}; put a single batch into a list."
        )
    return data


def require_reiterable(data: object, what: str) -> None:
    """Refuse data that are gone when they have been read, such as a generator; ``what`` reads them again."""
    is_gone = isinstance(data, Iterator)
    # Asking a loader for its batches may start processes; and neither it nor a sequence hands out one iterator twice.
    if not is_gone and isinstance(data, Iterable) and not isinstance(data, Sequence | Tensor | DataLoader):
        is_gone = iter(data) is iter(data)
    if is_gone:
        raise DataError(
            f"{what} reads the data more than once, found a {type(data).__name__} that can be read once; give a list "
            "or a DataLoader."
        )


def describe_size(data: object) -> str:
    """How much there is of some data, in words: samples where that is known, else batches.

    Example:
        >>> describe_size([torch.zeros(4, 2)]), describe_size(torch.zeros(4, 2))
        ('1 batch', '4 samples')
    """
    samples = len(data) if isinstance(data, Tensor) else getattr(data, "count", None)
    if isinstance(samples, int):
        return plural(samples, "sample")
    return plural(len(data), "batch", "batches") if isinstance(data, Sized) else "some batches"


def split_batch(batch: Any) -> tuple[Any, Any]:
    """The inputs of a batch, and its labels or None.

    Example:
        >>> split_batch((torch.zeros(2, 3), torch.tensor([0, 1])))[1]
        tensor([0, 1])
    """
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def as_trainable(value: Any) -> Any:
    """A batch without tensors of inference mode, which nothing can be trained on; the batch itself if it has none.

    Example:
        >>> with torch.inference_mode():
        ...     batch = torch.zeros(2, 3), torch.tensor([0, 1])
        >>> any(part.is_inference() for part in as_trainable(batch))
        False
    """
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, Mapping):
        named = {name: as_trainable(part) for name, part in value.items()}
        return value if all(named[name] is value[name] for name in named) else named
    if type(value) in (list, tuple):
        parts = [as_trainable(part) for part in value]
        return value if all(map(operator.is_, parts, value)) else type(value)(parts)
    return value


class WithoutLabels:
    """The batches of some data without their labels, as often as the data can be read.

    Data that are without them already stay as they are.
    """

    def __init__(self, data: object, batch_size: int = BATCH_SIZE) -> None:
        self._batches: Iterable[Any] = (
            data._batches if isinstance(data, WithoutLabels) else as_batches(data, batch_size)
        )

    def __iter__(self) -> Iterator[Any]:
        return (split_batch(batch)[0] for batch in self._batches)

    def __len__(self) -> int:
        if isinstance(self._batches, Sized):
            return len(self._batches)
        raise TypeError(f"{type(self._batches).__name__} has no length")

    def first(self) -> Any:
        """The first batch.

        Raises:
            DataError: if there is none.
        """
        for inputs in self:
            return inputs
        raise DataError("The data hold no batch at all; give some.")


@contextlib.contextmanager
def progress_bar(
    progress: Progress, batches: object, silent: bool, what: str = "recording"
) -> Iterator[Callable[[int], object]]:
    """A function to be called with the number of batches that are done; ``what`` stands beside the bar."""
    if callable(progress):
        yield progress
    elif not progress or silent:
        yield lambda done: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        try:
            total = len(batches) if isinstance(batches, Sized) else None
        except TypeError:  # a loader of an iterable data set has a length in name only
            total = None
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(printable(what), total=total)
            yield lambda done: bar.update(task, completed=done)


def reporter_of(progress: Callable[[str], object] | bool | None) -> Callable[[str], object]:
    """What lines of text on the way are given to: a function of the caller's, stderr for True, or nothing.

    Raises:
        DataError: if it is none of these; when it is called, if the function fails.
    """
    if progress is None or progress is False:
        return lambda text: None
    if progress is True:
        return lambda text: print(printable(text), file=sys.stderr)
    if not callable(progress):
        raise DataError(f"progress is a function of a line of text, or True, found {type(progress).__name__}.")

    def report(text: str) -> None:
        call_users(progress, "progress", "a line of text", text)

    return report


def call_users(function: Callable[..., object], name: str, takes: str, *arguments: object) -> None:
    """Call a function of the user's. Whatever it does, it is not our error to explain.

    Args:
        function: To call.
        name: Of the argument by which it was given.
        takes: What it is called with, in words.
        arguments: To call it with.

    Raises:
        DataError: if it fails.
    """
    try:
        function(*arguments)
    except InterbasinError:
        raise
    except Exception as error:
        raise DataError(
            f"{name} was called with {takes} and failed ({type(error).__name__}: {one_line(error)}); give a function "
            f"of {takes}, or leave it out."
        ) from error


# ---------------------------------------------------------------------- inputs of a call


def bound_inputs(model: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One batch as positional and keyword arguments. Caches of decoding are switched off where there is a switch.

    Raises:
        WiringError: if ``inputs`` are no arguments.
    """
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
        raise WiringError(f"A mapping of example inputs holds keyword arguments by name, found the key {strange[0]!r}.")
    forward = next((vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind)), None)
    code = getattr(forward, "__code__", None)
    if code is not None and "use_cache" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        kwargs.setdefault("use_cache", False)
    return args, kwargs


def call_arguments(
    model: nn.Module, inputs: Any, device: torch.device | None, without: Collection[str] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments of a call, on ``device``; the names in ``without`` are left out."""
    if isinstance(inputs, Mapping):
        inputs = {name: value for name, value in inputs.items() if name != OFFSETS and name not in without}
    args, kwargs = bound_inputs(model, inputs)
    return _to_device(args, device), {name: _to_device(value, device) for name, value in kwargs.items()}


def _to_device(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [_to_device(part, device) for part in value]
    if type(value) is tuple:
        return tuple(_to_device(part, device) for part in value)
    return value


def outputs_of(model: nn.Module, inputs: Any, index: int) -> Any:
    """What a network answers to the inputs of a batch, moved to where it lives.

    Raises:
        DataError: if the network cannot be called with them; says in which batch.
    """
    args, kwargs = call_arguments(model, inputs, device_of(model))
    try:
        return model(*args, **kwargs)
    # Whoever has fewer inputs at a time to offer will want to know memory from the rest.
    except (InterbasinError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        name = f"Batch {index}: {type(model).__name__}"
        raise call_error(name, args, kwargs, error, ", those with labels as pairs (inputs, labels).") from error


def call_error(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception, advice: str = "."
) -> DataError:
    """The error for a network that failed when it was called; ``advice`` ends the sentence."""
    values = [("", value) for value in args] + [(f"{name}=", value) for name, value in kwargs.items()]
    shown = [
        prefix + (f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__)
        for prefix, value in values
    ]
    arguments = (", ".join(shown[:SHOWN]) or "nothing") + (", ..." if len(shown) > SHOWN else "")
    reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
    return DataError(
        f"{name} was called with {arguments} and failed ({type(error).__name__}: {reason}); give batches as its "
        f"forward takes them{advice}"
    )


def count_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """How many inputs a batch holds: the length of its first tensor."""
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim)
    return next((len(tensor) for tensor in tensors), None)


def inputs_in(inputs: Any) -> int:
    """How many inputs a batch without labels holds.

    Raises:
        DataError: if it holds no tensor.
    """
    arguments = inputs if isinstance(inputs, Mapping) else {}
    positional = (inputs,) if isinstance(inputs, Tensor) else () if arguments else tuple(inputs)
    count = count_inputs(positional, dict(arguments))
    if count is None:
        raise DataError("A batch holds no tensor, so that its inputs cannot be counted; give tensors.")
    return count


def cut_inputs(value: Any, rows: slice, count: int) -> Any:
    """Some rows of whatever has one row for each of ``count`` inputs."""
    if isinstance(value, Tensor):
        return value[rows] if value.ndim and len(value) == count else value
    if isinstance(value, Mapping):
        return {name: cut_inputs(part, rows, count) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(cut_inputs(part, rows, count) for part in value)
    return value


def device_of(model: nn.Module) -> torch.device | None:
    """Where a network's first tensor lives."""
    first: Tensor | None = next(itertools.chain(model.parameters(), model.buffers()), None)
    return None if first is None or first.device.type == "meta" else first.device
