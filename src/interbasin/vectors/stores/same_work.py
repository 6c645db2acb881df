"""Whether the translation that was begun is the one that is asked for now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from interbasin.errors import FileError


def check_same_work(begun: Mapping[str, Any], work: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raise a `FileError` that says how the work that was begun differs from the one that is asked for now."""
    differs = []
    if begun.get("source") != work.get("source"):
        differs.append("from another source, or the source has changed since")
    before, now = dict(begun.get("layout", {})), dict(work.get("layout", {}))
    scales = before.pop("scale", None), now.pop("scale", None)
    if scales[0] != scales[1]:
        differs.append(f"with the scale {scales[0]}, and {scales[1]} is asked for now")
    # Rows that were refused are not there, so that a run which keeps them may follow, but not the other way round.
    if (before.pop("bad_rows", "refuse"), now.pop("bad_rows", "refuse")) == ("keep", "refuse"):
        differs.append("with bad rows kept, and to refuse them is asked for now")
    if before != now:
        differs.append("in another layout")
    if not same_probe(begun.get("translator", {}), work.get("translator", {})):
        differs.append("by another translator")
    if differs:
        raise FileError(
            f"{what} was begun {' and '.join(differs)}, so this run cannot go on from it; {remedy} to start anew, or "
            "ask for that with force=True (--force)."
        )


def same_probe(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two fingerprints are of one translator; sums may differ in their last digits from machine to machine."""
    try:
        probes = [np.asarray(fingerprint.get("probe", []), dtype=np.float64) for fingerprint in (first, second)]
    except (TypeError, ValueError):  # of what was damaged
        return False
    return (
        first.get("widths") == second.get("widths")
        and probes[0].shape == probes[1].shape
        and bool(np.allclose(probes[0], probes[1], rtol=1e-6, atol=1e-9))
    )
