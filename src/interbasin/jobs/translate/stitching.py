"""The encoder of one network, a translation, and the head of another, as one network."""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from interbasin.arrays import copy_row_major
from interbasin.errors import DataError, InterbasinError, ShapeError
from interbasin.jobs.translate.translation import Translation
from interbasin.jobs.translate.translator import Translator


class TranslationLayer(nn.Module):
    """A fitted translation as a layer: gradients pass through it, and it has nothing to train.

    The state dict holds it, so that a stitched network is saved and loaded as a whole, also into a network that was
    stitched by another translation of the same widths.
    """

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self.translation = translator.translation_
        self.extra = f"{translator.source_width} -> {translator.target_width}, {translator.chosen_}"

    def forward(self, rows: Tensor) -> Tensor:
        if not isinstance(rows, Tensor):
            raise DataError(f"The encoder of a stitched network gives {type(rows).__name__}, not a tensor of rows.")
        if rows.shape[-1] != (width := self.translation.map.source_width):
            raise ShapeError(f"The encoder gives rows of width {rows.shape[-1]}, and the translation takes {width}.")
        return self.translation(rows)

    def get_extra_state(self) -> Tensor:
        """A safetensors file as one tensor of bytes, which any format of a state dict can keep."""
        document, tensors = self.translation.to_json()
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        return torch.frombuffer(bytearray(save(plain, {"translation": json.dumps(document)})), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` gave, of the same widths."""
        try:
            content = state.cpu().numpy().tobytes()
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            tensors = {name: copy_row_major(tensor) for name, tensor in load(content).items()}
            translation = Translation.from_json(json.loads(header["__metadata__"]["translation"]), tensors)
        except (AttributeError, KeyError, TypeError, ValueError, SafetensorError, InterbasinError) as error:
            raise DataError(f"The state holds no translation that can be read ({error}); save it again.") from error
        mine, theirs = ((map.source_width, map.target_width) for map in (self.translation.map, translation.map))
        if mine != theirs:
            raise ShapeError(
                f"The state holds a translation from {theirs[0]} to {theirs[1]} dimensions, and this network has one "
                f"from {mine[0]} to {mine[1]}."
            )
        self.translation = translation

    def extra_repr(self) -> str:
        return self.extra


class Stitched(nn.Sequential):
    """Encoder, translation and head, one after the other."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        encoder, translation, head = self
        return head(translation(encoder(*args, **kwargs)))


def stitch(encoder: nn.Module, translator: Translator, head: nn.Module) -> Stitched:
    """A network that sees with one encoder and answers with the head of another; nothing is trained.

    Args:
        encoder: From inputs to rows of its space, ``(..., width)``.
        translator: Fitted, from the encoder's space to the one that the head was trained on.
        head: From rows of its space to answers.

    Raises:
        DataError: if encoder or head are no modules; if the translator is not fitted, or gives cosines that no head was
            trained on.

    Example:
        >>> import torch
        >>> encoder, head = nn.Linear(4, 3), nn.Linear(5, 2)
        >>> X, Y = torch.randn(50, 3), torch.randn(50, 5)
        >>> stitch(encoder, Translator(method="ridge").fit(X, Y), head)(torch.randn(7, 4)).shape
        torch.Size([7, 2])
    """
    for what, module in (("encoder", encoder), ("head", head)):
        if not isinstance(module, nn.Module):
            raise DataError(f"The {what} of a stitched network is a module of torch, found {type(module).__name__}.")
    if not isinstance(translator, Translator) or not hasattr(translator, "translation_"):
        raise DataError(
            f"Stitching needs Translator(...).fit(X, Y) of another method than 'relative', found "
            f"{type(translator).__name__}."
        )
    return Stitched(encoder, TranslationLayer(translator), head)
