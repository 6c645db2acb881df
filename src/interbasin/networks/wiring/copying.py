"""Copies of networks: all that carrying and tracing change is changed in one of these."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn

from interbasin.errors import WiringError

__all__ = ["copied"]

Model = TypeVar("Model", bound=nn.Module)


def copied(model: Model, *, sharing: bool = False) -> Model:
    """A copy of ``model``, with its tensors copied as well, or shared with it.

    Raises:
        WiringError: if something that the model holds cannot be copied.
    """
    memo: dict[int, Any] = {}
    if sharing:
        memo.update({id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]})
    for module in model.modules():
        for value in vars(module).values():
            # What a hook computed from parameters, as pruning does, has a history that torch does not copy.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value if sharing else value.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WiringError(
            f"{type(model).__name__} cannot be copied ({reason}), and the given network must stay as it is; remove "
            "what it holds besides tensors and modules."
        ) from error
