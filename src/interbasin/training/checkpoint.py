"""A training on disk: written every so often, so that a run that was killed goes on to the same result.

The folder holds one record, ``training.json`` and ``training.safetensors``, which is replaced as a whole: a kill at any
moment leaves the old one or the new one. What the record says about a run is the business of `interbasin.training.run`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from interbasin.checks import require_finite, require_whole
from interbasin.errors import DataError, FileError
from interbasin.storage.atomic import new_folder
from interbasin.storage.destination import as_path, is_ours, refuse_what_is_in_the_way
from interbasin.storage.lock import discard_folder
from interbasin.storage.records import read_record, write_record

NAME, FORMAT, VERSION = "training", "training", 1
SECONDS = 60.0


class Checkpoint:
    """Where a training is kept, and how often it is written.

    A training that is given a checkpoint of the same run goes on from it. When the training is done, the folder holds
    its end, so a job of several trainings that is killed later does not repeat this one. Remove it with `remove` when
    the job is done.

    Args:
        folder: Nothing else may be in it.
        fingerprint: What the run is of: its data, its networks and its options, in any text that is equal for equal
            runs. `train` adds what it knows itself, such as shapes, rates and numbers of steps.
        seconds: Write after this many seconds; 60 where ``steps`` is not given either.
        steps: Write after this many steps. With both, whichever comes first.

    Raises:
        DataError, FileError: if an argument cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        fingerprint: str = "",
        *,
        seconds: float | None = None,
        steps: int | None = None,
    ) -> None:
        self.folder = as_path(folder, "The folder of a checkpoint")
        if not isinstance(fingerprint, str):
            raise DataError(f"fingerprint must be text, got a {type(fingerprint).__name__}; try str(...) of it.")
        self.fingerprint = fingerprint
        self.seconds = SECONDS if seconds is None and steps is None else seconds
        if self.seconds is not None:
            require_finite("seconds", self.seconds, least=0)
        self.steps = None if steps is None else require_whole("steps", steps, least=1)
        self._written_at, self._written_step = time.monotonic(), 0

    def read(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The document and the tensors that were last written; None if there are none yet.

        Args:
            request: What `train` was asked for; has to be what the checkpoint was begun with.

        Raises:
            FileError: if the folder holds something else, another run, or files that are damaged.
        """
        if not os.path.lexists(self.folder) or (self.folder.is_dir() and not any(self.folder.iterdir())):
            refuse_what_is_in_the_way(self.folder, force=False)
            return None
        try:
            document, tensors = read_record(self.folder, NAME, FORMAT, VERSION)
        except FileError as error:
            raise self.damage_error(str(error).rstrip(".")) from error
        if document.get("fingerprint") != self.fingerprint:
            raise self._other_run_error(
                f"its fingerprint is {document.get('fingerprint')!r}, and this one's {self.fingerprint!r}"
            )
        begun = document.get("request")
        if not isinstance(begun, dict):
            raise self.damage_error("it does not say what it was begun with")
        differences = [name for name in request if begun.get(name) != request[name]]
        if differences:
            name = differences[0]
            raise self._other_run_error(
                f"it was begun with {name} = {begun.get(name)!r}, and now it is {request[name]!r}"
            )
        return document, tensors

    def is_due(self, step: int) -> bool:
        """Whether it is time to write again."""
        return (self.steps is not None and step - self._written_step >= self.steps) or (
            self.seconds is not None and time.monotonic() - self._written_at >= self.seconds
        )

    def start(self, step: int) -> None:
        """Count steps and seconds from now."""
        self._written_at, self._written_step = time.monotonic(), step

    def write(self, request: Mapping[str, Any], document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replace what was written before.

        Raises:
            FileError: if that cannot be done; what was there stays.
        """
        whole = {"fingerprint": self.fingerprint, "request": dict(request), **document}
        with new_folder(self.folder, [NAME], force=True) as temporary:
            write_record(temporary, NAME, FORMAT, VERSION, whole, tensors)

    def remove(self) -> None:
        """Remove the folder; nothing happens where there is none.

        Raises:
            FileError: if it holds something else.
        """
        if not self.folder.is_dir():
            return
        if any(self.folder.iterdir()) and not is_ours(self.folder, [NAME]):
            raise FileError(
                f"Asked to remove the checkpoint {self.folder}, but that folder holds other files; remove it yourself."
            )
        discard_folder(self.folder)

    def damage_error(self, reason: str) -> FileError:
        """The error for a checkpoint that cannot be read."""
        return FileError(
            f"A training was to go on from the checkpoint {self.folder}, which cannot be used ({reason}); remove that "
            "folder to start anew, or choose another."
        )

    def _other_run_error(self, reason: str) -> FileError:
        return FileError(
            f"The checkpoint {self.folder} is of another run ({reason}), so this one cannot go on from it; remove that "
            "folder to start anew, or choose another."
        )
