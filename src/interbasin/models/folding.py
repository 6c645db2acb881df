"""What was folded in a network, as data, and the file beside its weights that says so.

Where norms are folded into what reads them is `interbasin.wiring.folding`'s affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from interbasin.checkpoints import Checkpoint
from interbasin.checkpoints.faults import read_json
from interbasin.errors import CheckpointError, FileError, WiringError
from interbasin.storage import FORMAT_PREFIX, write_document

# The attribute of a folded network that holds what was done to it. Copies of the network have it too.
ATTRIBUTE = "interbasin_folding"
KINDS = ("unit", "spelled", "spelled-centring", "nothing")


@dataclass(frozen=True)
class Replacement:
    """What stands where a norm or a scaling stood.

    Attributes:
        kind: ``"unit"``: a norm without a gain. ``"spelled"``: the same with the gain as a linear layer behind it.
            ``"spelled-centring"``: the same behind a norm that takes the mean away. ``"nothing"``: a scaling that went
            into what writes it.
        width: Of what it reads.
        epsilon: Of the norm.
        axis: Along which it works: the last one (-1), or the channels of images (1).
    """

    kind: str
    width: int
    epsilon: float
    axis: int = -1


@dataclass(frozen=True)
class Folding:
    """What `fold_norms` did.

    Attributes:
        replaced: Module -> what stands there now.
        biases: Linear layers that had no bias and got one.
        ties: Names of parameters that are one tensor after folding.
        left: Why norms stay as they are -> which. Layers that repeat share a reason, told for the first of them.
        parted: Names of parameters that were one tensor and are two, because the gain went into one of them.
    """

    replaced: Mapping[str, Replacement]
    biases: tuple[str, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parted: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        counts = {kind: sum(one.kind.startswith(kind) for one in self.replaced.values()) for kind in KINDS}
        lines = []
        if counts["unit"]:
            lines.append(f"{_number(counts['unit'], 'norm')} folded into what reads {_them(counts['unit'])}")
        if counts["spelled"]:
            lines.append(
                f"{_number(counts['spelled'], 'norm')}, the gain a linear layer behind {_them(counts['spelled'])}"
            )
        if counts["nothing"]:
            lines.append(f"{_number(counts['nothing'], 'scaling')} folded into what writes {_them(counts['nothing'])}")
        lines += [f"no longer one tensor: {' and '.join(names)}" for names in self.parted]
        return "\n".join([*lines, *(f"left as it is: {one}" for one in told(self.left))])

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        return {
            "replaced": {name: vars(one) for name, one in self.replaced.items()},
            "biases": list(self.biases),
            "ties": [list(names) for names in self.ties],
            "left": {why: list(names) for why, names in self.left.items()},
            "parted": [list(names) for names in self.parted],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Folding:
        """The folding that `to_json` told.

        Raises:
            FileError: if it is damaged.
        """
        try:
            found = cls(
                {name: Replacement(**one) for name, one in document["replaced"].items()},
                tuple(document["biases"]),
                tuple(tuple(names) for names in document["ties"]),
                {why: tuple(names) for why, names in document["left"].items()},
                tuple(tuple(names) for names in document.get("parted", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"What a folding replaced cannot be read ({type(error).__name__}: {error}); save it again."
            ) from error
        for name, one in found.replaced.items():
            fits = one.kind in KINDS and type(one.width) is int and one.width > 0 and isinstance(one.epsilon, float)
            fits = fits and one.axis in (-1, 1)
            if not fits:
                raise FileError(f"What a folding put in the place of {name!r} is damaged: {one}; save it again.")
        if not all(isinstance(name, str) for names in (found.biases, *found.ties, *found.parted) for name in names):
            raise FileError("The biases or ties of a folding are not all names; save it again.")
        return found


def keep_folding(model: nn.Module, folding: Folding) -> None:
    """Note on a folded network what was done to it."""
    setattr(model, ATTRIBUTE, folding)


def folding_of(model: nn.Module) -> Folding:
    """What `fold_norms` did to ``model``, or to the network that it is a copy of or was carried from.

    Raises:
        WiringError: if it is not folded.
    """
    found = getattr(model, ATTRIBUTE, None)
    if not isinstance(found, Folding):
        raise WiringError(f"{type(model).__name__} is not a network that fold_norms made; fold it first.")
    return found


def grouped(reasons: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Reasons by norm as norms by reason, one for all layers that repeat.

    Example:
        >>> grouped({"h.0.norm": "read by h.0.mlp", "h.1.norm": "read by h.1.mlp"})
        {'read by h.0.mlp': ('h.0.norm', 'h.1.norm')}
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for name, why in reasons.items():
        alike = re.sub(r"(?<=\.)\d+(?=\.)|\b\d+(?=\.[a-z])", "*", why)
        found.setdefault(alike, (why, []))[1].append(name)
    return {why: tuple(names) for why, names in found.values()}


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def told(left: Mapping[str, tuple[str, ...]], most: int = 3) -> list[str]:
    """A sentence for each reason, with the first of the norms it holds for."""
    lines = [
        f"{names[0]}{f' (and {len(names) - 1} like it)' if len(names) > 1 else ''}: {why}"
        for why, names in left.items()
    ]
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more reasons"]


# Among the configurations, so that what copies those copies it too.
FOLDING = "folding_config.json"
FORMAT, VERSION = FORMAT_PREFIX + "folding", 1


def write_folding(folder: Path, folding: Folding, transformers: str | None) -> None:
    """Write the mark into a folder that is being filled, with the version of transformers for its networks."""
    document = {"format": FORMAT, "version": VERSION, "transformers": transformers, **folding.to_json()}
    write_document(folder / FOLDING, document)


def is_folded(checkpoint: Checkpoint) -> bool:
    """Whether weights are those of a folded network."""
    return checkpoint.folder is not None and (checkpoint.folder / FOLDING).is_file()


def read_folding(folder: Path) -> tuple[Folding, str | None]:
    """What was folded in the network that a folder holds, and the version of transformers it was saved with.

    Raises:
        CheckpointError: if that is damaged, or of a later version.
    """
    path = folder / FOLDING
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise CheckpointError(
            f"{path} should be of the format {FORMAT}, version {VERSION}, found {document.get('format')!r}, version "
            f"{document.get('version')!r}; save the network again, or use the version that saved it."
        )
    try:
        version = document.get("transformers")
        return Folding.from_json(document), None if version is None else str(version)
    except FileError as error:
        raise CheckpointError(f"{path} is damaged ({error}); save the network again.") from error
