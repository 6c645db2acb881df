"""How a translation is fitted from pairs: one function a method, each giving a `Translation` and what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from interbasin.jobs.translate.leave_one_out import ridge_by_leave_one_out
from interbasin.jobs.translate.sides import Side
from interbasin.jobs.translate.translation import Translation
from interbasin.maps import Linear, Map

__all__ = ["COMPLETIONS", "METHODS", "VARIANTS", "Options", "completed", "inverted", "named"]

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
Method = Callable[[Tensor, Tensor, Options], Found]


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
    source, target = Side.seen(x, unit=True), Side.seen(y, unit=True)
    ours, theirs = source.entered(x.double()), target.entered(y.double())
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
    source, target = (Side.seen(one, standardise=options.standardise) for one in (x, y))
    ours, theirs = source.entered(x.double()), target.entered(y.double())
    if options.whitening:
        found = fit.cca(ours, theirs, power=options.whitening)
    else:
        found = fit.procrustes(ours, theirs, scale=options.scale)
    return Translation(source, found.map, target), {"rank": found.details["rank"]}


def ridge(x: Tensor, y: Tensor, options: Options) -> Found:
    """Least squares with an intercept, shrunk as leaving one pair out advises."""
    source, target = Side.seen(x), Side.seen(y)
    matrix, strength, rank = ridge_by_leave_one_out(
        source.entered(x.double()), target.entered(y.double()), options.strength, options.seed
    )
    return Translation(source, Linear(matrix), target), {"rank": rank, "strength": strength}


def affine(x: Tensor, y: Tensor, options: Options) -> Found:
    """Plain least squares with an intercept."""
    source, target = Side.seen(x), Side.seen(y)
    found = fit.least_squares(source.entered(x.double()), target.entered(y.double()))
    return Translation(source, found.map, target), {"rank": found.details["rank"]}


def cca(x: Tensor, y: Tensor, options: Options) -> Found:
    """Between the whitened spaces, with the target's own variances put back."""
    source, target = Side.seen(x), Side.seen(y)
    ridge = 1e-3 if options.strength is None else options.strength
    found = fit.cca(source.entered(x.double()), target.entered(y.double()), ridge=ridge)
    return Translation(source, found.map, target), {"rank": found.details["rank"]}


METHODS: Mapping[str, Method] = {
    "relative-projection": relative_projection,
    "procrustes": procrustes,
    "ridge": ridge,
    "affine": affine,
    "cca": cca,
}


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
