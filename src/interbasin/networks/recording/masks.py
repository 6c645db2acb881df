"""Which rows count: masks for padding, found in the batch and fitted to the activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError, UnknownNameError

__all__ = ["AUTOMATIC", "MaskOf", "Masks", "known_mask", "masks_of"]

# None: the automatic ones; False: none; a name in mapping batches; or a function of the network's inputs, which answers
# with a mask, or with a mapping from the path of a module to the mask of all that lies below it.
MaskOf: TypeAlias = "bool | str | Callable[[Any], Tensor | Mapping[str, Tensor]] | None"

AUTOMATIC = ("attention_mask", "decoder_attention_mask")


@dataclass(frozen=True)
class Masks:
    """The masks of one network's inputs, each true for what counts; ``scopes`` are those of parts of the network."""

    whole: Mapping[str, Tensor] = field(default_factory=dict)
    scopes: Mapping[str, Tensor] = field(default_factory=dict)

    def fitting(self, module: str, rows: torch.Size) -> Tensor | None:
        """The mask of the rows seen at a module, in their shape; None where every row counts.

        Raises:
            ShapeError: if there is a mask and it does not fit.
        """
        masks = self.whole
        if self.scopes:
            masks = {name: mask for name, mask in self.scopes.items() if f"{module}.".startswith(f"{name}.")}
        # An encoder-decoder has two, and they may happen to have the same shape.
        own = "decoder" in module.split(".")
        ranked = sorted(masks.items(), key=lambda item: item[0].startswith("decoder") != own)
        for _, mask in ranked:
            if len(rows) == 1 and rows[0] == len(mask):
                return None
            if len(rows) > 1 and rows[:2] == mask.shape:
                return mask.reshape(*mask.shape, *(1,) * (len(rows) - 2)).expand(rows)
            if len(rows) == 1 and rows[0] == mask.numel():
                return mask.flatten()
        if ranked:
            shapes = ", ".join(f"{name} {tuple(mask.shape)}" for name, mask in ranked)
            raise ShapeError(
                f"The mask does not fit what is seen at {module!r}: rows of shape {tuple(rows)}, found {shapes}; give "
                "one of shape (batch, tokens), a function that answers with a mask for each part of the network, or "
                "mask=False."
            )
        return None


def known_mask(given: Any) -> MaskOf:
    """``given`` if it is something that a mask can be had from.

    Raises:
        DataError: if it is not.
    """
    if given is None or isinstance(given, bool | str) or (callable(given) and not isinstance(given, type)):
        return given
    raise DataError(
        f"The mask is the name of one in the batch, a function of a network's inputs, None or False, found a "
        f"{type(given).__name__}; masks differ from batch to batch, so give a function that has the right one."
    )


def masks_of(inputs: Any, given: MaskOf, device: torch.device | None) -> Masks:
    """The masks that go with one network's inputs."""
    if given is False:
        return Masks()
    if given is None or given is True:
        named = inputs if isinstance(inputs, Mapping) else {}
        found = {name: named[name] for name in AUTOMATIC if isinstance(named.get(name), Tensor)}
        # Masks of other ranks are the network's own affair: they say who sees whom.
        found = {name: mask for name, mask in found.items() if mask.ndim == 2}
        return Masks({name: _true_or_false(mask, name, device) for name, mask in found.items()})
    if isinstance(given, str):
        if not isinstance(inputs, Mapping):
            raise DataError(
                f"The mask is called {given!r}, which needs batches that are mappings, found {type(inputs).__name__}; "
                "give a function of the batch instead."
            )
        if given not in inputs:
            raise UnknownNameError.of("mask in the batch", given, map(str, inputs))
        return Masks({given: _true_or_false(inputs[given], given, device)})
    found_by_function = given(inputs)
    if isinstance(found_by_function, Mapping):
        return Masks(scopes={n: _true_or_false(mask, f"of {n!r}", device) for n, mask in found_by_function.items()})
    return Masks({"mask": _true_or_false(found_by_function, "mask", device)})


def _true_or_false(mask: object, name: str, device: torch.device | None) -> Tensor:
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        found = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ShapeError(f"A mask is a tensor of shape (batch, tokens), found {found} for {name}; give it like that.")
    if bool(((mask != 0) & (mask != 1)).any()):
        raise DataError(
            f"A mask holds ones (or true) for what counts and zeros for padding, {name} holds other values as well; "
            "masks that are added to scores have to be turned into such ones."
        )
    return mask.to(device=device, dtype=torch.bool)
