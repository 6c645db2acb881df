"""Statistics and maps of two bases once; then any fine-tune of the source costs only products."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from interbasin.activations import Recording, Tokens, record
from interbasin.activations.pairing import MaskOf
from interbasin.activations.recording import fingerprint
from interbasin.batches import Progress, WithoutLabels, require_reiterable
from interbasin.checks import require_choice, require_finite
from interbasin.correspondence import Correspondence
from interbasin.errors import DataError, FileError
from interbasin.jobs.transport.bases import Bases, Depth, Heads, Outputs, relate
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.rules import Unobserved
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.update import Update
from interbasin.storage import new_folder, read_record, write_record

VERSION = 1
NAME = "prepared"


@dataclass(frozen=True, eq=False)
class PreparedTransport:
    """What two base networks show on the same inputs, ready to carry updates of the first to the second.

    Attributes:
        bases: The networks and their correspondence.
        recording: What was recorded.
        options: How maps are made of it.
    """

    bases: Bases
    recording: Recording
    options: Options

    def apply(self, tuned: Any, alpha: float = 1.0) -> Transported:
        """The update of a fine-tune of the source, for the target, times ``alpha``, by the isometries of all spaces.

        Only products are computed. Nothing is measured: `interbasin.transport` judges, on data.

        Args:
            tuned: As for `interbasin.transport`.
            alpha: What the update is multiplied with.
        """
        alpha = require_finite("alpha", alpha, least=-100, most=100)
        update = Update.of(tuned, self.bases.source)
        task = Task(self.bases, update, self.bases.source, None, options=self.options, recorded=self.recording.moments)
        found = METHODS["theseus"].function(task, "spaces")
        return Transported(found.update.scaled(alpha), found.moved, found.maps, notes=found.notes)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the statistics and the correspondence to a new folder, whole or not at all; the networks stay out."""
        with new_folder(folder, (NAME, "recording", "correspondence"), force=force, ours=_is_ours) as temporary:
            document = {
                "options": asdict(self.options),
                "heads": self.bases.heads,
                "shares_outputs": self.bases.shares_outputs,
                "networks": [fingerprint(network) for network in (self.bases.source, self.bases.target)],
            }
            write_record(Path(temporary), NAME, NAME, VERSION, document, {})
            self.recording.save(Path(temporary) / "recording")
            self.bases.correspondence.save(Path(temporary) / "correspondence")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], source: nn.Module, target: nn.Module) -> PreparedTransport:
        """What was saved to ``folder``, for the same two networks.

        Raises:
            FileError: if the folder holds something else, or is damaged.
            DataError: if it was prepared for other networks.
        """
        document, _ = read_record(folder, NAME, NAME, VERSION)
        try:
            options = Options(**document["options"])
            heads: Literal["matched", "free"] = document["heads"]
            shared, known = bool(document["shares_outputs"]), list(document["networks"])
        except (KeyError, TypeError) as error:
            raise FileError(f"What was prepared in {folder} is damaged ({error}); prepare it anew.") from error
        for side, network, saved in zip(("source", "target"), (source, target), known, strict=True):
            if fingerprint(network) != saved:
                raise DataError(
                    f"What was prepared in {folder} is for another {side} ({saved.get('class')} with other tensors); "
                    "give the network that it was prepared with, or prepare it anew."
                )
        correspondence = Correspondence.load(Path(folder) / "correspondence")
        recording = Recording.load(Path(folder) / "recording")
        return cls(Bases(source, target, correspondence, heads, shared), recording, options)


def _is_ours(folder: Path) -> bool:
    return (folder / f"{NAME}.json").is_file()


def prepare_transport(
    source: nn.Module,
    target: nn.Module,
    data: Any,
    *,
    scale: str = "none",
    outputs: Outputs = "auto",
    centered: bool = True,
    tokens: str | Tokens | None = "interpolate2d",
    mask: MaskOf = None,
    unobserved: Unobserved = "complete",
    heads: Heads = "auto",
    depth: Depth = "auto",
    correspondence: Correspondence | Mapping[str, Any] | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: Progress = None,
) -> PreparedTransport:
    """Record two base networks once, so that any fine-tune of the source can be carried to the target.

    Args:
        source, target: The base models.
        data: Inputs, without labels or with.
        state: A folder to keep the state of the recording in: a run that was killed goes on from there.
        progress: True for a bar on stderr, or a function of how many batches are done.
        scale, outputs, centered, tokens, mask, unobserved, heads, depth, correspondence: As for
            `interbasin.transport`.

    Example:
        >>> import torch
        >>> nets = [nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, 2)) for n in (8, 12)]
        >>> prepared = prepare_transport(*nets, torch.randn(64, 4))
        >>> prepared.apply({"2.bias": torch.ones(2)}).update.tensor("2.bias")
        tensor([1., 1.])
    """
    require_choice("scale", scale, ("none", "rms"))
    require_reiterable(data, "Transport")
    bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
    options = Options(centered, scale, unobserved, tokens, mask)
    recording = record(
        (source, target),
        WithoutLabels(data),
        Task(bases, Update(), source, None).sought.recorded,
        wirings=bases.wirings if source is not target else (bases.wirings[0],),
        grams=False,
        tokens=tokens,
        mask=mask,
        progress=progress,
        state=state,
    )
    return PreparedTransport(bases, recording, options)
