"""Whether two networks with outputs of their own have more in common than the same inputs give to any two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.batches import WithoutLabels
from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Interval
from interbasin.fit.polar import polar
from interbasin.jobs.transport.judge import DRAWS, Place, last_place
from interbasin.jobs.transport.regression.ridge import Solution, Sums
from interbasin.jobs.transport.task import Task
from interbasin.statistics import PairedMoments
from interbasin.wiring.trace.copying import copied

SHUFFLES = 3  # of the target's weights: what they have in common with the source varies


def kinship(task: Task, held: Any) -> Interval:
    """How much more two networks have in common than the same inputs give to any two.

    What a target with shuffled weights tells about the inputs (how long a text is, which token stands where) is taken
    out of the states of both networks by regression. Kinship is the share of what remains of the target's, on held-out
    inputs, that the map from what remains of the source's explains: beyond the same with another shuffled target in the
    target's place, and as a mean over some. 0 where the target's training makes no difference, 1 where the map explains
    all.
    """
    place = last_place(task)
    seeds = [task.options.seed + number for number in range(SHUFFLES)]
    networks = [task.bases.target, *(_shuffle_weights(task.bases.target, seed) for seed in seeds)]
    fitting = WithoutLabels(task.data)
    # Which network's states are taken out of which: each shuffled one out of the source's, the target's and the next's.
    trials = [(out, of) for out in range(1, SHUFFLES + 1) for of in (0, out % SHUFFLES + 1)]
    sums = {(out, of): (Sums(), Sums()) for out, of in trials}
    for inputs in fitting:
        shown = _states_of(task, place, networks, inputs)
        for (out, of), both in sums.items():
            for total, rows in zip(both, (shown.source, shown.networks[of]), strict=True):
                total.add(shown.networks[out], rows)
    explainers = {key: (_explain(both[0]), _explain(both[1])) for key, both in sums.items()}
    moments = {key: PairedMoments() for key in trials}
    for inputs in fitting:
        shown = _states_of(task, place, networks, inputs)
        for key in trials:
            moments[key].update(*shown.remains(*key, explainers[key]))
    turns = {key: polar(each.cross()).factor.double() for key, each in moments.items()}
    products: dict[tuple[int, int], list[Tensor]] = {key: [] for key in trials}
    for inputs in WithoutLabels(held):
        shown = _states_of(task, place, networks, inputs)
        for key in trials:
            source, target = shown.remains(*key, explainers[key])
            source = source @ turns[key].mT
            products[key].append(shown.sum_by_input(source * target, source.square(), target.square()))
    if not products[trials[0]]:
        raise DataError("No input is left to judge by; give more data.")
    by_input = {key: torch.cat(each).cpu().numpy() for key, each in products.items()}

    def beyond_chance(draw: slice | np.ndarray[Any, Any]) -> float:
        real, chance = (
            float(np.mean([_explained_share(by_input[key][draw]) for key in trials if (key[1] == 0) == is_real]))
            for is_real in (True, False)
        )
        return (real - chance) / max(1 - chance, 1e-9)

    count = len(by_input[trials[0]])
    draws = np.random.default_rng(task.options.seed).integers(count, size=(DRAWS, count))
    low, high = np.percentile([beyond_chance(draw) for draw in draws], (2.5, 97.5))
    return Interval(beyond_chance(slice(None)), float(low), float(high))


def _shuffle_weights(network: nn.Module, seed: int) -> nn.Module:
    """A network whose weights are shuffled within each tensor: of its training nothing is left but their sizes."""
    shuffled = copied(network).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in shuffled.parameters():
            if parameter.ndim > 1:
                order = torch.randperm(parameter.numel(), generator=generator)
                parameter.copy_(parameter.flatten()[order.to(parameter.device)].reshape(parameter.shape))
    return shuffled


@dataclass(frozen=True)
class _States:
    """Rows of one batch that count: of the source, and of several networks of the target's shape.

    Attributes:
        source, networks: ``(rows, width)``.
        inputs: How many there are.
        of: The input that each row belongs to.
    """

    source: Tensor
    networks: list[Tensor]
    inputs: int
    of: Tensor

    def remains(self, out: int, of: int, explainers: tuple[Solution, Solution]) -> tuple[Tensor, Tensor]:
        """What is left of the source's rows, and of those of network ``of``, without what network ``out`` explains."""
        known = self.networks[out]
        remainders = []
        for rows, solution in zip((self.source, self.networks[of]), explainers, strict=True):
            assert solution.bias is not None
            remainders.append(rows - known @ solution.weight.mT - solution.bias)
        return remainders[0], remainders[1]

    def sum_by_input(self, *parts: Tensor) -> Tensor:
        """``(inputs, parts)``."""
        sums = [part.new_zeros(self.inputs).index_add(0, self.of, part.sum(1)) for part in parts]
        return torch.stack(sums, 1)


def _states_of(task: Task, place: Place, networks: Sequence[nn.Module], inputs: Any) -> _States:
    source, states, counts = torch.empty(0), [], None
    for network in networks:
        (source, rows), counts = place.rows(task, (task.bases.source, network), inputs)
        states.append(rows)
    of = torch.arange(len(source), device=source.device).reshape(-1, *[1] * (source.ndim - 2)).expand(source.shape[:-1])
    kept = torch.ones_like(of, dtype=torch.bool) if counts is None else counts.to(of.device).reshape(of.shape)
    return _States(source[kept], [rows[kept] for rows in states], len(source), of[kept])


def _explain(sums: Sums) -> Solution:
    outputs, inputs = len(sums.y), len(sums.x)
    return sums.solve(sums.x.new_zeros(outputs, inputs), sums.x.new_zeros(outputs))


def _explained_share(sums: np.ndarray[Any, Any]) -> float:
    """The square of a correlation, from its sums over inputs; nothing where it is negative."""
    product, a, b = sums.sum(0)
    return float(max(product, 0.0) ** 2 / (a * b)) if a > 0 and b > 0 else 0.0
