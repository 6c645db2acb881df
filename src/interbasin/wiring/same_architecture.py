"""Whether two networks compute the same way, so far as can be told without tracing them.

What a network computes follows from its classes and from what its modules hold besides tensors. Where all of that is
plain enough to be compared, and equal, one wiring is the other's.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_DEEPEST = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size)
# Where torch keeps what has no part in forward, or is compared elsewhere.
_APART = {"_parameters", "_buffers", "_modules", "training"}


def made_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks are of the same modules, with equal settings and tensors of equal shape and kind.

    False where something cannot be compared: they may be alike all the same.
    """
    ours, theirs = list(one.named_modules()), list(other.named_modules())
    if [(name, type(module)) for name, module in ours] != [(name, type(module)) for name, module in theirs]:
        return False
    return all(_alike_modules(mine, yours) for (_, mine), (_, yours) in zip(ours, theirs, strict=True))


def _alike_modules(one: nn.Module, other: nn.Module) -> bool:
    if one.training != other.training or vars(one).keys() != vars(other).keys():
        return False
    for held in ("_parameters", "_buffers"):
        if not _equal(getattr(one, held), getattr(other, held), 0):
            return False
    return all(_equal(vars(one)[name], vars(other)[name], 0) for name in vars(one) if name not in _APART)


def _equal(one: Any, other: Any, depth: int) -> bool:
    if type(one) is not type(other) or depth > _DEEPEST:
        return False
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if isinstance(one, Tensor):
        # Their numbers do not matter to a wiring, unless they are no parameters: a table may be one of angles or not.
        same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return same and (isinstance(one, nn.Parameter) or one.is_floating_point() or bool(torch.equal(one, other)))
    if isinstance(one, types.FunctionType | types.BuiltinFunctionType):
        return one is other
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_equal(*pair, depth + 1) for pair in zip(one, other, strict=True))
    if isinstance(one, set | frozenset):
        return bool(one == other)
    if isinstance(one, nn.Module):  # held outside the tree: it is part of the function, and nothing else compares it
        return one is other or made_alike(one, other)
    if hasattr(one, "__dict__") and not callable(one):
        return _equal(vars(one), vars(other), depth + 1)
    return False
