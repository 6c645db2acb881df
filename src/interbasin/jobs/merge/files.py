"""Merging on disk: a tensor at a time from checkpoint to checkpoint, so memory is needed for one tensor of each."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interbasin._version import __version__
from interbasin.errors import DataError, FileError, WiringError
from interbasin.jobs.merge.card import model_card
from interbasin.jobs.merge.combining import combined, source_of_counts
from interbasin.jobs.merge.configurations import check_configurations, donor_of, note_dtype
from interbasin.jobs.merge.matching import check_alike, check_numbers
from interbasin.jobs.merge.methods import METHODS
from interbasin.jobs.merge.numbers import STORED, Array, Numbers
from interbasin.jobs.merge.operands import Operands
from interbasin.jobs.merge.recipe import Recipe
from interbasin.jobs.merge.stored import Network, StoredNetwork
from interbasin.networks.checkpoints.base import Entry
from interbasin.networks.checkpoints.companions import companions, copy_companions
from interbasin.networks.checkpoints.dtypes import CODES, KINDS
from interbasin.networks.checkpoints.faults import listed
from interbasin.networks.checkpoints.layout import STEM, is_our_file
from interbasin.networks.checkpoints.streaming import in_file_order, stream_file, stream_into
from interbasin.outcome import Draft, InputFiles, new_outcome, refuse_outcome_in_the_way
from interbasin.outcome.hashes import Following, files_of
from interbasin.storage import as_path, new_file, refuse_file_in_the_way

if TYPE_CHECKING:  # with torch, which a merge from disk to disk does without
    from interbasin.jobs.merge.resetting import Resetting

__all__ = ["Merged", "merge_files", "refuse_in_the_way"]

CARD = "README.md"
# What a batch norm of torch calls the mean and variance of the batches it was trained on.
RUNNING = ("running_mean", "running_var")
MERGED_LIKE_WEIGHTS = (
    "are running statistics of batch norms, merged like weights, which fits no network in between; estimate them anew "
    "with reset= (--data DATA --reset 20)"
)


@dataclass(frozen=True)
class Merged:
    """What a merge left on disk.

    Attributes:
        path: The folder or file.
        method: How it was merged.
        request: What was asked, defaults filled in.
        metrics: ``tensors`` and ``parameters``, ``tensors_unchanged`` (the same in all networks), ``bytes``, ``files``.
        remarks: Sentences that a user of the network should know.
        seconds: How long it took.
    """

    path: Path
    method: str
    request: Mapping[str, Any]
    metrics: Mapping[str, float]
    remarks: tuple[str, ...]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """All of it, fit for JSON."""
        found = {**vars(self), "output": str(self.path), "remarks": list(self.remarks), "metrics": dict(self.metrics)}
        del found["path"]
        return found


def merge_files(
    models: Sequence[StoredNetwork],
    output: str | os.PathLike[str],
    recipe: Recipe,
    base: StoredNetwork | None = None,
    *,
    kind: str | None,
    align: tuple[str, str] | None,
    reset: Resetting | None,
    max_shard_bytes: int,
    force: bool,
    progress: Callable[[int], None] | None,
    started: float,
) -> Merged:
    """Write the merged network; see `interbasin.merge`.

    Args:
        align: The method that models were aligned by, and what to say about it.
        started: When the whole began, by ``time.perf_counter``.
    """
    target = as_path(output)
    alone = target.suffix == ".safetensors"
    networks = [*models, *([] if base is None else [base])]
    # All that can be refused is, before anything is read or written.
    refuse_in_the_way(target, networks, force)
    merging = Merging(networks, recipe, base is not None, kind, progress or (lambda done: None))
    merging.remarks += check_configurations(networks)
    merging.check()
    request = _request(recipe, models, base, kind)
    if align is not None:
        request["align"], told = align
        merging.remarks.append(told)
    if reset is not None:
        request["reset"] = reset.amount
        merging.replaced = _statistics(reset, merging)
        merging.remarks.append(
            f"The running statistics of batch norms were estimated anew, on {reset.amount}: they are those of the "
            "merged network."
        )
    if alone:
        _write_file(target, merging, request, force)
        files = 1
    else:
        files = _write_folder(target, merging, request, max_shard_bytes, force, started)
    return Merged(
        target,
        recipe.method,
        request,
        {**merging.metrics(), "files": files},
        tuple(merging.all_remarks()),
        time.perf_counter() - started,
    )


@dataclass(eq=False)
class Merging:
    """Networks on their way into one.

    Attributes:
        networks: The models and, if there is one, the base behind them.
        recipe: How.
        has_base: Whether the last network is the base.
        kind: The dtype that was asked for; None to keep the first model's.
        progress: Called with the number of tensors that are done.
        remarks: Sentences to tell.
        found: What methods met -> the tensors they met it in.
        unchanged: How many tensors were the same everywhere.
        replaced: Tensors that are known already, as bytes, and not merged.
    """

    networks: Sequence[Network]
    recipe: Recipe
    has_base: bool
    kind: str | None
    progress: Callable[[int], None]
    remarks: list[str] = field(default_factory=list)
    found: dict[str, list[str]] = field(default_factory=dict)
    unchanged: int = 0
    replaced: Mapping[str, Array] = field(default_factory=dict)

    @property
    def entries(self) -> dict[str, Entry]:
        """What will be stored, in the order in which it has to come."""
        first = self.networks[0]
        stored = {name: self._planned(entry) for name, entry in first.entries.items() if name not in first.ties}
        return in_file_order(stored)

    def check(self) -> None:
        """Refuse networks that cannot be merged.

        Raises:
            WiringError, ShapeError, DataError: see `check_alike`; and if what is tied in the first differs in another.
        """
        check_alike([(one.label, self._compared(one)) for one in self.networks])
        for one in self.networks:
            check_numbers(one.label, one.entries)
        for name, entry in self.entries.items():
            if entry.kind not in CODES:
                raise DataError(f"{name} is of {entry.kind}, which a safetensors file cannot hold; convert it first.")
        first, *others = self.networks
        for name, stored in first.ties.items():
            for other in others:
                if (
                    name in other.entries
                    and other.ties.get(name, name) != other.ties.get(stored, stored)
                    and not np.array_equal(other.bytes_of(name), other.bytes_of(stored))
                ):
                    raise WiringError(
                        f"{name} is tied to {stored} in {first.label}, and in {other.label} they differ; put the "
                        "network in which they differ first."
                    )

    def tensors(self) -> Iterator[tuple[str, Iterable[Array]]]:
        """The merged tensors, one after the other, in pieces."""
        for done, (name, entry) in enumerate(self.entries.items(), 1):
            if name in self.replaced:
                yield name, [self.replaced[name]]
            else:
                yield name, self._merged(name, entry.kind) if entry.kind in STORED else [self._count(name)]
            self.progress(done)

    def metrics(self) -> dict[str, float]:
        entries = self.entries.values()
        return {
            "tensors": len(entries),
            "parameters": sum(entry.numel for entry in entries),
            "tensors_unchanged": self.unchanged,
            "bytes": sum(entry.nbytes for entry in entries),
        }

    def all_remarks(self) -> list[str]:
        """Those of the whole, and those of tensors."""
        return [*self.remarks, *(f"{listed(names)} {what}." for what, names in self.found.items())]

    def _compared(self, network: Network) -> dict[str, Entry]:
        """Its tensors, without the second names of tied ones that another network leaves to its configuration."""
        return {
            name: entry
            for name, entry in network.entries.items()
            if name not in network.ties or all(name in other.entries for other in self.networks)
        }

    def _planned(self, entry: Entry) -> Entry:
        if self.kind is None or entry.kind not in STORED or entry.kind.startswith("complex"):
            return entry
        return Entry(self.kind, entry.shape, KINDS[CODES[self.kind]][1])

    def _merged(self, name: str, kind: str) -> Iterator[Array]:
        with ExitStack() as files:
            numbers = []
            for one in self.networks:
                entry, read = one.entries[name], files.enter_context(one.reading(name))
                numbers.append(Numbers.of_file(read, entry.nbytes, entry.kind))
            tensor = Operands(numbers[:-1], numbers[-1]) if self.has_base else Operands(numbers)
            yield from combined(name, tensor, self.recipe, kind, [one.label for one in self.networks])
        self.unchanged += not tensor.changed
        if tensor.changed and name.rpartition(".")[2] in RUNNING:
            self.found.setdefault(MERGED_LIKE_WEIGHTS, []).append(name)
        for remark in tensor.remarks:
            self.found.setdefault(remark, []).append(name)

    def _count(self, name: str) -> Array:
        """A tensor without real numbers, such as positions or a counter."""
        chosen = self.networks[source_of_counts(self.recipe)]
        values = chosen.bytes_of(name)
        if any(
            one.entries[name].kind == chosen.entries[name].kind and not np.array_equal(one.bytes_of(name), values)
            for one in self.networks
        ):
            self.found.setdefault("holds no real numbers and differs; it was taken from one model", []).append(name)
        return values


def _statistics(reset: Resetting, merging: Merging) -> dict[str, Array]:
    """The statistics of the merged network, for which it is merged once in memory."""
    once = replace(merging, kind=None, progress=lambda done: None, found={}, remarks=[])
    held = {
        name: np.concatenate([np.array(piece).reshape(-1).view(np.uint8) for piece in pieces])
        for name, pieces in once.tensors()
    }
    return reset.statistics(held, {name: entry.kind for name, entry in merging.entries.items()})


def _write_folder(
    target: Path, merging: Merging, request: Mapping[str, Any], max_shard_bytes: int, force: bool, started: float
) -> int:
    donor = donor_of([one for one in merging.networks if isinstance(one, StoredNetwork)])
    source = donor.checkpoint.folder if donor is not None else None
    copied = [] if source is None else companions(source)
    with (
        new_outcome(target, job="merge", request=request, force=force, elapsed=time.perf_counter() - started) as draft,
        ThreadPoolExecutor(1) as apart,
    ):
        # Hashing takes no lock of Python's: on a second core it costs no time.
        hashes = _hashed(apart, draft, merging)
        following = Following()
        with draft.filled("model", "checkpoint", following) as folder, following, draft.timed("merge"):
            files = stream_into(
                folder,
                merging.entries,
                merging.tensors(),
                stem=STEM,
                ties=merging.networks[0].ties,
                copied=copied,
                notes={"format": "pt"},
                max_shard_bytes=max_shard_bytes,
                written=following.reached,
            )
            if source is not None:
                copy_companions(copied, source, folder)
            if merging.kind is not None:
                note_dtype(folder, merging.kind)
        inputs = [one.result() for one in hashes]
        draft.metrics |= {**merging.metrics(), "files": files}
        draft.notes += merging.all_remarks()
        draft.text(CARD, _card(target, merging, request, inputs, "config.json" in copied))
    return files


def _write_file(target: Path, merging: Merging, request: Mapping[str, Any], force: bool) -> None:
    inputs = {one.label: files_of(one.label).sha256 for one in merging.networks}
    notes = {"format": "pt", "merge": json.dumps({**request, "sha256": inputs})}
    with new_file(target, force=force, ours=is_our_file) as temporary:
        stream_file(temporary, merging.entries, merging.tensors(), ties=merging.networks[0].ties, notes=notes)


def _hashed(apart: ThreadPoolExecutor, draft: Draft, merging: Merging) -> list[Future[InputFiles]]:
    names = [f"model {number + 1}" for number in range(len(merging.networks))]
    if merging.has_base:
        names[-1] = "base"
    return [apart.submit(draft.add_input, name, one.label) for name, one in zip(names, merging.networks, strict=True)]


def _card(
    target: Path,
    merging: Merging,
    request: Mapping[str, Any],
    inputs: Sequence[InputFiles],
    of_transformers: bool,
) -> str:
    models = inputs[:-1] if merging.has_base else inputs
    return model_card(
        target.name,
        merging.recipe,
        models,
        inputs[-1] if merging.has_base else None,
        kind=merging.kind,
        align=request.get("align"),
        reset=request.get("reset"),
        metrics=merging.metrics(),
        remarks=merging.all_remarks(),
        versions={"interbasin": __version__, "Python": platform.python_version(), "NumPy": version("numpy")},
        of_transformers=of_transformers,
    )


def _request(
    recipe: Recipe, models: Sequence[StoredNetwork], base: StoredNetwork | None, kind: str | None
) -> dict[str, Any]:
    takes = METHODS[recipe.method].takes
    options = {name: value for name, value in vars(recipe).items() if name in takes}
    if "weights" in options:
        options["weights"] = list(recipe.weights)
    return {
        "models": [one.label for one in models],
        "method": recipe.method,
        **options,
        "base": None if base is None else base.label,
        "dtype": kind,
    }


def refuse_in_the_way(target: str | os.PathLike[str], networks: Sequence[StoredNetwork], force: bool) -> None:
    """Refuse a destination that is taken, or that is one of the networks."""
    path = as_path(target)
    _keep_apart(path, networks)
    if path.suffix == ".safetensors":
        refuse_file_in_the_way(path, force=force, ours=is_our_file)
    else:
        refuse_outcome_in_the_way(path, force=force)


def _keep_apart(target: Path, networks: Sequence[StoredNetwork]) -> None:
    """Refuse a destination that is one of the inputs, or lies in one, or holds one."""
    new = Path(os.path.realpath(target))
    for one in networks:
        old = Path(os.path.realpath(one.checkpoint.path))
        if new == old or new.is_relative_to(old) or old.is_relative_to(new):
            raise FileError(
                f"Asked to write the merged network to {target}, where {one.label} is, which it is made from; choose "
                "another name."
            )
