"""q, k and v inside `torch.nn.MultiheadAttention`, from the moments of what goes into it.

They stand at no boundary of a module, so no hook sees them. But each is an affine image of an argument,
``q = W x + b``, and so are its moments: with C the sums of two arguments about their origins, those of the images are
``W_B C W_A^T`` about the images of the origins. The arguments are recorded, each once, with their Gram matrices, and
all else is derived at the end, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from interbasin.activations.forward import Call, listen, memory_of
from interbasin.activations.places import QKV, ModuleReading, Place, Reading, axis_factors, module_at
from interbasin.errors import ShapeError, WiringError
from interbasin.wiring.axes.spaces import Axis, In, Role, Row
from interbasin.wiring.wiring import Wiring

# Weight and bias of a projection.
Affine = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Projection:
    """q, k or v of an attention module, which is derived; ``space`` is the space that it is, if one was asked for."""

    place: Place
    space: str | None = None


def projection_at(model: nn.Module, place: Place, space: str | None = None, width: int | None = None) -> Projection:
    """The projection at a place.

    Raises:
        WiringError: if the module there is no attention of torch's class.
        ShapeError: if the space is not as wide.
    """
    module = module_at(model, place)
    if not isinstance(module, nn.MultiheadAttention):
        raise WiringError(
            f"Asked to record {place}, but q, k and v are known inside torch.nn.MultiheadAttention, and "
            f"{place.module!r} is a {type(module).__name__}; record the output of the module that projects them."
        )
    if width is not None and width != module.embed_dim:
        raise ShapeError(
            f"Space {space!r} is {width} wide and was to be taken at {place}, which is {module.embed_dim} wide; name "
            "another place."
        )
    return Projection(place, space)


def projected_spaces(model: nn.Module, wiring: Wiring) -> dict[str, Place]:
    """The spaces that q, k or v of some attention module fill, and where."""
    places: dict[str, Place] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            for side, axis in zip(QKV, _written_axes(wiring, name, module.embed_dim), strict=True):
                factors = axis_factors(axis) if axis is not None else ()
                parts = [factor for factor in factors if isinstance(factor, In) and factor.role is Role.WRITE]
                if parts and len(parts) == len(factors):
                    space = wiring.spaces[parts[-1].space]
                    if (*space.within, space.name) == tuple(part.space for part in parts):
                        places.setdefault(space.name, Place(name, side))
    return places


def _written_axes(wiring: Wiring, name: str, width: int) -> list[Axis | None]:
    """What q, k and v are made of, by the tensors that write them; None where that cannot be told."""
    fused = _first_axis(wiring, f"{name}.in_proj_weight")
    if fused is None:
        return [_first_axis(wiring, f"{name}.{side}_proj_weight") for side in QKV]
    thirds: list[list[Axis]] = [[], [], []]
    start = 0
    for part in fused.parts if isinstance(fused, Row) else (fused,):
        if start // width != (start + part.size - 1) // width:
            return [None] * 3
        thirds[start // width].append(part)
        start += part.size
    return [third[0] if len(third) == 1 else None for third in thirds]


def _first_axis(wiring: Wiring, name: str) -> Axis | None:
    tensor = wiring.tensors.get(wiring.tied.get(name, name))
    return None if tensor is None else tensor.axes[0]


def observe_attention(
    model: nn.Module, projections: Iterable[Projection], call: Call, name: str
) -> dict[Projection, tuple[ModuleReading, Affine]]:
    """For each projection what is recorded for it, and the weight and bias that make it of that.

    One forward pass shows both. Arguments that are one tensor, as in self-attention, are recorded under the first of
    their names. Weights are taken while the module runs: adapters may put theirs in just then.

    Args:
        model: The network.
        projections: Of it.
        call: The first batch.
        name: What messages call the network.
    """
    projections = list(projections)
    memory: dict[Place, object] = {}
    affine: dict[Place, Affine] = {}

    def take(reading: Reading, rows: Tensor) -> None:
        memory[reading.place] = memory_of(rows)
        affine[reading.place] = _weight_and_bias(module_at(model, reading.place), reading.place.side)

    places = dict.fromkeys(replace(projection.place, side=side) for projection in projections for side in QKV)
    with listen(model, map(ModuleReading, places), take, name) as listener:
        listener.forward(call.args, call.kwargs, call.hint)
    derived = {}
    for projection in projections:
        place = projection.place
        same = tuple(side for side in QKV if memory[replace(place, side=side)] == memory[place])
        derived[projection] = (ModuleReading(replace(place, side=same[0]), shared=same[1:]), affine[place])
    return derived


def _weight_and_bias(module: nn.Module, side: str) -> Affine:
    assert isinstance(module, nn.MultiheadAttention)
    third = QKV.index(side)
    weight = (
        module.in_proj_weight.chunk(3)[third] if module._qkv_same_embed_dim else getattr(module, f"{side}_proj_weight")
    )
    bias = None if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[third].detach().clone()
    return weight.detach().clone(), bias
