"""One process at full precision, which is plain torch; or several, or mixed precision, by Hugging Face Accelerate.

Several processes see the same batches. Each takes its share of the rows of every batch, and the gradients are averaged
so that a step is the one that a single process would take with the whole batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from interbasin.batches import cut_inputs
from interbasin.errors import DataError
from interbasin.extras import import_extra


def count_processes() -> int:
    """How many processes were started together, by ``accelerate launch``, torchrun or the user's own code."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


class Processes:
    """What a step of training asks of the processes that train together.

    Args:
        parameters: Of this process. Those of the main process are copied to the others.
        precision: None, "bf16" or "fp16".
        together: Whether processes that were started together train together.

    Attributes:
        count: How many train together.
        index: Which of them this is; 0 is the main one.
    """

    def __init__(self, parameters: Sequence[Tensor], precision: str | None, *, together: bool) -> None:
        self.count = count_processes() if together else 1
        self.index = 0
        self._accelerator: Any = None
        self._operations: Any = None
        if self.count > 1 or precision is not None:
            self._accelerator = _start_accelerator(parameters, precision)
            self._operations = import_extra("accelerate.utils", "Training in several processes", "adapt")
        if self.count > 1:
            if self._accelerator.num_processes != self.count:
                raise DataError(
                    f"Training was asked for in {self.count} processes, of which Accelerate finds "
                    f"{self._accelerator.num_processes}; start them with accelerate launch or torchrun."
                )
            self.index = self._accelerator.process_index
            self.copy_from_main(parameters)

    @property
    def is_main(self) -> bool:
        """Whether this process writes and reports."""
        return self.index == 0

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Where the loss is computed."""
        return contextlib.nullcontext() if self._accelerator is None else self._accelerator.autocast()

    def share(self, batch: Any) -> tuple[Any, float]:
        """This process's rows of a batch, and what its mean loss counts in the mean over the processes.

        A batch without tensors is the same for all.
        """
        rows = None if self.count == 1 else _count_rows(batch)
        if rows is None:
            return batch, 1.0
        start, end = (rows * index // self.count for index in (self.index, self.index + 1))
        return cut_inputs(batch, slice(start, end), rows), (end - start) * self.count / rows if rows else 1.0

    def backward(self, value: Tensor) -> None:
        """Add the gradients of a loss to those that are there."""
        if self._accelerator is None:
            value.backward()  # type: ignore[no-untyped-call]
        else:
            self._accelerator.backward(value)

    def average(self, parameters: Sequence[Tensor], losses: Sequence[float]) -> list[float]:
        """Average the gradients over the processes, in place; the means of the losses.

        A tensor that has a gradient in no process keeps none: optimisers pass over those.
        """
        if self.count == 1:
            return list(losses)
        device = parameters[0].device
        flags = [float(parameter.grad is not None) for parameter in parameters]
        means = self._mean(torch.tensor([*losses, *flags], dtype=torch.float64, device=device)).tolist()
        moved = [parameter for parameter, share in zip(parameters, means[len(losses) :], strict=True) if share]
        for dtype in dict.fromkeys(parameter.dtype for parameter in moved):  # in the same order in all processes
            members = [parameter for parameter in moved if parameter.dtype == dtype]
            gradients = [torch.zeros_like(member) if member.grad is None else member.grad for member in members]
            flat = self._mean(torch.cat([gradient.detach().reshape(-1) for gradient in gradients]))
            pieces = torch.split(flat, [member.numel() for member in members])
            for member, piece in zip(members, pieces, strict=True):
                member.grad = piece.view_as(member).clone()
        return means[: len(losses)]

    def _mean(self, tensor: Tensor) -> Tensor:
        mean: Tensor = self._accelerator.reduce(tensor, reduction="mean")
        return mean

    def step(self, optimiser: torch.optim.Optimizer) -> bool:
        """Let the optimiser step; False where gradients overflowed in half precision and the step was left out."""
        scaler = None if self._accelerator is None else self._accelerator.scaler
        if scaler is None:
            optimiser.step()
            return True
        scale = scaler.get_scale()
        scaler.step(optimiser)
        scaler.update()
        return bool(scaler.get_scale() >= scale)

    def copy_from_main(self, tensors: Sequence[Tensor]) -> None:
        """Give every process the main one's values of these tensors."""
        for tensor in tensors if self.count > 1 else ():
            with torch.no_grad():
                tensor.copy_(self._operations.broadcast(tensor.detach().clone(), from_process=0))

    def agree(self, value: Any) -> Any:
        """The main process's value, in all of them."""
        return value if self.count == 1 else self._operations.broadcast_object_list([value], from_process=0)[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in all of them."""
        return [value] if self.count == 1 else list(self._operations.gather_object([value]))

    def pack(self) -> dict[str, Any]:
        """What a checkpoint holds of the scale of gradients in half precision."""
        scaler = None if self._accelerator is None else self._accelerator.scaler
        return {} if scaler is None else dict(scaler.state_dict())

    def restore(self, packed: Mapping[str, Any]) -> None:
        """The inverse of `pack`."""
        if packed:
            self._accelerator.scaler.load_state_dict(dict(packed))


def _start_accelerator(parameters: Sequence[Tensor], precision: str | None) -> Any:
    what = "Training in several processes" if precision is None else f"Training with precision={precision!r}"
    accelerate = import_extra("accelerate", what, "adapt")
    device = parameters[0].device.type
    if precision == "fp16" and device == "cpu":
        raise DataError("precision='fp16' needs an accelerator, and the tensors are on the CPU; try 'bf16' there.")
    try:
        accelerator = accelerate.Accelerator(mixed_precision=precision or "no", cpu=device == "cpu")
    except ValueError as error:
        # Accelerate fixes the precision of a process when it is first used.
        reason = str(error).rstrip(".")
        raise DataError(
            f"{what} was asked for, and Accelerate refuses ({reason}); train in a process of its own."
        ) from error
    if accelerator.device.type != device:  # which it fixes in the same way
        raise DataError(
            f"{what} was asked for of tensors on {device!r}, and Accelerate uses {accelerator.device.type!r} in this "
            "process; move the tensors there, or train in a process of its own."
        )
    return accelerator


def _count_rows(batch: Any) -> int | None:
    """The length of the first tensor in a batch."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((rows for rows in map(_count_rows, parts) if rows is not None), None)
