r"""The barrier between two networks: how much higher the loss lies on the way than on the chord.

.. math:: \max_t L(p(t)) - \bigl((1 - t) L(P) + t L(B)\bigr)

with :math:`p` the path from :math:`A` to :math:`B`. With the path's own ends as the chord's, the measure rewards an
alignment that ruins :math:`A`: a bad end lifts the chord. Therefore ``ends`` can name the networks that the chord is to
hang on, the original :math:`A` for one.
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
from interbasin.evaluate.performance import Performance, measured
from interbasin.evaluate.scores import Loss
from interbasin.paths import interpolate
from interbasin.wiring.trace.copying import copy_for_evaluation


@dataclass(frozen=True)
class Barrier(Measured):
    """A barrier, with the whole curve.

    ``metrics`` hold ``barrier`` and ``barrier_accuracy``, against the chord of the path's own ends, and, where ``ends``
    were given, ``barrier_original`` and ``barrier_accuracy_original``, against the chord of those. Figures of accuracy
    say how far it falls below the chord, and are absent where there is none. As a number, the result is the barrier of
    the loss against the chord that was asked for. It is NaN if the loss is NaN anywhere on the way.

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
        path: ``"lerp"`` or ``"slerp"``, a tensor at a time.
        ends: A pair of networks whose losses are the chord's ends; by default ``a`` and ``b``. Give the original of an
            aligned ``a`` here, and the figures against it come beside the others.
        reset: Batches, labels and all if they have some, on which the running statistics of batch norms are estimated
            anew at every point between the ends; networks between others are worthless without. The ends themselves
            stay as they were given. By default statistics are interpolated like weights.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function of how many points are done.

    Raises:
        DataError: if there are fewer than two points, no data or no labels, or data that can be read only once.
        WiringError, ShapeError: if the networks are not of one architecture.
        UnknownNameError: if there is no such path.

    Example:
        >>> import torch
        >>> one, other = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
        >>> _ = one.weight.data.copy_(torch.tensor([[3.0], [0.0]]))
        >>> _ = other.weight.data.copy_(torch.tensor([[0.0], [-3.0]]))
        >>> found = barrier(one, other, [(torch.ones(4, 1), torch.zeros(4, dtype=torch.long))], points=3)
        >>> round(float(found), 3), found["barrier_accuracy"], found.t
        (0.0, 0.0, (0.0, 0.5, 1.0))
    """
    count = require_whole("points", points, least=2)
    chord = _chord(ends)
    require_reiterable(data, "A barrier")
    require_reiterable(reset, "A barrier with reset=")
    grid = [point / (count - 1) for point in range(count)]
    found = []
    with progress_bar(progress, range(count + len(chord or ())), silent=False, what="barrier") as tell:
        for position, t in enumerate(grid):
            # What is not finite shows in the curve, and has to be there to be seen.
            network = interpolate(a, b, t, path, finite=False)
            if reset is not None and 0 < position < count - 1:
                network = reset_batch_norm(network, reset, batch_size=batch_size, finite=False)
            found.append(measured(network.eval(), data, loss, batch_size))
            tell(position + 1)
        own = (found[0], found[-1])
        outer = None
        if chord is not None:
            known = {id(a): own[0], id(b): own[1]}
            hung = []
            for position, end in enumerate(chord):
                hung.append(known.get(id(end)) or measured(copy_for_evaluation(end), data, loss, batch_size))
                tell(count + position + 1)
            outer = (hung[0], hung[1])
    metrics = _figures(grid, found, own, "")
    if outer is not None:
        metrics |= _figures(grid, found, outer, "_original")
    accuracies = [one.accuracy for one in found if one.accuracy is not None]
    return Barrier(
        metrics=metrics,
        t=tuple(grid),
        loss=tuple(one.loss for one in found),
        accuracy=tuple(accuracies) if len(accuracies) == count else None,
        path=path,
        ends=own if outer is None else outer,
    )


def _chord(ends: Sequence[nn.Module] | None) -> Sequence[nn.Module] | None:
    if ends is None:
        return None
    if not isinstance(ends, Sequence) or len(ends) != 2 or not all(isinstance(one, nn.Module) for one in ends):
        raise WiringError(
            "The ends of the chord are a pair of networks, the one at t=0 and the one at t=1, found "
            f"{type(ends).__name__}; give ends=(original, target)."
        )
    return ends


def _figures(
    grid: Sequence[float], found: Sequence[Performance], ends: tuple[Performance, Performance], suffix: str
) -> dict[str, float]:
    """The largest rise of the loss above the chord, and the largest fall of the accuracy below it."""
    t = np.asarray(grid)
    figures = {f"barrier{suffix}": _rise(t, [one.loss for one in found], ends[0].loss, ends[1].loss)}
    accuracies = [one.accuracy for one in found if one.accuracy is not None]
    if len(accuracies) == len(found) and ends[0].accuracy is not None and ends[1].accuracy is not None:
        errors = [1 - accuracy for accuracy in accuracies]
        figures[f"barrier_accuracy{suffix}"] = _rise(t, errors, 1 - ends[0].accuracy, 1 - ends[1].accuracy)
    return figures


def _rise(t: np.ndarray[Any, np.dtype[Any]], values: Sequence[float], first: float, last: float) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        rise = np.asarray(values) - ((1 - t) * first + t * last)
    return float(rise.max())  # NaN if any is
