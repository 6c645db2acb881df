"""Where numpy arrays become tensors, and back: the one door between the two, with its checks.

Everything above this line of the house works on tensors. Users may hold either.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from interbasin.errors import DataError

Array: TypeAlias = "Tensor | np.ndarray[Any, np.dtype[Any]]"

_HALF = (torch.float16, torch.bfloat16)
_FLOATING = (*_HALF, torch.float32, torch.float64)


def as_tensor(values: object, what: str) -> Tensor:
    """``values`` as a tensor that shares memory where it can.

    Args:
        values: A tensor, a numpy array, or nested sequences of numbers.
        what: How the message calls it, at the start of a sentence, for example ``"The source"``.

    Raises:
        DataError: if the values are not real numbers.
    """
    tensor = values.detach() if isinstance(values, Tensor) else _tensor_of_array(values, what)
    if tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided or not has_arithmetic(tensor):
        raise DataError(
            f"{what} must hold real numbers in a dense tensor, found {tensor.dtype} with layout {tensor.layout}; "
            "convert it to float32 or float64 first."
        )
    return tensor


def has_arithmetic(tensor: Tensor) -> bool:
    """Whether torch can calculate with its dtype: eight-bit floats, for one, are only for storage."""
    return not tensor.is_floating_point() or tensor.dtype in _FLOATING


def copy_row_major(tensor: Tensor) -> Tensor:
    """A copy whose rows follow one another in memory that torch allocated.

    Products of the same numbers can differ in the last bit with the strides of a tensor (also those of an axis of
    length one) and with its alignment. What a fit keeps and what a file brings back both take this layout, so that
    saving changes no bit of a later result.
    """
    return tensor.clone(memory_format=torch.contiguous_format)


def like_input(result: Tensor, values: object) -> Any:
    """``result`` as an array if ``values`` is one, else as it is."""
    return result if isinstance(values, Tensor) else result.numpy()


def working_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The precision to multiply in: the widest of ``dtypes``, but at least float32.

    Example:
        >>> working_dtype(torch.bfloat16)
        torch.float32
    """
    widest = torch.float32
    for dtype in dtypes:
        if dtype not in _HALF:
            widest = torch.promote_types(widest, dtype)
    return widest


def narrowed(values: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """``values`` rounded to the dtype of a result, which may be narrower than the one they were calculated in.

    Raises:
        DataError: if a finite number would become infinite: float16 ends at 65,504. ``what`` begins the sentence.
    """
    result = values.to(dtype)
    if result.dtype == values.dtype or bool(torch.isfinite(result).all()):
        return result
    if bool((torch.isfinite(values) & ~torch.isfinite(result)).any()):
        raise DataError(
            f"{what} would have numbers beyond {torch.finfo(dtype).max:g}, the largest of {dtype}; convert it to "
            "float32 or bfloat16 first."
        )
    return result


def _tensor_of_array(values: object, what: str) -> Tensor:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{what} must be a tensor or an array of numbers, found {type(values).__name__} ({error}); "
            "stack what it holds into one tensor first."
        ) from error
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{what} is a masked array, whose mask would be lost; use .filled(value), or leave those rows out."
        )
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise DataError(
            f"{what} must hold real numbers, found an array of dtype {array.dtype} from {type(values).__name__}; "
            "convert it to float32 or float64 first."
        )
    # torch reads neither foreign byte orders nor negative or odd strides, and warns about memory it may not write (a
    # memory-mapped file): a copy is made for those and for nothing else.
    native = array.dtype.newbyteorder("=")
    odd = any(stride < 0 or stride % array.itemsize for stride in array.strides)
    if array.dtype != native or not array.flags.writeable or odd:
        array = np.array(array, dtype=native, order="C", copy=True)
    return torch.from_numpy(array)
