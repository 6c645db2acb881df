"""The encoder of one network, a translation, and the head of another, as one network."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from interbasin.errors import DataError, ShapeError
from interbasin.jobs.translate.translator import Translator

__all__ = ["Stitched", "Translating", "stitch"]


class Translating(nn.Module):
    """A fitted translation as a layer: it moves with the network, takes part in gradients, and has nothing to train."""

    def __init__(self, translator: Translator) -> None:
        super().__init__()
        self.translation = translator.translation_
        self.extra = f"{translator.source_width} -> {translator.target_width}, {translator.chosen_}"

    def forward(self, rows: Tensor) -> Tensor:
        if not isinstance(rows, Tensor):
            raise DataError(f"The encoder of a stitched network gives {type(rows).__name__}, not a tensor of rows.")
        if rows.shape[-1] != self.translation.source_width:
            raise ShapeError(
                f"The encoder gives rows of width {rows.shape[-1]} and the translation was fitted on width "
                f"{self.translation.source_width}; stitch the encoder that it was fitted for."
            )
        return self.translation(rows)

    def extra_repr(self) -> str:
        return self.extra


class Stitched(nn.Sequential):
    """Encoder, translation and head, one after the other."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        encoder, translating, head = self
        return head(translating(encoder(*args, **kwargs)))


def stitch(encoder: nn.Module, translator: Translator, head: nn.Module) -> Stitched:
    """A network that sees with one encoder and answers with the head of another; nothing is trained.

    Args:
        encoder: From inputs to rows of its space, ``(..., width)``.
        translator: Fitted, from the encoder's space to the one that the head was trained on.
        head: From rows of its space to answers.

    Raises:
        DataError: if the translator is not fitted, or gives cosines that no head was trained on.

    Example:
        >>> import torch
        >>> encoder, head = nn.Linear(4, 3), nn.Linear(5, 2)
        >>> X, Y = torch.randn(50, 3), torch.randn(50, 5)
        >>> stitch(encoder, Translator(method="ridge").fit(X, Y), head)(torch.randn(7, 4)).shape
        torch.Size([7, 2])
    """
    if not isinstance(translator, Translator) or not hasattr(translator, "translation_"):
        raise DataError(
            "Stitching needs a translator that was fitted to lead into the head's space; found "
            f"{type(translator).__name__}. Use Translator(...).fit(X, Y), and another method than 'relative'."
        )
    return Stitched(encoder, Translating(translator), head)
