"""Statistics -> map: one solver per file, each a function of `PairedMoments` or of two arrays of paired rows.

`registry` says what a solver is and what it gives back. `polar` is the kernel under every rotation, `matching` the
problem of re-basin: two sets of tensors and the maps of their spaces.
"""

from interbasin.fit.assignment import assignment
from interbasin.fit.cca import cca
from interbasin.fit.least_squares import least_squares, orthogonalised
from interbasin.fit.polar import Polar, polar
from interbasin.fit.procrustes import procrustes
from interbasin.fit.registry import STATUSES, Fit, describe, get, names
from interbasin.fit.sinkhorn import sinkhorn
from interbasin.fit.stiefel import stiefel

__all__ = [
    "STATUSES",
    "Fit",
    "Polar",
    "assignment",
    "cca",
    "describe",
    "get",
    "least_squares",
    "names",
    "orthogonalised",
    "polar",
    "procrustes",
    "sinkhorn",
    "stiefel",
]
