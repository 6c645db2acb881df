"""Steering vectors, linear probes and dictionaries, through the same maps as updates.

A *vector* is a direction that is added to activations: it goes by the map of the space. A *probe* reads activations:
its weights go by the dual, and its bias so that it answers to mapped activations as it did, means included. A
dictionary of a sparse autoencoder is both: its decoder writes directions, its encoder reads them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.jobs.transport.bases import Pair
from interbasin.jobs.transport.prepare import PreparedTransport
from interbasin.jobs.transport.updates.update import Update
from interbasin.maps import Affine, Map


def carry_vector(vectors: Tensor, prepared: PreparedTransport, space: str, target: str | None = None) -> Tensor:
    """Directions in a space of the source, such as a steering vector, as directions in the target's.

    Args:
        vectors: ``(..., width)``: one vector, or the rows of a decoder.
        prepared: From `interbasin.prepare_transport`.
        space: The source's space; see ``prepared.bases.correspondence``.
        target: The target's, where the source's has several partners.

    Example:
        >>> from torch import nn
        >>> from interbasin import carry, wire
        >>> from interbasin.jobs.transport import prepare_transport
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> alignment = wire(net, inputs).sample(seed=1)
        >>> prepared = prepare_transport(net, carry(net, alignment), inputs)
        >>> moved = carry_vector(torch.arange(8.0), prepared, "0")
        >>> bool(torch.allclose(moved, alignment.maps["0"](torch.arange(8.0)), atol=1e-5))
        True
    """
    return _map(prepared, space, target, vectors)(vectors)


def carry_probe(
    weight: Tensor, bias: Tensor | None, prepared: PreparedTransport, space: str, target: str | None = None
) -> tuple[Tensor, Tensor]:
    """A linear probe on a space of the source, for the target's: weight ``(outputs, width)`` and bias ``(outputs,)``.

    The bias takes the two means into account: the probe answers to the target's mean as it did to the source's.

    Args:
        weight, bias: Of the probe; None for no bias.
        prepared: From `interbasin.prepare_transport`.
        space, target: As for `carry_vector`.
    """
    pair = _pair(prepared, space, target)
    dual = _map(prepared, space, target, weight).dual()
    _require_bias(bias, weight)
    assert not isinstance(dual, Affine)
    moved = dual(weight)
    if prepared.recording is None:
        raise DataError(
            "A probe's bias takes the means of activations into account, and what was prepared from weights knows "
            "none; give prepare_transport data."
        )
    moments = prepared.recording.moments[prepared.task(Update()).needed_maps.plain[pair][-1]]
    means = moments.mean_source.to(weight), moments.mean_target.to(weight)
    start = weight.new_zeros(weight.shape[:-1]) if bias is None else bias.to(weight)
    return moved, start + weight @ means[0] - moved @ means[1]


def _require_bias(bias: Any, weight: Tensor) -> None:
    """Refuse a bias that is not one number for each output of the probe."""
    if bias is None:
        return
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        found = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise DataError(f"A probe's bias is a floating-point tensor, or None, found {found}.")
    if bias.shape != weight.shape[:-1]:
        raise ShapeError(
            f"The probe's weight has shape {tuple(weight.shape)} and its bias {tuple(bias.shape)}; give one number for "
            "each output."
        )
    if not bool(torch.isfinite(bias).all()):
        raise DataError("The probe's bias holds NaN or infinity; repair it first.")


def _pair(prepared: PreparedTransport, space: str, target: str | None) -> Pair:
    if not isinstance(prepared, PreparedTransport):
        raise DataError(
            f"Vectors and probes go through what prepare_transport gives, found {type(prepared).__name__}; load one "
            "that was saved with PreparedTransport.load."
        )
    known = list(prepared.task(Update()).needed_maps.plain)
    matches = [pair for pair in known if pair[0] == space and target in (None, pair[1])]
    partners = [pair[1] for pair in known if pair[0] == space]
    if partners and not matches:
        raise UnknownNameError.of(f"partner of {space!r} in the target", target, partners)
    if not matches:
        names = list(dict.fromkeys(pair[0] for pair in known))
        raise UnknownNameError.of("space of the source with a map", space, names)
    if len(matches) > 1:
        raise DataError(
            f"{space!r} has several partners in the target ({', '.join(pair[1] for pair in matches)}); say which, with "
            "target=."
        )
    return matches[0]


def _map(prepared: PreparedTransport, space: str, target: str | None, rows: Any) -> Map:
    pair = _pair(prepared, space, target)
    space_map = prepared.maps[pair].map
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or not rows.ndim:
        found = f"one of {rows.dtype} and {rows.ndim} axes" if isinstance(rows, Tensor) else type(rows).__name__
        raise DataError(f"Vectors are a floating-point tensor of one axis or more, found {found}.")
    if rows.device.type == "meta" or rows.layout != torch.strided:
        raise DataError("The vectors hold no numbers (meta), or not all of them (sparse); give a plain tensor.")
    if rows.shape[-1] != space_map.source_width:
        raise ShapeError(
            f"Space {space!r} is {space_map.source_width} wide, and the vectors are {rows.shape[-1]} wide; name the "
            "space that they belong to."
        )
    if not bool(torch.isfinite(rows).all()):
        raise DataError("The vectors hold NaN or infinity; repair them first.")
    return space_map
