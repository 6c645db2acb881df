"""``.txt`` and ``.jsonl``: one text per line, and the tokenizer of transformers that makes tokens of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import Tensor

from interbasin.checks import require_whole
from interbasin.datasets.base import class_numbers
from interbasin.errors import DataError, FileError
from interbasin.extras import import_extra

LONGEST = 512  # tokens, where neither the caller nor the tokenizer sets a limit
UNLIMITED = 10**6  # transformers writes a huge number where a tokenizer has no limit


@dataclass(frozen=True, eq=False)
class TextSamples:
    """Texts, tokenized when they are read."""

    name: str
    texts: Sequence[str]
    tokenizer: Callable[..., Mapping[str, Any]] = field(repr=False)
    max_length: int
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.texts)

    def read(self, rows: Sequence[int]) -> dict[str, Tensor]:
        texts = [self.texts[row] for row in rows]
        encoded = self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")
        tensors = {name: value for name, value in encoded.items() if isinstance(value, Tensor)}
        ids = tensors.get("input_ids")
        if ids is None or ids.ndim != 2 or not ids.shape[1]:
            raise DataError(f"The tokenizer made no tokens of {self.name} from text {rows[0]} on; is it the right one?")
        return tensors


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that hold something; a `DataError` if there is none."""
    texts = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not texts:
        raise DataError(f"{path} holds no text at all; check what wrote it.")
    return texts


def read_jsonl(path: Path, column: str | None = None) -> tuple[list[str], Tensor | None, tuple[str, ...]]:
    """The texts of a file of JSON objects, one per line; and their labels, if they have any.

    Raises:
        FileError: if a line is no JSON object.
        DataError: if a text or some of the labels are missing.
    """
    key = "text" if column is None else column
    texts, labels = [], []
    # Not splitlines(), which also cuts at marks that may stand inside a text in JSON.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileError(f"Line {number} of {path} is no JSON ({error}); give one object per line.") from error
        if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
            content = ", ".join(map(repr, entry)) if isinstance(entry, dict) else f"a {type(entry).__name__}"
            raise DataError(
                f"Line {number} of {path} has no text under {key!r} but {content or 'nothing'}; name its key: --column."
            )
        texts.append(entry[key])
        if entry.get("label") is not None:
            labels.append(entry["label"])
    if not texts:
        raise DataError(f"{path} holds no text at all; check what wrote it.")
    if not labels:
        return texts, None, ()
    if len(labels) != len(texts):
        raise DataError(f"{len(labels)} of the {len(texts)} lines of {path} have a label; label all of them, or none.")
    return texts, *class_numbers(labels, str(path))


def open_tokenizer(tokenizer: Any, name: str) -> Any:
    """The tokenizer in a folder of transformers, or the one that is given, for the text in ``name``.

    Raises:
        DataError: if there is none.
        MissingExtraError: if transformers is not installed.
        FileError: if the folder has none that can be loaded.
    """
    if tokenizer is None:
        raise DataError(
            f"{name} is text, and networks take tokens; give the folder of a model of transformers whose tokenizer "
            "makes them: tokenizer= (--tokenizer)."
        )
    if isinstance(tokenizer, str | PathLike):
        transformers = import_extra("transformers", "Tokenizing text", "hf")
        try:
            # Its own code is never run: what needs trust_remote_code fails here.
            return _with_padding(transformers.AutoTokenizer.from_pretrained(fspath(tokenizer), local_files_only=True))
        except DataError:
            raise
        except Exception as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")
            # Of a message that goes on with a list, the words that announce the list are no use without it.
            reason = re.sub(r"\s+(from|with|by|in)?\s*one of( the following)?$", "", first)
            raise FileError(f"There is no tokenizer to load in {tokenizer} ({reason}); give another folder.") from error
    if not callable(tokenizer):
        raise DataError(f"tokenizer must be one of transformers or its folder, got a {type(tokenizer).__name__}.")
    return _with_padding(tokenizer)


def require_same_tokens(folders: Sequence[str]) -> None:
    """Refuse tokenizers of which one makes other tokens than the first.

    Raises:
        DataError: if their vocabularies differ; names two folders.
    """
    names = list(dict.fromkeys(folders))
    vocabularies = [open_tokenizer(folder, folder).get_vocab() for folder in names]
    for folder, vocabulary in zip(names, vocabularies, strict=True):
        if vocabulary != vocabularies[0]:
            raise DataError(
                f"Both networks are given the same tokens, but the tokenizer of {folder} has another vocabulary than "
                f"that of {names[0]}; a fine-tune cannot be moved between tokenizers yet."
            )


def _with_padding(tokenizer: Any) -> Any:
    """Language models often have no token for padding: the one that ends a text does, as the mask hides it."""
    if getattr(tokenizer, "pad_token", "") is None:
        if getattr(tokenizer, "eos_token", None) is None:
            raise DataError(
                "The tokenizer has no token for padding, nor one that ends a text; set tokenizer.pad_token."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def longest(tokenizer: Any, max_length: int | None) -> int:
    """How many tokens of a text are kept."""
    if max_length is not None:
        return require_whole("max_length", max_length, least=1)
    limit = getattr(tokenizer, "model_max_length", None)
    return min(limit, LONGEST) if isinstance(limit, int) and 0 < limit < UNLIMITED else LONGEST


def read_text(path: Path) -> str:
    """The text of a file in UTF-8; a `FileError` if it is something else."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text ({error.reason}); convert it.") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}; check the path.") from error
