"""What files hold, apart from what differs from run to run: times, and the random mark that ties two files together."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

# Of outcome.json and what is written beside it: when, and how long it took.
TIMES = {"started", "seconds", "timings"}
# Of records: random, the same in both files; the checksum that covers it.
MARKS = {"mark", "seal"}


def contents(path: Path) -> dict[str, bytes] | None:
    """Every file at ``path``, with what it holds apart from times and marks; None where there is nothing.

    Raises:
        ValueError: if something is cut off, so that it cannot be read.
    """
    try:
        return _contents(path)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"cannot be read: {error}") from error


def _contents(path: Path) -> dict[str, bytes] | None:
    if path.is_file():
        return {"": content_of(path)}
    if not path.is_dir():
        return None
    if path.suffix == ".lance":
        return {"": rows_of_table(path)}
    return {str(file.relative_to(path)): content_of(file) for file in sorted(path.rglob("*")) if file.is_file()}


def exact_contents(path: Path) -> dict[str, bytes] | None:
    """Every file at ``path`` as it is."""
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.is_dir():
        return None
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def content_of(path: Path) -> bytes:
    if path.suffix == ".json":
        return _to_bytes(_without(json.loads(path.read_bytes()), path.parent))
    if path.suffix == ".safetensors":
        raw = path.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:end])
        header["__metadata__"] = _without(header.get("__metadata__", {}), path.parent)
        return _to_bytes(header) + raw[end:]
    if path.suffix == ".csv":
        return _without_times(path.read_text("utf-8"))
    return path.read_bytes()


def _to_bytes(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _without(document: Any, folder: Path) -> Any:
    """A document without times and marks; of the digest of a file only whether it is right."""
    if isinstance(document, list):
        return [_without(value, folder) for value in document]
    if not isinstance(document, dict):
        return document
    kept = {key: value for key, value in document.items() if key not in TIMES | MARKS and not key.endswith("seconds")}
    return {
        key: _checked(value, folder / key) if isinstance(value, dict) and "sha256" in value else _without(value, folder)
        for key, value in kept.items()
    }


def _checked(recorded: dict[str, Any], file: Path) -> Any:
    """What an outcome says of one of its files: whether that is right, as the file may hold times; or of an input."""
    if not file.is_file():
        return recorded
    return hashlib.sha256(file.read_bytes()).hexdigest() == recorded["sha256"]


def _without_times(table: str) -> bytes:
    rows = list(csv.reader(io.StringIO(table)))
    kept = [place for place, title in enumerate(rows[0]) if "seconds" not in title] if rows else []
    return _to_bytes([[row[place] for place in kept] for row in rows])


def rows_of_table(path: Path) -> bytes:
    """The rows of a Lance table, whose files have random names."""
    import lancedb

    # A copy, because lancedb remembers what it has read at a path.
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(path, Path(folder) / path.name)
        table = lancedb.connect(folder).open_table(path.stem)
        return _to_bytes(table.to_arrow().to_pylist())
