"""The names that PEFT gives tensors, read back to those of the network beneath, and how its factors follow a layer.

In memory a wrapped layer's own weight is ``layer.base_layer.weight``, a module that is trained whole is there twice
(``layer.original_module``, ``layer.modules_to_save.NAME``), and everything stands below ``base_model.model.``. The
factors of a low-rank update are named after their layer: A reads what the layer reads, B writes what it writes, and B
may have a bias. Embeddings have them the other way round and without ``.weight``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from interbasin.errors import InterbasinError, ShapeError, WiringError
from interbasin.networks.wiring.spaces import Axis, In, Reason, Role, Still, leaves

__all__ = [
    "Factor",
    "Ranks",
    "factor_axes",
    "factor_of",
    "factor_shape",
    "plain_name",
    "refusal",
    "refuse_another_rank",
    "updated_axis",
]

PREFIX = "base_model.model."
_WRAPPED = re.compile(r"\.(?:base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")
_FACTOR = re.compile(
    r"^(?P<layer>.*)\.lora_(?P<embedding>embedding_)?(?P<letter>[AB])"
    r"(\.(?P<adapter>(?!(?:weight|bias)$)[^.]+))?(\.(?P<part>weight|bias))?$"
)
# Layer and adapter -> a factor of the update, and its rank.
Ranks: TypeAlias = "dict[tuple[str, str], tuple[str, int]]"
_RANK = Reason("structure", "the rank of a low-rank update lies along it")


def plain_name(name: str) -> str:
    """The name of a tensor in the network beneath.

    Example:
        >>> plain_name("base_model.model.blocks.0.fc.base_layer.weight")
        'blocks.0.fc.weight'
    """
    return _WRAPPED.sub("", name.removeprefix(PREFIX))


@dataclass(frozen=True)
class Factor:
    """One factor of a low-rank update.

    Attributes:
        name: Its own.
        layer: The layer it updates.
        letter: ``"A"`` reads what the layer reads, ``"B"`` writes what it writes.
        adapter: PEFT's name of the adapter, which files leave out.
        of_table: It updates an embedding.
        is_bias: It is the bias behind B.
    """

    name: str
    layer: str
    letter: str
    adapter: str
    of_table: bool
    is_bias: bool

    @property
    def weight(self) -> str:
        """The tensor that it updates."""
        return f"{self.layer}.weight"

    def rank(self, tensor: Tensor) -> int:
        return tensor.shape[0 if self.letter == "A" else 1]


def factor_of(name: str) -> Factor | None:
    """What a name says if it is that of a factor."""
    found = _FACTOR.match(name)
    if found is None:
        return None
    of_table, is_bias = found["embedding"] is not None, found["part"] == "bias"
    return Factor(name, found["layer"], found["letter"], found["adapter"] or "", of_table, is_bias)


def factor_axes(factor: Factor, tensor: Tensor, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """What the axes of a factor are made of, where those of the tensor that it updates are ``axes``.

    Raises:
        ShapeError: if it is no factor of such a tensor.
    """
    own = axes[updated_axis(factor, tensor, axes)]
    if tensor.shape[1 if factor.letter == "A" else 0] != own.size:
        raise ShapeError(
            f"{factor.name} has shape {tuple(tensor.shape)}, but the layer it updates is {own.size} wide there; is it "
            "the adapter of this network?"
        )
    if factor.is_bias:
        return (own,)
    still = Still(factor.rank(tensor), _RANK)
    laid = (still, own) if factor.letter == "A" else (own, still)
    kernel = axes[2:] if factor.letter == "A" else (Still(1, _RANK),) * (tensor.ndim - 2)
    return (*laid, *kernel)[: tensor.ndim]


def updated_axis(factor: Factor, tensor: Tensor, axes: tuple[Axis, ...]) -> int:
    """Along which axis of the tensor that it updates a factor lies: 0 or 1.

    Raises:
        ShapeError: if it is no factor of such a tensor.
    """
    if len(axes) < 2 or tensor.ndim < (1 if factor.is_bias else 2):
        raise ShapeError(
            f"{factor.name} is a factor of a low-rank update of a tensor with {len(axes)} axes; two are needed."
        )
    # A weight of (in, out), as a table of (rows, width) is: its update is (B A)^T, A (rank, in) and B (out, rank).
    turned = factor.of_table or _stands_upside_down(axes[0], axes[1], factor, tensor)
    return int((factor.letter == "A") is not turned)


def factor_shape(factor: Factor, tensor: Tensor, axis: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a factor of this rank has if it lies along ``axis`` of an updated tensor of ``shape``."""
    if factor.is_bias:
        return (shape[axis],)
    if factor.letter == "A":
        return (factor.rank(tensor), shape[axis], *shape[2:])[: tensor.ndim]
    return (shape[axis], factor.rank(tensor), *([1] * (tensor.ndim - 2)))


def refuse_another_rank(factor: Factor, tensor: Tensor, ranks: Ranks) -> None:
    """Refuse a factor whose rank is not that of the other of its update: they are of two adapters, without a product.

    Args:
        factor: Which one it is.
        tensor: Itself.
        ranks: Those of the factors that were met before; this one is added.
    """
    if factor.is_bias or tensor.ndim < 2:
        return
    name, rank = ranks.setdefault((factor.layer, factor.adapter), (factor.name, factor.rank(tensor)))
    if rank != factor.rank(tensor):
        raise ShapeError(
            f"{name} has rank {rank} and {factor.name} has rank {factor.rank(tensor)}, so that they have no product; "
            "take both from the same adapter."
        )


def refusal(name: str) -> InterbasinError | None:
    """The error for a tensor of an adapter that cannot be carried through the wiring of the network beneath."""
    if ".lora_magnitude_vector" in name:
        return WiringError(
            f"{name} belongs to a DoRA, whose magnitudes are lengths of rows of the updated weight and follow no map "
            "of their own. Wire the network with its adapter on (wire(peft_model, inputs)), or merge it first "
            "(peft_model.merge_and_unload()) and carry that."
        )
    if name.startswith(PREFIX):
        return WiringError(
            f"{name} is a tensor of an adapter, but neither a factor of a LoRA nor a tensor of the network that was "
            "wired. Wire the network with its adapter on (wire(peft_model, inputs)), or merge it first "
            "(peft_model.merge_and_unload()) and carry that."
        )
    return None


def _stands_upside_down(first: Axis, second: Axis, factor: Factor, tensor: Tensor) -> bool:
    """Whether a weight reads along its first axis: by the sizes if they tell, else by what its axes are made of."""
    own = tensor.shape[1 if factor.letter == "A" else 0]
    upright, turned = (second, first) if factor.letter == "A" else (first, second)
    if first.size != second.size:
        return own == turned.size and own != upright.size
    return _share_read(first) > _share_read(second)


def _share_read(axis: Axis) -> float:
    return sum(share for leaf, share in leaves(axis) if isinstance(leaf, In) and leaf.role is Role.READ)
