"""The demonstration: what there is, small, on the embedded data.

Two networks are trained on digits from different seeds. Every fit, every method of re-basin and every way of
translating carries the first into the second, and is judged on images that none of them has seen; then comes an audit,
then the fine-tune of the first network, moved to a wider one, and last that network on images of another kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from interbasin.demo import fine_tune, networks, new_modality, tables
from interbasin.demo.fine_tune import FineTune, Skilled
from interbasin.demo.new_modality import NewModality, Tried
from interbasin.demo.tables import Aligned, Migration, Row, Stitch

__all__ = [
    "Aligned",
    "Demo",
    "FineTune",
    "Migration",
    "NewModality",
    "Row",
    "Skilled",
    "Stitch",
    "Tried",
    "run_demo",
    "steps",
]


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
    fine_tune: FineTune
    new_modality: NewModality

    def summary(self) -> dict[str, Any]:
        """The same as plain data, JSON-able."""
        return asdict(self)


def steps() -> int:
    """How much there is to do, in the units that `run_demo` reports."""
    trained = 2 * networks.EPOCHS + fine_tune.count_epochs()
    return trained + tables.count_alignments() + new_modality.count_adaptations()


def run_demo(*, seed: int = 0, progress: Callable[[int], object] | None = None) -> Demo:
    """Train, collect, fit, align, merge, compare, move a fine-tune, and adapt a network to other images.

    Args:
        seed: Of the first network; the second has the next one.
        progress: Called with how much is done, of `steps`.
    """
    report = progress or (lambda done: None)
    pair = networks.train_pair(seed, report)
    aligned = 2 * networks.EPOCHS + tables.count_alignments()
    similarities, rows = tables.fit_hidden_layers(pair)
    result = Demo(
        seed=seed,
        width=networks.WIDTH,
        train_rows=len(pair.train),
        test_rows=len(pair.test),
        source_accuracy=pair.accuracy(pair.source(pair.test)),
        target_accuracy=pair.accuracy(pair.target(pair.test)),
        similarities=similarities,
        rows=rows,
        aligned=tables.align_networks(pair, seed, lambda done: report(2 * networks.EPOCHS + done)),
        stitched=tables.stitch_networks(pair, seed),
        migration=tables.audit_migration(pair, seed),
        fine_tune=fine_tune.move_fine_tune(pair, seed, lambda done: report(aligned + done)),
        new_modality=new_modality.adapt_network(pair, seed),
    )
    report(steps())
    return result
