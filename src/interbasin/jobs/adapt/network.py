"""The network for the target: a feature map and a head on it; for fields a head on the states of the body.

A head begins with a probe, fitted to features in closed form (ridge) or by a convex program (logistic): with a random
one, a body that was pre-trained far away may never leave the likeliest class.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.jobs.adapt.feature_map import FeatureMap
from interbasin.jobs.adapt.task import TargetTask

CHUNK = 64  # inputs that are looked at together: what a layer puts out for more of them leaves the cache
STRENGTHS = (1e-3, 1e-1, 1e1, 1e3)  # of a probe's penalty, relative to the features' size
STRENGTH = 1e-1
MOST_WEIGHTS = 4_000_000  # of a head over all states of a body
UNSEEN = -4.0  # the logit of a class that a probe was not shown
MOST_PREFIX = 8  # tokens before those of the input


class TargetNetwork(nn.Module):
    """Inputs of the target -> logits or values.

    Args:
        feature_map: Inputs -> features, or states.
        task: What is to be learned.
        inputs: A few inputs, to see what the body puts out.
    """

    def __init__(self, feature_map: FeatureMap, task: TargetTask, inputs: Tensor) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.is_dense = task.kind == "dense"
        self.shape = task.shape
        self.grid: tuple[int, ...] = ()  # of positions that answer for a piece of the field each
        self.positions: int | None = None  # to which those of the body are averaged, where they are too many
        with torch.no_grad():
            if self.is_dense:
                self._find_positions(inputs[:1])
            width = self.head_inputs(inputs[:1]).shape[-1]
        self.head = nn.Linear(width, self.shape[0] * math.prod(self._piece()) if self.grid else task.count)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", task.shift.clone())
        self.register_buffer("scale", task.scale.clone())
        self.to(inputs.device)

    def features(self, inputs: Tensor) -> Tensor:
        """Pooled features, scaled as those of the source."""
        features: Tensor = self.feature_map(inputs)
        return features

    def head_inputs(self, inputs: Tensor) -> Tensor:
        """What the head reads: features ``(samples, width)``, or states ``(samples, positions, width)``."""
        return self.read_states(self.feature_map.states(inputs))

    def read_states(self, states: Tensor) -> Tensor:
        """The same, of what the body puts out."""
        if not self.is_dense:
            return self.feature_map.pool_states(states)
        states = self._rows(states)
        if self.grid:
            return states[:, -math.prod(self.grid) :]  # tokens before them stand for no place
        if self.positions is not None:
            states = nn.functional.adaptive_avg_pool1d(states.mT, self.positions).mT
        return states.flatten(1)

    def read_out(self, rows: Tensor) -> Tensor:
        """Outputs, of what the head reads."""
        values = self.head(rows)
        values = self._assemble(values) if self.grid else values.unflatten(-1, self.shape)
        return values * self.scale + self.shift

    def forward(self, inputs: Tensor) -> Tensor:
        return self.read_out(self.head_inputs(inputs))

    def with_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and features, by one pass through the body."""
        states = self.feature_map.states(inputs)
        return self.read_out(self.read_states(states)), self.feature_map.pool_states(states)

    # ------------------------------------------------------------------ fields

    def _rows(self, states: Tensor) -> Tensor:
        """States as rows, ``(samples, positions, width)``."""
        states = self.feature_map.scale * states
        if states.ndim == 2:
            return states[:, None]
        return states.flatten(1, -2) if self.feature_map.source.has_tokens(states) else states.flatten(2).mT

    def _find_positions(self, inputs: Tensor) -> None:
        """See whether each position of the body answers for its own piece of the field, or all of them for all."""
        states = self._rows(self.feature_map.states(inputs))
        grid = getattr(self.feature_map.embedder, "grid", None)
        if (
            grid is not None
            and len(grid) == len(self.shape) - 1
            and 0 <= states.shape[1] - math.prod(grid) <= MOST_PREFIX
        ):
            self.grid = tuple(grid)
        elif states[0].numel() * math.prod(self.shape) > MOST_WEIGHTS:
            self.positions = max(1, MOST_WEIGHTS // (math.prod(self.shape) * states.shape[2]))

    def _piece(self) -> tuple[int, ...]:
        """How many points of the field one position answers for, along each axis."""
        return tuple(-(-points // cells) for points, cells in zip(self.shape[1:], self.grid, strict=True))

    def _assemble(self, values: Tensor) -> Tensor:
        """Pieces, laid side by side; a field that they do not fill evenly is cut."""
        piece, count = self._piece(), len(values)
        if len(self.grid) == 1:
            line = values.reshape(count, self.grid[0], self.shape[0], piece[0]).permute(0, 2, 1, 3)
            return line.flatten(2)[..., : self.shape[1]]
        tiles = values.reshape(count, *self.grid, self.shape[0], *piece).permute(0, 3, 1, 4, 2, 5)
        return tiles.flatten(4, 5).flatten(2, 3)[..., : self.shape[1], : self.shape[2]]

    def split(self, labels: Tensor) -> Tensor:
        """Standardised fields as what each row of the head should put out: the inverse of `read_out`'s assembly."""
        values: Tensor = (labels - self.shift) / self.scale
        if not self.grid:
            return values.flatten(1)
        piece, count = self._piece(), len(values)
        missing = [cells * size - points for cells, size, points in zip(self.grid, piece, self.shape[1:], strict=True)]
        padding = [number for gap in reversed(missing) for number in (0, gap)]
        values = nn.functional.pad(values, padding, mode="replicate") if any(missing) else values
        if len(self.grid) == 1:
            return values.reshape(count, -1, self.grid[0], piece[0]).permute(0, 2, 1, 3).flatten(2)
        tiles = values.reshape(count, -1, self.grid[0], piece[0], self.grid[1], piece[1])
        return tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)


@torch.no_grad()
def in_chunks(function: nn.Module, inputs: Tensor, chunk: int = CHUNK) -> Tensor:
    """What a function of inputs puts out, a few inputs at a time."""
    return torch.cat([function(part) for part in torch.split(inputs, chunk)])


@torch.no_grad()
def start_head(
    network: TargetNetwork, task: TargetTask, inputs: Tensor, labels: Tensor, strength: float = STRENGTH
) -> None:
    """Begin the head of a network with a probe on what it reads."""
    rows = torch.cat([network.head_inputs(part) for part in torch.split(inputs, CHUNK)])
    if task.kind in ("classification", "multilabel"):
        weight, bias = fit_probe(rows, labels, task, strength)
    else:
        wanted = network.split(labels) if task.kind == "dense" else (labels - network.shift) / network.scale
        weight, bias = fit_ridge(rows.flatten(0, -2), wanted.flatten(0, -2), strength)
    network.head.weight.copy_(weight)
    network.head.bias.copy_(bias)


def fit_ridge(rows: Tensor, values: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """The linear map with a penalty on its weights: ``weight (values, width)`` and ``bias``.

    Args:
        rows: ``(samples, width)``.
        values: ``(samples, values)``.
        strength: Of the penalty, relative to the mean square of a centred row.
    """
    x, y = rows.double(), values.double()
    mean_x, mean_y = x.mean(0), y.mean(0)
    x, y = x - mean_x, y - mean_y
    penalty = strength * float(x.square().sum() / max(1, min(x.shape))) + 1e-12
    if len(x) < x.shape[1]:  # as many equations as samples
        gram = x @ x.mT
        weight = x.mT @ torch.linalg.solve(gram + penalty * torch.eye(len(x), dtype=x.dtype, device=x.device), y)
    else:
        gram = x.mT @ x
        weight = torch.linalg.solve(gram + penalty * torch.eye(len(gram), dtype=x.dtype, device=x.device), x.mT @ y)
    bias = mean_y - mean_x @ weight
    return weight.mT.to(rows), bias.to(rows)


def fit_probe(rows: Tensor, labels: Tensor, task: TargetTask, strength: float) -> tuple[Tensor, Tensor]:
    """A logistic regression: ``weight (labels, width)`` and ``bias``; of several labels, one for each."""
    from sklearn.linear_model import LogisticRegression

    x = rows.double().cpu().numpy()
    mean = x.mean(0)
    size = float(np.sqrt(np.square(x - mean).sum(1).mean())) or 1.0
    x = (x - mean) / size
    weight, bias = np.zeros((task.count, x.shape[1])), np.full(task.count, UNSEEN)
    columns = [labels] if task.kind == "classification" else list(labels.unbind(1))
    for place, column in enumerate(columns):
        known = np.unique(column.cpu().numpy()).astype(int)
        if len(known) == 1:  # no other is known, and nothing tells them apart
            is_class = task.kind == "classification"
            bias[known[0] if is_class else place] = -UNSEEN if is_class or known[0] else UNSEEN
            continue
        fitted = LogisticRegression(C=100 / (strength * len(x)), max_iter=300)
        with warnings.catch_warnings():  # nearly there will do; and nearly as many classes as samples are no mistake
            warnings.simplefilter("ignore")
            fitted.fit(x, column.cpu().numpy())
        if task.kind == "multilabel":
            weight[place], bias[place] = fitted.coef_[0], fitted.intercept_[0]
        elif len(known) == 2:
            weight[known] = np.outer([-0.5, 0.5], fitted.coef_[0])
            bias[known] = np.outer([-0.5, 0.5], fitted.intercept_[0])[:, 0]
        else:
            weight[known], bias[known] = fitted.coef_, fitted.intercept_
    weight = weight / size
    return torch.from_numpy(weight).to(rows), torch.from_numpy(bias - weight @ mean).to(rows)
