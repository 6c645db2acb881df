"""What was recorded, and how it is kept in files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from interbasin.counting import counted
from interbasin.errors import FileError, UnknownNameError
from interbasin.networks.recording.plan import Key, Plan
from interbasin.statistics import LayerwiseMoments, PairedMoments
from interbasin.statistics.accumulation import Accumulator, named_sides
from interbasin.statistics.files import restored
from interbasin.statistics.moments import SOURCE, TARGET
from interbasin.storage import new_folder, read_record, write_record

__all__ = ["HOLDS", "Recording", "load_sums", "save_sums"]

FORMAT, VERSION, NAME = "recording", 1, "recording"
HOLDS = (NAME,)
SHOWN = 6  # pairs that are named where another was asked for

Pair = tuple[str, str]
Value = TypeVar("Value")


class _ByPair(dict[Pair, Value]):
    """What was recorded, by the names of source and target; another pair is an error that names the nearest."""

    def __missing__(self, pair: object) -> Value:
        known = [repr(one) for one in self]
        if isinstance(pair, str) and (pair, pair) in self:
            raise UnknownNameError(
                f"Recorded are pairs (source, target), found the one name {pair!r}; ask for ({pair!r}, {pair!r})."
            )
        near = difflib.get_close_matches(repr(pair), known, SHOWN, cutoff=0.0)
        raise UnknownNameError.of("recorded pair (source, target)", pair, near)


@dataclass(frozen=True)
class Recording:
    """The statistics of a recording.

    Attributes:
        moments: ``(source, target)`` -> the paired moments of two spaces. For one network, of a space with itself, or
            of two of its spaces.
        places: ``(source, target)`` -> where the two were taken.
        batches: How many batches went in, over all processes.
        layerwise: The moments of all pairs of layers at once, if those were asked for.
    """

    moments: Mapping[Pair, PairedMoments]
    places: Mapping[Pair, Pair]
    batches: int
    layerwise: LayerwiseMoments | None = field(default=None)

    @classmethod
    def of(cls, plan: Plan, states: Sequence[Accumulator], batches: int, grams: bool) -> Recording:
        """The finished sums under the names they were asked for, and what is derived from them."""
        if plan.layers is not None:
            state = states[0]
            if plan.derived:
                sources, targets = (
                    {
                        names[side]: plan.image(plan.layer(names[side], keys[side]), keys[side])
                        for names, keys in plan.asked.items()
                    }
                    for side in (0, 1)
                )
                state = state.through(sources, targets, grams=True)
            whole = LayerwiseMoments._of_state(state)
            return cls(
                _ByPair({names: whole.pair(*names) for names in plan.asked}), _ByPair(plan.places()), batches, whole
            )
        recorded = dict(zip(plan.pairs(), states, strict=True))
        moments: dict[tuple[Key, Key], PairedMoments] = {}
        for x, y in plan.asked.values():
            state = recorded[plan.recorded(x), plan.recorded(y)]
            if state.grams != grams or plan.derived.keys() & {x, y}:
                state = state.through({SOURCE: plan.image(SOURCE, x)}, {TARGET: plan.image(TARGET, y)}, grams)
            moments.setdefault((x, y), PairedMoments._of_state(state))
        return cls(
            _ByPair({names: moments[keys] for names, keys in plan.asked.items()}), _ByPair(plan.places()), batches
        )

    @property
    def count(self) -> int:
        """The number of rows, of the pair that had most."""
        return max(moments.count for moments in self.moments.values())

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write it, exactly, to a folder from which `load` reads it."""
        distinct: dict[int, PairedMoments] = {id(moments): moments for moments in self.moments.values()}
        positions = {key: position for position, key in enumerate(distinct)}
        names = {names: positions[id(moments)] for names, moments in self.moments.items()}
        states = [moments._state for moments in distinct.values()]
        if self.layerwise is not None:
            states, names = [self.layerwise._state], dict.fromkeys(self.moments, 0)
        notes = {
            "pairs": [[*pair, position, *self.places[pair]] for pair, position in names.items()],
            "batches": self.batches,
            "layerwise": self.layerwise is not None,
        }
        save_sums(folder, states, notes, force=force)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Recording:
        """The recording that was saved to ``folder``."""
        states, notes = load_sums(folder)
        try:
            pairs = {(row[0], row[1]): int(row[2]) for row in notes["pairs"]}
            places = {(row[0], row[1]): (row[3], row[4]) for row in notes["pairs"]}
            layerwise = LayerwiseMoments._of_state(states[0]) if notes["layerwise"] else None
            if layerwise is None and any((*one.sources, *one.targets) != (SOURCE, TARGET) for one in states):
                raise ValueError("its sums are not of pairs")
            made = [PairedMoments._of_state(state) for state in states]
            if not pairs:
                raise ValueError("it names no pair")
            moments = {names: layerwise.pair(*names) if layerwise else made[at] for names, at in pairs.items()}
            return cls(_ByPair(moments), _ByPair(places), int(notes["batches"]), layerwise)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise FileError(
                f"The recording in {folder} is damaged, or the state of one that was not finished ({error}); copy the "
                "folder again or record anew."
            ) from error

    def __repr__(self) -> str:
        kind = "all pairs of layers" if self.layerwise is not None else counted(len(self.moments), "pair")
        return f"Recording({kind}, {counted(self.batches, 'batch', 'batches')})"


def save_sums(
    folder: str | os.PathLike[str], states: list[Accumulator], notes: Mapping[str, Any], *, force: bool
) -> None:
    """Write several sums as one record, whole or not at all."""
    documents, tensors = [], {}
    for position, state in enumerate(states):
        documents.append(
            {
                "count": state.count,
                "batches": state.batches,
                "precision": state.precision,
                "grams": state.grams,
                "sources": list(state.sources),
                "targets": list(state.targets),
            }
        )
        named = dict(named_sides(state.sources, "source")) | dict(named_sides(state.targets, "target"))
        for i, source in enumerate(state.sources):
            for j, target in enumerate(state.targets):
                named[f"cross.{i}.{j}"] = state.crosses[source, target]
        tensors.update({f"{position}.{name}": tensor for name, tensor in named.items()})
    with new_folder(folder, HOLDS, force=force) as temporary:
        write_record(temporary, NAME, FORMAT, VERSION, {"sums": documents, "notes": dict(notes)}, tensors)


def load_sums(folder: str | os.PathLike[str]) -> tuple[list[Accumulator], dict[str, Any]]:
    """The sums that were saved, exactly, and the notes beside them."""
    document, tensors = read_record(folder, NAME, FORMAT, VERSION)
    try:
        states = [restored(one, _below(tensors, f"{position}.")) for position, one in enumerate(document["sums"])]
        return states, dict(document["notes"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"The recording in {folder} is damaged ({error}); copy the folder again or record anew."
        ) from error


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
