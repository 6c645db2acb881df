r"""Stage 1: an embedder under which the target's features lie where the source's do, and mean what theirs mean.

The embedder is trained to minimise :math:`\omega W_1 + H[Z' \mid Z]` (equation 22 of RECRAFT [tran:26]); body and head
of the source stay as they are, to the bit. Without the second term the features are aligned and nothing says that
classes end where classes were (``"fa"``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from interbasin.evaluate.transfer.feature_alignment import Solver, wasserstein
from interbasin.evaluate.transfer.label_distortion import conditional_entropy, distortion, joint_shares
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead
from interbasin.randomness import generator_of

Schedule = Literal["joint", "sequential"]
STEPS, RATE, BATCH = 60, 3e-3, 64
EVERY = 5  # steps between two looks at what decides when to stop
SOURCE_ROWS = 1000  # of the source's features that take part
DISTORTION_SHARE = 20  # of a sequential schedule: one step in so many is for the distortion, at the end


class FeatureMap(nn.Module):
    """Inputs of the target -> features, in units in which two features of the source are 1 apart on average.

    Args:
        source: Its body is shared, not copied.
        embedder: For the target's inputs.
        scale: What features are multiplied with.
    """

    def __init__(self, source: Source, embedder: nn.Module, scale: float) -> None:
        super().__init__()
        self.embedder, self.body = embedder, source.body
        self._source, self.scale = [source], scale  # in a list: no part of this module

    @property
    def source(self) -> Source:
        """Whose body it is."""
        return self._source[0]

    def states(self, inputs: Tensor) -> Tensor:
        """What the body puts out, before it is pooled."""
        taken = self.embedder(inputs)
        found = self.body(taken)
        return found if isinstance(found, Tensor) else self._source[0].states(taken)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * self._source[0].pooled(self.states(inputs))


@dataclass(frozen=True)
class AlignmentStep:
    """One look at stage 1.

    Attributes:
        step: How many were taken.
        alignment: ``omega`` times the distance to the source's features.
        distortion: Of labels given pseudo-labels, on samples that had no part in the table.
    """

    step: int
    alignment: float
    distortion: float

    @property
    def gap(self) -> float:
        """What the paper calls the semantic gap (equation 11)."""
        return self.alignment + self.distortion


@dataclass(frozen=True)
class AlignmentOptions:
    """How stage 1 is done.

    Attributes:
        steps, rate, batch: Of Adam.
        with_distortion: Whether labels count.
        schedule: Both terms at once, or alignment first and distortion in the last steps.
        solver: Of the distance.
        seed: Of the batches.
    """

    steps: int = STEPS
    rate: float = RATE
    batch: int = BATCH
    with_distortion: bool = True
    schedule: Schedule = "joint"
    solver: Solver = "exact"
    seed: int = 0


@dataclass
class _Best:
    """The embedder that was best so far."""

    gap: float = math.inf
    state: dict[str, Tensor] = field(default_factory=dict)

    def look(self, gap: float, embedder: nn.Module) -> None:
        if gap < self.gap:
            self.gap = gap
            self.state = {name: tensor.detach().clone() for name, tensor in embedder.state_dict().items()}


@torch.inference_mode(False)
def align_features(
    feature_map: FeatureMap,
    head: SourceHead,
    source_features: Tensor,
    inputs: Tensor,
    labels: Tensor,
    *,
    unlabelled: Tensor | None = None,
    options: AlignmentOptions | None = None,
    report: Callable[[AlignmentStep], object] | None = None,
) -> tuple[AlignmentStep, ...]:
    """Train the embedder of a feature map in place; the one with the smallest gap on all labelled samples stays.

    Args:
        feature_map: Its body stays as it is.
        head: Of the source, on scaled features.
        source_features: Of the proxy, scaled.
        inputs, labels: Of the target.
        unlabelled: More inputs of the target, which take part in the alignment.
        options: How.
        report: Called with each look.
    """
    options = options or AlignmentOptions()
    generator = generator_of(options.seed)
    frozen = [parameter for parameter in feature_map.body.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    was_training = feature_map.training
    feature_map.eval()  # the source's norms and dropout are as in use
    classes = int(labels.max()) + 1
    sample = source_features[torch.randperm(len(source_features), generator=generator)[:SOURCE_ROWS]]
    pool = inputs if unlabelled is None else torch.cat([inputs, unlabelled])
    optimiser = torch.optim.Adam(feature_map.embedder.parameters(), lr=options.rate)
    best, looks = _Best(), []

    def look(step: int) -> None:
        with torch.no_grad():
            features = torch.cat([feature_map(part) for part in torch.split(inputs, 256)])
            near = head.omega * float(wasserstein(features, sample))
            shares = head.probabilities(features)
        found = AlignmentStep(step, near, distortion(shares, labels, classes, seed=options.seed).crossed)
        looks.append(found)
        best.look(found.gap if options.with_distortion else found.alignment, feature_map.embedder)
        if report is not None:
            report(found)

    look(0)
    size = min(len(inputs), options.batch)
    for step in range(1, options.steps + 1):
        chosen = torch.randperm(len(inputs), generator=generator)[:size]
        features = feature_map(inputs[chosen])
        rows = features
        if unlabelled is not None:
            others = torch.randperm(len(pool), generator=generator)[:size]
            rows = feature_map(pool[others])
        loss = head.omega * wasserstein(rows, sample, options.solver)
        is_last = step > options.steps - max(1, options.steps // DISTORTION_SHARE)
        if options.with_distortion and (options.schedule == "joint" or is_last):
            joint = joint_shares(head.probabilities(features), labels[chosen], classes)
            loss = conditional_entropy(joint) if options.schedule == "sequential" else loss + conditional_entropy(joint)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % EVERY == 0 or step == options.steps:
            look(step)
    feature_map.embedder.load_state_dict(best.state)
    feature_map.train(was_training)
    for parameter in frozen:
        parameter.requires_grad_(True)
    return tuple(looks)
