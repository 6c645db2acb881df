r"""Between two networks: the straight path and the arc, a tensor at a time.

``lerp`` is :math:`(1 - t) a + t b`. ``slerp`` keeps to the arc between the directions of the two tensors, seen as
vectors: :math:`\frac{\sin((1 - t)\theta)}{\sin\theta} a + \frac{\sin(t\theta)}{\sin\theta} b`, so that equal lengths
stay what they are instead of shrinking half-way. Where the tensors are all but parallel or opposite, or one
is zero, there is no arc to tell from the line, or no single one, and the line is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from interbasin.arcs import PARALLEL, shares_on_arc
from interbasin.arrays import working_dtype
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError

__all__ = ["PARALLEL", "PATHS", "arc_shares", "cosine_between", "interpolate", "interpolate_tensors", "lerp", "slerp"]

STRETCH = 1 << 18  # numbers that are taken to float64 at a time; they fit in a cache

Model = TypeVar("Model", bound=nn.Module)


def lerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """The point at ``t`` of the line from ``a`` to ``b``; in the working precision of their dtype, then rounded once.

    Example:
        >>> lerp(torch.tensor([0.0, 2.0]), torch.tensor([4.0, 2.0]), 0.25)
        tensor([1., 2.])
    """
    dtype = working_dtype(a.dtype, torch.float32)
    return (a.to(dtype) * (1 - t)).add_(b.to(dtype), alpha=t).to(a.dtype)


def slerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """The point at ``t`` of the arc from ``a`` to ``b``, each tensor taken as one vector.

    Example:
        >>> slerp(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), 0.5)
        tensor([0.7071, 0.7071])
    """
    from_a, from_b = arc_shares(a, b, t)
    dtype = working_dtype(a.dtype, torch.float32)
    return (a.to(dtype) * from_a).add_(b.to(dtype), alpha=from_b).to(a.dtype)


def arc_shares(a: Tensor, b: Tensor, t: float) -> tuple[float, float]:
    """How much of ``a`` and of ``b`` the point at ``t`` of their arc holds; of their line, where there is no arc.

    Example:
        >>> shares = arc_shares(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), 1 / 3)
        >>> [round(share, 4) for share in shares]  # cosine and sine of 30 degrees
        [0.866, 0.5]
    """
    return shares_on_arc(cosine_between(a, b), t)


def cosine_between(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two tensors, each taken as one vector; 1 if one of them is zero.

    Example:
        >>> round(cosine_between(torch.tensor([[1.0, 1.0]]), torch.tensor([[-2.0, -2.0]])), 6)
        -1.0
    """
    one, other = a.flatten(), b.flatten()
    in_a = in_b = in_both = 0.0
    # In stretches, because a whole tensor in float64 is four times as large as the same in half precision.
    for start in range(0, one.numel(), STRETCH):
        x, y = (part[start : start + STRETCH].double() for part in (one, other))
        in_a, in_b, in_both = in_a + float(x @ x), in_b + float(y @ y), in_both + float(x @ y)
    lengths = math.sqrt(in_a) * math.sqrt(in_b)
    return in_both / lengths if lengths else 1.0


PATHS: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {"lerp": lerp, "slerp": slerp}


def interpolate_tensors(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], t: float, path: str = "lerp", *, finite: bool = True
) -> dict[str, Tensor]:
    """The point at ``t`` between two mappings of tensors. What holds no real numbers comes from the nearer end.

    Args:
        a, b: The ends.
        t: Where between them.
        path: ``"lerp"`` or ``"slerp"``.
        finite: Refuse tensors with NaN or infinity. Those that are the same at both ends, as masks are, are taken as
            they are in any case.

    Raises:
        UnknownNameError: for a path that is not known.
        ShapeError: if a tensor has another shape at the other end.
        WiringError: if a tensor is missing at one end.
        DataError: if ``t`` is no number, or a tensor holds NaN or infinity.
    """
    if path not in PATHS:
        raise UnknownNameError.of("path", path, PATHS)
    if not isinstance(t, int | float) or not math.isfinite(t):
        raise DataError(
            f"Asked for the point {t!r} between two networks; give a number, 0 for the first, 1 for the second."
        )
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
                raise DataError(
                    f"{name} holds NaN or infinity at one end, so that there is no path through it; repair that "
                    "network first."
                )
            between[name] = start.clone()
            continue
        if t in (0, 1) or not (start.is_floating_point() or start.is_complex()):
            between[name] = (start if t < 0.5 else end).to(start.dtype, copy=True)
        elif start.is_complex():
            one, other = (torch.view_as_real(part.resolve_conj()) for part in (start, end.to(start.dtype)))
            between[name] = torch.view_as_complex(PATHS[path](one, other, t))
        else:
            between[name] = PATHS[path](start, end, t)
    return between


def interpolate(a: Model, b: nn.Module, t: float, path: str = "lerp", *, finite: bool = True) -> Model:
    """A new network at ``t`` between ``a`` (``t=0``) and ``b`` (``t=1``), of the class of ``a``.

    Running statistics of batch norms go the same way as weights, which is seldom what activations do: reset them
    (`interbasin.batch_norm.reset_batch_norm` does; `interbasin.rebasin` with data and `interbasin.evaluate.barrier` on
    request do so at the points between the ends).

    Args:
        a, b: Networks of one architecture. Neither changes.
        t: Where between them.
        path: ``"lerp"`` or ``"slerp"``, a tensor at a time.
        finite: Refuse weights that are NaN or infinite, instead of handing them on.
    """
    for network in (a, b):
        if not isinstance(network, nn.Module):
            raise WiringError(f"Asked to interpolate a {type(network).__name__}; give two torch.nn.Modules.")
    from interbasin.wiring.trace.copying import copied  # with all that traces networks, which tensors do without

    between = interpolate_tensors(a.state_dict(), b.state_dict(), t, path, finite=finite)
    made = copied(a)
    made.load_state_dict(between)
    return made
