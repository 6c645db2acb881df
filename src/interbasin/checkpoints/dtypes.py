"""What safetensors and torch call the dtypes, and how long their numbers are; torch is not needed to know.

A checkpoint is opened, checked and merged without torch, which takes longer to import than the rest of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Code in a safetensors header -> torch's name of the dtype, and bytes per number.
KINDS: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
# The other way round.
CODES = {kind: code for code, (kind, _) in KINDS.items()}
# Kinds that are added and scaled. The others hold counts, flags, or codes of quantised weights.
ARITHMETIC = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def torch_dtype(kind: str) -> torch.dtype:
    """The dtype that torch calls ``kind``.

    Example:
        >>> torch_dtype("bfloat16")
        torch.bfloat16
    """
    import torch

    dtype = getattr(torch, kind)
    assert isinstance(dtype, torch.dtype)
    return dtype


def kind_of_dtype(dtype: torch.dtype) -> str:
    """What torch calls a dtype, without its own name before it.

    Example:
        >>> import torch
        >>> kind_of_dtype(torch.bfloat16)
        'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype to add and multiply such numbers in: the widest of them, but float32 at least.

    Example:
        >>> import torch
        >>> wide_dtype(torch.bfloat16, torch.float16), wide_dtype(torch.bfloat16, torch.float64)
        (torch.float32, torch.float64)
    """
    import torch

    wide = torch.float32
    for dtype in dtypes:
        wide = torch.promote_types(wide, dtype)
    return wide
