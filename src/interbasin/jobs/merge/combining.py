"""One tensor of every network -> the merged one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from interbasin.errors import DataError
from interbasin.jobs.merge.methods import METHODS
from interbasin.jobs.merge.numbers import LARGEST, Array, narrow, stretches, widened
from interbasin.jobs.merge.operands import Operands, Parts
from interbasin.jobs.merge.recipe import Recipe

__all__ = ["combined", "source_of_counts"]


def combined(name: str, tensor: Operands, recipe: Recipe, kind: str, networks: Sequence[str]) -> Iterator[Array]:
    """The merged tensor, piece by piece, as it is to be stored; a piece is good until the next is asked for.

    What is the same in all networks is taken as it is: merging it could only round it, and it need not be finite, as
    masks are not.

    Args:
        name: What messages call the tensor.
        tensor: The tensor of every network.
        recipe: How to merge.
        kind: The dtype of the result.
        networks: What messages call the networks; the base last.

    Raises:
        DataError: if a number comes out that is not finite, or that the dtype cannot hold.
    """
    combine = METHODS[recipe.method].plan(tensor, recipe)
    first = tensor.models[0].kind
    for part in tensor.parts():
        if isinstance(part, Parts):
            # What overflows is refused below, in words.
            with np.errstate(over="ignore", invalid="ignore"):
                values = combine(part)
            tensor.changed = True
        elif first == kind:
            yield part
            continue
        else:
            values = widened(part, first, tensor.precision)
        # Comparisons with NaN are false, so this finds all that is not finite as well.
        # As numbers of Python: NumPy would round the largest float64 to a narrower kind, where it is infinity.
        if not (float(values.max()) <= LARGEST[kind] and float(values.min()) >= -LARGEST[kind]):
            raise _cannot_hold(name, tensor, kind, networks)
        yield narrow(values, kind)


def source_of_counts(recipe: Recipe) -> int:
    """Which model to take a tensor from that holds no real numbers: the first, or the nearer end of a path."""
    return int(METHODS[recipe.method].pair and recipe.t >= 0.5)


def _cannot_hold(name: str, tensor: Operands, kind: str, networks: Sequence[str]) -> DataError:
    given = [*tensor.models, *([] if tensor.base is None else [tensor.base])]
    for network, numbers in zip(networks, given, strict=True):
        for part in stretches(numbers.length):
            values = numbers.wide(part, tensor.precision)
            largest = LARGEST[numbers.kind]
            if not (float(values.max()) <= largest and float(values.min()) >= -largest):
                return DataError(
                    f"{name} in {network} holds NaN or infinity, and so would the merged network; repair or leave out "
                    "that network."
                )
    remedy = (
        "ask for another dtype, such as bfloat16 or float32"
        if kind == "float16"
        else "choose smaller weights, or a scale or t nearer to 0"
    )
    return DataError(f"{name} comes out larger than {kind} can hold ({LARGEST[kind]:.4g}); {remedy}.")
