"""How far apart the weights of two networks are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from interbasin.errors import DataError, ShapeError, WiringError
from interbasin.evaluate.measured import Measured
from interbasin.text import plural


@dataclass(frozen=True)
class Distance(Measured):
    """A distance; as a number, the Euclidean one.

    ``metrics`` hold ``distance`` and, unless the reference is all zero, ``relative_distance``: divided by the norm of
    the reference, which is the relative Frobenius error of the weights (FRNE) [adelfio:25].

    Attributes:
        tensors: The distance of each tensor.
    """

    tensors: Mapping[str, float]

    def __float__(self) -> float:
        return self.metrics["distance"]


def distance(a: nn.Module | Mapping[str, Tensor], b: nn.Module | Mapping[str, Tensor]) -> Distance:
    """The Euclidean distance of all parameters; ``b`` is the reference of the relative one.

    Tensors that have several names count once. Buffers, such as running statistics, and what holds no real numbers
    do not.

    Args:
        a, b: Networks of one architecture, or mappings of tensors by name.

    Raises:
        WiringError: if a parameter is in one of them only.
        ShapeError: if one has another shape.

    Example:
        >>> float(distance({"w": torch.zeros(2)}, {"w": torch.tensor([3.0, 4.0])}))
        5.0
    """
    parameters, references = _parameters(a), _parameters(b)
    lonely = sorted(parameters.keys() ^ references.keys())
    if lonely:
        count = plural(len(lonely), "parameter")
        raise WiringError(
            f"{count}, as {lonely[0]!r}, in one network only; give networks of one architecture and ties."
        )
    apart, sizes = {}, []
    for name, tensor in parameters.items():
        reference = references[name]
        if tensor.shape != reference.shape:
            raise ShapeError(
                f"{name} has shape {tuple(tensor.shape)} in one network and {tuple(reference.shape)} in the other."
            )
        # A difference is right to its last digit in either's precision; only sums need a wider one.
        own = torch.promote_types(torch.promote_types(tensor.dtype, reference.dtype), torch.float32)
        gap = tensor.detach().to(reference.device, own) - reference.detach().to(own)
        apart[name] = float(torch.linalg.vector_norm(gap, dtype=torch.float64))
        sizes.append(float(torch.linalg.vector_norm(reference.detach().to(own), dtype=torch.float64)))
    total, size = math.hypot(*apart.values()), math.hypot(*sizes)
    metrics = {"distance": total} | ({"relative_distance": total / size} if size else {})
    return Distance(metrics, apart)


def _parameters(network: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Floating-point parameters by name, tied ones once."""
    if isinstance(network, nn.Module):
        named: dict[str, Tensor] = dict(network.named_parameters())
    elif isinstance(network, Mapping) and all(isinstance(tensor, Tensor) for tensor in network.values()):
        named = dict(network)
    else:
        raise WiringError(f"Asked for the distance of a {type(network).__name__}; give a Module or named tensors.")
    names: dict[int, str] = {}
    for name, tensor in named.items():
        if tensor.is_floating_point():
            names.setdefault(id(tensor), name)
    if not names:
        raise DataError("Asked for the distance of networks without any parameter; give ones that have some.")
    return {name: named[name] for name in names.values()}
