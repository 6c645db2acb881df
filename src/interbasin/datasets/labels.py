"""Which documents are right for which query, and numbers of rows, as they stand in files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from interbasin.datasets.texts import read_text
from interbasin.errors import DataError, FileError

MOST_DIGITS = 18  # of a row's number


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file, one item each.

    Raises:
        FileError: if it cannot be read.
    """
    return read_text(Path(path)).splitlines()


def read_row_numbers(path: str | os.PathLike[str]) -> NDArray[np.int64]:
    """Numbers of rows: a ``.npy`` file, or text with one per line.

    Raises:
        FileError, DataError: if it cannot be read, or holds something else.
    """
    if Path(path).suffix.lower() == ".npy":
        try:
            stored = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read as numbers of rows ({error}).") from error
        if stored.ndim != 1 or stored.dtype.kind not in "iu" or not len(stored):
            raise DataError(f"{path} should hold numbers of rows, found shape {stored.shape} of dtype {stored.dtype}.")
        return np.asarray(stored, dtype=np.int64)
    lines = [line.strip() for line in read_lines(path) if line.strip()]
    wrong = next((line for line in lines if not line.isdecimal() or len(line) > MOST_DIGITS), None)
    if wrong is not None or not lines:
        instead = f"{wrong!r:.80}" if lines else "nothing"
        raise DataError(f"{path} should hold numbers of rows, one per line, found {instead}.")
    return np.array(lines, dtype=np.int64)


def read_labels(
    path: str | os.PathLike[str],
    *,
    query_ids: Sequence[str] | None = None,
    document_ids: Sequence[str] | None = None,
) -> dict[int, list[int]]:
    """Number of a query -> numbers of its right documents.

    One pair per line: ``query document [relevance]`` with tabs, commas or blanks between, with or without a line of
    titles; or as TREC has it, ``query 0 document relevance``; or JSON with these keys (``.jsonl``). A relevance of 0 or
    less is none.

    Args:
        path: The file.
        query_ids: What the file calls the queries, in their order; without, it gives their numbers, from 0.
        document_ids: The same of documents.

    Raises:
        FileError: if it cannot be read.
        DataError: if a line is none of this, or names what is not known.
    """
    queries, documents = _numbers(query_ids, "query_ids"), _numbers(document_ids, "document_ids")
    labels: dict[int, list[int]] = {}
    for line, (query, document, relevance) in _entries(Path(path)):
        query_number, document_number = _number(query, queries), _number(document, documents)
        if line == 1 and query_number is None and document_number is None and not _is_number(relevance):  # titles
            continue
        if query_number is None or document_number is None:
            unknown = query if query_number is None else document
            raise DataError(f"Line {line} of {path} names {unknown!r:.80}, which is no number and no id; give its ids.")
        if relevance is not None and not _is_number(relevance):
            raise DataError(f"Line {line} of {path} has the relevance {relevance!r:.80}; a relevance is a number.")
        if relevance is None or float(relevance) > 0:
            labels.setdefault(query_number, []).append(document_number)
    if not labels:
        raise DataError(f"{path} names no right document; a line is: query document [relevance].")
    return labels


def _numbers(names: Sequence[str] | None, what: str) -> dict[str, int] | None:
    if names is None:
        return None
    places = {name: place for place, name in enumerate(names)}
    if len(places) != len(names):
        raise DataError(f"{what} must tell items apart, and some of the {len(names)} are given twice.")
    return places


def _number(name: str, ids: dict[str, int] | None) -> int | None:
    """The number of an item: by its name among the ids, or what the name says where there are none."""
    if ids is not None:
        return ids.get(name)
    return int(name) if name.lstrip("-").isdecimal() else None


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and math.isfinite(float(text))
    except ValueError:
        return False


def _entries(path: Path) -> Iterator[tuple[int, tuple[str, str, str | None]]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        if path.suffix.lower() == ".jsonl":
            try:
                entry = json.loads(line)
                relevance = None if entry.get("relevance") is None else str(entry["relevance"])
                yield number, (str(entry["query"]), str(entry["document"]), relevance)
                continue
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                message = f"Line {number} of {path} is not JSON with the keys query and document ({error})."
                raise DataError(message) from error
        parts = line.split("\t") if "\t" in line else line.split(",") if "," in line else line.split()
        parts = [part.strip() for part in parts]
        if len(parts) == 4:  # as TREC has it
            parts = [parts[0], parts[2], parts[3]]
        if len(parts) not in (2, 3) or not all(parts):
            raise DataError(
                f"Line {number} of {path} is {line!r:.80}; a line is: query document [relevance], or as TREC has it."
            )
        yield number, (parts[0], parts[1], parts[2] if len(parts) == 3 else None)
