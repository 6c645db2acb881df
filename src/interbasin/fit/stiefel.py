r"""Orthogonal maps by descent, for objectives that have no closed form.

At a matrix :math:`X` with orthonormal columns (:math:`n \times p`, :math:`X^\top X = I`) and Euclidean gradient
:math:`G`, let :math:`S = G X^\top - X G^\top`. The curve

.. math:: Y(t) = (I + \tfrac t2 S)^{-1} (I - \tfrac t2 S) X

stays on the manifold of such matrices, leaves :math:`X` downhill, and :math:`\tfrac{d}{dt} F(Y(t))|_0 = -\tfrac12
\|S\|_F^2` [tagare:11; wen:13]. Steps are accepted by Armijo's rule, so that the objective never rises; the first guess
of each is Barzilai and Borwein's. No curve leads from a rotation to a reflection: for square :math:`X` the sign of the
determinant is that of the start.

Several matrices can descend together, each along its own curve with one step length for all: the product of such
manifolds is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from interbasin.arrays import as_tensor
from interbasin.checks import require_finite, require_whole
from interbasin.errors import FitError, ShapeError
from interbasin.fit.polar import polar
from interbasin.fit.registry import Proposal, solver
from interbasin.maps import Orthogonal
from interbasin.randomness import generator_of
from interbasin.statistics import PairedMoments

Objective = Callable[[Tensor], tuple[float | Tensor, Tensor]]
JointObjective = Callable[[tuple[Tensor, ...]], tuple[float | Tensor, Sequence[Tensor]]]

ARMIJO = 1e-4
SHORTEN = 0.2
# Of a step, as a turn in radians: below, no number of the points changes; above, every curve is at its far end, and
# round-off is all that a longer step would add.
SHORTEST, LONGEST = 1e-20, 1e4


@solver(name="stiefel", reference="wen:13", grams=False)
def stiefel(
    moments: PairedMoments | None,
    *,
    objective: Objective | None = None,
    start: Tensor | None = None,
    centered: bool = True,
    tolerance: float = 1e-10,
    steps: int = 1000,
    seed: int = 0,
) -> Proposal:
    r"""The orthogonal map at the end of a descent along Cayley curves.

    Minimises any smooth objective over matrices with orthonormal rows or columns by a curvilinear search with monotone
    (Armijo) steps [tagare:11; wen:13]. Without an objective of your own it is the Procrustes objective :math:`\|X
    Q^\top - Y\|_F^2`, whose solution `procrustes` has in closed form.

    Args:
        moments: Or two arrays of paired rows, source and target; None with an ``objective``, and then residual and
            explained are NaN.
        objective: Takes a matrix of shape ``(target, source)``; returns its value and its (Euclidean) gradient.
        start: Where to begin, shape ``(target, source)``. A descent keeps the sign of the determinant, so without a
            start a square map is tried from a random rotation and from a random reflection, and the better end is kept.
            Onto a narrower space, where there can be several minima, it begins at the Procrustes map.
        centered: Fit to the rows about their means (without an objective).
        tolerance: Stop when the gradient along the manifold is this small beside the whole gradient at the start.
        steps: The limit of steps.
        seed: For the random start.
        affine: Return an `Affine` that also carries the source's mean to the target's.

    Example:
        >>> wanted = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
        >>> fit = stiefel(objective=lambda q: ((q - wanted).square().sum(), 2 * (q - wanted)), start=torch.eye(2))
        >>> bool(fit.map.matrix.allclose(wanted, atol=1e-6)), fit.status
        (True, 'converged')
    """
    tolerance = require_finite("tolerance", tolerance, above=0, below=1, error=FitError)
    steps = require_whole("steps", steps, 1, error=FitError)
    by_data = objective is None
    if objective is None:
        assert moments is not None
        objective = _procrustes_objective(moments, centered)
    if start is not None:
        starts = [_nearest_start(start, moments)]
    elif moments is None:
        raise FitError("An objective without data needs a start: a matrix (target, source), orthonormal one way.")
    elif moments.target_width < moments.source_width:
        starts = [polar(moments.cross(centered=centered)).factor]
    else:
        starts = _random_starts(moments.target_width, moments.source_width, seed)
    descents = [descend(objective, begin, tolerance=tolerance, steps=steps) for begin in starts]
    best = min(descents, key=lambda descent: descent.value)
    matrix = polar(best.point).factor  # takes off the round-off that many steps leave
    map = Orthogonal._trusted(matrix, min(matrix.shape))
    status = best.status
    if by_data and moments is not None and status == "converged" and moments.count - centered < min(matrix.shape):
        status = "rank-deficient"
    return Proposal(map, status, best.steps, {"objective": best.value, "path": best.path})


def _procrustes_objective(moments: PairedMoments, centered: bool) -> Objective:
    cross = moments.cross(centered=centered)
    # In units of its largest entry: gradients are squared on the way, and data may be of any scale.
    unit = float(cross.abs().max()) or 1.0
    cross = cross / unit
    if moments.target_width >= moments.source_width:
        # Lengths are kept, so only the correlation changes. The constant is left out: beside it, small changes drown.
        return lambda q: (-2 * (q * cross.to(q)).sum(), -2 * cross.to(q))
    gram = moments.gram_source(centered=centered) / unit
    return lambda q: (((q @ gram.to(q) - 2 * cross.to(q)) * q).sum(), 2 * (q @ gram.to(q) - cross.to(q)))


def _nearest_start(start: object, moments: PairedMoments | None) -> Tensor:
    """The start that a caller gave, made exactly orthonormal."""
    tensor = as_tensor(start, "The start of the descent").to(torch.float64)
    shape = None if moments is None else (moments.target_width, moments.source_width)
    if tensor.ndim != 2 or 0 in tensor.shape or tuple(tensor.shape) != (shape or tuple(tensor.shape)):
        raise ShapeError(f"start must be a matrix of shape {shape or '(target, source)'}, got {tuple(tensor.shape)}.")
    # Orthogonal checks it and speaks for itself.
    if Orthogonal(tensor).rank != min(tensor.shape):
        raise FitError("The start of the descent must have orthonormal rows or columns, but some are zero.")
    return polar(tensor).factor


def _random_starts(target: int, source: int, seed: int) -> list[Tensor]:
    # The second draw: data made from the same seed often are the first, and would begin at a stationary point.
    start = polar(torch.randn(2, target, source, dtype=torch.float64, generator=generator_of(seed))[1]).factor
    if target != source:
        return [start]
    mirrored = start.clone()
    mirrored[:, 0].neg_()
    return [start, mirrored]


# ---------------------------------------------------------------------- the descent


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
    """A stationary point of ``objective`` over the matrices with orthonormal columns or rows, downhill from ``start``.

    Args:
        objective: Gives value and Euclidean gradient at a point of the shape of ``start``.
        start: A matrix with orthonormal columns, or rows where it has fewer of them.
        tolerance: Stop when the gradient along the manifold is this small beside the whole gradient at the start.
        steps: The limit of steps.

    Raises:
        FitError, ShapeError: if the objective does not return a value and a gradient of that shape.
    """
    wide = start.shape[0] < start.shape[1]

    def evaluate(points: tuple[Tensor, ...]) -> tuple[float | Tensor, Sequence[Tensor]]:
        point = points[0].mT if wide else points[0]
        answer: object = objective(point)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise FitError(f"The objective must return (value, gradient), got {type(answer).__name__}.")
        value, gradient = answer
        if not isinstance(gradient, Tensor) or gradient.shape != point.shape:
            got = tuple(gradient.shape) if isinstance(gradient, Tensor) else type(gradient).__name__
            raise ShapeError(f"The objective must return a gradient of shape {tuple(point.shape)}, got {got}.")
        return value, (gradient.mT if wide else gradient,)

    descent = descend_together(evaluate, (start.mT.contiguous() if wide else start,), tolerance=tolerance, steps=steps)
    return replace(descent, points=(descent.point.mT,)) if wide else descent


def descend_together(
    objective: JointObjective,
    starts: Sequence[Tensor],
    *,
    tolerance: float = 1e-10,
    steps: int = 1000,
    report: Callable[[int, float], object] | None = None,
) -> Descent:
    """The same for several matrices at once: ``objective`` takes all of them and gives a gradient for each.

    Each start is ``(n, p)`` with ``p <= n`` and orthonormal columns; ``report`` gets each step's number and value.
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
    answer, gradients = objective(points)
    # Not by way of a tensor of torch's default precision, in which small steps drown.
    value = float(answer.detach() if isinstance(answer, Tensor) else answer)
    gradients = tuple(gradient.detach().to(point) for gradient, point in zip(gradients, points, strict=True))
    if not math.isfinite(value) or not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise FitError(f"The objective or its gradient is not finite (value {value}); check it at the start.")
    tangents = (gradient - point @ (gradient.mT @ point) for gradient, point in zip(gradients, points, strict=True))
    return _Place(points, value, gradients, tuple(tangents))


def _search(objective: JointObjective, here: _Place, guess: float, lowest: float) -> _Place | None:
    """The first point on the curve that Armijo's rule accepts, or None; ``lowest`` is the lowest value so far."""
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
    return math.hypot(*(float(torch.linalg.matrix_norm(tensor)) for tensor in tensors))


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
    return 1 / place.steepness if place.steepness > 0 else 1.0


def _barzilai_borwein(here: _Place, there: _Place, step: int) -> float:
    """The step that the change of the gradient suggests, long and short by turns."""
    moves = [after - before for after, before in zip(there.points, here.points, strict=True)]
    turns = [after - before for after, before in zip(there.tangents, here.tangents, strict=True)]
    mixed = abs(sum(float((move * turn).sum()) for move, turn in zip(moves, turns, strict=True)))
    above, below = (_length(moves) ** 2, mixed) if step % 2 == 0 else (mixed, _length(turns) ** 2)
    angle = above / below * there.steepness if below > 0 else 0.0
    return min(angle, LONGEST) / there.steepness if angle > SHORTEST else _first_guess(there)
