"""Maps of pairs of spaces that lie in a folder, for networks that are larger than memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from interbasin.errors import FileError
from interbasin.jobs.transport.bases import Pair
from interbasin.jobs.transport.theseus.rules import SpaceMap
from interbasin.maps import Map
from interbasin.maps.files import load
from interbasin.storage import new_folder, read_record, write_record

NUMBER = 8  # bytes of a float64, in which statistics are kept and maps are fitted
NAME, FORMAT, VERSION = "maps", "stored-maps", 1
DESCRIPTION = ("rank", "full", "why", "scale")


class StoredMaps(Mapping[Pair, SpaceMap]):
    """Maps of pairs of spaces in a folder; those that were used last are in memory as well.

    Maps that are fitted together have a folder of their own, which appears whole or not at all, so that a later process
    can take up what an earlier one left (`restore`).

    Args:
        folder: Where they are kept.
        memory: Bytes of maps that may be in memory.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder, self.memory = folder, memory
        # For each pair what a `SpaceMap` says beside its maps, and the folders of those; some may be one.
        self._kept: dict[Pair, tuple[dict[str, Any], dict[str, Path]]] = {}
        self._recent: dict[Pair, SpaceMap] = {}

    def keep(self, group: str, maps: Mapping[Pair, SpaceMap]) -> None:
        """Put maps on disk that were fitted together, under a name for all of them."""
        entries = []
        with new_folder(self._place(group), force=True, ours=_is_group) as folder:
            for number, (pair, space_map) in enumerate(maps.items()):
                places: dict[int, str] = {}  # one map may have several parts to play
                for name, each in _maps_of(space_map).items():
                    if id(each) not in places:
                        places[id(each)] = f"{number}-{name}"
                        each.save(folder / places[id(each)])
                description = {name: getattr(space_map, name) for name in DESCRIPTION}
                entries.append([pair, description, {name: places[id(e)] for name, e in _maps_of(space_map).items()}])
            write_record(folder, NAME, FORMAT, VERSION, {"maps": entries}, {})
        self._kept |= self._entries(group)

    def restore(self, group: str) -> bool:
        """Take up maps that an earlier process kept under this name; says whether they are there, and whole."""
        try:
            entries = self._entries(group)
            for entry in entries.values():
                _load(*entry)
        except (FileError, KeyError, TypeError, ValueError):  # they are fitted again
            return False
        self._kept |= entries
        return True

    def __getitem__(self, pair: Pair) -> SpaceMap:
        entry = self._kept[pair]
        space_map = self._recent.pop(pair, None) or _load(*entry)
        self._recent[pair] = space_map  # as the last one
        held = {pair: _bytes_of(each) for pair, each in self._recent.items()}
        for old in list(held)[:-1]:
            if sum(held.values()) <= self.memory:
                break
            del self._recent[old], held[old]
        return space_map

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, pair: object) -> bool:
        return pair in self._kept

    def _entries(self, group: str) -> dict[Pair, tuple[dict[str, Any], dict[str, Path]]]:
        place = self._place(group)
        document, _ = read_record(place, NAME, FORMAT, VERSION)
        return {
            (source, target): (description, {name: place / folder for name, folder in folders.items()})
            for (source, target), description, folders in document["maps"]
        }

    def _place(self, group: str) -> Path:
        return self.folder / hashlib.sha256(group.encode()).hexdigest()[:16]


def _load(description: Mapping[str, Any], folders: Mapping[str, Path]) -> SpaceMap:
    loaded = {folder: load(folder) for folder in dict.fromkeys(folders.values())}
    maps: dict[str, Any] = {name: loaded[folder] for name, folder in folders.items()}
    return SpaceMap(**description, **maps)


def _is_group(folder: Path) -> bool:
    """Whether a folder holds such maps, damaged or not, and nothing else."""
    names = {path.name for path in folder.iterdir()} - {f"{NAME}.json", f"{NAME}.safetensors"}
    return all(re.fullmatch(r"\d+-(map|reads|observed)", name) for name in names)


def _maps_of(space_map: SpaceMap) -> dict[str, Map]:
    return {name: each for name in ("map", "reads", "observed") if (each := getattr(space_map, name)) is not None}


def _bytes_of(space_map: SpaceMap) -> int:
    distinct = {id(each): each for each in _maps_of(space_map).values()}
    return sum(NUMBER * each.source_width * each.target_width for each in distinct.values())
