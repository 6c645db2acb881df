"""Folded networks: what was folded, as data, the file beside the weights that says so, and the modules of the result.

Where norms are folded into what reads them is `interbasin.wiring.folding`'s affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from interbasin.checkpoints import Checkpoint
from interbasin.checkpoints.checkpoint import read_json
from interbasin.checkpoints.folded import FOLDING, FoldedFolder, is_folded
from interbasin.errors import CheckpointError, FileError, WiringError
from interbasin.storage import FORMAT_PREFIX, write_document
from interbasin.text import plural, printable

# The attribute of a folded network that holds what was done to it. Copies of the network have it too.
ATTRIBUTE = "interbasin_folding"
KINDS = ("unit", "spelled", "spelled-centring", "nothing")
FORMAT, VERSION = FORMAT_PREFIX + "folding", 1


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
        lines = []
        for kind, noun, change in (
            ("unit", "norm", " folded into what reads"),
            ("spelled", "norm", ", the gain a linear layer behind"),
            ("nothing", "scaling", " folded into what writes"),
        ):
            count = sum(replacement.kind.startswith(kind) for replacement in self.replaced.values())
            lines += [f"{plural(count, noun)}{change} {'it' if count == 1 else 'them'}"] if count else []
        lines += [f"no longer one tensor: {' and '.join(names)}" for names in self.parted]
        lines += [f"left as it is: {reason}" for reason in describe_reasons(self.left)]
        return "\n".join(map(printable, lines))

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        return {
            "replaced": {name: vars(replacement) for name, replacement in self.replaced.items()},
            "biases": list(self.biases),
            "ties": [list(names) for names in self.ties],
            "left": {why: list(names) for why, names in self.left.items()},
            "parted": [list(names) for names in self.parted],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Folding:
        """The folding that `to_json` described.

        Raises:
            FileError: if it is damaged.
        """
        try:
            folding = cls(
                {name: Replacement(**fields) for name, fields in document["replaced"].items()},
                tuple(document["biases"]),
                tuple(tuple(names) for names in document["ties"]),
                {why: tuple(names) for why, names in document["left"].items()},
                tuple(tuple(names) for names in document.get("parted", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"What a folding replaced cannot be read ({type(error).__name__}: {error}); save it again."
            ) from error
        for name, new in folding.replaced.items():
            fits = new.kind in KINDS and type(new.width) is int and new.width > 0 and isinstance(new.epsilon, float)
            if not fits or new.axis not in (-1, 1):
                raise FileError(f"What a folding put in the place of {name!r} is damaged: {new}; save it again.")
        groups = (folding.biases, *folding.ties, *folding.parted)
        if not all(isinstance(name, str) for names in groups for name in names):
            raise FileError("The biases or ties of a folding are not all names; save it again.")
        return folding


def keep_folding(model: nn.Module, folding: Folding) -> None:
    """Note on a folded network what was done to it."""
    setattr(model, ATTRIBUTE, folding)


def folding_of(model: nn.Module) -> Folding:
    """What `fold_norms` did to ``model``, or to the network that it is a copy of or was carried from.

    Raises:
        WiringError: if it is not folded.
    """
    folding = getattr(model, ATTRIBUTE, None)
    if not isinstance(folding, Folding):
        raise WiringError(f"{type(model).__name__} is not a network that fold_norms made; fold it first.")
    return folding


def group_reasons(reasons: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Reasons by norm as norms by reason, one for all layers that repeat.

    Example:
        >>> group_reasons({"h.0.norm": "read by h.0.mlp", "h.1.norm": "read by h.1.mlp"})
        {'read by h.0.mlp': ('h.0.norm', 'h.1.norm')}
    """
    groups: dict[str, tuple[str, list[str]]] = {}
    for name, why in reasons.items():
        without_numbers = re.sub(r"(?<=\.)\d+(?=\.)|\b\d+(?=\.[a-z])", "*", why)
        groups.setdefault(without_numbers, (why, []))[1].append(name)
    return {why: tuple(names) for why, names in groups.values()}


def describe_reasons(left: Mapping[str, tuple[str, ...]], most: int = 3) -> list[str]:
    """A sentence for each reason, with the first of the norms it holds for."""
    lines = [
        f"{names[0]}{f' (and {len(names) - 1} like it)' if len(names) > 1 else ''}: {why}"
        for why, names in left.items()
    ]
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more reasons"]


def write_folding(folder: Path, folding: Folding, transformers: str | None, folded: FoldedFolder) -> None:
    """Write the mark into a folder that is being filled, with the version of transformers for its networks."""
    head = {"format": FORMAT, "version": VERSION, "transformers": transformers}
    write_document(folder / FOLDING, {**head, **folding.to_json(), **folded.to_json()})


def read_folding(folder: Path) -> tuple[Folding, str | None]:
    """What was folded in the network that a folder holds, and the version of transformers it was saved with."""
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


# ---------------------------------------------------------------------- the modules of a folded network


class UnitNorm(nn.Module):
    r"""``x / sqrt(mean(x**2) + eps)`` along one axis, the last or that of channels: turns with its input.

    It stands where a norm with a gain stood, in networks that look at that norm: ``weight`` is there for its dtype and
    device and is not used, and ``eps`` equals nothing, because torch's fused encoder layers compare it before they
    pass the norm by.
    """

    weight: Tensor

    def __init__(self, width: int, epsilon: float, like: Tensor | None = None, axis: int = -1) -> None:
        super().__init__()
        self.width, self.epsilon, self.axis = width, epsilon, axis
        self.eps = float("nan")
        ones = torch.ones(width) if like is None else torch.ones(width, dtype=like.dtype, device=like.device)
        self.register_buffer("weight", ones, persistent=False)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.movedim(self.axis, -1), (self.width,), None, self.epsilon).movedim(-1, self.axis)

    def extra_repr(self) -> str:
        return f"{self.width}, epsilon={self.epsilon}"


class SpelledNorm(nn.Module):
    """A norm without a gain, and its gain and bias as a linear layer behind it: what reads it sees no difference."""

    def __init__(self, norm: nn.Module, gain: nn.Linear, axis: int = -1) -> None:
        super().__init__()
        self.norm, self.gain, self.axis = norm, gain, axis
        self.eps = float("nan")  # as in UnitNorm

    @property
    def weight(self) -> Tensor:
        """For its dtype and device."""
        return self.gain.weight.diagonal()

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.gain(self.norm(x.movedim(self.axis, -1)))
        return scaled.movedim(-1, self.axis)


def find_ties(model: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter that several modules share, one name per module."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    ties = []
    for names in groups.values():
        owners: dict[int, str] = {}
        for name in names:
            owners.setdefault(id(model.get_submodule(name.rpartition(".")[0])), name)
        if len(owners) > 1:
            ties.append(tuple(owners.values()))
    return ties


def untie(model: nn.Module) -> list[tuple[str, ...]]:
    """Give tensors that several modules share a copy each, so that one can be folded into and the other not."""
    ties = find_ties(model)
    for _, *others in ties:
        for name in others:
            owner, local = _owner(model, name)
            old = getattr(owner, local)
            setattr(owner, local, nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad))
    return ties


def tie(model: nn.Module, names: Sequence[str]) -> None:
    """Have all of ``names`` be the parameter that the first of them is."""
    for name in names[1:]:
        owner, local = _owner(model, name)
        setattr(owner, local, model.get_parameter(names[0]))


def tie_again(model: nn.Module, ties: list[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Share again what came out equal; the pairs that parted come back.

    Where a head and a table parted, the configuration says so from now on. Gains that folding took out are neither.
    """
    parted = []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for names in ties:
        first, *others = [name for name in names if name in parameters] or [""]
        for name in others:
            if torch.equal(parameters[first], parameters[name]):
                tie(model, (first, name))
                continue
            parted.append((first, name))
            if getattr(getattr(model, "config", None), "tie_word_embeddings", False):
                model.config.tie_word_embeddings = False  # type: ignore[union-attr]
    return parted


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, local = name.rpartition(".")
    return model.get_submodule(path), local


def replace_module(model: nn.Module, name: str, replacement: Replacement) -> nn.Module:
    """Replace the module ``name``, under every name it has: a module can be used in several places."""
    old = model.get_submodule(name)
    like = next(old.parameters(), None)
    new = _make(replacement, torch.ones(1) if like is None else like).train(old.training)
    for parent in list(model.modules()):
        for label, child in list(parent._modules.items()):
            if child is old:
                parent._modules[label] = new
    return new


def add_bias(layer: nn.Linear) -> None:
    """A bias of zeros for a layer that has none."""
    layer.bias = nn.Parameter(torch.zeros(layer.out_features, dtype=layer.weight.dtype, device=layer.weight.device))


def _make(replacement: Replacement, like: Tensor) -> nn.Module:
    width, epsilon, axis = replacement.width, replacement.epsilon, replacement.axis
    if replacement.kind == "nothing":
        return nn.Identity()
    if replacement.kind == "unit":
        return UnitNorm(width, epsilon, like, axis)
    centring = replacement.kind == "spelled-centring"
    unit = nn.LayerNorm(width, eps=epsilon, elementwise_affine=False) if centring else UnitNorm(width, epsilon, like)
    return SpelledNorm(unit, nn.Linear(width, width, device=like.device, dtype=like.dtype), axis)


def rebuild_as_folded(model: nn.Module, checkpoint: Checkpoint, what: str) -> None:
    """Fold ``model``, which was just made, as the network was whose weights are in ``checkpoint``, if that was folded.

    ``what`` is how messages call the model, which may be of another architecture.
    """
    if checkpoint.folder is None or not is_folded(checkpoint):
        return
    folding, _ = read_folding(checkpoint.folder)
    missing = "a module"
    try:
        untie(model)
        for missing, replacement in folding.replaced.items():
            replace_module(model, missing, replacement)
        for missing in folding.biases:
            layer = model.get_submodule(missing)
            if not isinstance(layer, nn.Linear):
                raise AttributeError
            add_bias(layer)
        for names in folding.ties:
            missing = names[0]
            tie(model, names)
    except AttributeError as error:
        raise CheckpointError(
            f"The weights are of a folded network in which {missing} was replaced, got a bias or was tied, and {what} "
            "has no such part; these are the weights of another network."
        ) from error
    keep_folding(model, folding)
