"""The folder that a job leaves, read again: what was asked, of what, what came of it, and what lies beside it."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias, get_args, get_origin, get_type_hints

from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.outcome.hashes import InputFiles
from interbasin.storage import read_document
from interbasin.storage.digest import Digest, digest_of
from interbasin.text import plural

if TYPE_CHECKING:  # jobs that need no torch write outcomes too, and torch takes longer to import than they do
    from interbasin.checkpoints import Checkpoint
    from interbasin.wiring import Alignment

DOCUMENT, REPORT = "outcome.json", "report.html"
FORMAT, VERSION = "outcome", 1

Kind: TypeAlias = Literal["checkpoint", "alignment", "plot", "table", "text", "file"]
KINDS: tuple[Kind, ...] = get_args(Kind)
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


@dataclass(frozen=True)
class Outcome:
    """What a job left behind.

    Attributes:
        folder: Where it lies.
        job: Which job it was: ``"rebasin"``, ``"merge"``, ``"evaluate"``, ...
        request: What was asked, defaults filled in.
        seed: Of all that was drawn at random; None if nothing was.
        versions: Of interbasin, Python, torch and numpy.
        started: When, in UTC (ISO 8601).
        seconds: How long it took in all.
        inputs: What the networks and data were, with hashes of their files.
        metrics: Name to number. One that came out as NaN or infinite is here as such.
        timings: Seconds by what they were spent on.
        notes: Sentences that a reader of the metrics should know.
        artefacts: What lies beside.
    """

    folder: Path
    job: str
    request: Mapping[str, Any]
    seed: int | None
    versions: Mapping[str, str]
    started: str
    seconds: float
    inputs: Mapping[str, InputFiles]
    metrics: Mapping[str, float]
    timings: Mapping[str, float]
    notes: tuple[str, ...]
    artefacts: tuple[Artefact, ...]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Outcome:
        """The outcome in ``folder``, after checking that all its files are there in their sizes.

        Raises:
            FileError: if there is none, or it is damaged, incomplete or of a later version.
        """
        where = Path(folder)
        if not os.path.isdir(where):
            reason = "it is a file" if os.path.lexists(where) else "there is nothing there"
            raise FileError(f"Expected the folder of an outcome at {where}, but {reason}; give the folder of a job.")
        document = read_document(where / DOCUMENT, FORMAT, VERSION)
        try:
            if "notes" not in document and "warnings" in document:  # before 0.2
                document["notes"] = document["warnings"]
            for entry in document["artefacts"]:
                entry.setdefault("columns", None)  # of a table only
            outcome: Outcome = _restore(cls, {**document, "folder": where}, "")
            for artefact in outcome.artefacts:
                for path in (artefact.path, *artefact.files):
                    _require_inside(path)
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
                if digest_of(path := self.folder / name) != expected:
                    raise FileError(
                        f"{path} has another SHA-256 than the job wrote; copy it again or run the job anew."
                    )

    def artefact(self, name: str) -> Artefact:
        """The artefact of that name.

        Raises:
            UnknownNameError: if there is none; lists those there are.
        """
        artefacts = {artefact.name: artefact for artefact in self.artefacts}
        if name not in artefacts:
            raise UnknownNameError.of(f"artefact in {self.folder}", name, artefacts)
        return artefacts[name]

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
        document = asdict(self)
        del document["folder"]
        artefacts = [
            {key: value for key, value in entry.items() if value is not None} for entry in document["artefacts"]
        ]
        metrics = {name: to_json(value) for name, value in self.metrics.items()}
        return document | {"metrics": metrics, "notes": list(self.notes), "artefacts": artefacts}

    def __repr__(self) -> str:
        figures = [f"{name}={value:.4g}" for name, value in list(self.metrics.items())[:4]]
        more = [plural(len(self.metrics) - 4, "more figure")] if len(self.metrics) > 4 else []
        beside = [plural(len(self.artefacts), "artefact")] if self.artefacts else []
        return f"Outcome({', '.join([repr(str(self.folder)), self.job, *figures, *more, *beside])})"

    def written(self) -> list[str]:
        """What lies in the folder beside ``outcome.json``, for people: paths; of many files of one artefact a count."""
        names = []
        for artefact in self.artefacts:
            if artefact.path != ".":
                names.append(artefact.path)
            elif len(artefact.files) == 1:
                names += artefact.files
            else:
                names.append(f"{plural(len(artefact.files), 'file')} of the {artefact.name}")
        return names

    def _require_files(self) -> None:
        for artefact in self.artefacts:
            for name, expected in artefact.files.items():
                path = self.folder / name
                if not path.is_file():
                    raise FileError(f"{path} is missing, part of {artefact.name!r}; copy the whole folder again.")
                if (size := path.stat().st_size) != expected.bytes:
                    raise FileError(
                        f"{path} has {size} bytes and {DOCUMENT} says {expected.bytes}; copy the whole folder again."
                    )


def is_our_outcome(folder: Path) -> bool:
    """Whether a folder holds one outcome and nothing else, so that replacing it loses nothing but that."""
    try:
        document = read_document(folder / DOCUMENT, FORMAT, VERSION)
        known = {DOCUMENT, REPORT, *(name for artefact in document["artefacts"] for name in artefact["files"])}
    except (FileError, KeyError, TypeError):
        return False
    return all(
        not path.is_symlink() and (path.is_dir() or path.relative_to(folder).as_posix() in known)
        for path in folder.rglob("*")
    )


# ---------------------------------------------------------------------- numbers as JSON and back, exactly
# JSON has no word for NaN and infinity, so they are written as text.


def require_number(value: object, what: str) -> float:
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
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


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


def to_plain(value: Any, what: str) -> Any:
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
        return {key: to_plain(item, f"{what}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, f"{what}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "__fspath__"):
        return str(value)
    number = require_number(value, f"{what} (if it is neither text, list nor mapping)")
    if not math.isfinite(number):
        raise DataError(f"{what} is {number}, which JSON cannot hold; give a finite number, or None for no limit.")
    return number


# ---------------------------------------------------------------------- reading with suspicion

_FIELDS = {kind: get_type_hints(kind) for kind in (Digest, InputFiles, Artefact, Outcome)}
_KINDS = {dict: "a mapping", list: "a list", str: "text", int: "a whole number"}


def _restore(kind: Any, value: Any, what: str) -> Any:
    """``value``, as JSON gave it, in the type ``kind`` of a field; ``what`` says where it stands.

    Raises:
        KeyError, TypeError, ValueError: if it is of another type, lacks a field, or leads out of the folder.
    """
    if kind in _FIELDS:
        entry = _require(value, dict, what)
        return kind(**{name: _restore(hint, entry[name], f"{what}.{name}") for name, hint in _FIELDS[kind].items()})
    container, parts = get_origin(kind), get_args(kind)
    if type(None) in parts:
        return None if value is None else _restore(parts[0], value, what)
    if container is Literal:
        if value not in parts:
            raise ValueError(f"{what} has the unknown kind {value!r}")
        return value
    if container is tuple:
        return tuple(_restore(parts[0], item, what) for item in _require(value, list, what))
    if container in (dict, Mapping):
        return {name: _restore(parts[1], item, f"{what}.{name}") for name, item in _require(value, dict, what).items()}
    if kind is float:
        return from_json(value)
    return value if kind in (Any, Path) else _require(value, kind, what)


def _require(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{what.removeprefix('.')} should be {_KINDS[kind]} and is {value!r:.40}")
    return value


def _require_inside(path: str) -> None:
    """Refuse a path that leads out of the folder: one that was tampered with must not make us read another file."""
    if os.path.isabs(path) or ".." in Path(path).parts or "\\" in path:
        raise ValueError(f"{path!r} leads out of the folder")
