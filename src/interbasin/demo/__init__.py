"""The demonstration: what there is, small, on the embedded data.

Two networks are trained on digits from different seeds. The paired moments of their hidden layers are streamed, every
fit makes a map from them, and each map is judged on images that neither the networks nor the fits have seen: by its
residual, and by what the second network's head makes of the first network's hidden layer. Then every method of re-basin
puts the first network into the second one's coordinates, and the two are merged. The first network's encoder is
stitched to the second one's head by every way of translating. Last, an index of the first network's vectors is audited
for a migration to the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from interbasin.demo import networks, rebasins
from interbasin.demo.fits import Row, fits
from interbasin.demo.migrations import Migration, migration
from interbasin.demo.rebasins import Aligned
from interbasin.demo.translations import Stitch, stitches

__all__ = ["Aligned", "Demo", "Migration", "Row", "Stitch", "run_demo", "steps"]


@dataclass(frozen=True)
class Demo:
    """What the demonstration found."""

    seed: int
    width: int
    train_rows: int
    test_rows: int
    source_accuracy: float
    target_accuracy: float
    similarities: dict[str, float]
    rows: tuple[Row, ...]
    aligned: tuple[Aligned, ...]
    stitched: tuple[Stitch, ...]
    migration: Migration

    def summary(self) -> dict[str, Any]:
        """The same as plain data, JSON-able."""
        return asdict(self)


def steps() -> int:
    """How much there is to do, in the units that `run_demo` reports."""
    return 2 * networks.EPOCHS + rebasins.count()


def run_demo(*, seed: int = 0, progress: Callable[[int], object] | None = None) -> Demo:
    """Train, collect, fit, align, merge, compare.

    Args:
        seed: Of the first network; the second has the next one.
        progress: Called with how much is done, of `steps`.
    """
    report = progress or (lambda done: None)
    pair = networks.trained_pair(seed, report)
    similarities, rows = fits(pair)
    aligned = rebasins.alignments(pair, seed, lambda done: report(2 * networks.EPOCHS + done))
    return Demo(
        seed=seed,
        width=networks.WIDTH,
        train_rows=len(pair.train),
        test_rows=len(pair.test),
        source_accuracy=networks.share_right(pair.source(pair.test), pair.test_labels),
        target_accuracy=networks.share_right(pair.target(pair.test), pair.test_labels),
        similarities=similarities,
        rows=rows,
        aligned=aligned,
        stitched=stitches(pair, seed),
        migration=migration(pair, seed),
    )
