r"""How a translation is fitted from pairs: one function per method, and the choice of one on held-out pairs.

The strength of ridge regression is chosen by leaving each pair out in turn, from one decomposition. With :math:`X = U
S V^\top` centred, the prediction for a row that was left out follows from the fit on all: its error is :math:`e_i /
(1 - h_i)`, :math:`h_i = 1/n + \sum_j u_{ij}^2 s_j^2 / (s_j^2 + \lambda)` (Allen's PRESS).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from interbasin import fit
from interbasin.checks import require_choice, require_finite, require_flag, require_whole
from interbasin.errors import FitError, InterbasinError
from interbasin.fit.procrustes import nearest_orthogonal
from interbasin.jobs.translate.inversion import Inversion, choose_strength, invert_pruned, invert_regularised
from interbasin.jobs.translate.translation import Standardiser, Translation
from interbasin.maps import Linear, Map
from interbasin.methods import Method, MethodTable
from interbasin.randomness import generator_of

STRENGTHS: tuple[float, ...] = tuple(10 ** (-8 + step / 3) for step in range(31))
_ROWS, _COLUMNS = 2048, 256  # of the target: enough to tell one strength from another
VARIANTS = ("regularised", "pruned")
COMPLETIONS = ("polar", "map")
_RANK_TOLERANCE = 1e-6  # of the largest singular value; directions below it are noise
FOLDS = 3
_SEARCHED = 2048  # rows that a held-out row is looked for among


@dataclass(frozen=True)
class Options:
    """A method, and the options of all methods; each uses its own."""

    method: str = "relative-projection"
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

    def check(self) -> None:
        """Refuse values that no method can use."""
        require_choice("variant of relative-projection", self.variant, VARIANTS)
        require_finite("delta", self.delta, 0, 1)
        require_whole("omega", self.omega, least=1)
        if self.completion is not None:
            require_choice("completion", self.completion, COMPLETIONS)
        if self.strength is not None:
            require_finite("strength", self.strength, least=0)
        require_finite("whitening", self.whitening, 0, 0.5)
        for name in ("lengths", "standardise", "scale"):
            require_flag(name, getattr(self, name))
        require_whole("seed", self.seed, least=0)

    def invert(self, anchors: Tensor, beside: Sequence[Tensor] = ()) -> Inversion:
        """The way back to the space of ``anchors``, rows of length 1; see `invert_pruned`."""
        if self.variant == "pruned":
            return invert_pruned(anchors, self.delta, self.omega, self.seed, beside)
        strength = choose_strength(anchors, self.seed) if self.strength is None else self.strength
        return invert_regularised(anchors, strength)


Fitted = tuple[Translation, dict[str, Any]]  # and its details


def _standardise(x: Tensor, y: Tensor, **options: bool) -> tuple[Standardiser, Standardiser, Tensor, Tensor]:
    """The standardisers of both sides, and their rows standardised."""
    source, target = Standardiser.fit(x, **options), Standardiser.fit(y, **options)
    return source, target, source.transform(x.double()), target.transform(y.double())


def complete(matrix: Tensor, completion: str | None) -> tuple[Map, int]:
    """The map through the relative space, full-dimensional again, and its rank.

    ``"polar"`` follows the paper's assumption that spaces differ by an isometry, and takes the nearest one. Directions
    that the anchors do not show stay out of it. ``"map"`` and None are the map itself: the average of linear maps is
    one, and the paper's completed anchors, read as they must be meant, are its columns.
    """
    rank = int(torch.linalg.matrix_rank(matrix, rtol=_RANK_TOLERANCE))
    if completion == "polar":
        return nearest_orthogonal(matrix, unobserved="drop", rank_tolerance=_RANK_TOLERANCE)[0], rank
    return Linear(matrix), rank


def relative_projection(x: Tensor, y: Tensor, options: Options) -> Fitted:
    """Through cosines with the anchors: encoded by the source's, decoded by the target's."""
    source, target, ours, theirs = _standardise(x, y, unit=True)
    inversion = options.invert(theirs, beside=(ours,))
    map, rank = complete(inversion.weights.mT @ ours, options.completion)
    return Translation(source, map, target, options.lengths), {"rank": rank, **inversion.details()}


def procrustes(x: Tensor, y: Tensor, options: Options) -> Fitted:
    """A rotation about the means, with one scale; of standardised or whitened spaces if asked."""
    source, target, ours, theirs = _standardise(x, y, standardise=options.standardise)
    if options.whitening:
        fitted = fit.cca(ours, theirs, power=options.whitening)
    else:
        fitted = fit.procrustes(ours, theirs, scale=options.scale)
    return Translation(source, fitted.map, target), {"rank": fitted.details["rank"]}


def ridge(x: Tensor, y: Tensor, options: Options) -> Fitted:
    """Least squares with an intercept, shrunk as leaving one pair out advises."""
    source, target, ours, theirs = _standardise(x, y)
    matrix, strength, rank = ridge_by_leave_one_out(ours, theirs, options.strength, options.seed)
    return Translation(source, Linear(matrix), target), {"rank": rank, "strength": strength}


def ridge_by_leave_one_out(x: Tensor, y: Tensor, strength: float | None, seed: int) -> tuple[Tensor, float, int]:
    """The matrix ``(target, source)`` for centred rows, the strength, and the rank of the source.

    The strength is relative to the mean squared singular value; None chooses it.
    """
    values, vectors = torch.linalg.eigh(x.mT @ x)
    kept = values > values[-1].clamp(min=0) * max(x.shape) * torch.finfo(x.dtype).eps
    if not bool(kept.any()):
        return x.new_zeros(y.shape[1], x.shape[1]), 0.0 if strength is None else strength, 0
    values, vectors = values[kept], vectors[:, kept]
    mean = float(values.mean())
    cross = vectors.mT @ (x.mT @ y)  # V^T X^T Y = S U^T Y
    if strength is None:
        strength = _choose_ridge(x, y, values, vectors, cross, mean, seed)
    return ((vectors / (values + strength * mean)) @ cross).mT.contiguous(), strength, len(values)


def _choose_ridge(
    x: Tensor, y: Tensor, values: Tensor, vectors: Tensor, cross: Tensor, mean: float, seed: int
) -> float:
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


def affine(x: Tensor, y: Tensor, options: Options) -> Fitted:
    """Plain least squares with an intercept."""
    source, target, ours, theirs = _standardise(x, y)
    fitted = fit.least_squares(ours, theirs)
    return Translation(source, fitted.map, target), {"rank": fitted.details["rank"]}


def cca(x: Tensor, y: Tensor, options: Options) -> Fitted:
    """Between the whitened spaces, with the target's own variances put back."""
    source, target, ours, theirs = _standardise(x, y)
    fitted = fit.cca(ours, theirs, ridge=1e-3 if options.strength is None else options.strength)
    return Translation(source, fitted.map, target), {"rank": fitted.details["rank"]}


METHODS: MethodTable[Callable[[Tensor, Tensor, Options], Fitted]] = MethodTable(
    "translation method",
    [
        Method("relative-projection", "maiorca:24", "through cosines with shared anchors", relative_projection),
        Method("procrustes", "schonemann:66", "a rotation about the means, with one scale", procrustes),
        Method("ridge", "hoerl:70", "least squares, shrunk as leave-one-out advises", ridge),
        Method("affine", "hoerl:70", "plain least squares with an intercept", affine),
        Method("cca", "hotelling:36", "between the whitened spaces", cca),
    ],
)


# What an audit and "auto" try: the name that reports give it -> the method and its own options.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "ridge": {"method": "ridge", "strength": None},
    "procrustes": {"method": "procrustes", "standardise": False, "whitening": 0.0},
    "procrustes, standardised": {"method": "procrustes", "standardise": True, "whitening": 0.0},
    "relative-projection": {"method": "relative-projection", "variant": "regularised", "strength": None},
    "affine": {"method": "affine"},
    "cca": {"method": "cca", "strength": None},
}


def mean_cosine(translated: Tensor, target: Tensor) -> float:
    """Mean cosine of rows with the right ones, about the mean of the latter."""
    mean = target.mean(0)
    # The smallest length to divide by must be nothing at any scale of the rows.
    return float(torch.nn.functional.cosine_similarity(translated - mean, target - mean, dim=1, eps=1e-300).mean())


def _mean_reciprocal_rank(translated: Tensor, target: Tensor) -> float:
    """Mean reciprocal rank of the right row among all held-out ones, by cosine."""
    unit = torch.nn.functional.normalize(target[:_SEARCHED], dim=1)
    scores = torch.nn.functional.normalize(translated[:_SEARCHED], dim=1) @ unit.mT
    own = scores.diagonal()[:, None]
    return float((1 / (1 + (scores > own).sum(1)).double()).mean())


def _minus_error(translated: Tensor, target: Tensor) -> float:
    """Minus the relative mean squared error."""
    variance = (target - target.mean(0)).square().sum().clamp(min=1e-300)
    return -float((translated - target).square().sum() / variance)


CRITERIA: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "cosine": mean_cosine,
    "retrieval": _mean_reciprocal_rank,
    "error": _minus_error,
}


def score_candidates(x: Tensor, y: Tensor, options: Options, criterion: str) -> dict[str, float]:
    """The mean of each candidate over held-out folds, the best first; one that cannot be fitted is not there."""
    score = CRITERIA[require_choice("criterion", criterion, CRITERIA)]
    if len(x) < 2 * FOLDS:
        raise FitError(f"{len(x)} pairs are too few to choose a method; give {2 * FOLDS} at least, or name a method.")
    folds = torch.randperm(len(x), generator=generator_of(options.seed)).chunk(FOLDS)
    scores: dict[str, float] = {}
    for name, changes in CANDIDATES.items():
        candidate, total = replace(options, **changes), 0.0
        try:
            for fold in folds:
                rest = torch.ones(len(x), dtype=torch.bool)
                rest[fold] = False
                translation, _ = METHODS[candidate.method].function(x[rest], y[rest], candidate)
                total += score(translation(x[fold].double()), y[fold].double())
        except InterbasinError:
            continue
        scores[name] = total / FOLDS
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
