"""What a transport has done so far, in a folder: a run that was killed goes on from there, to the same bytes.

What takes long is kept: what the bases were recorded to show, the layers that a regression has fitted, the rows of a
comparison, and the maps of a transport on disk. Each stands in a folder of its own, named after a hash of all that it
depends on (networks and some of their answers, data, options, the version of this package), so that a run finds what is
its own and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from interbasin._version import __version__
from interbasin.activations.recording import digest_of, fingerprint
from interbasin.batches import BATCH_SIZE, as_batches, cut_inputs, inputs_in, outputs_of, split_batch
from interbasin.checkpoints.lora import Factors
from interbasin.storage.journal import Kept, holding_folder, state_folder
from interbasin.wiring.trace.calls import output_tensors
from interbasin.wiring.trace.copying import forget_what_was_derived

if TYPE_CHECKING:
    from interbasin.jobs.transport.regression.layers import Layer
    from interbasin.jobs.transport.regression.sequence import LayerFit
    from interbasin.jobs.transport.result import ComparedRow

NAME, FORMAT, VERSION = "stage", "fitted-stage", 1
ROW, ROW_FORMAT = "row", "compared-row"
OURS = re.compile(r"(recorded|fitted|compared|maps)-[0-9a-f]{16}")

Given = ParamSpec("Given")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Journal:
    """The folder of one run.

    Raises:
        FileError: if the folder holds anything else, or is a file.
    """

    folder: Path

    @classmethod
    def at(cls, folder: str | os.PathLike[str]) -> Journal:
        """The journal in a folder, which need not be there yet."""
        return cls(state_folder(folder, "The state of a transport", OURS))

    def recording(self, networks: Sequence[nn.Module], data: Any, **options: Any) -> Path:
        """The folder for the state of a recording; see ``state`` of `interbasin.activations.record`."""
        return self.folder / f"recorded-{_hash(networks, [data], options)}"

    def maps(self, networks: Sequence[nn.Module], data: Any, **options: Any) -> Path:
        """The folder for the maps of a transport on disk."""
        return self.folder / f"maps-{_hash(networks, [data], options)}"

    def stages(
        self,
        networks: Sequence[nn.Module],
        data: Sequence[Any],
        model: nn.Module,
        factors: dict[str, Factors],
        **options: Any,
    ) -> StageJournal:
        """The stages of a regression that changes ``model`` and fills ``factors``."""
        return StageJournal(self.folder / f"fitted-{_hash(networks, data, options)}", model, factors)

    def rows(self, networks: Sequence[nn.Module], data: Sequence[Any], **options: Any) -> RowJournal:
        """The rows of a comparison; labels in the data count, for some rows are fitted to them."""
        return RowJournal(self.folder / f"compared-{_hash(networks, data, options, labelled=True)}")


def holding_state(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """``function(..., state=)`` that has its state for itself while it runs."""

    @functools.wraps(function)
    def run(*arguments: Given.args, **options: Given.kwargs) -> Value:
        state: Any = options.get("state")
        with contextlib.nullcontext() if state is None else holding_folder(Journal.at(state).folder):
            return function(*arguments, **options)

    return run


@dataclass
class StageJournal:
    """What each stage of a regression changed.

    Attributes:
        folder: One folder for each stage is in it.
        model: The network that is fitted.
        factors: Of low-rank updates, so far.
    """

    folder: Path
    model: nn.Module
    factors: dict[str, Factors]
    _digests: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._digests = self._compute_digests()

    def restore(self, number: int, stage: Sequence[Layer]) -> list[LayerFit] | None:
        """Take up a stage that was kept: what was fitted in it, or None if it was not kept whole."""
        from interbasin.jobs.transport.regression.sequence import LayerFit

        if (record := self._kept.read(f"{NAME}-{number}")) is None:
            return None
        document, tensors = record
        try:
            layers = [LayerFit(layer=stage[place], **figures) for place, figures in document["fitted"]]
            changed, lost = list(document["changed"]), dict(document["lost"])
        except (KeyError, TypeError, IndexError):  # it is fitted again
            return None
        state = self.model.state_dict()
        with torch.no_grad():
            for place, name in enumerate(changed):
                state[name].copy_(tensors[f"tensor.{place}"])
        for place, (name, share) in enumerate(lost.items()):
            self.factors[name] = Factors(tensors[f"a.{place}"], tensors[f"b.{place}"], share)
        forget_what_was_derived(self.model)
        self._digests = self._compute_digests()
        return layers

    def keep(self, number: int, stage: Sequence[Layer], fitted: Iterable[LayerFit], before: Iterable[str]) -> None:
        """Keep a stage; ``before`` are the names that had factors when it began."""
        digests = self._compute_digests()
        changed = [name for name, digest in digests.items() if self._digests[name] != digest]
        self._digests = digests
        earlier, state = set(before), self.model.state_dict()
        added = {name: pair for name, pair in self.factors.items() if name not in earlier}
        tensors: dict[str, Tensor] = {f"tensor.{place}": state[name] for place, name in enumerate(changed)}
        for place, pair in enumerate(added.values()):
            tensors |= {f"a.{place}": pair.a, f"b.{place}": pair.b}
        places = {id(layer): place for place, layer in enumerate(stage)}
        rows = [
            [
                places[id(each.layer)],
                {part.name: getattr(each, part.name) for part in fields(each) if part.name != "layer"},
            ]
            for each in fitted
        ]
        document = {"fitted": rows, "changed": changed, "lost": {name: pair.lost for name, pair in added.items()}}
        self._kept.write(f"{NAME}-{number}", document, tensors)

    @property
    def _kept(self) -> Kept:
        return Kept(self.folder, NAME, FORMAT, VERSION)

    def _compute_digests(self) -> dict[str, str]:
        return {name: digest_of(tensor) for name, tensor in self.model.state_dict().items()}


@dataclass(frozen=True)
class RowJournal:
    """The rows of a comparison that are done: one folder for each method and variant is in ``folder``."""

    folder: Path

    def restore(self, method: str, variant: str) -> ComparedRow | None:
        """A row that was kept, or None if it was not kept whole."""
        from interbasin.jobs.transport.result import ComparedRow

        if (record := self._kept.read(_place(method, variant))) is None:
            return None
        words, figures = record
        try:
            numbers = {name: float(figure) for name, figure in figures.items()}
            return ComparedRow(words["method"], tuple(words["needs"]), note=words["note"], **_WITHOUT | numbers)
        except (KeyError, TypeError, ValueError):  # it is tried again
            return None

    def keep(self, method: str, variant: str, row: ComparedRow) -> None:
        """Keep a row. Numbers are kept as tensors, in which infinity and NaN have a place as well."""
        values = {each.name: getattr(row, each.name) for each in fields(row)}
        words = {name: values.pop(name) for name in ("method", "needs", "note")}
        figures = {
            name: torch.tensor(value, dtype=torch.float64) for name, value in values.items() if value is not None
        }
        self._kept.write(_place(method, variant), words, figures)

    @property
    def _kept(self) -> Kept:
        return Kept(self.folder, ROW, ROW_FORMAT, VERSION)


def _place(method: str, variant: str) -> str:
    return f"{ROW}-{method}-{variant}".rstrip("-")


_WITHOUT: dict[str, Any] = {"norm_ratio": None}  # what a row must be told, though there may be none


def _hash(
    networks: Sequence[nn.Module], data: Sequence[Any], options: Mapping[str, Any], *, labelled: bool = False
) -> str:
    functions = {name: value for name, value in options.items() if callable(value)}  # a mask, of each batch
    digests = []
    for batches in data:
        digest = ""
        for number, whole in enumerate(() if batches is None else as_batches(batches, BATCH_SIZE)):
            batch, labels = split_batch(whole)
            # Of a function it counts what it answers: another one may have the same name. So it does of networks.
            answers = [function(batch) for function in functions.values()]
            answers += [_answer(network, batch) for network in networks] if number == 0 else []
            digest = digest_of([batch, *answers, *([labels] if labelled else [])], digest)
        digests.append(digest)
    words = {name: "a function" if name in functions else repr(value) for name, value in options.items()}
    described = [[fingerprint(network) for network in networks], digests, words, __version__]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _answer(network: nn.Module, batch: Any) -> list[Tensor]:
    """What a network answers to the first two inputs of a batch."""
    count = inputs_in(batch)
    with torch.no_grad():
        return output_tensors(outputs_of(network, cut_inputs(batch, slice(0, 2), count), 0))
