"""How the factors of a LoRA follow the axes of the layer that they update."""

from __future__ import annotations

from torch import Tensor

from interbasin.checkpoints.lora import PREFIX, Factor, is_dora_name
from interbasin.errors import InterbasinError, ShapeError, WiringError
from interbasin.wiring.axes.spaces import Axis, In, Reason, Role, Still, leaves

_RANK = Reason("structure", "the rank of a low-rank update lies along it")


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
    still = Still(factor.rank(tuple(tensor.shape)), _RANK)
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
    rank = factor.rank(tuple(tensor.shape))
    if factor.letter == "A":
        return (rank, shape[axis], *shape[2:])[: tensor.ndim]
    return (shape[axis], rank, *([1] * (tensor.ndim - 2)))


def refusal(name: str) -> InterbasinError | None:
    """The error for a tensor of an adapter that cannot be carried through the wiring of the network beneath."""
    if is_dora_name(name):
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
