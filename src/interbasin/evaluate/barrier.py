r"""The barrier between two networks: how much higher the loss lies on the way than on the chord.

.. math:: \max_t L(p(t)) - \bigl((1 - t) L(P) + t L(B)\bigr)

with :math:`p` the path from :math:`A` to :math:`B`. With the path's own ends as the chord's, the measure rewards an
alignment that ruins :math:`A`: a bad end lifts the chord. Therefore ``ends`` can name other networks for the chord, the
original :math:`A` for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from interbasin.batch_norm import reset_batch_norm
from interbasin.batches import BATCH_SIZE, Progress, progress_bar, require_reiterable
from interbasin.checks import require_whole
from interbasin.errors import WiringError
from interbasin.evaluate.measured import Measured
from interbasin.evaluate.performance import Loss, Performance, measure_performance
from interbasin.paths import interpolate
from interbasin.wiring.trace.copying import copy_for_evaluation


@dataclass(frozen=True)
class Barrier(Measured):
    """A barrier, with the whole curve.

    ``metrics`` hold ``barrier`` and ``barrier_accuracy``, against the chord of the path's own ends, and, where ``ends``
    were given, ``barrier_original`` and ``barrier_accuracy_original``, against the chord of those. Figures of accuracy
    say how far it falls below the chord. As a number, the result is the barrier of the loss against the chord that was
    asked for; NaN if the loss is NaN anywhere on the way.

    Attributes:
        t: The grid.
        loss: The loss at each point.
        accuracy: The accuracy at each point, or None.
        path: ``"lerp"`` or ``"slerp"``.
        ends: How the two networks of the chord do.
    """

    t: tuple[float, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...] | None
    path: str
    ends: tuple[Performance, Performance]

    def __float__(self) -> float:
        return self.metrics.get("barrier_original", self.metrics["barrier"])

    @property
    def curve(self) -> dict[str, list[float]]:
        """The curve in JSON's own types: ``t``, ``loss`` and, if there is one, ``accuracy``."""
        curve = {"t": list(self.t), "loss": list(self.loss)}
        return curve if self.accuracy is None else curve | {"accuracy": list(self.accuracy)}

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return f"Barrier({figures}, {len(self.t)} points of the {self.path} path)"


def barrier(
    a: nn.Module,
    b: nn.Module,
    data: Any,
    loss: Loss | None = None,
    points: int = 25,
    path: str = "lerp",
    ends: Sequence[nn.Module] | None = None,
    *,
    reset: Any = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress = None,
) -> Barrier:
    """How much higher the loss lies between two networks than on the chord.

    Args:
        a, b: Networks of one architecture. They stay as they are, and are evaluated in evaluation mode.
        data: Batches to iterate over, more than once: pairs (inputs, labels).
        loss: As `performance` takes it; by default cross-entropy.
        points: So many, evenly spaced, both ends among them.
        path: ``"lerp"`` or ``"slerp"``, tensor by tensor.
        ends: A pair of networks whose losses are the chord's ends; by default ``a`` and ``b``. Give the original of an
            aligned ``a`` here, and the figures against it come beside the others.
        reset: Batches, labels and all if they have some, on which the running statistics of batch norms are estimated
            anew at every point between the ends, which keep their own. By default statistics are interpolated like
            weights, and networks in between do badly for that alone.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many points are done.

    Raises:
        DataError: if there are fewer than two points, no data or no labels, or data that can be read only once.
        WiringError, ShapeError: if the networks are not of one architecture.
        UnknownNameError: if there is no such path.

    Example:
        >>> import torch
        >>> a, b = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
        >>> _ = a.weight.data.copy_(torch.tensor([[3.0], [0.0]]))
        >>> _ = b.weight.data.copy_(torch.tensor([[0.0], [-3.0]]))
        >>> result = barrier(a, b, [(torch.ones(4, 1), torch.zeros(4, dtype=torch.long))], points=3)
        >>> round(float(result), 3), result["barrier_accuracy"], result.t
        (0.0, 0.0, (0.0, 0.5, 1.0))
    """
    count = require_whole("points", points, least=2)
    chord = () if ends is None else ends
    if ends is not None and not _is_pair_of_networks(ends):
        raise WiringError(
            f"The chord needs a pair of networks, got {type(ends).__name__}; give ends=(original, target)."
        )
    require_reiterable(data, "A barrier")
    require_reiterable(reset, "A barrier with reset=")
    grid = [point / (count - 1) for point in range(count)]
    curve: list[Performance] = []
    with progress_bar(progress, range(count + len(chord)), silent=False, what="barrier") as report:
        for position, t in enumerate(grid):
            # What is not finite shows in the curve, and has to be there to be seen.
            network = interpolate(a, b, t, path, finite=False)
            if reset is not None and 0 < position < count - 1:
                network = reset_batch_norm(network, reset, batch_size=batch_size, finite=False)
            curve.append(measure_performance(network.eval(), data, loss, batch_size))
            report(position + 1)
        known = {id(a): curve[0], id(b): curve[-1]}
        for position, end in enumerate(chord):
            if id(end) not in known:
                known[id(end)] = measure_performance(copy_for_evaluation(end), data, loss, batch_size)
            report(count + position + 1)
    metrics = _figures(grid, curve, curve[0], curve[-1], "")
    first, last = (known[id(end)] for end in chord or (a, b))
    if chord:
        metrics |= _figures(grid, curve, first, last, "_original")
    accuracies = [point.accuracy for point in curve if point.accuracy is not None]
    return Barrier(
        metrics=metrics,
        t=tuple(grid),
        loss=tuple(point.loss for point in curve),
        accuracy=tuple(accuracies) if len(accuracies) == count else None,
        path=path,
        ends=(first, last),
    )


def _is_pair_of_networks(ends: object) -> bool:
    return isinstance(ends, Sequence) and len(ends) == 2 and all(isinstance(end, nn.Module) for end in ends)


def _figures(
    grid: Sequence[float], curve: Sequence[Performance], first: Performance, last: Performance, suffix: str
) -> dict[str, float]:
    """The largest rise of the loss above the chord, and the largest fall of the accuracy below it."""
    t = np.asarray(grid)
    figures = {f"barrier{suffix}": _rise(t, [point.loss for point in curve], first.loss, last.loss)}
    errors = [1 - point.accuracy for point in curve if point.accuracy is not None]
    if len(errors) == len(curve) and first.accuracy is not None and last.accuracy is not None:
        figures[f"barrier_accuracy{suffix}"] = _rise(t, errors, 1 - first.accuracy, 1 - last.accuracy)
    return figures


def _rise(t: np.ndarray[Any, np.dtype[Any]], values: Sequence[float], first: float, last: float) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        rise = np.asarray(values) - ((1 - t) * first + t * last)
    return float(rise.max())  # NaN if any is
