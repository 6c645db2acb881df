"""What a fit gives back: `Fit`, and the statuses that say how it ended."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interbasin.errors import FitError
from interbasin.maps import Map
from interbasin.maps.files import HOLDS, write_into
from interbasin.storage import new_folder, write_document

STATUSES = {
    "converged": "the solution was found",
    "rank-deficient": "some directions were not observed, so the map is arbitrary (or zero) in them; give more rows or "
    "regularise",
    "step-limit": "the iteration was stopped by its limit of steps before it converged; allow more steps or a looser "
    "tolerance",
    "stalled": "no further step improved the objective before the tolerance was met; the solution is as good as "
    "round-off allows from this start",
}


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
            ``details["residual_resolution"]``; NaN if they do not hold what it takes: a map onto a narrower space needs
            the source's Gram matrix.
        explained: The share of the target's energy that is explained: of the variance about the mean for a centred fit,
            so that means which the map does not carry show in ``residual`` and not here.
        status: One of `STATUSES`.
        steps: Iterations; 1 for solvers that have none.
        method: The name of the solver.
        details: What else the solver has to say: ranks, objective values, correlations.
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
        return {
            "method": self.method,
            "map": self.map.kind,
            "source_width": self.map.source_width,
            "target_width": self.map.target_width,
            "residual": _json_number(self.residual),
            "explained": _json_number(self.explained),
            "status": self.status,
            "steps": self.steps,
            "details": {name: _json_number(value) for name, value in self.details.items() if _is_plain(value)},
        }

    def save(
        self, folder: str | os.PathLike[str], *, force: bool = False, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Write the map and ``fit.json`` to a folder, whole or not at all; `interbasin.maps.load` reads it."""
        with new_folder(folder, HOLDS, force=force) as temporary:
            write_into(temporary, self.map)
            document = {"format": "interbasin.fit", "version": 1, **self.summary(), **dict(notes or {})}
            write_document(Path(temporary) / "fit.json", document)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _json_number(value: Any) -> Any:
    # JSON has no NaN: what is not known is null.
    return None if isinstance(value, float) and not math.isfinite(value) else value
