"""Orthogonal maps by descent, for objectives that have no closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from interbasin.arrays import as_tensor
from interbasin.errors import FitError, ShapeError
from interbasin.fit.curvilinear import Descent, Objective, descend, require_gradient, value_and_gradient
from interbasin.fit.polar import polar
from interbasin.fit.registry import solver
from interbasin.fit.result import Proposal
from interbasin.maps import Orthogonal
from interbasin.randomness import generator_of
from interbasin.statistics import PairedMoments


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
    (Armijo) steps [tagare:11; wen:13; see `interbasin.fit.curvilinear`]. Without an objective of your own it is the
    Procrustes objective :math:`\|X Q^\top - Y\|_F^2`, whose solution `procrustes` has in closed form.

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
    if not (isinstance(tolerance, int | float) and 0 < tolerance < 1):
        raise FitError(f"tolerance is relative to the gradient, above 0 and below 1, found {tolerance!r}.")
    if not (isinstance(steps, int) and steps >= 1):
        raise FitError(f"steps is the limit of steps, a whole number of at least 1, found {steps!r}.")
    if objective is None:
        assert moments is not None
        objective = _procrustes_objective(moments, centered)
    if start is not None:
        starts = [_checked_start(start, moments)]
    elif moments is not None and moments.target_width < moments.source_width:
        starts = [polar(moments.cross(centered=centered)).factor]
    elif moments is not None:
        starts = _random_starts(moments.target_width, moments.source_width, seed)
    else:
        raise FitError(
            "An objective without data needs a start: a matrix of shape (target, source), orthonormal one way."
        )
    best = min((_descend(objective, begin, tolerance, steps) for begin in starts), key=lambda descent: descent.value)
    matrix = polar(best.point).factor  # takes off the round-off that many steps leave
    map = Orthogonal._trusted(matrix, min(matrix.shape))
    return Proposal(map, best.status, best.steps, {"objective": best.value, "path": best.path})


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


def _descend(objective: Objective, start: Tensor, tolerance: float, steps: int) -> Descent:
    if start.shape[0] >= start.shape[1]:
        return descend(objective, start, tolerance=tolerance, steps=steps)

    def transposed(point: Tensor) -> tuple[float | Tensor, Tensor]:
        value, gradient = value_and_gradient(objective(point.mT))
        return value, require_gradient(gradient, point.mT).mT

    found = descend(transposed, start.mT.contiguous(), tolerance=tolerance, steps=steps)
    return Descent((found.point.mT,), found.value, found.path, found.status, found.steps)


def _checked_start(start: object, moments: PairedMoments | None) -> Tensor:
    tensor = as_tensor(start, "The start of the descent").to(torch.float64)
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ShapeError(
            f"The start of the descent must be a matrix of shape (target, source), found {tuple(tensor.shape)}."
        )
    if moments is not None and tensor.shape != (moments.target_width, moments.source_width):
        raise ShapeError(
            f"The start of the descent has shape {tuple(tensor.shape)}; the statistics are of "
            f"{(moments.target_width, moments.source_width)}."
        )
    # Orthogonal checks it and speaks for itself; then the nearest exactly orthonormal matrix is taken.
    if Orthogonal(tensor).rank != min(tensor.shape):
        raise FitError("The start of the descent must have orthonormal rows or columns, found some that are zero.")
    return polar(tensor).factor


def _random_starts(target: int, source: int, seed: int) -> list[Tensor]:
    # The second draw: data made from the same seed often are the first, and would begin at a stationary point.
    drawn = torch.randn(2, target, source, dtype=torch.float64, generator=generator_of(seed))[1]
    start = polar(drawn).factor
    if target != source:
        return [start]
    mirrored = start.clone()
    mirrored[:, 0].neg_()
    return [start, mirrored]
