"""What an adaptation has done so far, in a folder: a run that was killed goes on from there, to the same result."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from interbasin._version import __version__
from interbasin.activations.recording import digest_of, fingerprint
from interbasin.errors import FileError
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.validation import Answer
from interbasin.storage import as_path, new_folder, read_record, write_record
from interbasin.storage.atomic import TEMPORARY

NAME, FORMAT, VERSION = "answer", "adapt-answer", 1
OURS = re.compile(rf"(answer|training)-[0-9a-f]{{16}}|run-[0-9a-f]{{16}}|lock|{re.escape(TEMPORARY)}.*")


@dataclass(frozen=True)
class Journal:
    """Answers of fitted models that are done, for one setup. Made by `open_journal`."""

    folder: Path | None

    def count_done(self) -> int:
        """How many answers there are."""
        return 0 if self.folder is None else sum(name.startswith(f"{NAME}-") for name in _names_in(self.folder))

    def recall(self, key: object, compute: Callable[[], Answer]) -> Answer:
        """What was kept under a key, or what is computed now, and kept."""
        if self.folder is None:
            return compute()
        place = self.folder / f"{NAME}-{_short(key)}"
        try:
            document, tensors = read_record(place, NAME, FORMAT, VERSION, sealed=True)
            return Answer(tensors["outputs"], tensors.get("features"), document["seconds"], document["steps"])
        except (FileError, KeyError):  # not there, not whole, or edited: it is done now
            pass
        answer = compute()
        if int(os.environ.get("RANK", "0")):  # of several processes, which all have this answer, the first one writes
            return answer
        tensors = {"outputs": answer.outputs}
        if answer.features is not None:
            tensors["features"] = answer.features
        with new_folder(place, force=True, ours=_is_answer) as folder:
            document = {"seconds": dict(answer.seconds), "steps": answer.steps}
            write_record(folder, NAME, FORMAT, VERSION, document, tensors, sealed=True)
        return answer


def find_place(state: str | os.PathLike[str] | None) -> Path | None:
    """The folder of a journal, which is empty, not there, or one of ours.

    Raises:
        FileError: if anything else is there.
    """
    if state is None:
        return None
    place = as_path(state, "The state of an adaptation")
    try:
        is_there = place.exists()
        above = next(folder for folder in place.absolute().parents if folder.exists())
    except (OSError, ValueError) as error:
        raise _no_place(place, error) from error
    if is_there and not place.is_dir():
        raise FileError(f"The state was to be kept in {place}, which is a file; choose another place.")
    if not is_there and place.is_symlink():
        raise FileError(f"The state was to be kept in {place}, a link that leads nowhere; choose another place.")
    if not os.access(place if is_there else above, os.W_OK | os.X_OK):
        raise FileError(f"The state was to be kept in {place}, where nothing can be written; choose another place.")
    others = sorted(name for name in _names_in(place) if not OURS.fullmatch(name))
    if others:
        raise FileError(f"The state was to be kept in {place}, which holds other things ({others[0]}); choose another.")
    return place


def _names_in(place: Path) -> list[str]:
    return [path.name for path in place.iterdir()] if place.is_dir() else []


def open_journal(state: str | os.PathLike[str] | None, setup: Setup, test: Tensor | None) -> Journal:
    """The journal of a run in a folder, or one that keeps nothing.

    Raises:
        FileError: if the folder holds another run, or anything else.
    """
    place = find_place(state)
    if place is None:
        return Journal(None)
    mark = f"run-{_identity(setup, test)}"
    begun = [name for name in _names_in(place) if name.startswith("run-")]
    if begun and begun != [mark]:
        raise FileError(
            f"{place} holds the state of another run: the source, the data, the settings or the version differ; give "
            "the same again, or another folder."
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / mark).touch()
    except OSError as error:
        raise _no_place(place, error) from error
    return Journal(place)


def _no_place(place: Path, error: Exception) -> FileError:
    return FileError(f"The state was to be kept in {str(place)!r}, which cannot be ({error}); choose another place.")


def _identity(setup: Setup, test: Tensor | None) -> str:
    head = setup.head.linear
    tensors = [setup.features, head.weight, head.bias, setup.body_inputs, setup.samples.inputs, setup.labels]
    tensors += [setup.proxy_labels, setup.embedding_means, setup.bank.body_inputs, setup.bank.labels]
    fittings = setup.source.fittings
    optional = (fittings.prefix, fittings.positions, setup.unlabelled, test)
    tensors += [part for part in optional if part is not None]
    described = [
        digest_of(tensors),
        fingerprint(setup.source.body),
        [None if part is None else fingerprint(part) for part in (setup.embedder, fittings.patch, fittings.norm)],
        asdict(setup.settings),
        [setup.task.kind, *(part is None for part in optional), setup.source.layout, repr(setup.source.pool)],
        setup.seed,
        __version__,
        torch.__version__,
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _short(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _is_answer(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= {f"{NAME}.json", f"{NAME}.safetensors"}
