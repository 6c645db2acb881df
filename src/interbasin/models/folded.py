"""The modules of a folded network: norms without a gain, what stands in place of others, ties, and rebuilding it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from interbasin.checkpoints import Checkpoint
from interbasin.errors import CheckpointError
from interbasin.models.folding import Folding, Replacement, is_folded, keep_folding, read_folding

__all__ = [
    "SpelledNorm",
    "UnitNorm",
    "add_bias",
    "is_folded",
    "put",
    "rebuild",
    "rebuild_as_folded",
    "shared",
    "tie",
    "tie_again",
    "untie",
    "version_folded_with",
]


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
        made = torch.ones(width) if like is None else torch.ones(width, dtype=like.dtype, device=like.device)
        self.register_buffer("weight", made, persistent=False)
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
        found: Tensor = self.gain(self.norm(x.movedim(self.axis, -1)))
        return found.movedim(-1, self.axis)


def shared(model: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter that several modules share, one a module."""
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
    ties = shared(model)
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

    Where a head and a table parted, the configuration is told so. Gains that folding took out are neither.
    """
    parted = []
    for names in ties:
        first, *others = [name for name in names if _is_parameter(model, name)] or [""]
        for name in others:
            if torch.equal(model.get_parameter(first), model.get_parameter(name)):
                tie(model, (first, name))
                continue
            parted.append((first, name))
            if getattr(getattr(model, "config", None), "tie_word_embeddings", False):
                model.config.tie_word_embeddings = False  # type: ignore[union-attr]
    return parted


def _is_parameter(model: nn.Module, name: str) -> bool:
    owner, local = _owner(model, name)
    return local in owner._parameters


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, local = name.rpartition(".")
    return model.get_submodule(path), local


def put(model: nn.Module, name: str, replacement: Replacement) -> nn.Module:
    """Replace the module ``name``, under every name it has: a module can be used in several places."""
    old = model.get_submodule(name)
    like = next(old.parameters(), None)
    new = _made(replacement, torch.ones(1) if like is None else like).train(old.training)
    for parent in list(model.modules()):
        for label, child in list(parent._modules.items()):
            if child is old:
                parent._modules[label] = new
    return new


def add_bias(layer: nn.Linear) -> None:
    """A bias of zeros for a layer that has none."""
    layer.bias = nn.Parameter(torch.zeros(layer.out_features, dtype=layer.weight.dtype, device=layer.weight.device))


def rebuild(model: nn.Module, folding: Folding, what: str) -> None:
    """Make a fresh network of the same architecture ready for folded weights; ``what`` is what messages call it.

    Raises:
        CheckpointError: if the network has not the modules and tensors that were folded.
    """
    missing = "a module"
    try:
        untie(model)
        for missing, replacement in folding.replaced.items():
            put(model, missing, replacement)
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


def _made(replacement: Replacement, like: torch.Tensor) -> nn.Module:
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

    Raises:
        CheckpointError: if the mark of the folding is damaged, or the model is of another architecture.
    """
    if checkpoint.folder is not None and is_folded(checkpoint):
        rebuild(model, read_folding(checkpoint.folder)[0], what)


def version_folded_with(folder: Path) -> str | None:
    """The version of transformers that a folded network was saved with."""
    return read_folding(folder)[1]
