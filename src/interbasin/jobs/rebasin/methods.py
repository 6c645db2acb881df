"""The methods of re-basin by name: a row each, with their variants and what they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.rebasin.activations import (
    permutation_activations,
    procrustes_activations,
    weights_then_activations,
)
from interbasin.jobs.rebasin.stiefel import stiefel
from interbasin.jobs.rebasin.straight_through import straight_through
from interbasin.jobs.rebasin.task import Matched, Task
from interbasin.jobs.rebasin.weights import permutation_weights, procrustes_weights

__all__ = ["METHODS", "Method", "chosen"]


@dataclass(frozen=True)
class Method:
    """One way to find maps.

    Attributes:
        name: As users write it.
        find: Task and variant to maps.
        variants: The first is the default.
        needs: ``""``, ``"data"`` or ``"labels"``.
        reference: Of the paper, in docs/references.bib.
        summary: A line for tables and help.
        turns: Whether it is for orthogonal maps, beyond the exact groups where ``reach`` allows.
    """

    name: str
    find: Callable[[Task, str], Matched]
    variants: tuple[str, ...]
    needs: str
    reference: str
    summary: str
    turns: bool = False


METHODS = {
    method.name: method
    for method in (
        Method(
            "permutation-weights",
            permutation_weights,
            ("coordinate",),
            "",
            "ainsworth:23",
            "exact maps that bring the weights closest, space by space until nothing changes",
        ),
        Method(
            "permutation-activations",
            permutation_activations,
            ("pre", "post"),
            "data",
            "ainsworth:23",
            "exact maps that match units by the correlation of their activations",
        ),
        Method(
            "procrustes-weights",
            procrustes_weights,
            ("coordinate", "sequential", "layerwise"),
            "",
            "adelfio:25",
            "orthogonal maps that bring the weights closest",
            turns=True,
        ),
        Method(
            "procrustes-activations",
            procrustes_activations,
            ("pre", "post"),
            "data",
            "adelfio:25",
            "orthogonal maps that bring the activations closest",
            turns=True,
        ),
        Method(
            "procrustes-weights+activations",
            weights_then_activations,
            ("pre", "post"),
            "data",
            "adelfio:25",
            "orthogonal maps by the weights first, then by the activations of the aligned network",
            turns=True,
        ),
        Method(
            "stiefel",
            stiefel,
            ("layerwise", "joint"),
            "",
            "wen:13",
            "orthogonal maps that bring the weights closest, by descent along Cayley curves",
            turns=True,
        ),
        Method(
            "straight-through",
            straight_through,
            ("coordinate",),
            "labels",
            "ainsworth:23",
            "exact maps by the loss half-way between the networks",
        ),
    )
}


def chosen(method: str, variant: str | None, *, has_data: bool, has_labels: bool) -> tuple[Method, str]:
    """The method of a name and its variant.

    Raises:
        UnknownNameError: if there is no such method or variant.
        DataError: if it needs data or labels that were not given.
    """
    if method not in METHODS:
        raise UnknownNameError.of("method of re-basin", method, METHODS)
    found = METHODS[method]
    taken = found.variants[0] if variant is None else variant
    if taken not in found.variants:
        raise UnknownNameError.of(f"variant of {method}", taken, found.variants)
    if found.needs and not has_data:
        without = [name for name, one in METHODS.items() if not one.needs]
        raise DataError(
            f"{method} looks at {'the loss on' if found.needs == 'labels' else 'activations on'} data, and none were "
            f"given; pass data=, or choose a method that needs none: {', '.join(without)}."
        )
    if found.needs == "labels" and not has_labels:
        raise DataError(
            f"{method} needs labels, and the data's batches have none; give pairs (inputs, labels), or a loss= of the "
            "outputs alone."
        )
    return found, taken
