r"""Permutations by the loss half-way between the networks [ainsworth:23, section 3.3].

Free weights :math:`\tilde W` are trained; in the forward pass they stand for the source permuted to match them as
closely as it can, and the loss is that of the middle between that and the target. The gradient goes straight through
the matching to :math:`\tilde W`. The permutation whose middle had the least loss over a pass is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from interbasin.batches import as_batches, call_arguments, device_of, split_batch
from interbasin.evaluate import performance
from interbasin.evaluate.scores import mean_loss
from interbasin.jobs.rebasin.descent import sweep_until_still
from interbasin.jobs.rebasin.problem import Problem
from interbasin.jobs.rebasin.reach import unknowns
from interbasin.jobs.rebasin.task import Matched, Task
from interbasin.jobs.rebasin.weights import permutation_weights
from interbasin.maps import Map
from interbasin.paths import interpolate
from interbasin.randomness import generator_of
from interbasin.text import plural
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry

__all__ = ["straight_through"]

# The free weights move little from step to step, so a sweep or two bring the permutation up to date.
_SWEEPS = 2


def straight_through(task: Task, variant: str) -> Matched:
    """Exact maps by the loss of the middle, through the matching as if it were not there."""
    begun = permutation_weights(task, "coordinate")
    best, least = begun.maps, _middle(task, begun.maps)
    path = [least]
    task.tell(f"middle after weight matching: loss {least:.4g}")
    free = _Free(task, begun.maps)
    optimiser = torch.optim.Adam(free.weights.values(), lr=task.options.rate)
    for epoch in range(task.options.epochs):
        for index, batch in enumerate(as_batches(task.data, 128)):
            optimiser.zero_grad()
            free.loss(batch, index).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        maps = free.match()
        value = _middle(task, maps)
        path.append(value)
        task.tell(f"epoch {epoch + 1}: loss of the middle {value:.4g}")
        if value < least:
            best, least = maps, value
    notes = begun.notes
    if least == path[0]:
        notes += (
            f"Nothing better was found in {plural(task.options.epochs, 'pass', 'passes')} over the data: the maps are "
            f"those of weight matching that it began with (loss of the middle {least:.4g}); more (epochs=) may find "
            "better ones.",
        )
    return Matched(best, least, tuple(path), notes=notes)


def _middle(task: Task, maps: Mapping[str, Map]) -> float:
    """The loss half-way between the aligned source and the target, on the data that were given."""
    aligned = carry(task.source, Alignment(task.wiring, maps))
    return performance(interpolate(aligned, task.target, 0.5), task.data, task.loss).loss


class _Free:
    """The free weights, and the source that follows them by permutations."""

    def __init__(self, task: Task, maps: Mapping[str, Map]) -> None:
        self.task = task
        self.sought = unknowns(task.wiring, "exact")
        self.network = interpolate(task.source, task.source, 0.0).eval()
        self.fixed = {name: one.detach() for name, one in task.target.named_parameters()}
        self.buffers = dict(task.target.named_buffers())
        # They begin at the target, as in the paper; the permutation at what weight matching found.
        self.weights = {name: one.clone().requires_grad_() for name, one in self.fixed.items()}
        self.maps = maps
        self.generator = generator_of(task.seed)

    def match(self) -> Mapping[str, Map]:
        """The source's maps to where the free weights are, from where it is by now."""
        here = Alignment(self.task.wiring, self.maps)
        moved = Task(carry(self.task.source, here), self._as_network(), self.task.wiring)
        problem: Problem = moved.problem(self.sought)
        sweep_until_still(problem, generator=self.generator, tolerance=0.0, most=_SWEEPS)
        self.maps = (Alignment(self.task.wiring, problem.maps()) @ here).maps
        return self.maps

    def _as_network(self) -> nn.Module:
        network = interpolate(self.network, self.network, 0.0)
        network.load_state_dict({name: one.detach() for name, one in self.weights.items()}, strict=False)
        return network

    def loss(self, batch: object, index: int) -> Tensor:
        aligned = carry(self.task.source, Alignment(self.task.wiring, self.match()))
        middle = {
            # The value is the aligned source's, the gradient the free weights'.
            name: (one.detach() + self.weights[name] - self.weights[name].detach() + self.fixed[name]) / 2
            for name, one in aligned.named_parameters()
        }
        inputs, labels = split_batch(batch)
        args, kwargs = call_arguments(self.network, inputs, device_of(self.network))
        outputs = functional_call(self.network, (middle, self.buffers), args, kwargs)
        return mean_loss(outputs, labels, inputs, index, self.task.loss)
