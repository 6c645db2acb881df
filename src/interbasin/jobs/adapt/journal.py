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
from interbasin.storage.journal import Kept, no_state, state_folder

NAME, FORMAT, VERSION = "answer", "adapt-answer", 1
OURS = re.compile(r"(answer|training|run)-[0-9a-f]{16}")


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
        kept, place = Kept(self.folder, NAME, FORMAT, VERSION), f"{NAME}-{_short(key)}"
        if (record := kept.read(place)) is not None:
            document, tensors = record
            return Answer(tensors["outputs"], tensors.get("features"), document["seconds"], document["steps"])
        answer = compute()
        if int(os.environ.get("RANK", "0")):  # of several processes, which all have this answer, the first one writes
            return answer
        tensors = {"outputs": answer.outputs}
        if answer.features is not None:
            tensors["features"] = answer.features
        kept.write(place, {"seconds": dict(answer.seconds), "steps": answer.steps}, tensors)
        return answer


def find_place(state: str | os.PathLike[str] | None) -> Path | None:
    """The folder of a journal, which is empty, not there, or one of ours.

    Raises:
        FileError: if anything else is there.
    """
    if state is None:
        return None
    return state_folder(state, "The state of an adaptation", OURS)


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
        raise no_state(place, error) from error
    return Journal(place)


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
