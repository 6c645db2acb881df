r"""Between two networks: the straight path and the arc, tensor by tensor.

``lerp`` is :math:`(1 - t) a + t b`. ``slerp`` keeps to the arc between the directions of the two tensors, seen as
vectors [shoemake:85]. With :math:`\theta` the angle between them it is
:math:`\frac{\sin((1 - t)\theta)}{\sin\theta} a + \frac{\sin(t\theta)}{\sin\theta} b`, so that equal lengths stay what
they are instead of shrinking half-way. Where the tensors are all but parallel or opposite, or one is zero, there is no
single arc, and the line is taken. Between opposite tensors the line passes through zero: near that point there is no
answer, and it is refused.

`shares_on_arc` needs no torch: merging on disk uses it. Therefore torch is imported in the functions that need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from interbasin.checks import require_choice, require_finite
from interbasin.errors import DataError, ShapeError, WiringError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Cosines beyond this count as parallel or opposite: there sin(theta) has lost its digits in half precision.
PARALLEL = 0.9995
# Beyond this, a point says nothing about the networks on either side.
FARTHEST = 1000
# Between opposite tensors, a point of the line nearer to zero than this share of the shorter one says nothing.
VANISHED = 0.1
CHUNK = 1 << 18  # numbers that are taken to float64 at a time; they fit in a cache

Model = TypeVar("Model", bound="nn.Module")


def shares_on_arc(cosine: float, t: float) -> tuple[float, float]:
    """How much of each end the point at ``t`` holds, on the arc or, where there is no single one, on the line.

    Args:
        cosine: Of the angle between the ends.
        t: 0 is the first end, 1 the second.

    Example:
        >>> [round(share, 4) for share in shares_on_arc(0.0, 1 / 3)]  # cosine and sine of 30 degrees
        [0.866, 0.5]
        >>> shares_on_arc(-1.0, 0.25)
        (0.75, 0.25)
    """
    if not abs(cosine) <= PARALLEL:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def require_point(name: str, cosine: float, from_a: float, from_b: float, lengths: tuple[float, float]) -> None:
    """Refuse the point of the line between two opposite tensors that is all but zero: no arc leads through it.

    Args:
        name: What the message calls the tensors.
        cosine: Of the angle between the ends.
        from_a, from_b: How much of each end the point holds.
        lengths: Of the two ends.

    Raises:
        DataError: if it is such a point.
    """
    to_a, to_b = lengths
    if cosine < -PARALLEL and abs(from_a * to_a - from_b * to_b) < VANISHED * min(lengths):
        raise DataError(
            f"{name} points opposite ways at the two ends (their cosine is {cosine:.4f}), where there is no single arc "
            f"between them, and the line passes through zero: with {from_b:g} of the second end next to nothing would "
            "be left. Align the networks first, choose another t, or take lerp if zeros are what you want."
        )


def lerp(a: Tensor, b: Tensor, t: float, name: str = "A tensor") -> Tensor:
    """The point at ``t`` of the line from ``a`` to ``b``, rounded once to the dtype of ``a``.

    ``name`` is what messages call the two.

    Example:
        >>> import torch
        >>> lerp(torch.tensor([0.0, 2.0]), torch.tensor([4.0, 2.0]), 0.25)
        tensor([1., 2.])
    """
    return _mix(a, b, 1 - t, t, name)


def slerp(a: Tensor, b: Tensor, t: float, name: str = "A tensor") -> Tensor:
    """The point at ``t`` of the arc from ``a`` to ``b``, each tensor taken as one vector.

    ``name`` is what messages call the two.

    Raises:
        DataError: if they are opposite, and the point on the line between them is all but zero.

    Example:
        >>> import torch
        >>> slerp(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), 0.5)
        tensor([0.7071, 0.7071])
    """
    cosine, lengths = _compare(a, b)
    shares = shares_on_arc(cosine, t)
    require_point(name, cosine, *shares, lengths)
    return _mix(a, b, *shares, name)


def _mix(a: Tensor, b: Tensor, from_a: float, from_b: float, name: str) -> Tensor:
    from interbasin.arrays import narrowed, working_dtype

    dtype = working_dtype(a.dtype)
    return narrowed((a.to(dtype) * from_a).add_(b.to(dtype), alpha=from_b), a.dtype, f"{name} between the two ends")


def cosine_between(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two tensors, each taken as one vector; 1 if one of them is zero.

    Example:
        >>> import torch
        >>> round(cosine_between(torch.tensor([[1.0, 1.0]]), torch.tensor([[-2.0, -2.0]])), 6)
        -1.0
    """
    return _compare(a, b)[0]


def _compare(a: Tensor, b: Tensor) -> tuple[float, tuple[float, float]]:
    """The cosine of the angle between two tensors, and their lengths."""
    a, b = a.flatten(), b.flatten()
    in_a = in_b = in_both = 0.0
    # In chunks, because a whole tensor in float64 is four times as large as the same in half precision.
    for start in range(0, a.numel(), CHUNK):
        x, y = (tensor[start : start + CHUNK].double() for tensor in (a, b))
        in_a, in_b, in_both = in_a + float(x @ x), in_b + float(y @ y), in_both + float(x @ y)
    lengths = math.sqrt(in_a), math.sqrt(in_b)
    both = lengths[0] * lengths[1]
    return (in_both / both if both else 1.0), lengths


PATHS: Mapping[str, Callable[[Tensor, Tensor, float, str], Tensor]] = {"lerp": lerp, "slerp": slerp}


def interpolate_tensors(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], t: float, path: str = "lerp", *, finite: bool = True
) -> dict[str, Tensor]:
    """The point at ``t`` between two mappings of tensors. What holds no real numbers comes from the nearer end.

    Args:
        a, b: The ends.
        t: Where between them.
        path: ``"lerp"`` or ``"slerp"``.
        finite: Refuse tensors with NaN or infinity, unless they are the same at both ends, as masks are.

    Raises:
        UnknownNameError: for a path that is not known.
        ShapeError: if a tensor has another shape at the other end.
        WiringError: if a tensor is missing at one end.
        DataError: if ``t`` is no number or far from both ends, a tensor holds NaN or infinity, or would hold it; or
            if slerp has no answer, because two tensors are opposite.
    """
    import torch

    between_two = PATHS[require_choice("path", path, PATHS)]
    t = require_finite("t (0 is the first network, 1 the second)", t, -FARTHEST, FARTHEST)
    lonely = sorted(a.keys() ^ b.keys())
    if lonely:
        raise WiringError(
            f"Asked to go from one network to another, but {lonely[0]!r} is only in one of them ({len(lonely)} such "
            "tensors); only networks of one architecture lie on a common path."
        )
    between = {}
    for name, start in a.items():
        end = b[name]
        if start.shape != end.shape:
            raise ShapeError(
                f"{name} has shape {tuple(start.shape)} at one end and {tuple(end.shape)} at the other; only networks "
                "of one shape lie on a common path."
            )
        start, end = start.detach(), end.detach().to(start.device)
        if finite and not bool(torch.isfinite(start).all() & torch.isfinite(end).all()):
            if not torch.equal(start, end):
                raise DataError(f"{name} holds NaN or infinity at one end; repair that network first.")
            between[name] = start.clone()
        elif t in (0, 1) or not (start.is_floating_point() or start.is_complex()):
            between[name] = (start if t < 0.5 else end).to(start.dtype, copy=True)
        elif start.is_complex():
            real, real_end = (torch.view_as_real(tensor.resolve_conj()) for tensor in (start, end.to(start.dtype)))
            between[name] = torch.view_as_complex(between_two(real, real_end, t, name))
        else:
            between[name] = between_two(start, end, t, name)
    return between


def interpolate(a: Model, b: nn.Module, t: float, path: str = "lerp", *, finite: bool = True) -> Model:
    """A new network at ``t`` between ``a`` (``t=0``) and ``b`` (``t=1``), of the class of ``a``.

    Running statistics of batch norms go the same way as weights, which is seldom what activations do: reset them
    (`interbasin.batch_norm.reset_batch_norm` does; `interbasin.rebasin` with data and `interbasin.evaluate.barrier` on
    request do so at the points between the ends).

    Args:
        a, b: Networks of one architecture. Neither changes.
        t: Where between them.
        path: ``"lerp"`` or ``"slerp"``, tensor by tensor.
        finite: Refuse weights that are NaN or infinite, instead of handing them on.

    Raises:
        WiringError, ShapeError, DataError: as `interpolate_tensors`; and for networks whose modules show that their
            activations differ. What a ``forward`` calls by itself is not seen here.
    """
    from torch import nn

    from interbasin.wiring.compatibility import require_same_activations
    from interbasin.wiring.trace.copying import copied

    for network in (a, b):
        if not isinstance(network, nn.Module):
            raise WiringError(f"Asked to interpolate a {type(network).__name__}; give two torch.nn.Modules.")
    between = interpolate_tensors(a.state_dict(), b.state_dict(), t, path, finite=finite)
    require_same_activations(a, b)
    network = copied(a)
    network.load_state_dict(between)
    return network
