"""What a fit is: how a solver becomes a public function, and what that function gives back.

A solver is written as ``moments, options -> Proposal``. The decorator `solver` makes it a function that takes moments
*or* two arrays of paired rows, measures the map, returns a `Fit`, and is found by the name that the command line uses.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interbasin.arrays import Array, as_tensor
from interbasin.errors import DataError, FitError
from interbasin.maps import Affine, Map
from interbasin.maps.files import HOLDS, write_into
from interbasin.methods import Method, MethodTable
from interbasin.statistics import PairedMoments, residual_energy
from interbasin.storage import new_folder, write_document

STATUSES = {
    "converged": "the solution was found",
    "rank-deficient": "some directions were not observed, so the map is arbitrary (or zero) in them; give more rows or "
    "regularise",
    "tied": "another matching is exactly as good, so which one was taken is arbitrary; give rows in which units differ",
    "step-limit": "the iteration was stopped by its limit of steps before it converged; allow more steps or a looser "
    "tolerance",
    "stalled": "no further step improved the objective before the tolerance was met; the solution is as good as "
    "round-off allows from this start",
}
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Proposal:
    """What a solver returns: a linear map and how it was found. `Fit` adds how good it is."""

    map: Map
    status: str = "converged"
    steps: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    r"""A map from source to target, and how well it does on the rows it was fitted to.

    Attributes:
        map: The map.
        residual: :math:`\|m(x) - y\| / \|y\|` over the rows as they are (the map as it stands, with its offset if it
            has one). From moments it is a difference of sums, which tells nothing below
            ``details["residual_resolution"]``. It is NaN if the moments lack what it takes: a map onto a narrower space
            needs the source's Gram matrix.
        explained: The share of the target's energy that is explained: of the variance about the mean for a centred fit,
            so that means which the map does not carry show in ``residual`` and not here.
        status: One of `STATUSES`.
        steps: Iterations; 1 for solvers that have none.
        method: The name of the solver.
        details: What else the solver reports: ranks, objective values, correlations.
    """

    map: Map
    residual: float
    explained: float
    status: str
    steps: int
    method: str = ""
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def message(self) -> str:
        """The status in words."""
        return STATUSES[self.status]

    def required(self) -> Fit:
        """This fit if it converged.

        Raises:
            FitError: if it did not.
        """
        if self.status != "converged":
            raise FitError(f"The {self.method} fit is {self.status}: {self.message}.")
        return self

    def summary(self) -> dict[str, Any]:
        """The fit without its numbers, JSON-able."""
        plain = {
            name: value for name, value in self.details.items() if isinstance(value, bool | int | float | str | None)
        }
        return {
            "method": self.method,
            "map": self.map.kind,
            "source_width": self.map.source_width,
            "target_width": self.map.target_width,
            "residual": _json_number(self.residual),
            "explained": _json_number(self.explained),
            "status": self.status,
            "steps": self.steps,
            "details": {name: _json_number(value) for name, value in plain.items()},
        }

    def save(
        self, folder: str | os.PathLike[str], *, force: bool = False, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write the map and ``fit.json`` to a folder, whole or not at all; `interbasin.maps.load` reads it."""
        with new_folder(folder, HOLDS, force=force) as temporary:
            write_into(temporary, self.map)
            document = {"format": "interbasin.fit", "version": 1, **self.summary(), **dict(notes or {})}
            write_document(Path(temporary) / "fit.json", document)


def _json_number(value: Any) -> Any:
    # JSON has no NaN: what is not known is null.
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------- the table of solvers


Solver = Method[Callable[..., Fit]]
SOLVERS: MethodTable[Callable[..., Fit]] = MethodTable("fit", error=FitError)


def get(name: str) -> Callable[..., Fit]:
    """The fit that the command line calls ``name``; underscores do for hyphens.

    Raises:
        UnknownNameError: with the known names, nearest first.
    """
    return describe(name).function


def describe(name: str) -> Solver:
    """Everything that is registered about the fit called ``name``."""
    return SOLVERS[name]


def names() -> tuple[str, ...]:
    """The names of all fits."""
    return SOLVERS.names


def needs_grams(method: Solver, options: Mapping[str, Any]) -> bool:
    """Whether fitting with these options, or measuring the residual afterwards, takes the Gram matrices."""
    return "grams" in method.needs or not method.traits["isometric"] or bool(options.get("scale"))


def rehearse(method: Solver, options: Mapping[str, Any]) -> None:
    """Fit a few made-up rows, so that bad options are refused before long work and not after it."""
    SOLVERS.require_options(method.name, options)
    rows = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    steps = options.get("steps")
    few = {"steps": 10} if isinstance(steps, int) and steps > 10 else {}
    method.function(PairedMoments.of(rows, rows.flip(-1)), **{**options, **few})


def solver(
    name: str, reference: str, *, grams: bool, isometric: bool = True
) -> Callable[[Callable[..., Proposal]], Callable[..., Fit]]:
    """Register ``moments, options -> Proposal`` under ``name``.

    Args:
        name: What the command line calls it.
        reference: Its key in ``docs/references.bib``.
        grams: Whether it needs the Gram matrices.
        isometric: Whether its map keeps lengths, so that its residual is known without the source's Gram matrix.
    """

    def register(propose: Callable[..., Proposal]) -> Callable[..., Fit]:
        @functools.wraps(propose)
        def fit(
            source: Array | PairedMoments | None = None,
            target: Array | None = None,
            *,
            affine: bool = False,
            **options: Any,
        ) -> Fit:
            if source is None and options.get("objective") is not None:
                # A solver with an objective of the caller's can do without data; there is nothing to measure then.
                if affine:
                    raise FitError(f"An affine {name} fit carries means, so it needs data; give moments or two arrays.")
                free = propose(None, **options)
                return Fit(free.map, math.nan, math.nan, free.status, free.steps, name, free.details)
            moments = _collect_moments(source, target, grams, name)
            proposal = propose(moments, **options)
            return _measure(proposal, moments, source, target, affine, options.get("centered", True), name)

        parameters = list(inspect.signature(propose).parameters.values())[1:]
        fit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
                inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
                *parameters,
                inspect.Parameter("affine", inspect.Parameter.KEYWORD_ONLY, default=False),
            ],
            return_annotation=Fit,
        )
        options = {parameter.name: parameter.default for parameter in parameters} | {"affine": False}
        summary = (inspect.getdoc(propose) or "").split("\n")[0]
        needs = frozenset({"grams"} if grams else ())
        SOLVERS.add(Method(name, reference, summary, fit, needs, options, traits={"isometric": isometric}))
        return fit

    return register


# ---------------------------------------------------------------------- what every fit does


def _collect_moments(
    source: Array | PairedMoments | None, target: Array | None, grams: bool, name: str
) -> PairedMoments:
    if isinstance(source, PairedMoments):
        if target is not None:
            raise DataError(f"{name} takes PairedMoments alone or two arrays, got PairedMoments and a second argument.")
        if not source.count:
            raise DataError(f"{name} got PairedMoments that are empty; call update(x, y) first.")
        if grams and not source.has_grams:
            raise DataError(f"{name} needs the Gram matrices: PairedMoments(grams=True), or record(..., grams=True).")
        return source
    if source is None or target is None:
        what = "nothing" if source is None else f"only {type(source).__name__}"
        raise DataError(f"{name} takes PairedMoments or two arrays of paired rows, got {what}.")
    x, y = as_tensor(source, "The source"), as_tensor(target, "The target")
    # Onto a narrower space even a rotation changes the energy that arrives, and to know it takes the Gram matrix.
    narrowing = x.ndim > 0 and y.ndim > 0 and x.shape[-1] > y.shape[-1]
    return PairedMoments.of(x, y, grams=grams or narrowing)


def with_offset(map: Map, moments: PairedMoments) -> Affine:
    """The affine map with the same matrix that carries the source's mean to the target's."""
    return Affine(map, moments.mean_target - map(moments.mean_source))


def _measure(
    proposal: Proposal,
    moments: PairedMoments,
    source: Array | PairedMoments | None,
    target: Array | None,
    affine: bool,
    centered: bool,
    method: str,
) -> Fit:
    """The `Fit` of a proposal: its offset if one was asked for, and its residuals."""
    map = with_offset(proposal.map, moments) if affine else proposal.map
    details = dict(proposal.details)
    if isinstance(source, PairedMoments) or source is None or target is None:
        details["residual_resolution"] = math.sqrt(2 * moments.precision)
        raw = residual_energy(moments, map, centered=False)
        spread = residual_energy(moments, map, centered=True)
    else:
        # With the rows at hand the residual is measured on them, to round-off; moments stop at their resolution.
        raw, spread = _residuals_of_rows(map, as_tensor(source, "The source"), as_tensor(target, "The target"))
    energy = float(moments.squares_target(centered=False).sum())
    variance = float(moments.squares_target(centered=True).sum())
    part, whole = (spread, variance) if centered or affine else (raw, energy)
    explained = 1 - part / whole if whole > 0 else math.nan
    # A target of zeros is met exactly or not at all; NaN stays NaN.
    ratio = raw / energy if energy > 0 else raw * math.inf if raw else 0.0
    return Fit(map, math.sqrt(ratio), explained, proposal.status, proposal.steps, method, details)


def _residuals_of_rows(map: Map, source: Tensor, target: Tensor) -> tuple[float, float]:
    """The sums of squared residuals, as they are and about their mean."""
    source = source.reshape(-1, source.shape[-1])
    target = target.reshape(-1, target.shape[-1])
    squares = shifted_squares = 0.0
    shifted_total = torch.zeros(target.shape[-1], dtype=torch.float64)
    origin: Tensor | None = None
    for start in range(0, len(source), ROWS_AT_ONCE):
        x = source[start : start + ROWS_AT_ONCE].cpu().to(torch.float64)
        y = target[start : start + ROWS_AT_ONCE].cpu().to(torch.float64)
        missed = map(x).cpu() - y
        squares += float(missed.square().sum())
        origin = missed.mean(dim=0) if origin is None else origin
        shifted_total += (missed - origin).sum(dim=0)
        shifted_squares += float((missed - origin).square().sum())
    return squares, max(0.0, shifted_squares - float(shifted_total.square().sum()) / len(source))
