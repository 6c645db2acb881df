"""Maps in files: ``map.safetensors`` for the numbers, ``map.json`` for the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from interbasin.errors import FileError, InterbasinError
from interbasin.maps.affine import Affine
from interbasin.maps.base import Map
from interbasin.maps.blocks import Blocks
from interbasin.maps.linear import Linear
from interbasin.maps.orthogonal import Orthogonal
from interbasin.maps.permutation import Identity, Permutation, SignedPermutation
from interbasin.storage import new_folder, read_record, write_record

FORMAT, VERSION, NAME = "map", 1, "map"
HOLDS = ("map", "fit")  # a fit is a map with a report beside it

KINDS: dict[str, type[Map]] = {
    kind.kind: kind for kind in (Identity, Permutation, SignedPermutation, Orthogonal, Linear, Affine, Blocks)
}


def save(map: Map, folder: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write ``map`` to ``folder``; the folder appears whole or not at all."""
    with new_folder(folder, HOLDS, force=force) as temporary:
        write_into(temporary, map)


def write_into(folder: Any, map: Map) -> None:
    """Write ``map`` into a folder that is being filled."""
    document, tensors = map._described()
    write_record(folder, NAME, FORMAT, VERSION, document, tensors)


def load(folder: str | os.PathLike[str]) -> Map:
    """The map that was saved to ``folder``, exactly. Nothing that is loaded is executed.

    Raises:
        FileError: if there is no map, or it is damaged.
    """
    document, tensors = read_record(folder, NAME, FORMAT, VERSION)
    try:
        return restore(document, tensors)
    except (KeyError, TypeError, AttributeError, InterbasinError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise FileError(f"The map in {folder} is damaged: {reason}; copy it again or fit it anew.") from error


def restore(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Map:
    """The map of a document and tensors that a map's record holds."""
    kind = KINDS.get(document["kind"])
    if kind is None:
        raise FileError(f"A saved map is of the unknown kind {document['kind']!r}; known are {', '.join(KINDS)}.")
    map = kind._restore(document, tensors)
    if (map.source_width, map.target_width) != (document["source_width"], document["target_width"]):
        raise FileError(
            f"A saved map says it is {document['target_width']} <- {document['source_width']}, but its numbers are "
            f"{map.target_width} <- {map.source_width}; copy the folder again."
        )
    return map
