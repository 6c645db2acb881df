"""Batches with labels and without, and networks called on them in evaluation mode.

A batch of exactly two parts is a pair ``(inputs, labels)``; anything else is inputs alone. A network of two positional
arguments is therefore given ``((one, two), labels)``, with None for the labels where there are none, or a mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, InterbasinError, WiringError
from interbasin.networks.recording.batches import arguments, batches_of, described, device_of, once_only
from interbasin.networks.wiring.copying import copied
from interbasin.text import plural

__all__ = ["BATCH_SIZE", "InputsOnly", "amount_of", "for_evaluation", "outputs_of", "parted", "refuse_once_only"]

# For data that are one tensor.
BATCH_SIZE = 128

Model = TypeVar("Model", bound=nn.Module)


def parted(batch: Any) -> tuple[Any, Any]:
    """The inputs of a batch, and its labels or None.

    Example:
        >>> parted((torch.zeros(2, 3), torch.tensor([0, 1])))[1]
        tensor([0, 1])
    """
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


class InputsOnly:
    """The batches of some data without their labels, as often as the data can be read. Without them twice is once."""

    def __init__(self, data: object, batch_size: int = BATCH_SIZE) -> None:
        self._batches: Iterable[Any] = data._batches if isinstance(data, InputsOnly) else batches_of(data, batch_size)

    def __iter__(self) -> Iterator[Any]:
        return (parted(batch)[0] for batch in self._batches)

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


def amount_of(data: object) -> str:
    """How much there is of some data, in words: samples where that is known, else batches.

    Example:
        >>> amount_of([torch.zeros(4, 2)]), amount_of(torch.zeros(4, 2))
        ('1 batch', '4 samples')
    """
    samples = len(data) if isinstance(data, Tensor) else getattr(data, "count", None)
    if isinstance(samples, int):
        return plural(samples, "sample")
    return plural(len(data), "batch", "batches") if isinstance(data, Sized) else "some batches"


def refuse_once_only(data: object, what: str) -> None:
    """Refuse data that are gone when they have been read once; ``what`` reads them again."""
    if once_only(data):
        raise DataError(
            f"{what} reads the data more than once, found a {type(data).__name__}, which is empty after the first "
            "time; give a list, a DataLoader or a tensor."
        )


def for_evaluation(model: Model) -> Model:
    """A copy in evaluation mode: whatever a network keeps or merges for evaluation stays out of the one it is of.

    Raises:
        WiringError: if it is no network, or cannot be copied.
    """
    if not isinstance(model, nn.Module):
        raise WiringError(f"Asked to evaluate a {type(model).__name__}; give a torch.nn.Module.")
    return copied(model).eval()


def outputs_of(model: nn.Module, inputs: Any, index: int) -> Any:
    """What a network answers to the inputs of a batch, moved to where it lives.

    Raises:
        DataError: if the network cannot be called with them; says in which batch.
    """
    args, kwargs = arguments(model, inputs, None, device_of(model))
    try:
        return model(*args, **kwargs)
    # Whoever has fewer inputs at a time to offer will want to know memory from the rest.
    except (InterbasinError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise DataError(
            f"Batch {index}: {type(model).__name__} was called with {described(args, kwargs)} and failed "
            f"({type(error).__name__}: {reason}); give batches as its forward takes them, those with labels as pairs "
            "(inputs, labels)."
        ) from error
