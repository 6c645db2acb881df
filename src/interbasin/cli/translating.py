"""What the commands of translate have in common: files of vectors as matrices, the entries of a card, methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Spelled out, because asking for them would import torch before the help is shown; a test compares the two.
METHODS = ("relative-projection", "procrustes", "ridge", "affine", "cca", "relative", "auto")

Column = Annotated[str | None, typer.Option(help="Column of .parquet files, or array of .npz files.")]
Metric = Annotated[str | None, typer.Option(help="How vectors are compared: cosine, dot or l2.")]
SourceModel = Annotated[str | None, typer.Option(help="What made SOURCE: kept in a card, or compared with it.")]
TargetModel = Annotated[str | None, typer.Option(help="What made TARGET: kept in a card, or compared with it.")]
SourcePrefix = Annotated[str | None, typer.Option(help="For the card: what SOURCE's model puts before a text.")]
TargetPrefix = Annotated[str | None, typer.Option(help="For the card: what TARGET's model puts before a text.")]
Chunking = Annotated[str | None, typer.Option(help="For the card: how long texts were cut.")]
Note = Annotated[str | None, typer.Option(help="For the card: anything else.")]
Seed = Annotated[int, typer.Option(min=0, help="Of what is drawn at random.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier outcome in OUTPUT.")]


def matrix(path: Path, column: str | None = None) -> NDArray[Any]:
    """All vectors of a file: of a ``.npy`` file mapped into memory, of others read."""
    import numpy as np

    from interbasin.vectors import default_rows_per_batch, open_vectors

    opened = open_vectors(path, column=column if path.suffix.lower() != ".npy" else None)
    if opened.format == "npy":
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    return np.concatenate(list(opened.batches(default_rows_per_batch(opened.width))))


LONGEST = 18  # digits of a number of a row


def rows_in(path: Path) -> NDArray[np.int64]:
    """Numbers of rows: a ``.npy`` file, or text with one a line."""
    import numpy as np

    from interbasin.datasets.labels import read_lines
    from interbasin.errors import DataError, FileError

    if path.suffix.lower() == ".npy":
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read as numbers of rows ({error}).") from error
        if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
            raise DataError(f"{path} should hold numbers of rows, found shape {found.shape} of dtype {found.dtype}.")
        return np.asarray(found, dtype=np.int64)
    lines = [line.strip() for line in read_lines(path) if line.strip()]
    wrong = next((line for line in lines if not line.isdecimal() or len(line) > LONGEST), None)
    if wrong is not None or not lines:
        found_instead = f"{wrong!r:.80}" if lines else "nothing"
        raise DataError(f"{path} should hold numbers of rows, one a line, found {found_instead}.")
    return np.array(lines, dtype=np.int64)


def card_of(params: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a card among a command's parameters."""
    names = ("source_model", "target_model", "metric", "source_prefix", "target_prefix", "chunking", "note")
    return {name: params[name] for name in names if params.get(name) is not None}


def request_of(ctx: typer.Context) -> dict[str, Any]:
    """What was asked, as an outcome keeps it."""
    return {name: value for name, value in ctx.params.items() if name not in ("ctx", "json", "quiet", "debug", "force")}


def whole_numbers(text: str | None, option: str) -> list[int] | None:
    """Whole numbers with commas between them."""
    if text is None:
        return None
    try:
        return [int(one) for one in text.split(",")]
    except ValueError as error:
        message = f"takes whole numbers with commas between them, and got {text!r}."
        raise typer.BadParameter(message, param_hint=option) from error
