"""From what a file holds to what a network takes: dtype, scale, shape and name of the input.

A shape is changed only where one way of doing so is plain: axes of one entry added or dropped, an image laid flat or a
flat one cut into rows, and colours moved from the last axis to the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError

if TYPE_CHECKING:
    from interbasin.models.base import Inputs

WHITE = 255.0  # of eight-bit images


@dataclass(frozen=True)
class Shaping:
    """How a batch is made ready for a network.

    Attributes:
        example: The tensor that it stands for in the network's example inputs; None if there were none.
        key: Its name, where inputs are keyword arguments.
        positional: Whether inputs are a tuple.
        constants: What else the network is called with: ``use_cache=False``.
        scale: Whether eight-bit numbers are divided by 255.
        mean: Subtracted after that: one number, or one a channel.
        std: And divided by.
    """

    example: Tensor | None = field(default=None, repr=False)
    key: str | None = None
    positional: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    scale: bool = True
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def shaped(self, batch: Any, where: str) -> Any:
        """The batch as the network takes it; ``where`` says where it came from.

        Raises:
            DataError: if it holds NaN or infinity, or what the network does not take.
            ShapeError: if it has a shape that cannot be brought into the network's in one plain way.
        """
        if isinstance(batch, Mapping):
            return self._texts(batch, where)
        tensor = self._numbers(batch, where)
        if self.example is not None:
            tensor = _fitted(tensor, self.example, where)
        tensor = self._normalised(tensor, where)
        if self.key is not None:
            return {self.key: tensor, **self.constants}
        return (tensor,) if self.positional else tensor

    def _texts(self, batch: Mapping[str, Tensor], where: str) -> Any:
        if self.example is not None and self.example.is_floating_point():
            raise DataError(f"The network takes numbers, not tokens, but {where} is text; give arrays or images.")
        if self.example is not None and self.key is None:
            # A network of someone's own, which takes the tokens alone.
            return (batch["input_ids"],) if self.positional else batch["input_ids"]
        return {**batch, **self.constants}

    def _numbers(self, batch: Any, where: str) -> Tensor:
        array = np.asarray(batch)
        eight_bit = array.dtype == np.uint8
        tokens = self.example is not None and not self.example.is_floating_point()
        if tokens and array.dtype.kind not in "iu":
            raise DataError(
                f"The network takes tokens, whole numbers, and {where} holds {array.dtype}; tokenize it first."
            )
        if array.dtype.kind in "iu" and (tokens or (self.example is None and not eight_bit)):
            return torch.from_numpy(array.astype(np.int64))
        dtype = torch.float32 if self.example is None else self.example.dtype
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        tensor = torch.from_numpy(np.array(array, dtype=np.float64 if wide is torch.float64 else np.float32))
        finite = tensor.isfinite()
        if not bool(finite.all()):
            first = (
                int((~finite).flatten(1).any(dim=1).nonzero()[0]) if tensor.ndim > 1 else int((~finite).nonzero()[0])
            )
            raise DataError(f"There is NaN or infinity in {where} (sample {first} from there); take such samples out.")
        return (tensor / WHITE if eight_bit and self.scale else tensor).to(dtype)

    def _normalised(self, tensor: Tensor, where: str) -> Tensor:
        for values, apply in ((self.mean, torch.sub), (self.std, torch.div)):
            if not values:
                continue
            if not tensor.is_floating_point():
                raise DataError(f"A mean or a standard deviation was given, but {where} holds tokens; leave them out.")
            if len(values) > 1 and (tensor.ndim < 3 or tensor.shape[1] != len(values)):
                raise ShapeError(
                    f"{len(values)} means or standard deviations were given, one a channel, but samples of {where} "
                    f"have shape {tuple(tensor.shape[1:])}; give one number, or as many as there are channels."
                )
            along = (1, -1, *[1] * (tensor.ndim - 2)) if len(values) > 1 else (1,)
            tensor = apply(tensor, torch.tensor(values, dtype=tensor.dtype).reshape(along))
        return tensor


def shaping_like(
    like: Inputs | None,
    *,
    scale: bool = True,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
) -> Shaping:
    """The shaping for a network with these example inputs.

    Raises:
        DataError: if it takes several tensors, or a standard deviation is not positive.
    """
    means, deviations = _several(mean), _several(std)
    if not all(math.isfinite(one) for one in means) or not all(0 < one < math.inf for one in deviations):
        raise DataError(f"Means are finite and standard deviations positive, found {mean!r} and {std!r}; correct them.")
    options: dict[str, Any] = {"scale": scale, "mean": means, "std": deviations}
    if like is None or isinstance(like, Tensor):
        return Shaping(like, **options)
    if isinstance(like, Mapping):
        tensors = {name: one for name, one in like.items() if isinstance(one, Tensor)}
        # A mask comes with the text, or is not needed.
        main = [name for name in tensors if not name.endswith(("mask", "token_type_ids", "position_ids"))]
        if len(main) != 1:
            raise _several_tensors(main)
        constants = {name: one for name, one in like.items() if not isinstance(one, Tensor)}
        return Shaping(tensors[main[0]], key=main[0], constants=constants, **options)
    if len(like) != 1 or not isinstance(like[0], Tensor):
        raise _several_tensors([f"argument {place}" for place in range(len(like))])
    return Shaping(like[0], positional=True, **options)


def _several(values: Sequence[float] | float | None) -> tuple[float, ...]:
    if values is None:
        return ()
    return (float(values),) if isinstance(values, int | float) else tuple(float(one) for one in values)


def _several_tensors(names: Sequence[str]) -> DataError:
    return DataError(
        f"The network takes {len(names)} inputs ({', '.join(names) or 'none'}), and data of this kind give one; "
        "call the function from Python with batches of your own."
    )


def _fitted(tensor: Tensor, example: Tensor, where: str) -> Tensor:
    """The batch in the shape of the network's samples."""
    have, want = tuple(tensor.shape[1:]), tuple(example.shape[1:])
    if have == want:
        return tensor
    if not example.is_floating_point():
        if len(have) == len(want):  # texts may have any length
            return tensor
    elif len(have) == 3 and (have[2], have[0], have[1]) == want:
        return tensor.permute(0, 3, 1, 2).contiguous()
    elif math.prod(have) == math.prod(want) and (
        len(want) <= 1 or len(have) == 1 or [one for one in have if one > 1] == [one for one in want if one > 1]
    ):
        return tensor.reshape(len(tensor), *want)
    elif _same_kind(have, want):
        return tensor
    raise ShapeError(
        f"The network takes samples of shape {want}, and those of {where} have shape {have}, which cannot be brought "
        "into the other in one plain way; reshape them before, or give inputs of another shape for the network."
    )


def _same_kind(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Images with as many channels, or sequences of as wide vectors: networks that take these take other sizes too."""
    if len(have) != len(want):
        return False
    return (len(have) == 3 and have[0] == want[0]) or (len(have) == 2 and have[1] == want[1])
