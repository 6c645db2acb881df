"""Whether networks can be merged at all: the same tensors, in the same shapes, of numbers that can be added."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.jobs.merge.numbers import STORED
from interbasin.networks.checkpoints.checkpoint import Entry
from interbasin.networks.checkpoints.faults import listed

__all__ = ["check_alike", "check_numbers"]


def check_alike(given: Sequence[tuple[str, Mapping[str, Entry]]]) -> None:
    """Refuse networks that are not made of the same tensors.

    Args:
        given: What messages call each network, and its tensors.

    Raises:
        WiringError: if a tensor is missing in one of them.
        ShapeError: if one has another shape.
        DataError: if one holds numbers in one network and counts in another.
    """
    (first, expected), *others = given
    for other, found in others:
        _check_names(first, expected, other, found)
        for name, entry in expected.items():
            if found[name].shape != entry.shape:
                raise ShapeError(
                    f"{name} has shape {_shape(entry)} in {first} and {_shape(found[name])} in {other}; only networks "
                    "of equal widths can be merged (carrying updates between unequal networks is the job of transport, "
                    "which is not part of this version yet)."
                )
            if (entry.kind in STORED) != (found[name].kind in STORED):
                raise DataError(
                    f"{name} is of {entry.kind} in {first} and of {found[name].kind} in {other}; convert one of them."
                )


def check_numbers(network: str, entries: Mapping[str, Entry]) -> None:
    """Refuse numbers that are for storage alone.

    Raises:
        DataError: if there are any; names the tensor.
    """
    for name, entry in entries.items():
        if entry.kind.startswith("float") and entry.kind not in STORED:
            raise DataError(
                f"{name} in {network} is of {entry.kind}, which is for storing quantised weights and not for adding "
                "them; convert it to bfloat16 or float32 first."
            )


def _check_names(first: str, expected: Mapping[str, Entry], other: str, found: Mapping[str, Entry]) -> None:
    missing, surplus = [[*expected.keys() - found.keys()], [*found.keys() - expected.keys()]]
    if not missing and not surplus:
        return
    if _without_numbers(expected) == _without_numbers(found) and not (
        _layers(missing) & _layers(found) or _layers(surplus) & _layers(expected)
    ):
        deeper, shallower, names = (first, other, missing) if len(expected) > len(found) else (other, first, surplus)
        raise WiringError(
            f"{deeper} is deeper than {shallower}: it alone holds {listed(sorted(names, key=_by_number), 1)}; "
            "only networks of equal depth can be merged."
        )
    parts = [
        f"{where} holds {listed(sorted(names, key=_by_number), 2)}, which {elsewhere} lacks"
        for names, where, elsewhere in ((missing, first, other), (surplus, other, first))
        if names
    ]
    raise WiringError(
        f"Only networks of one architecture can be merged, but {'; '.join(parts)}; give networks with the same tensors."
    )


def _without_numbers(names: Iterable[str]) -> set[str]:
    return {re.sub(r"\d+", "#", name) for name in names}


def _layers(names: Iterable[str]) -> set[str]:
    """What names begin with, up to the first number: the layers that they are in."""
    return {re.match(r"\D*\d*", name)[0] for name in names}  # type: ignore[index]


def _by_number(name: str) -> list[tuple[int, str]]:
    """A key that sorts layer 10 behind layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _shape(entry: Entry) -> str:
    return " x ".join(map(str, entry.shape)) or "()"
