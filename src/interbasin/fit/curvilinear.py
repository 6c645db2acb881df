r"""Descent over matrices with orthonormal columns, along Cayley curves that never leave them.

At a point :math:`X` (:math:`n \times p`, :math:`X^\top X = I`) with Euclidean gradient :math:`G`, let :math:`S = G
X^\top - X G^\top`. The curve

.. math:: Y(t) = (I + \tfrac t2 S)^{-1} (I - \tfrac t2 S) X

stays on the manifold, leaves :math:`X` downhill, and :math:`\tfrac{d}{dt} F(Y(t))|_0 = -\tfrac12 \|S\|_F^2` [tagare:11;
wen:13]. Steps are accepted by Armijo's rule, so that the objective never rises; the first guess of each is Barzilai and
Borwein's.

A curve cannot pass between rotations and reflections: for square :math:`X` the sign of the determinant is that of the
start.

Several matrices can descend together, each along its own curve with one step length for all: the product of such
manifolds is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interbasin.errors import FitError, ShapeError

Objective = Callable[[Tensor], tuple[float | Tensor, Tensor]]
JointObjective = Callable[[tuple[Tensor, ...]], tuple[float | Tensor, Sequence[Tensor]]]

ARMIJO = 1e-4
SHORTEN = 0.2
# Of a step, as a turn in radians: below, no number of the points changes; above, every curve is at its far end, and
# round-off is all that a longer step would add.
SHORTEST, LONGEST = 1e-20, 1e4


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: the points, their value, the values on the way, and how it ended."""

    points: tuple[Tensor, ...]
    value: float
    path: tuple[float, ...]
    status: str
    steps: int

    @property
    def point(self) -> Tensor:
        """The point of a descent of one matrix."""
        return self.points[0]


@dataclass(frozen=True)
class _Place:
    points: tuple[Tensor, ...]
    value: float
    gradients: tuple[Tensor, ...]
    tangents: tuple[Tensor, ...]  # G - X G^T X, the gradient along the manifold

    @property
    def steepness(self) -> float:
        return _length(self.tangents)


def descend(objective: Objective, start: Tensor, *, tolerance: float = 1e-10, steps: int = 1000) -> Descent:
    """A stationary point of ``objective`` over the matrices with orthonormal columns, downhill from ``start``.

    Args:
        objective: Gives value and Euclidean gradient at a point of the shape of ``start``.
        start: Shape ``(n, p)`` with ``p <= n`` and orthonormal columns.
        tolerance: Stop when the gradient along the manifold is this small beside the whole gradient at the start.
        steps: The limit of steps.
    """

    def alone(points: tuple[Tensor, ...]) -> tuple[float, Sequence[Tensor]]:
        value, gradient = value_and_gradient(objective(points[0]))
        return value, (require_gradient(gradient, points[0]),)

    return descend_together(alone, (start,), tolerance=tolerance, steps=steps)


def descend_together(
    objective: JointObjective,
    starts: Sequence[Tensor],
    *,
    tolerance: float = 1e-10,
    steps: int = 1000,
    report: Callable[[int, float], object] | None = None,
) -> Descent:
    """The same for several matrices at once: ``objective`` takes all of them and gives a gradient for each.

    Args:
        objective: Gives value and Euclidean gradients.
        starts: Each ``(n, p)`` with ``p <= n`` and orthonormal columns.
        tolerance: Stop when the gradient along the manifold is this small beside the whole gradient at the start.
        steps: The limit of steps.
        report: Called after each step with its number and the value.
    """
    here = _evaluate(objective, tuple(starts))
    flat = tolerance * _length(here.gradients)
    path = [here.value]
    guess = _first_guess(here)
    for step in range(steps):
        if here.steepness <= flat:
            return Descent(here.points, here.value, tuple(path), "converged", step)
        there = _search(objective, here, guess, min(path))
        if there is None:
            return Descent(here.points, here.value, tuple(path), "stalled", step)
        guess = _barzilai_borwein(here, there, step)
        here = there
        path.append(here.value)
        if report is not None:
            report(step + 1, here.value)
    status = "converged" if here.steepness <= flat else "step-limit"
    return Descent(here.points, here.value, tuple(path), status, steps)


def _evaluate(objective: JointObjective, points: tuple[Tensor, ...]) -> _Place:
    answer = objective(points)
    value = _number(answer[0])
    gradients = tuple(one.detach().to(point) for one, point in zip(answer[1], points, strict=True))
    if not math.isfinite(value) or not all(bool(torch.isfinite(one).all()) for one in gradients):
        raise FitError(
            f"The objective or its gradient is not finite (value {value}); check it at the start it was given."
        )
    tangents = tuple(one - point @ (one.mT @ point) for one, point in zip(gradients, points, strict=True))
    return _Place(points, value, gradients, tangents)


def value_and_gradient(answer: object) -> tuple[float, object]:
    """The two things that an objective has to return."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise FitError(
            f"The objective must return its value and its gradient, found {type(answer).__name__}; "
            "return (value, gradient)."
        )
    return _number(answer[0]), answer[1]


def _number(value: object) -> float:
    # Not by way of a tensor of torch's default precision, in which small steps drown.
    return float(value.detach() if isinstance(value, Tensor) else value)  # type: ignore[arg-type]


def require_gradient(gradient: object, point: Tensor) -> Tensor:
    """The gradient that an objective returned, if it is a tensor of the shape of ``point``."""
    if not isinstance(gradient, Tensor) or gradient.shape != point.shape:
        found = tuple(gradient.shape) if isinstance(gradient, Tensor) else type(gradient).__name__
        raise ShapeError(
            f"The objective must return its gradient as a tensor of shape {tuple(point.shape)}, found {found}; "
            "it takes the matrix of the map and returns (value, gradient)."
        )
    return gradient


def _search(objective: JointObjective, here: _Place, guess: float, lowest: float) -> _Place | None:
    """The first point on the curve that Armijo's rule accepts, or None where none is better.

    ``lowest`` is the lowest value so far.
    """
    curves = [_cayley_curve(*pair) for pair in zip(here.points, here.gradients, strict=True)]
    slope = 0.5 * _length([_skew(*pair) for pair in zip(here.points, here.gradients, strict=True)]) ** 2
    # Below this round-off, of the objective and of the points, hides any decrease; there the gradient alone decides, as
    # in Hager and Zhang's rule.
    noise = 8 * torch.finfo(here.points[0].dtype).eps * (abs(here.value) + _length(here.gradients))
    time = guess
    while time * here.steepness > SHORTEST:
        there = _evaluate(objective, tuple(curve(time) for curve in curves))
        if time * slope > noise:
            accepted = there.value <= here.value - ARMIJO * time * slope
        else:
            accepted = there.value <= lowest + noise and there.steepness < here.steepness
        if accepted:
            return there
        time *= SHORTEN
    return None


def _length(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.matrix_norm(one)) for one in tensors))


def _skew(point: Tensor, gradient: Tensor) -> Tensor:
    outer = gradient @ point.mT
    return outer - outer.mT


def _cayley_curve(point: Tensor, gradient: Tensor) -> Callable[[float], Tensor]:
    rows, columns = point.shape
    if 2 * columns < rows:
        # S = U V^T with 2p columns: Sherman, Morrison and Woodbury make the solve 2p x 2p [wen:13, lemma 4].
        across = _without_symmetric_part(point, _without_symmetric_part(point, gradient))
        unit = float(torch.linalg.matrix_norm(across)) or 1.0
        left = torch.cat([across / unit, point], dim=1)
        right = torch.cat([point, -across / unit], dim=1)
        inner, head = right.mT @ left, right.mT @ point
        small = torch.eye(2 * columns, dtype=head.dtype, device=head.device)
        return lambda time: point - time * unit * left @ torch.linalg.solve(small + time * unit / 2 * inner, head)
    skew = _skew(point, gradient)
    whole = torch.eye(rows, dtype=skew.dtype, device=skew.device)
    return lambda time: torch.linalg.solve(whole + time / 2 * skew, point - time / 2 * (skew @ point))


def _without_symmetric_part(point: Tensor, gradient: Tensor) -> Tensor:
    """``G - X sym(X^T G)``, which has the same ``S``.

    Near a minimum almost all of the gradient is ``X`` times a symmetric matrix. It cancels in ``S`` but not in the
    factors of ``S``, where round-off of it can outweigh the rest. Taking it off twice leaves none.
    """
    inner = point.mT @ gradient
    return gradient - point @ ((inner + inner.mT) / 2)


def _first_guess(place: _Place) -> float:
    # A turn of about one radian: long enough to see the curve, short enough to stay on this side of the sphere.
    size = place.steepness
    return 1 / size if size > 0 else 1.0


def _barzilai_borwein(here: _Place, there: _Place, step: int) -> float:
    """The step that the change of the gradient suggests, long and short by turns."""
    moved = [after - before for after, before in zip(there.points, here.points, strict=True)]
    turned = [after - before for after, before in zip(there.tangents, here.tangents, strict=True)]
    mixed = abs(sum(float((one * other).sum()) for one, other in zip(moved, turned, strict=True)))
    guess = _length(moved) ** 2 / mixed if step % 2 == 0 and mixed > 0 else 0.0
    change = _length(turned) ** 2
    if step % 2 == 1 and change > 0:
        guess = mixed / change
    turn = guess * there.steepness
    return min(turn, LONGEST) / there.steepness if turn > SHORTEST else _first_guess(there)
