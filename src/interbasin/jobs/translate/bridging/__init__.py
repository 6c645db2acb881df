"""A translation as a function for queries that needs none of this package, and scores brought to a new scale.

``steps`` takes a translation apart into plain arrays, ``onnx`` writes these as a graph, ``thresholds`` carries a
threshold of scores over, ``bridge`` puts them into one folder.
"""

from interbasin.jobs.translate.bridging.bridge import LOADER, Bridge, bridge
from interbasin.jobs.translate.bridging.thresholds import Recalibration, recalibrate, recalibrated

__all__ = ["LOADER", "Bridge", "Recalibration", "bridge", "recalibrate", "recalibrated"]
