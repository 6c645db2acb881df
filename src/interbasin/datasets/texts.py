"""``.txt`` and ``.jsonl``: texts, a line each, and the tokenizer of transformers that makes tokens of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import Tensor

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
        found = self.tokenizer(
            [self.texts[row] for row in rows],
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )
        tensors = {name: one for name, one in found.items() if isinstance(one, Tensor)}
        ids = tensors.get("input_ids")
        if ids is None or ids.ndim != 2 or not ids.shape[1]:
            raise DataError(
                f"The tokenizer made no tokens of {self.name}, from text {rows[0]} on; is it the right one?"
            )
        return tensors


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that hold something.

    Raises:
        FileError: if it is not text.
        DataError: if there is none.
    """
    texts = [line.strip() for line in _text(path).splitlines() if line.strip()]
    if not texts:
        raise DataError(f"{path} holds no text at all; check what wrote it.")
    return texts


def read_jsonl(path: Path, column: str | None = None) -> tuple[list[str], Tensor | None, tuple[str, ...]]:
    """The texts of a file of JSON objects, a line each; and their labels, if they have any.

    Raises:
        FileError: if a line is no JSON object.
        DataError: if a text or some of the labels are missing.
    """
    key = "text" if column is None else column
    texts, labels = [], []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileError(f"Line {number} of {path} is no JSON ({error}); give one object per line.") from error
        if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
            found = ", ".join(map(repr, entry)) if isinstance(entry, dict) else f"a {type(entry).__name__}"
            raise DataError(
                f"Line {number} of {path} should have text under {key!r}, found {found or 'nothing'}; name its key "
                "with column (--column)."
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


def tokenizer_of(given: Any, name: str) -> Any:
    """The tokenizer of a folder of transformers, or the one that was given.

    Raises:
        DataError: if there is none.
        MissingExtraError: if transformers is not installed.
        FileError: if the folder has none that can be loaded.
    """
    if given is None:
        raise DataError(
            f"{name} is text, and networks take tokens; say which tokenizer makes them: tokenizer= (--tokenizer) and "
            "the folder of a model of transformers."
        )
    if not isinstance(given, str | PathLike):
        if callable(given):
            return _with_padding(given)
        raise DataError(f"A tokenizer is one of transformers or its folder, found a {type(given).__name__}; give one.")
    transformers = import_extra("transformers", "Tokenizing text", "hf")
    try:
        # Its own code is never run: what needs trust_remote_code fails here.
        found = transformers.AutoTokenizer.from_pretrained(fspath(given), local_files_only=True)
    except Exception as error:
        # Of a message that goes on with a list, the words that announce the list are no use without it.
        told = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")
        reason = re.sub(r"\s+(from|with|by|in)?\s*one of( the following)?$", "", told)
        raise FileError(
            f"There is no tokenizer to load in {given} ({reason}); give the folder of a model that has tokenizer files."
        ) from error
    return _with_padding(found)


def _with_padding(tokenizer: Any) -> Any:
    """Language models often have no token for padding: the one that ends a text does, as the mask hides it."""
    if getattr(tokenizer, "pad_token", "") is None:
        if getattr(tokenizer, "eos_token", None) is None:
            raise DataError(
                "The tokenizer has neither a token for padding nor one that ends a text, so texts of different lengths "
                "cannot share a batch; set tokenizer.pad_token first."
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def longest(tokenizer: Any, asked: int | None) -> int:
    """How many tokens of a text are kept."""
    if asked is not None:
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise DataError(f"Texts are cut to a whole number of tokens, 1 or more, found {asked!r}; try 128.")
        return asked
    limit = getattr(tokenizer, "model_max_length", None)
    return min(limit, LONGEST) if isinstance(limit, int) and 0 < limit < UNLIMITED else LONGEST


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text ({error.reason}); convert it.") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}; check its permissions.") from error
