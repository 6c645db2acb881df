"""How a job leaves its folder: filled under a temporary name, and in place when all of it is there."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interbasin._version import __version__
from interbasin.errors import DataError, FileError
from interbasin.outcome.hashes import InputFiles, files_of, narrowest_mode
from interbasin.outcome.outcome import (
    DOCUMENT,
    FORMAT,
    KINDS,
    REPORT,
    VERSION,
    Artefact,
    Cell,
    Kind,
    Outcome,
    is_our_outcome,
    require_number,
    to_json,
    to_plain,
)
from interbasin.storage import FORMAT_PREFIX, new_folder, refuse_what_is_in_the_way, write_document
from interbasin.storage.digest import Following, digest_of

if TYPE_CHECKING:  # a job that needs no torch should not wait for it
    from torch import nn

    from interbasin.checkpoints import Checkpoint
    from interbasin.checkpoints.write import Tensors
    from interbasin.wiring import Alignment

NAME = re.compile(r"[A-Za-z0-9_][\w.+ -]{0,119}")


@dataclass
class Stopwatch:
    """Seconds by what they were spent on; ``timings`` of a result.

    Example:
        >>> watch = Stopwatch()
        >>> with watch("fit"):
        ...     pass
        >>> list(watch.timings)
        ['fit']
    """

    timings: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add the time of the block to ``stage``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.timings[stage] = self.timings.get(stage, 0.0) + time.perf_counter() - start


def refuse_outcome_in_the_way(folder: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise the `FileError` that `new_outcome` would, so that a long job can fail before it starts."""
    refuse_what_is_in_the_way(folder, force=force, ours=is_our_outcome)


@contextlib.contextmanager
def new_outcome(
    folder: str | os.PathLike[str],
    *,
    job: str,
    request: Mapping[str, Any],
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    seed: int | None = None,
    force: bool = False,
    elapsed: float = 0.0,
) -> Iterator[Draft]:
    """An outcome to fill; if the block ends well it is in ``folder``, and if it does not nothing is.

    Args:
        folder: The destination. Missing parents are made.
        job: Which job it is.
        request: What was asked, defaults filled in; text, numbers, lists and mappings.
        inputs: Name to path, MODEL or DATA; the files behind them are hashed now.
        seed: Of what is drawn at random.
        force: Replace an earlier outcome. A folder that holds anything else is never replaced.
        elapsed: Seconds that the job took before this, which count as well.

    Raises:
        FileError: if the folder is in the way or cannot be written.
        DataError: if the request, a metric or a name cannot be stored.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp() + "/out"
        >>> with new_outcome(folder, job="evaluate", request={"points": 25}, seed=0) as out:
        ...     out.metrics["barrier"] = 0.017
        ...     out.table("curve", {"t": [0.0, 1.0], "loss": [0.1, 0.2]})
        >>> Outcome.load(folder).metrics["barrier"], out.outcome.table("curve")["loss"]
        (0.017, [0.1, 0.2])
    """
    asked = to_plain(request, "The request")
    if not isinstance(asked, dict):
        raise DataError(f"The request of a job must be a mapping, got {request!r:.80}; give names to what was asked.")
    if not job or not isinstance(job, str):
        raise DataError(f"A job must have a name, got {job!r}; give one such as 'rebasin'.")
    refuse_outcome_in_the_way(folder, force=force)

    def mode() -> int:
        """Nobody may read an outcome who may not read all that it was made of."""
        return narrowest_mode(files.given for files in draft.inputs.values())

    with new_folder(folder, force=force, ours=is_our_outcome, mode=mode) as temporary:
        draft = Draft(temporary, Path(folder), job, asked, seed, elapsed)
        for name, given in (inputs or {}).items():
            draft.add_input(name, given)
        yield draft
        draft._finish()
    draft._is_written = True


class Draft:
    """An outcome that is being filled. Made by `new_outcome`.

    Attributes:
        folder: Where files go for now; use it only with `add`.
        metrics: Name to number; the flat mapping that every job leaves.
        timed: ``with draft.timed(what)`` adds the seconds that the block takes to ``timings[what]``.
        timings: Seconds by what they were spent on.
        notes: Sentences that a reader of the metrics should know.
        inputs: What was noted of each; see `add_input`.
    """

    def __init__(
        self, folder: Path, destination: Path, job: str, request: dict[str, Any], seed: int | None, elapsed: float
    ) -> None:
        self.folder = folder
        self.metrics: dict[str, Any] = {}
        self.timed = Stopwatch()
        self.timings = self.timed.timings
        self.notes: list[str] = []
        self._destination = destination
        self._job, self._request, self._seed = job, request, seed
        self.inputs: dict[str, InputFiles] = {}
        self._artefacts: dict[str, Artefact] = {}
        self._is_written = False
        self._started = datetime.now(UTC) - timedelta(seconds=elapsed)
        self._clock = time.perf_counter() - elapsed

    @property
    def outcome(self) -> Outcome:
        """The outcome as it was written, read again from its folder, once the block has ended.

        Raises:
            FileError: if it has not ended yet.
        """
        if not self._is_written:
            raise FileError(f"The outcome in {self._destination} is not written yet; leave the with block first.")
        return Outcome.load(self._destination)

    def add_input(self, name: str, given: str | os.PathLike[str]) -> InputFiles:
        """Note what an input was, and hash the files behind it."""
        with self.timed("hash inputs"):
            self.inputs[name] = files_of(given)
        return self.inputs[name]

    def write_checkpoint(
        self,
        tensors: nn.Module | Tensors,
        *,
        name: str = "model",
        place: str = ".",
        like: Checkpoint | str | os.PathLike[str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Write weights: beside ``outcome.json``, so that the outcome's folder is itself a MODEL, or below ``place``.

        Args:
            tensors: A network, or what `interbasin.checkpoints.write_checkpoint` takes.
            name: What the artefact is called.
            place: A folder inside the outcome; ``.`` is the outcome's own.
            like: Whose configuration and tokenizer to copy along; what is not copied becomes a note.
            metadata: Notes for the headers, text to text.
        """
        from torch import nn

        from interbasin.checkpoints.folded import describe_folder
        from interbasin.checkpoints.write import notes_on_companions, write_into

        stored = tensors.state_dict() if isinstance(tensors, nn.Module) else tensors
        with self.filled(name, "checkpoint", place=place) as folder:
            folder.mkdir(exist_ok=True)
            write_into(folder, stored, like=like, metadata=metadata, destination=self._destination / place)
        about = describe_folder(self.folder / place, f"The network in {(self._destination / place).name}")
        self.notes += [about] if about else []
        self.notes += [note for note in notes_on_companions(like) if note not in self.notes]

    @contextlib.contextmanager
    def filled(self, name: str, kind: Kind, following: Following | None = None, *, place: str = ".") -> Iterator[Path]:
        """Register all files that the block writes into the folder it is given as one artefact.

        Args:
            name: What the artefact is called.
            kind: What it is.
            following: What was told of files that grew, so that they need not be hashed again.
            place: A folder inside the outcome, made by the block; ``.`` is the outcome's own.
        """
        before = self._begin(name, None if place == "." else place)
        yield self.folder / place
        self._register(name, kind, place, sorted(self._present() - before), following=following)

    def add_alignment(self, alignment: Alignment, *, name: str = "alignment") -> None:
        """Save an alignment in a folder of its own."""
        with self.filled(name, "alignment", place=name) as folder:
            alignment.save(folder)

    def plot(self, name: str, svg: str) -> None:
        """Save a plot as ``NAME.svg``."""
        if not svg.lstrip().startswith("<svg"):
            raise DataError(f"The plot {name!r} must be SVG, got {svg[:40]!r}; make it with interbasin.outcome.plots.")
        self._write(name, "plot", f"{name}.svg", svg)

    def text(self, name: str, text: str) -> None:
        """Save text under the file name ``name``: a model card, notes."""
        self._write(name, "text", name, text)

    def table(self, name: str, columns: Mapping[str, Sequence[Cell]]) -> None:
        """Save columns of numbers or text as ``NAME.csv``, so that `Outcome.table` gives them back exactly."""
        values = {column: list(cells) for column, cells in columns.items()}
        lengths = {len(cells) for cells in values.values()}
        if len(lengths) != 1:
            counts = ", ".join(f"{column} has {len(cells)}" for column, cells in values.items()) or "there are none"
            raise DataError(
                f"The columns of the table {name!r} must be equally long, but {counts}; give one value per row."
            )
        kinds = {}
        for column, cells in values.items():
            words = [cell for cell in cells if isinstance(cell, str)]
            if words and len(words) < len(cells):
                raise DataError(
                    f"The column {column!r} of the table {name!r} mixes text and numbers; give one of them."
                )
            # A lone carriage return would come back as the end of a row.
            if any("\r" in word or "\0" in word for word in [*words, column]):
                raise DataError(f"The table {name!r} has text with control characters in {column!r}; take them out.")
            kinds[column] = "text" if words else "number"
            if not words:
                values[column] = [require_number(cell, f"{column!r} in the table {name!r}") for cell in cells]
        self._begin(name, f"{name}.csv")
        with (self.folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
            writer.writerow(values)
            # repr of a float is the shortest text that is read back as the same float.
            rows = zip(*values.values(), strict=True)
            writer.writerows([cell if isinstance(cell, str) else repr(cell) for cell in row] for row in rows)
        self._register(name, "table", f"{name}.csv", [f"{name}.csv"], kinds)

    def add(self, name: str, kind: Kind, path: str) -> None:
        """Register a file or folder that the caller put into ``folder`` at ``path``."""
        if kind not in KINDS:
            raise DataError(f"An artefact is one of {', '.join(KINDS)}, got {kind!r}; try 'file'.")
        if name in self._artefacts:
            raise DataError(f"Two artefacts of the outcome are called {name!r}; give each a name of its own.")
        here = self.folder / path
        inside = os.path.realpath(here).startswith(os.path.realpath(self.folder) + os.sep)
        files = [here] if here.is_file() else sorted(file for file in here.rglob("*") if file.is_file())
        if not inside or not files:
            raise FileError(f"For the artefact {name!r} there is nothing at {path}; write it into draft.folder first.")
        self._register(name, kind, path, [file.relative_to(self.folder).as_posix() for file in files])

    # ---------------------------------------------------------------------- inside

    def _write(self, name: str, kind: Kind, path: str, text: str) -> None:
        self._begin(name, path)
        (self.folder / path).write_text(text, encoding="utf-8")
        self._register(name, kind, path, [path])

    def _begin(self, name: str, path: str | None) -> set[str]:
        """Refuse a name that is taken or no name of a file; all files that are there already."""
        for text in (name, path):
            if text is not None and not NAME.fullmatch(text):
                raise DataError(
                    f"An artefact or its folder is named by up to 120 letters, digits and . _ + -, got {text!r}."
                )
        taken = path is not None and (self.folder / path).exists()
        if name in self._artefacts or taken or path in (DOCUMENT, REPORT):
            raise DataError(f"Two artefacts of the outcome are called {name!r}; give each a name of its own.")
        return self._present()

    def _present(self) -> set[str]:
        return {file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*") if file.is_file()}

    def _register(
        self,
        name: str,
        kind: Kind,
        path: str,
        files: list[str],
        columns: dict[str, str] | None = None,
        following: Following | None = None,
    ) -> None:
        with self.timed("hash artefacts"):
            digests = {
                file: (following and following.digest(self.folder / file)) or digest_of(self.folder / file)
                for file in files
            }
        self._artefacts[name] = Artefact(name, kind, path, digests, columns)

    def _finish(self) -> None:
        metrics = {}
        for name, value in self.metrics.items():
            if not isinstance(name, str) or not name:
                raise DataError(f"A metric must have a name, got {name!r}; name it in words.")
            metrics[name] = require_number(value, f"The metric {name!r}")
        odd = [f"{name} ({to_json(value)})" for name, value in metrics.items() if not math.isfinite(value)]
        notes = [str(note) for note in self.notes]
        if odd:
            notes.append(f"These metrics are not finite: {', '.join(odd)}.")
        outcome = Outcome(
            folder=self.folder,
            job=self._job,
            request=self._request,
            seed=self._seed,
            versions={
                "interbasin": __version__,
                "python": platform.python_version(),
                **{package: version(package) for package in ("torch", "numpy")},
            },
            inputs=self.inputs,
            metrics=metrics,
            timings=dict(self.timings),
            notes=tuple(notes),
            artefacts=tuple(self._artefacts.values()),
            started=self._started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - self._clock,
        )
        head = {"format": FORMAT_PREFIX + FORMAT, "version": VERSION}
        write_document(self.folder / DOCUMENT, {**head, **outcome.summary()})
