"""What commands that read networks and data have in common: their options, and how they are followed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from interbasin.datasets import Batches

MODEL = "a folder or hub id of transformers, timm:NAME[@weights] or package.module:factory[@weights]"
DATA = "digits, a folder of images or of idx files, or a .txt, .jsonl, .npz, .npy or .parquet file"

BatchSize = Annotated[int, typer.Option(min=1, help="Samples a batch.")]
Column = Annotated[str | None, typer.Option(help="Column of a .parquet, or key of a .jsonl file.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="Folder whose tokenizer makes tokens of text; by default that of the first network.")
]
MaxLength = Annotated[int | None, typer.Option(min=1, help="At most so many tokens of a text.")]
Mean = Annotated[str | None, typer.Option(help="Subtracted from images, in [0, 1]: one, or one a channel.")]
Std = Annotated[str | None, typer.Option(help="And divided by: one number, or one a channel.")]
Scale = Annotated[bool, typer.Option("--scale/--no-scale", help="Bring eight-bit numbers from 0...255 to 0...1.")]
InputShape = Annotated[
    str | None, typer.Option(help="Shape of the inputs, batch first, where the network does not tell: 1,3,224,224.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with a folder of transformers.")
]
Strict = Annotated[bool, typer.Option("--strict/--no-strict", help="Refuse weights that a network has no use for.")]


@dataclass(frozen=True)
class Reading:
    """How a DATA string is read."""

    data: str
    like: Any
    batch_size: int
    column: str | None
    tokenizer: str | None
    max_length: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    scale: bool
    seed: int

    @property
    def splits(self) -> tuple[str, ...]:
        """The parts that the data come in, if they do."""
        from interbasin.datasets import splits_of

        return splits_of(self.data)

    def part(self, name: str | None, limit: int | None = None) -> Batches:
        """Batches of one part, or of at most ``limit`` samples of it, drawn with the seed."""
        from interbasin.datasets import open_data

        return open_data(
            self.data,
            like=self.like,
            batch_size=self.batch_size,
            limit=limit,
            shuffle=limit is not None,
            seed=self.seed,
            split=name,
            column=self.column,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            tokens_as_labels=None,
            scale=self.scale,
            mean=self.mean,
            std=self.std,
        )


def numbers(text: str | None, option: str) -> list[float] | None:
    """The numbers of an option, with commas between them."""
    if text is None:
        return None
    try:
        return [float(one) for one in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"takes numbers with commas between them, and got {text!r}.", param_hint=option
        ) from error


def tokenizer_of(model: str) -> str | None:
    """Where the tokenizer of a network is, if it is one of transformers."""
    from interbasin.models import parse_model

    name = parse_model(model)
    return name.name if name.kind in ("folder", "hub", "adapter") else None


def model_in(given: str, folder: str) -> str | None:
    """What to write as MODEL for a network like ``given`` whose weights lie in ``folder``; None if nothing builds it.

    Example:
        >>> model_in("my.networks:small@a.safetensors", "out"), model_in("timm:resnet18", "out")
        ('my.networks:small@out', 'timm:resnet18@out')
    """
    # As `parse_model` reads it, without what that imports: a merge has no torch.
    if ":" in given and not os.path.exists(given):
        return f"{given.partition('@')[0]}@{folder}"
    return folder if os.path.exists(os.path.join(folder, "config.json")) else None
