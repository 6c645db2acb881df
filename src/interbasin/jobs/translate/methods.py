r"""How a translation is fitted from pairs: one function per method, each giving a `Translation` and its details.

The strength of ridge regression is chosen by leaving each pair out in turn, from one decomposition. With :math:`X = U
S V^\top` centred, what is predicted for a row that was left out follows from the fit on all: :math:`e_i / (1 - h_i)`,
:math:`h_i = 1/n + \sum_j u_{ij}^2 s_j^2 / (s_j^2 + \lambda)` (Allen's PRESS).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interbasin import fit
from interbasin.errors import FitError, UnknownNameError
from interbasin.fit.procrustes import nearest_orthogonal
from interbasin.jobs.translate.inversion import Inversion, chosen_strength, pruned, regularised
from interbasin.jobs.translate.standardiser import Standardiser
from interbasin.jobs.translate.translation import Translation
from interbasin.maps import Linear, Map
from interbasin.methods import Method, MethodTable
from interbasin.randomness import generator_of

STRENGTHS: tuple[float, ...] = tuple(10 ** (-8 + step / 3) for step in range(31))
# Rows and columns of the target that are enough to tell one strength from another.
_ROWS, _COLUMNS = 2048, 256


def ridge_by_leave_one_out(x: Tensor, y: Tensor, strength: float | None, seed: int) -> tuple[Tensor, float, int]:
    """The matrix ``(target, source)`` for centred rows, the strength, and the rank of the source.

    Args:
        x, y: Centred rows, float64.
        strength: Relative to the mean squared singular value; None to have it chosen.
        seed: Of the rows and columns that are looked at for that.
    """
    values, vectors = torch.linalg.eigh(x.mT @ x)
    kept = values > values[-1].clamp(min=0) * max(x.shape) * torch.finfo(x.dtype).eps
    if not bool(kept.any()):
        return x.new_zeros(y.shape[1], x.shape[1]), 0.0 if strength is None else strength, 0
    values, vectors = values[kept], vectors[:, kept]
    mean = float(values.mean())
    cross = vectors.mT @ (x.mT @ y)  # V^T X^T Y = S U^T Y
    if strength is None:
        strength = _chosen(x, y, values, vectors, cross, mean, seed)
    return ((vectors / (values + strength * mean)) @ cross).mT.contiguous(), strength, len(values)


def _chosen(x: Tensor, y: Tensor, values: Tensor, vectors: Tensor, cross: Tensor, mean: float, seed: int) -> float:
    generator = generator_of(seed)
    rows = torch.randperm(len(x), generator=generator)[:_ROWS]
    columns = torch.randperm(y.shape[1], generator=generator)[:_COLUMNS]
    along, target, cross = x[rows] @ vectors, y[rows][:, columns], cross[:, columns]
    errors = []
    for strength in STRENGTHS:
        weights = 1 / (values + strength * mean)
        leverage = 1 / len(x) + (along.square() * weights).sum(1)
        residual = target - along @ (weights[:, None] * cross)
        errors.append(float((residual / (1 - leverage).clamp(min=1e-9)[:, None]).square().mean()))
    return STRENGTHS[min(range(len(errors)), key=errors.__getitem__)]


VARIANTS = ("regularised", "pruned")
COMPLETIONS = ("polar", "map")
# Of the largest singular value: what is smaller points nowhere in particular.
_RANK_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Options:
    """What the methods can be told; each looks at its own."""

    variant: str = "regularised"
    delta: float = 0.7
    omega: int = 8
    completion: str | None = "polar"
    lengths: bool = False
    strength: float | None = None
    standardise: bool = False
    whitening: float = 0.0
    scale: bool = True
    seed: int = 0


Found = tuple[Translation, dict[str, Any]]


def inverted(
    anchors: Tensor, variant: str, strength: float | None, delta: float, omega: int, seed: int, *, beside: Any = ()
) -> Inversion:
    """The way back to the space of ``anchors``, rows of length 1."""
    if variant == "pruned":
        return pruned(anchors, delta, omega, seed, beside)
    return regularised(anchors, chosen_strength(anchors, seed) if strength is None else strength)


def completed(matrix: Tensor, completion: str | None) -> tuple[Map, int]:
    """The map through the relative space, full-dimensional again, and its rank.

    ``"polar"`` takes the paper at its word that spaces differ by an isometry: the nearest one is the map. Directions
    that the anchors do not show stay out of it. ``"map"`` and None are the map itself: the average of linear maps is
    one, and the paper's completed anchors, read as they must be meant, are its columns.
    """
    rank = int(torch.linalg.matrix_rank(matrix, rtol=_RANK_TOLERANCE))
    if completion == "polar":
        return nearest_orthogonal(matrix, unobserved="drop", rank_tolerance=_RANK_TOLERANCE)[0], rank
    return Linear(matrix), rank


def relative_projection(x: Tensor, y: Tensor, options: Options) -> Found:
    """Through cosines with the anchors: encoded by the source's, decoded by the target's."""
    source, target = Standardiser.fit(x, unit=True), Standardiser.fit(y, unit=True)
    ours, theirs = source.transform(x.double()), target.transform(y.double())
    back = inverted(
        theirs, options.variant, options.strength, options.delta, options.omega, options.seed, beside=(ours,)
    )
    map, rank = completed(back.weights.mT @ ours, options.completion)
    return Translation(source, map, target, options.lengths), {
        "rank": rank,
        "anchors": len(x),
        "anchors_kept": sum(back.kept) / len(back.kept),
        "condition": sum(back.conditions) / len(back.conditions),
        **({} if back.strength is None else {"strength": back.strength}),
    }


def procrustes(x: Tensor, y: Tensor, options: Options) -> Found:
    """A rotation about the means, with one scale; of standardised or whitened spaces if asked."""
    source, target = (Standardiser.fit(one, standardise=options.standardise) for one in (x, y))
    ours, theirs = source.transform(x.double()), target.transform(y.double())
    if options.whitening:
        found = fit.cca(ours, theirs, power=options.whitening)
    else:
        found = fit.procrustes(ours, theirs, scale=options.scale)
    return Translation(source, found.map, target), {"rank": found.details["rank"]}


def ridge(x: Tensor, y: Tensor, options: Options) -> Found:
    """Least squares with an intercept, shrunk as leaving one pair out advises."""
    source, target = Standardiser.fit(x), Standardiser.fit(y)
    matrix, strength, rank = ridge_by_leave_one_out(
        source.transform(x.double()), target.transform(y.double()), options.strength, options.seed
    )
    return Translation(source, Linear(matrix), target), {"rank": rank, "strength": strength}


def affine(x: Tensor, y: Tensor, options: Options) -> Found:
    """Plain least squares with an intercept."""
    source, target = Standardiser.fit(x), Standardiser.fit(y)
    found = fit.least_squares(source.transform(x.double()), target.transform(y.double()))
    return Translation(source, found.map, target), {"rank": found.details["rank"]}


def cca(x: Tensor, y: Tensor, options: Options) -> Found:
    """Between the whitened spaces, with the target's own variances put back."""
    source, target = Standardiser.fit(x), Standardiser.fit(y)
    ridge = 1e-3 if options.strength is None else options.strength
    found = fit.cca(source.transform(x.double()), target.transform(y.double()), ridge=ridge)
    return Translation(source, found.map, target), {"rank": found.details["rank"]}


METHODS: MethodTable[Callable[[Tensor, Tensor, Options], Found]] = MethodTable(
    "translation method",
    [
        Method("relative-projection", "maiorca:24", "through cosines with shared anchors", relative_projection),
        Method("procrustes", "schonemann:66", "a rotation about the means, with one scale", procrustes),
        Method("ridge", "hoerl:70", "least squares, shrunk as leave-one-out advises", ridge),
        Method("affine", "hoerl:70", "plain least squares with an intercept", affine),
        Method("cca", "hotelling:36", "between the whitened spaces", cca),
    ],
)


def named(options: Options) -> None:
    """Refuse options that no method knows."""
    for name in ("delta", "omega", "strength", "whitening"):
        value = getattr(options, name)
        if name == "strength" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise FitError(f"{name} is a number, found {value!r}.")
    for name in ("lengths", "standardise", "scale"):
        value = getattr(options, name)
        if not isinstance(value, bool | np.bool_):
            raise FitError(f"{name} is True or False, found {value!r}.")
    if options.variant not in VARIANTS:
        raise UnknownNameError.of("variant of relative-projection", options.variant, VARIANTS)
    if options.completion is not None and options.completion not in COMPLETIONS:
        raise UnknownNameError.of("completion", options.completion, COMPLETIONS)
    for name, value, fits, what in (
        ("delta", options.delta, 0 <= options.delta <= 1, "a distance from 0 to 1"),
        ("omega", options.omega, options.omega >= 1 and int(options.omega) == options.omega, "a count of at least 1"),
        (
            "strength",
            options.strength,
            options.strength is None or 0 <= options.strength < float("inf"),
            "a number of at least 0, or None to have it chosen",
        ),
        ("whitening", options.whitening, 0 <= options.whitening <= 0.5, "a power from 0 to 0.5"),
    ):
        if not fits:
            raise FitError(f"{name} is {what}, found {value!r}.")
