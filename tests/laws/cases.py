"""Who is held to the laws. A new map or a new fit joins by one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.laws import strategies

from interbasin import fit, maps

Maker = Callable[[int, int, int], maps.Map]  # (seed, target width, source width) -> map


@dataclass(frozen=True)
class MapCase:
    make: Maker
    square_only: bool = False


MAPS: dict[str, MapCase] = {
    "identity": MapCase(strategies.identity, square_only=True),
    "permutation": MapCase(strategies.permutation),
    "signed permutation": MapCase(strategies.signed_permutation),
    "orthogonal": MapCase(strategies.orthogonal),
    "partial isometry": MapCase(strategies.partial_isometry),
    "linear": MapCase(strategies.linear),
    "affine": MapCase(strategies.affine),
    "blocks": MapCase(strategies.blocks),
}


@dataclass(frozen=True)
class FitCase:
    """A fit, the family of maps it finds again when one is planted, and what may be expected of it.

    Attributes:
        method: The registered name.
        planted: Makes a map of its family.
        options: What it is called with.
        tolerance: How close the planted map comes back from noiseless float64 rows; 0 means exactly.
        minimises: Whether no map of its family has a smaller residual.
        narrowing: Whether a planted map onto a narrower space comes back as well.
    """

    method: str
    planted: Maker
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-9
    minimises: bool = True
    narrowing: bool = True

    def __call__(self, *data: Any, **options: Any) -> fit.Fit:
        return fit.get(self.method)(*data, **{**self.options, **options})


FITS: dict[str, FitCase] = {
    # Onto a narrower space procrustes maximises the correlation, which is not the residual: see its docstring.
    "procrustes": FitCase("procrustes", strategies.orthogonal, narrowing=False),
    "assignment": FitCase("assignment", strategies.permutation, tolerance=0),
    "assignment signed": FitCase("assignment", strategies.signed_permutation, {"signed": True}, tolerance=0),
    "least-squares": FitCase("least-squares", strategies.linear),
    "orthogonalised": FitCase("orthogonalised", strategies.orthogonal, minimises=False),
    "cca 0": FitCase("cca", strategies.orthogonal, {"power": 0.0}, narrowing=False),
    "cca 0.25": FitCase("cca", strategies.orthogonal, {"power": 0.25}, minimises=False, narrowing=False),
    "cca 0.5": FitCase("cca", strategies.linear, {"power": 0.5}, minimises=False),
    # Onto a narrower space its objective has several minima, and it ends in the one downhill from its start.
    "stiefel": FitCase("stiefel", strategies.orthogonal, {"tolerance": 1e-11}, narrowing=False),
    "sinkhorn": FitCase(
        "sinkhorn",
        strategies.permutation,
        {"temperature": 0.005, "steps": 500},
        tolerance=1e-3,
        minimises=False,
        narrowing=False,
    ),
}
