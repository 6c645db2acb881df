r"""Descent over matrices with orthonormal columns, along Cayley curves that never leave them.

At a point :math:`X` (:math:`n \times p`, :math:`X^\top X = I`) with Euclidean gradient :math:`G`, let :math:`S = G
X^\top - X G^\top`. The curve

.. math:: Y(t) = (I + \tfrac t2 S)^{-1} (I - \tfrac t2 S) X

stays on the manifold, leaves :math:`X` downhill, and :math:`\tfrac{d}{dt} F(Y(t))|_0 = -\tfrac12 \|S\|_F^2` [tagare:11;
wen:13]. Steps are accepted by Armijo's rule, so that the objective never rises; the first guess of each is Barzilai and
Borwein's.

A curve cannot pass between rotations and reflections: for square :math:`X` the sign of the determinant is that of the
start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasin.errors import FitError, ShapeError

__all__ = ["Descent", "Objective", "descend", "require_gradient", "value_and_gradient"]

Objective = Callable[[Tensor], tuple[float | Tensor, Tensor]]

ARMIJO = 1e-4
SHORTEN = 0.2
SHORTEST = 1e-20


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: the point, its value, the values on the way, and how it ended."""

    point: Tensor
    value: float
    path: tuple[float, ...]
    status: str
    steps: int


@dataclass(frozen=True)
class _Place:
    point: Tensor
    value: float
    gradient: Tensor
    tangent: Tensor  # G - X G^T X, the gradient along the manifold

    @property
    def steepness(self) -> float:
        return float(torch.linalg.matrix_norm(self.tangent))


def descend(objective: Objective, start: Tensor, *, tolerance: float = 1e-10, steps: int = 1000) -> Descent:
    """A stationary point of ``objective`` over the matrices with orthonormal columns, downhill from ``start``.

    Args:
        objective: Gives value and Euclidean gradient at a point of the shape of ``start``.
        start: Shape ``(n, p)`` with ``p <= n`` and orthonormal columns.
        tolerance: Stop when the gradient along the manifold is this small beside the whole gradient at the start.
        steps: The limit of steps.
    """
    here = _evaluate(objective, start)
    flat = tolerance * float(torch.linalg.matrix_norm(here.gradient))
    path = [here.value]
    guess = _first_guess(here)
    for step in range(steps):
        if here.steepness <= flat:
            return Descent(here.point, here.value, tuple(path), "converged", step)
        there = _search(objective, here, guess)
        if there is None:
            return Descent(here.point, here.value, tuple(path), "stalled", step)
        guess = _barzilai_borwein(here, there, step)
        here = there
        path.append(here.value)
    status = "converged" if here.steepness <= flat else "step-limit"
    return Descent(here.point, here.value, tuple(path), status, steps)


def _evaluate(objective: Objective, point: Tensor) -> _Place:
    value, gradient = value_and_gradient(objective(point))
    gradient = require_gradient(gradient, point).detach().to(point)
    if not torch.isfinite(torch.tensor(value)) or not bool(torch.isfinite(gradient).all()):
        raise FitError(
            f"The objective or its gradient is not finite (value {value}); check it at the start it was given."
        )
    tangent = gradient - point @ (gradient.mT @ point)
    return _Place(point, value, gradient, tangent)


def value_and_gradient(answer: object) -> tuple[float, object]:
    """The two things that an objective has to return."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise FitError(
            f"The objective must return its value and its gradient, found {type(answer).__name__}; "
            "return (value, gradient)."
        )
    return float(torch.as_tensor(answer[0]).detach()), answer[1]


def require_gradient(gradient: object, point: Tensor) -> Tensor:
    """The gradient that an objective returned, if it is a tensor of the shape of ``point``."""
    if not isinstance(gradient, Tensor) or gradient.shape != point.shape:
        found = tuple(gradient.shape) if isinstance(gradient, Tensor) else type(gradient).__name__
        raise ShapeError(
            f"The objective must return its gradient as a tensor of shape {tuple(point.shape)}, found {found}; "
            "it takes the matrix of the map and returns (value, gradient)."
        )
    return gradient


def _search(objective: Objective, here: _Place, guess: float) -> _Place | None:
    """The first point on the curve that Armijo's rule accepts, or None where none is better."""
    curve = _cayley_curve(here)
    slope = 0.5 * float(torch.linalg.matrix_norm(_skew(here))) ** 2
    # Below this the objective's own round-off hides any decrease; there the gradient decides, as in Hager and Zhang's
    # rule.
    noise = 8 * torch.finfo(here.point.dtype).eps * abs(here.value)
    time = guess
    while time > SHORTEST:
        there = _evaluate(objective, curve(time))
        if there.value <= here.value - ARMIJO * time * slope:
            return there
        if time * slope <= noise and there.value <= here.value + noise and there.steepness < here.steepness:
            return there
        time *= SHORTEN
    return None


def _skew(place: _Place) -> Tensor:
    outer = place.gradient @ place.point.mT
    return outer - outer.mT


def _cayley_curve(place: _Place) -> Callable[[float], Tensor]:
    rows, columns = place.point.shape
    if 2 * columns < rows:
        # S = U V^T with 2p columns: Sherman, Morrison and Woodbury make the solve 2p x 2p [wen:13, lemma 4].
        left = torch.cat([place.gradient, place.point], dim=1)
        right = torch.cat([place.point, -place.gradient], dim=1)
        inner, head = right.mT @ left, right.mT @ place.point
        small = torch.eye(2 * columns, dtype=head.dtype, device=head.device)
        return lambda time: place.point - time * left @ torch.linalg.solve(small + time / 2 * inner, head)
    skew = _skew(place)
    whole = torch.eye(rows, dtype=skew.dtype, device=skew.device)
    return lambda time: torch.linalg.solve(whole + time / 2 * skew, place.point - time / 2 * (skew @ place.point))


def _first_guess(place: _Place) -> float:
    # A turn of about one radian: long enough to see the curve, short enough to stay on this side of the sphere.
    size = float(torch.linalg.matrix_norm(place.tangent))
    return 1 / size if size > 0 else 1.0


def _barzilai_borwein(here: _Place, there: _Place, step: int) -> float:
    """The step that the change of the gradient suggests, long and short by turns."""
    moved = there.point - here.point
    turned = there.tangent - here.tangent
    mixed = abs(float((moved * turned).sum()))
    guess = float(moved.square().sum()) / mixed if step % 2 == 0 and mixed > 0 else 0.0
    if step % 2 == 1 and float(turned.square().sum()) > 0:
        guess = mixed / float(turned.square().sum())
    return min(max(guess, 1e-12), 1e12) if guess > 0 else _first_guess(there)
