r"""Maps by the loss half-way between the networks [ainsworth:23, section 3.3].

Free weights :math:`\tilde W` are trained. In the forward pass they stand for the source, moved to match them as closely
as it can, and the loss is that of the middle between that and the target. The gradient goes straight through the
matching to :math:`\tilde W`. The maps whose middle had the least loss after an epoch are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.func import functional_call

from interbasin.batches import call_arguments, device_of, split_batch
from interbasin.evaluate import performance
from interbasin.evaluate.performance import mean_loss
from interbasin.jobs.rebasin.task import Match, Task
from interbasin.jobs.rebasin.weights import match_weights, pose, sweep_until_converged
from interbasin.maps import Map
from interbasin.paths import interpolate
from interbasin.randomness import generator_of
from interbasin.text import plural
from interbasin.training import train
from interbasin.wiring.alignment import Alignment
from interbasin.wiring.carry import carry

# The free weights move little from step to step, so a sweep or two bring the maps up to date.
_SWEEPS = 2


def match_straight_through(task: Task, variant: str) -> Match:
    """Maps by the loss of the middle, with gradients that pass through the matching as if it were not there."""
    start = match_weights(task, "coordinate")
    follower = _Follower(task, start.maps)
    before = follower.middle_loss()
    task.report(f"middle after weight matching: loss {before:.4g}")
    training = train(
        follower.weights.values(),
        task.data,
        follower.batch_loss,
        epochs=task.options.epochs,
        rate=task.options.rate,
        evaluate=follower.evaluate,
        bar=before,
        keep=follower.keep,
        what="straight-through",
        report=task.report,
    )
    path = (before, *training.scores)
    notes = start.notes
    if not training.best:
        notes += (
            f"Nothing better was found in {plural(task.options.epochs, 'pass', 'passes')} over the data: the maps are "
            f"those of weight matching that it began with (loss of the middle {before:.4g}); more (epochs=) may find "
            "better ones.",
        )
    return Match(follower.best, min(path), path, notes=notes)


class _Follower:
    """The free weights, and the source that follows them by maps."""

    def __init__(self, task: Task, maps: Mapping[str, Map]) -> None:
        self.task = task
        self.network = interpolate(task.source, task.source, 0.0).eval()
        self.fixed = {name: parameter.detach() for name, parameter in task.target.named_parameters()}
        self.buffers = dict(task.target.named_buffers())
        # They begin at the target, as in the paper; the maps at what weight matching found.
        self.weights = {name: parameter.clone().requires_grad_() for name, parameter in self.fixed.items()}
        self.maps = self.best = maps
        self.generator = generator_of(task.seed)

    def follow(self) -> nn.Module:
        """Bring the source's maps up to where the free weights are. Returns the aligned source."""
        here = Alignment(self.task.wiring, self.maps)
        goal = interpolate(self.network, self.network, 0.0)
        goal.load_state_dict({name: weight.detach() for name, weight in self.weights.items()}, strict=False)
        problem = pose(replace(self.task, source=carry(self.task.source, here), target=goal))
        sweep_until_converged(problem, generator=self.generator, tolerance=0.0, limit=_SWEEPS)
        self.maps = (Alignment(self.task.wiring, problem.maps()) @ here).maps
        return carry(self.task.source, Alignment(self.task.wiring, self.maps))

    def batch_loss(self, batch: object, index: int) -> Tensor:
        """The loss of the middle on one batch."""
        aligned = self.follow()
        middle = {
            # The value is the aligned source's, the gradient the free weights'.
            name: (parameter.detach() + self.weights[name] - self.weights[name].detach() + self.fixed[name]) / 2
            for name, parameter in aligned.named_parameters()
        }
        inputs, labels = split_batch(batch)
        args, kwargs = call_arguments(self.network, inputs, device_of(self.network))
        outputs = functional_call(self.network, (middle, self.buffers), args, kwargs)
        return mean_loss(outputs, labels, inputs, index, self.task.loss)

    def middle_loss(self) -> float:
        """The loss half-way between the aligned source and the target, on all data."""
        aligned = carry(self.task.source, Alignment(self.task.wiring, self.maps))
        return performance(interpolate(aligned, self.task.target, 0.5), self.task.data, self.task.loss).loss

    def evaluate(self) -> float:
        """The loss of the middle once the maps are up to date."""
        self.follow()
        return self.middle_loss()

    def keep(self) -> None:
        """Remember the maps as the best so far."""
        self.best = self.maps
