"""Maps of pairs of spaces that lie in a folder, for networks that are larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from interbasin.jobs.transport.bases import Pair
from interbasin.jobs.transport.theseus.rules import SpaceMap
from interbasin.maps import Map
from interbasin.maps.files import load

NUMBER = 8  # bytes of a float64, in which statistics are kept and maps are fitted


class StoredMaps(Mapping[Pair, SpaceMap]):
    """Maps of pairs of spaces in a folder; those that were used last are in memory as well.

    Args:
        folder: An empty one.
        memory: Bytes of maps that may be in memory.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder, self.memory = folder, memory
        # For each pair what a `SpaceMap` says beside its maps, and the folders of those; some may be one.
        self._kept: dict[Pair, tuple[dict[str, Any], dict[str, Path]]] = {}
        self._recent: dict[Pair, SpaceMap] = {}

    def keep(self, maps: Mapping[Pair, SpaceMap]) -> None:
        """Put some maps on disk."""
        for pair, space_map in maps.items():
            description = {name: getattr(space_map, name) for name in ("rank", "full", "why", "scale")}
            folders: dict[int, Path] = {}
            for name, each in _maps_of(space_map).items():
                if id(each) not in folders:
                    folders[id(each)] = self.folder / f"{len(self._kept)}-{name}"
                    each.save(folders[id(each)])
            self._kept[pair] = description, {name: folders[id(each)] for name, each in _maps_of(space_map).items()}

    def __getitem__(self, pair: Pair) -> SpaceMap:
        description, folders = self._kept[pair]
        space_map = self._recent.pop(pair, None)
        if space_map is None:
            loaded = {folder: load(folder) for folder in dict.fromkeys(folders.values())}
            maps: dict[str, Any] = {name: loaded[folder] for name, folder in folders.items()}
            space_map = SpaceMap(**description, **maps)
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


def _maps_of(space_map: SpaceMap) -> dict[str, Map]:
    return {name: each for name in ("map", "reads", "observed") if (each := getattr(space_map, name)) is not None}


def _bytes_of(space_map: SpaceMap) -> int:
    distinct = {id(each): each for each in _maps_of(space_map).values()}
    return sum(NUMBER * each.source_width * each.target_width for each in distinct.values())
