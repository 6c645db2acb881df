"""Measures: of one network, of the way between two, and of what aligned them. None changes a network it is given."""

from interbasin.evaluate.alignment_error import AlignmentError, SpaceError, alignment_error
from interbasin.evaluate.barrier import Barrier, barrier
from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.evaluate.cycle import cycle, cycle_errors
from interbasin.evaluate.distance import Distance, distance
from interbasin.evaluate.layers import Coordinates, LayerSimilarity, cka, pca
from interbasin.evaluate.measured import Measured
from interbasin.evaluate.performance import Performance, accuracy, loss, performance, self_change
from interbasin.evaluate.rescaling import Norms, Rescaling, norms, rescaled
from interbasin.evaluate.retrieval import Labels, Nearest, Ranking, nearest
from interbasin.evaluate.rouge import rouge_l

__all__ = [
    "AlignmentError",
    "Barrier",
    "Bootstrap",
    "Coordinates",
    "Distance",
    "Interval",
    "Labels",
    "LayerSimilarity",
    "Measured",
    "Nearest",
    "Norms",
    "Performance",
    "Ranking",
    "Rescaling",
    "SpaceError",
    "accuracy",
    "alignment_error",
    "barrier",
    "cka",
    "cycle",
    "cycle_errors",
    "distance",
    "loss",
    "nearest",
    "norms",
    "pca",
    "performance",
    "rescaled",
    "rouge_l",
    "self_change",
]
