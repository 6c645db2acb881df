"""The methods of re-basin by name. A new method is a function ``(task, variant) -> Match`` and a row here."""

from __future__ import annotations

from collections.abc import Callable

from interbasin.jobs.rebasin.activations import (
    match_correlations,
    match_covariances,
    match_weights_then_covariances,
)
from interbasin.jobs.rebasin.stiefel import descend_on_stiefel
from interbasin.jobs.rebasin.straight_through import match_straight_through
from interbasin.jobs.rebasin.task import Match, Task
from interbasin.jobs.rebasin.weights import match_weights
from interbasin.methods import Method, MethodTable

# The trait of methods for orthogonal maps, which go beyond the exact groups where ``reach`` allows it.
TURNS = {"turns": True}

METHODS: MethodTable[Callable[[Task, str], Match]] = MethodTable(
    "method of re-basin",
    [
        Method(
            "permutation-weights",
            "ainsworth:23",
            "exact maps that bring the weights closest, space by space until nothing changes",
            match_weights,
            variants=("coordinate",),
        ),
        Method(
            "permutation-activations",
            "ainsworth:23",
            "exact maps that match units by the correlation of their activations",
            match_correlations,
            needs=frozenset({"data"}),
            variants=("pre", "post"),
        ),
        Method(
            "procrustes-weights",
            "adelfio:25",
            "orthogonal maps that bring the weights closest",
            match_weights,
            variants=("coordinate", "sequential", "layerwise"),
            traits=TURNS,
        ),
        Method(
            "procrustes-activations",
            "adelfio:25",
            "orthogonal maps that bring the activations closest",
            match_covariances,
            needs=frozenset({"data"}),
            variants=("pre", "post"),
            traits=TURNS,
        ),
        Method(
            "procrustes-weights+activations",
            "adelfio:25",
            "orthogonal maps by the weights first, then by the activations of the aligned network",
            match_weights_then_covariances,
            needs=frozenset({"data"}),
            variants=("pre", "post"),
            traits=TURNS,
        ),
        Method(
            "stiefel",
            "wen:13",
            "orthogonal maps that bring the weights closest, by descent along Cayley curves",
            descend_on_stiefel,
            variants=("layerwise", "joint"),
            traits=TURNS,
        ),
        Method(
            "straight-through",
            "ainsworth:23",
            "exact maps by the loss half-way between the networks",
            match_straight_through,
            needs=frozenset({"labels"}),
            variants=("coordinate",),
        ),
    ],
)
