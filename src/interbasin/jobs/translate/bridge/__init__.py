"""A translation as a function for queries that needs none of this package, and scores brought to a new scale.

``steps`` takes a translation apart into plain arrays and an ONNX graph, ``thresholds`` carries a threshold of scores
over, ``job`` puts them into one folder.
"""

from interbasin.jobs.translate.bridge.job import LOADER, Bridge, bridge
from interbasin.jobs.translate.bridge.thresholds import (
    Decisions,
    MatchedThreshold,
    Recalibration,
    drawn_rows,
    match_threshold,
    matched_threshold,
    recalibrate,
    recalibrated,
)

__all__ = [
    "LOADER",
    "Bridge",
    "Decisions",
    "MatchedThreshold",
    "Recalibration",
    "bridge",
    "drawn_rows",
    "match_threshold",
    "matched_threshold",
    "recalibrate",
    "recalibrated",
]
