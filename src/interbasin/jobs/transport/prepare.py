"""Statistics and maps of two bases once; then any fine-tune of the source costs only products."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from interbasin.activations import Recording, Tokens, record
from interbasin.activations.pairing import MaskOf
from interbasin.activations.recording import HASHES, fingerprint
from interbasin.batches import Progress, WithoutLabels, require_reiterable
from interbasin.checks import require_choice, require_finite
from interbasin.correspondence import Correspondence
from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.jobs.transport.bases import Bases, Depth, Heads, Outputs, Pair, relate
from interbasin.jobs.transport.blocks import Filling, Lengthening
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.networks import require_inputs, require_network, require_numbers
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.theseus.by_weights import maps_by_weights
from interbasin.jobs.transport.theseus.rules import SpaceMap, Unobserved
from interbasin.jobs.transport.updates.fine_tunes import read_fine_tune
from interbasin.jobs.transport.updates.ties import refuse_names_apart
from interbasin.jobs.transport.updates.update import Update
from interbasin.storage import new_folder, read_record, write_record
from interbasin.wiring.trace.copying import leaving_buffers

VERSION = 1
NAME = "prepared"


@dataclass(frozen=True, eq=False)
class PreparedTransport:
    """What two base networks show on the same inputs, ready to carry updates of the first to the second.

    Attributes:
        bases: The networks and their correspondence.
        recording: What was recorded; None where maps come from the weights.
        options: How maps are made of it.
    """

    bases: Bases
    recording: Recording | None
    options: Options

    @property
    def variant(self) -> str:
        """Of theseus: what maps are made of."""
        return "weights" if self.recording is None else "spaces"

    def task(self, update: Update) -> Task:
        """The task of carrying an update of `bases.source`."""
        recorded = None if self.recording is None else self.recording.moments
        return Task(self.bases, update, self.bases.source, None, options=self.options, recorded=recorded)

    @property
    def maps(self) -> Mapping[Pair, SpaceMap]:
        """The map of every pair of spaces."""
        return maps_by_weights(self.bases) if self.recording is None else self.task(Update()).maps()

    def apply(
        self,
        tuned: Any,
        alpha: float = 1.0,
        *,
        merge: str = "task-arithmetic",
        merge_weights: Sequence[float] | None = None,
        density: float | None = None,
    ) -> Transported:
        """The update of a fine-tune of the source, for the target, times ``alpha``, by the isometries of all spaces.

        Only products are computed. Nothing is measured: `interbasin.transport` judges, on data.

        Args:
            tuned: As for `interbasin.transport`.
            alpha: What the update is multiplied with.
            merge, merge_weights, density: Of several fine-tunes, as for `interbasin.transport`.

        Raises:
            WiringError: if a tensor that is tied in the source has different updates under its names.
        """
        alpha = require_finite("alpha", alpha, least=-100, most=100)
        update = read_fine_tune(tuned, self.bases.given_source, merge=merge, weights=merge_weights, density=density)
        refuse_names_apart(update, self.bases.given_source)
        update = self.bases.lengthen(update)
        transported = METHODS["theseus"].function(self.task(update), self.variant)
        notes = (*update.notes, *self.bases.notes, *transported.notes)
        return Transported(transported.update.scaled(alpha), transported.moved, transported.maps, notes=notes)

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the statistics and the correspondence to a new folder, whole or not at all; the networks stay out."""
        if callable(self.options.mask):
            raise DataError(
                "The mask that these networks were recorded with is a function, and functions cannot be stored; "
                "prepare them with a mask in the batches (as attention_mask), or keep what was prepared in memory."
            )
        lengthening = self.bases.lengthening
        with new_folder(folder, (NAME, "recording", "correspondence"), force=force, ours=_is_ours) as temporary:
            document = {
                "options": asdict(self.options),
                "heads": self.bases.heads,
                "shares_outputs": self.bases.shares_outputs,
                "networks": [fingerprint(network) for network in (self.bases.given_source, self.bases.target)],
                "hashes": HASHES,
                "variant": self.variant,
                "fillings": [] if lengthening is None else [asdict(filling) for filling in lengthening.fillings],
            }
            write_record(Path(temporary), NAME, NAME, VERSION, document, {})
            if self.recording is not None:
                self.recording.save(Path(temporary) / "recording")
            self.bases.correspondence.save(Path(temporary) / "correspondence")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], source: nn.Module, target: nn.Module) -> PreparedTransport:
        """What was saved to ``folder``, for the same two networks.

        Raises:
            FileError: if the folder holds something else, or is damaged.
            DataError: if it was prepared for other networks, or one is no network.
        """
        for side, network in (("source", source), ("target", target)):
            require_network(network, side)
        document, _ = read_record(folder, NAME, NAME, VERSION)
        try:
            options = Options(**document["options"]).check()
            require_choice("heads", document["heads"], ("matched", "free"))
            heads: Literal["matched", "free"] = document["heads"]
            shared, known = bool(document["shares_outputs"]), [dict(saved) for saved in document["networks"]]
            variant = require_choice("variant", document.get("variant", "spaces"), ("spaces", "weights"))
            if len(known) != 2:
                raise ValueError(f"{len(known)} networks instead of two")
            fillings = tuple(
                Filling(tuple(filling["blocks"]), int(filling["depth"])) for filling in document.get("fillings", ())
            )
        except (KeyError, TypeError, ValueError, DataError, UnknownNameError) as error:
            raise FileError(f"What was prepared in {folder} is damaged ({error}); prepare it anew.") from error
        if document.get("hashes") != HASHES:
            raise FileError(
                f"What was prepared in {folder} is of an older version, and cannot tell whether it is for these "
                "networks; prepare it anew."
            )
        for side, network, saved in zip(("source", "target"), (source, target), known, strict=True):
            if fingerprint(network) != saved:
                raise DataError(
                    f"What was prepared in {folder} is for another {side} ({saved.get('class')} with other tensors or "
                    "settings); give the network that it was prepared with, or prepare it anew."
                )
        correspondence = Correspondence.load(Path(folder) / "correspondence")
        recording = Recording.load(Path(folder) / "recording") if variant == "spaces" else None
        lengthening = Lengthening(source, fillings) if fillings else None
        longer = source if lengthening is None else lengthening.model(source)
        return cls(Bases(longer, target, correspondence, heads, shared, None, lengthening), recording, options)


def _is_ours(folder: Path) -> bool:
    return (folder / f"{NAME}.json").is_file()


@leaving_buffers
def prepare_transport(
    source: nn.Module,
    target: nn.Module,
    data: Any = None,
    *,
    variant: Literal["spaces", "weights"] = "spaces",
    inputs: Any = None,
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
        data: Inputs, without labels or with; none are needed for ``variant="weights"``.
        variant: ``"spaces"``: maps from what both networks show on the data; ``"weights"``: from their weights alone.
        inputs: An example of what the networks are called with, one batch of any numbers, where there are no data: the
            networks are traced on it.
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
    require_choice("variant", variant, ("spaces", "weights"))
    options = Options(centered, scale, unobserved, tokens, mask).check()
    if not (progress is None or callable(progress) or isinstance(progress, bool)):
        raise DataError(f"progress is True or a function of a number of batches, found {type(progress).__name__}.")
    if data is None:
        depth = _without_data(variant, inputs, depth)
        data = [inputs]
    require_reiterable(data, "Transport")
    require_numbers(source, "source")
    require_numbers(target, "target")
    require_inputs(WithoutLabels(data).first())
    bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
    if variant == "weights":
        maps_by_weights(bases)
        return PreparedTransport(bases, None, options)
    recording = record(
        (bases.source, target),
        WithoutLabels(data),
        Task(bases, Update(), bases.source, None).needed_maps.pairs_to_record,
        wirings=bases.wirings if bases.source is not target else (bases.wirings[0],),
        grams=False,
        tokens=tokens,
        mask=mask,
        progress=progress,
        state=state,
    )
    return PreparedTransport(bases, recording, options)


def _without_data(variant: str, inputs: Any, depth: Depth) -> Depth:
    """How blocks are paired where there are no data; refuses what cannot be done without."""
    if variant != "weights":
        raise DataError("Maps from activations need data; give some, or variant='weights' and an example as inputs=.")
    if inputs is None:
        raise DataError("The networks are traced on an example of their inputs; give one batch as inputs=, or data.")
    if depth == "cka":
        raise DataError("depth='cka' compares activations on data, and there are none; give some, or depth='even'.")
    return "even" if depth == "auto" else depth
