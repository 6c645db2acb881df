"""The folder that a job leaves, read again: what was asked, of what, what came of it, and what lies beside it."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias

from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.outcome.hashes import Digest, InputFiles, digest_of
from interbasin.storage import read_document
from interbasin.text import plural

if TYPE_CHECKING:  # jobs that need no torch write outcomes too, and torch takes longer to import than they do
    from interbasin.checkpoints import Checkpoint
    from interbasin.wiring import Alignment

__all__ = [
    "DOCUMENT",
    "FORMAT",
    "REPORT",
    "VERSION",
    "Artefact",
    "Cell",
    "Kind",
    "Outcome",
    "checked_number",
    "is_our_outcome",
    "plain",
    "to_json",
]

DOCUMENT, REPORT = "outcome.json", "report.html"
FORMAT, VERSION = "outcome", 1

Kind: TypeAlias = Literal["checkpoint", "alignment", "plot", "table", "text", "file"]
KINDS: tuple[Kind, ...] = ("checkpoint", "alignment", "plot", "table", "text", "file")
Cell: TypeAlias = "float | str"
# As JavaScript and Python both read them: Number("Infinity"), float("Infinity").
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Artefact:
    """Something that a job made, beside ``outcome.json``.

    Attributes:
        name: What it is called in the outcome.
        kind: What it is.
        path: Where it lies in the folder: a file, a folder, or ``.`` for files beside ``outcome.json``.
        files: Its files, relative to the outcome's folder, with size and hash.
        columns: Of a table: column to ``"number"`` or ``"text"``.
    """

    name: str
    kind: Kind
    path: str
    files: Mapping[str, Digest]
    columns: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        found = {**vars(self), "files": {name: vars(one) for name, one in self.files.items()}}
        if self.columns is None:
            del found["columns"]
        return found


@dataclass(frozen=True)
class Outcome:
    """What a job left behind.

    Attributes:
        folder: Where it lies.
        job: Which job it was: ``"rebasin"``, ``"merge"``, ``"evaluate"``, ...
        request: What was asked, defaults filled in.
        seed: Of all that was drawn at random; None if nothing was.
        versions: Of interbasin, Python, torch and numpy.
        inputs: What the networks and data were, with hashes of their files.
        metrics: Name to number. One that came out as NaN or infinite is here as such.
        timings: Seconds by what they were spent on.
        notes: Sentences that a reader of the metrics should know.
        artefacts: What lies beside.
        started: When, in UTC (ISO 8601).
        seconds: How long it took in all.
    """

    folder: Path
    job: str
    request: Mapping[str, Any]
    seed: int | None
    versions: Mapping[str, str]
    inputs: Mapping[str, InputFiles]
    metrics: Mapping[str, float]
    timings: Mapping[str, float]
    notes: tuple[str, ...]
    artefacts: tuple[Artefact, ...]
    started: str
    seconds: float

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Outcome:
        """The outcome in ``folder``, after checking that all its files are there in their sizes.

        Raises:
            FileError: if there is none, or it is damaged, incomplete or of a later version.
        """
        where = Path(folder)
        if not os.path.isdir(where):
            found = "it is a file" if os.path.lexists(where) else "there is nothing there"
            raise FileError(f"Expected the folder of an outcome at {where}, but {found}; give the folder of a job.")
        document = read_document(where / DOCUMENT, FORMAT, VERSION)
        try:
            outcome = _restored(where, document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise FileError(f"{where / DOCUMENT} is damaged ({reason}); copy it again or run the job anew.") from error
        outcome._require_files()
        return outcome

    def verify(self) -> None:
        """Read every file and compare it with its hash.

        Raises:
            FileError: if one is not as the job wrote it.
        """
        for artefact in self.artefacts:
            for name, expected in artefact.files.items():
                if digest_of(self.folder / name) != expected:
                    raise FileError(
                        f"{self.folder / name} is not as the job wrote it: its SHA-256 is another; copy it again or "
                        "run the job anew."
                    )

    def artefact(self, name: str) -> Artefact:
        """The artefact of that name.

        Raises:
            UnknownNameError: if there is none; lists those there are.
        """
        for one in self.artefacts:
            if one.name == name:
                return one
        raise UnknownNameError.of(f"artefact in {self.folder}", name, [one.name for one in self.artefacts])

    def path(self, name: str) -> Path:
        """Where an artefact lies."""
        return self.folder / self.artefact(name).path

    def alignment(self, name: str = "alignment") -> Alignment:
        """An alignment that the job made."""
        from interbasin.wiring import Alignment

        return Alignment.load(self.path(name))

    def checkpoint(self, name: str = "model") -> Checkpoint:
        """Weights that the job made; nothing is read yet."""
        from interbasin.checkpoints import open_checkpoint

        return open_checkpoint(self.path(name))

    def table(self, name: str) -> dict[str, list[Cell]]:
        """A table that the job made: column to values."""
        artefact, path = self.artefact(name), self.path(name)
        columns = dict(artefact.columns or {})
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file, strict=True))
            if not rows or rows[0] != list(columns) or any(len(row) != len(columns) for row in rows):
                raise ValueError("it has other columns than outcome.json says")
            return {
                column: [float(row[place]) if kind == "number" else row[place] for row in rows[1:]]
                for place, (column, kind) in enumerate(columns.items())
            }
        except (OSError, ValueError, csv.Error) as error:
            raise FileError(f"The table {path} is damaged ({error}); copy it again or run the job anew.") from error

    def summary(self) -> dict[str, Any]:
        """What ``outcome.json`` says, in JSON's own types; NaN and infinity are text there."""
        return {
            "job": self.job,
            "request": dict(self.request),
            "seed": self.seed,
            "versions": dict(self.versions),
            "started": self.started,
            "seconds": self.seconds,
            "inputs": {name: one.to_json() for name, one in self.inputs.items()},
            "metrics": {name: to_json(value) for name, value in self.metrics.items()},
            "timings": dict(self.timings),
            "notes": list(self.notes),
            "artefacts": [one.to_json() for one in self.artefacts],
        }

    def __repr__(self) -> str:
        figures = [f"{name}={self.metrics[name]:.4g}" for name in list(self.metrics)[:4]]
        more = [f"{plural(len(self.metrics) - 4, 'more figure')}"] if len(self.metrics) > 4 else []
        beside = [plural(len(self.artefacts), "artefact")] if self.artefacts else []
        return f"Outcome({', '.join([repr(str(self.folder)), self.job, *figures, *more, *beside])})"

    def written(self) -> list[str]:
        """What lies in the folder beside ``outcome.json``, for people: paths; of many files of one artefact a count."""
        return [
            one.path
            if one.path != "."
            else next(iter(one.files))
            if len(one.files) == 1
            else f"{plural(len(one.files), 'file')} of the {one.name}"
            for one in self.artefacts
        ]

    def _require_files(self) -> None:
        for artefact in self.artefacts:
            for name, expected in artefact.files.items():
                path = self.folder / name
                if not path.is_file():
                    raise FileError(
                        f"{path} is missing, which {DOCUMENT} lists as part of {artefact.name!r}; copy the whole "
                        "folder again."
                    )
                if path.stat().st_size != expected.bytes:
                    raise FileError(
                        f"{path} has {path.stat().st_size} bytes and {DOCUMENT} says {expected.bytes}; copy the whole "
                        "folder again."
                    )


def is_our_outcome(folder: Path) -> bool:
    """Whether a folder holds one outcome and nothing else, so that replacing it loses nothing but that."""
    try:
        document = read_document(folder / DOCUMENT, FORMAT, VERSION)
        known = {DOCUMENT, REPORT, *(name for one in document["artefacts"] for name in one["files"])}
    except (FileError, KeyError, TypeError):
        return False
    inside = list(folder.rglob("*"))
    return all(not one.is_symlink() and (one.is_dir() or one.relative_to(folder).as_posix() in known) for one in inside)


# ---------------------------------------------------------------------- numbers as JSON and back, exactly
# JSON has no word for NaN and infinity, so they are written as text.


def checked_number(value: object, what: str) -> float:
    """``value`` as a plain number: a number, or a tensor or array that holds one. Counts stay whole numbers.

    Raises:
        DataError: if it is anything else; ``what`` names it.
    """
    # Text would pass for a number ("1.5"), and a truth value for one that was measured.
    if isinstance(value, SupportsFloat) and not isinstance(value, bool | str):
        try:
            number = float(value)
            return int(value) if isinstance(value, Integral) else number
        except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of many, or too large for a float
            pass
    raise DataError(f"{what} is one real number, found {value!r:.80}; leave out what was not measured.")


def to_json(value: float) -> float | str:
    """A number as JSON has it.

    Example:
        >>> to_json(0.5), to_json(float("-inf"))
        (0.5, '-Infinity')
    """
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def from_json(value: object) -> float:
    """The number that `to_json` wrote.

    Raises:
        ValueError: if it did not write this.
    """
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r:.80} is no number")


def plain(value: Any, what: str) -> Any:
    """``value`` in JSON's own types, as it will be read again; paths become text.

    Raises:
        DataError: if it has no such form; ``what`` says where it stands.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise DataError(f"{what} has the key {wrong[0]!r:.80}, and keys are text; name it in words.")
        return {key: plain(one, f"{what}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, f"{what}[{place}]") for place, one in enumerate(value)]
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "__fspath__"):
        return str(value)
    number = checked_number(value, f"{what} (if it is neither text, list nor mapping)")
    if not math.isfinite(number):
        raise DataError(f"{what} is {number}, which JSON cannot hold; give a finite number, or None for no limit.")
    return number


# ---------------------------------------------------------------------- reading with suspicion


def _restored(folder: Path, document: Mapping[str, Any]) -> Outcome:
    notes = document["notes" if "notes" in document or "warnings" not in document else "warnings"]  # before 0.2
    return Outcome(
        folder=folder,
        job=_text(document["job"], "job"),
        request=_mapping(document["request"], "request"),
        seed=None if document["seed"] is None else _whole(document["seed"], "seed"),
        versions={
            key: _text(one, f"versions.{key}") for key, one in _mapping(document["versions"], "versions").items()
        },
        inputs={key: _input(one, f"inputs.{key}") for key, one in _mapping(document["inputs"], "inputs").items()},
        metrics=_numbers(document["metrics"], "metrics"),
        timings=_numbers(document["timings"], "timings"),
        notes=tuple(_text(note, "notes") for note in _list(notes, "notes")),
        artefacts=tuple(_artefact(one) for one in _list(document["artefacts"], "artefacts")),
        started=_text(document["started"], "started"),
        seconds=from_json(document["seconds"]),
    )


def _artefact(found: Any) -> Artefact:
    entry = _mapping(found, "artefacts")
    name, kind = _text(entry["name"], "artefacts.name"), entry["kind"]
    if kind not in KINDS:
        raise ValueError(f"the artefact {name!r} is of the unknown kind {kind!r}")
    files = {_below(key): _digest(one, key) for key, one in _mapping(entry["files"], f"files of {name}").items()}
    columns = entry.get("columns")
    return Artefact(
        name,
        kind,
        _below(_text(entry["path"], "artefacts.path")),
        files,
        None if columns is None else {key: _text(one, "columns") for key, one in _mapping(columns, "columns").items()},
    )


def _input(found: Any, what: str) -> InputFiles:
    entry = _mapping(found, what)
    path, size, sha256 = entry["path"], entry["bytes"], entry["sha256"]
    return InputFiles(
        _text(entry["given"], f"{what}.given"),
        None if path is None else _text(path, f"{what}.path"),
        None if size is None else _whole(size, f"{what}.bytes"),
        None if sha256 is None else _text(sha256, f"{what}.sha256"),
        {name: _digest(one, name) for name, one in _mapping(entry["files"], f"{what}.files").items()},
    )


def _below(path: str) -> str:
    """A path that stays inside the folder: one that was tampered with must not make us read, or hash, another."""
    if os.path.isabs(path) or ".." in Path(path).parts or "\\" in path:
        raise ValueError(f"{path!r} leads out of the folder")
    return path


def _digest(found: Any, what: str) -> Digest:
    entry = _mapping(found, what)
    return Digest(_whole(entry["bytes"], what), _text(entry["sha256"], what))


def _numbers(found: Any, what: str) -> dict[str, float]:
    return {key: from_json(one) for key, one in _mapping(found, what).items()}


def _mapping(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{what} should be a mapping and is {found!r:.40}")
    return found


def _list(found: Any, what: str) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError(f"{what} should be a list and is {found!r:.40}")
    return found


def _text(found: Any, what: str) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{what} should be text and is {found!r:.40}")
    return found


def _whole(found: Any, what: str) -> int:
    if not isinstance(found, int) or isinstance(found, bool):
        raise TypeError(f"{what} should be a whole number and is {found!r:.40}")
    return found
