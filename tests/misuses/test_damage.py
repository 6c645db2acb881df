"""Folders that were saved and then damaged: each is refused by its loader, whichever file and however."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.misuses.table import misuses, public, the
from tests.records import seal_document

import interbasin as ib
from interbasin.errors import FileError, InterbasinError
from interbasin.outcome import Outcome

# What is saved, the function that loads it, and the stem of its two files.
SAVED: dict[str, tuple[Callable[[], Path], Callable[[Path], object], str]] = {
    "a map": (lambda: the.saved_map, lambda folder: ib.maps.load(folder), "map"),
    "statistics": (lambda: the.saved_moments, lambda folder: ib.PairedMoments.load(folder), "moments"),
    "layers": (lambda: the.saved_layers, lambda folder: ib.LayerwiseMoments.load(folder), "moments"),
    "a wiring": (lambda: the.saved_wiring, lambda folder: ib.Wiring.load(folder), "wiring"),
    "an alignment": (lambda: the.saved_alignment, lambda folder: ib.Alignment.load(folder), "alignment"),
    "a recording": (lambda: the.saved_recording, lambda folder: public.Recording.load(folder), "recording"),
    "a translator": (lambda: the.saved_translator, lambda folder: ib.Translator.load(folder), "translation"),
    "an encoder": (lambda: the.saved_encoder, lambda folder: ib.RelativeEncoder.load(folder), "relative-encoder"),
}


def damaged(saved: Callable[[], Path], name: str, damage: Callable[[bytes], Any]) -> Path:
    folder = the.copy(saved())
    return the.changed(folder, name, damage((folder / name).read_bytes()))


def edited(**changes: Any) -> Callable[[bytes], str]:
    """Another value for these keys of a document; an ellipsis takes a key away."""

    def edit(content: bytes) -> str:
        document = json.loads(content) | changes
        return json.dumps({key: value for key, value in document.items() if value is not ...})

    return edit


DOCUMENT: dict[str, Callable[[bytes], Any]] = {
    "without its document": lambda content: None,
    "with an empty document": lambda content: b"",
    "with half a document": lambda content: content[: len(content) // 2],
    "with a document of noise": lambda content: b"\xff\xfe" + content,
    "with a list for a document": lambda content: "[]",
    "of another format": edited(format="interbasin.something"),
    "of no format": edited(format=...),
    "of a later version": edited(version=99),
    "of a version in words": edited(version="1"),
}
NUMBERS: dict[str, Callable[[bytes], Any]] = {
    "without its numbers": lambda content: None,
    "with no numbers": lambda content: b"",
    "with numbers that are cut off": lambda content: content[:-1],
    "with numbers of another kind": lambda content: b"PK\x03\x04" + content,
}


@misuses(
    *(
        (
            f"{kind} {what}",
            lambda saved=saved, load=load, name=name, damage=damage: load(damaged(saved, name, damage)),
            FileError,
            stem,
        )
        for kind, (saved, load, stem) in SAVED.items()
        for name, damages in ((f"{stem}.json", DOCUMENT), (f"{stem}.safetensors", NUMBERS))
        for what, damage in damages.items()
    ),
    *(
        (
            f"an outcome {what}",
            lambda damage=damage: Outcome.load(damaged(lambda: the.saved_outcome, "outcome.json", damage)),
            FileError,
            "outcome.json",
        )
        for what, damage in DOCUMENT.items()
    ),
    *(
        (
            f"an outcome without {key}",
            lambda key=key: Outcome.load(damaged(lambda: the.saved_outcome, "outcome.json", edited(**{key: ...}))),
            FileError,
            key,
        )
        for key in ("job", "request", "seed", "versions", "inputs", "metrics", "timings", "notes", "artefacts")
    ),
    ("an outcome without a table", lambda: Outcome.load(without_table()), FileError, "points.csv"),
    ("an outcome with a longer table", lambda: Outcome.load(with_table(b"x\n1.0\n2.0\n3.0\n")), FileError, "bytes"),
    ("an outcome with another table", lambda: Outcome.load(with_table()).verify(), FileError, "SHA-256"),
    ("an outcome with half a row", lambda: Outcome.load(with_table()).table("points"), FileError, "points.csv"),
    *(
        (
            f"{kind} with one entry more",
            lambda saved=saved, load=load, stem=stem: load(damaged(saved, f"{stem}.json", edited(another=1))),
            FileError,
            "was edited",
        )
        for kind, (saved, load, stem) in SAVED.items()
    ),
    ("a map of an unknown kind", lambda: ib.maps.load(edited_map(kind="quadratic")), FileError, "'quadratic'"),
    ("a map of no kind", lambda: ib.maps.load(edited_map(kind=...)), FileError, "kind"),
    ("a map of another width", lambda: ib.maps.load(edited_map(source_width=7)), FileError, "3 <- 7"),
    ("a map of a width in words", lambda: ib.maps.load(edited_map(width="3")), FileError, "'3'"),
)
def test_what_was_saved_and_then_damaged_is_refused(misuse):
    misuse.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAVED)
def test_a_document_with_any_entry_wrong_loads_or_is_refused(kind, tmp_path):
    saved, load, stem = SAVED[kind]
    shutil.copytree(saved(), tmp_path / "saved")
    path = tmp_path / "saved" / f"{stem}.json"
    document = json.loads(path.read_text("utf-8"))
    for place in places(document):
        for value in (..., 3):
            other = replaced(document, place, value)
            seal_document(path, other)
            with contextlib.suppress(InterbasinError):
                load(tmp_path / "saved")
            if other != document:  # edited by hand, its seal no longer fits
                path.write_text(json.dumps(other), "utf-8")
                with pytest.raises(FileError):
                    load(tmp_path / "saved")


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every entry of a document and of what it holds; of a list the first."""
    entries = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for key, value in entries:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def replaced(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at that place; an ellipsis takes the entry away."""
    changed = copy.deepcopy(document)
    holder = functools.reduce(lambda part, key: part[key], place[:-1], changed)
    if value is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return changed


def without_table() -> Path:
    return damaged(lambda: the.saved_outcome, "points.csv", lambda content: None)


def with_table(content: bytes | None = None) -> Path:
    """The outcome with another table, by default one of as many bytes that is no table of numbers."""
    return damaged(lambda: the.saved_outcome, "points.csv", lambda kept: content or b"y" + kept[1:-2] + b"x\n")


def edited_map(**changes: Any) -> Path:
    folder = the.copy(the.saved_map)
    path = folder / "map.json"
    seal_document(path, json.loads(edited(**changes)(path.read_bytes())))
    return the.changed(folder, path.name, path.read_bytes())
