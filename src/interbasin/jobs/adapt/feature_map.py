r"""Stage 1: an embedder under which the target's features lie where the source's do, and mean what theirs mean.

The embedder is trained to minimise :math:`\omega W_1 + H[Z' \mid Z]` (equation 22 of RECRAFT [tran:26]); body and head
of the source stay as they are, to the bit. Without the second term the features are aligned and nothing says that
classes end where classes were (``"fa"``).

The weight of the first term is the omega that was measured, so that the sum is the part of the bound which depends on
the embedder. A smaller one lets the labels of a few samples decide where features go before these lie where the
source's head can be asked. Adam starts with long steps, which a cosine shortens.

From where it starts decides where it ends: the distance has many minima, and from the rule's embedder stage 1 may stop
among the wrong features. So there is a second start, `match_means`, which is taken where positions of the two
modalities are seen to correspond. A smaller gap would be no reason to take it: on heart beats it has one, and ends
further away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from interbasin.checks import require_choice, require_finite, require_whole
from interbasin.errors import FitError
from interbasin.evaluate.transfer.feature_alignment import Solver, lies_among, wasserstein
from interbasin.evaluate.transfer.label_distortion import conditional_entropy, distortion, joint_shares
from interbasin.jobs.adapt.matched_means import match_means
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead
from interbasin.jobs.adapt.stage_one import Places, take_steps
from interbasin.randomness import generator_of

Schedule = Literal["joint", "sequential"]
FeatureSpace = Literal["body", "embedder"]
Start = Literal["auto", "rule", "means"]
STEPS, RATE, BATCH = 40, 6e-2, 48
CORRESPONDING = 0.5  # of the variance of means over positions that has to be explained for positions to correspond
LAST_RATE = 0.1  # of the first one
EVERY = 10  # steps between two looks at what decides when to stop
LOOK_ROWS = 512  # labelled samples that a look takes into account
SOURCE_ROWS = 1000  # of the source's features that take part
DISTORTION_SHARE = 15  # of a sequential schedule: by default one step in so many is for the distortion, at the end


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
        return self.states_of(self.embedder(inputs))

    def states_of(self, body_inputs: Tensor) -> Tensor:
        """The same, of what the body takes."""
        states = self.body(body_inputs)
        states = states if isinstance(states, Tensor) else self.source.states(body_inputs)
        # Some bodies compute in halves by themselves.
        return states.float() if states.dtype in (torch.float16, torch.bfloat16) else states

    def pool_states(self, states: Tensor) -> Tensor:
        """Features, of what the body puts out."""
        return self.scale * self.source.pool_states(states)

    def features_of(self, body_inputs: Tensor) -> Tensor:
        """Features of what the embedder put out."""
        return self.pool_states(self.states_of(body_inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.features_of(self.embedder(inputs))


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
        steps: How many.
        rate: Of Adam in the first step; a cosine brings it down to a tenth.
        batch: Samples in each step; all of them if there are fewer.
        with_distortion: Whether labels count.
        schedule: Both terms at once, or alignment first and distortion in the last steps.
        distortion_steps: How many of the last steps of a sequential schedule are for the distortion; by default one in
            fifteen.
        solver: Of the distance.
        features: What is aligned: the pooled output of the body, which the bound speaks of, or the mean of the
            embedder's output, which the released code of the paper aligns; source features are then such means.
        start: The embedder to begin with: as the rule makes it, with means matched where that can be done, or
            ``"auto"``: matched where they tell most of the means at positions that had no part in the match.
        every: Steps between two looks.
        seed: Of the batches.
    """

    steps: int = STEPS
    rate: float = RATE
    batch: int = BATCH
    with_distortion: bool = True
    schedule: Schedule = "joint"
    distortion_steps: int | None = None
    solver: Solver = "exact"
    features: FeatureSpace = "body"
    start: Start = "auto"
    every: int = EVERY
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "every"):
            require_whole(name, getattr(self, name), least=1)
        require_finite("rate", self.rate, above=0)
        require_choice("schedule", self.schedule, get_args(Schedule))
        if self.distortion_steps is not None:
            require_whole("distortion_steps", self.distortion_steps, 1, self.steps)
        require_choice("features", self.features, get_args(FeatureSpace))
        require_choice("start", self.start, get_args(Start))

    @property
    def last_steps(self) -> int:
        """How many of the last steps of a sequential schedule are for the distortion."""
        return self.distortion_steps or max(1, self.steps // DISTORTION_SHARE)

    def terms_at(self, step: int) -> tuple[bool, bool]:
        """Whether the distance and the distortion count in a step, from 1 on."""
        if not self.with_distortion or self.schedule == "joint":
            return True, self.with_distortion
        is_last = step > self.steps - self.last_steps
        return not is_last, is_last

    def rate_at(self, step: int) -> float:
        """The rate of a step, from 1 on."""
        way = (step - 1) / max(1, self.steps - 1)
        return self.rate * (LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * way)) / 2)


@dataclass
class _Looks:
    """All looks so far, and the embedder that was best."""

    steps: list[AlignmentStep] = field(default_factory=list)
    gap: float = math.inf
    state: dict[str, Tensor] = field(default_factory=dict)

    def add(self, look: AlignmentStep, gap: float, embedder: nn.Module) -> None:
        self.steps.append(look)
        if gap < self.gap:
            self.gap = gap
            self.state = {name: tensor.detach().clone() for name, tensor in embedder.state_dict().items()}

    def pack(self) -> dict[str, Tensor]:
        """As tensors, for JSON has no infinity."""
        rows = [(look.step, look.alignment, look.distortion) for look in self.steps]
        best = {f"best.{name}": tensor for name, tensor in self.state.items()}
        numbers = {"looks": torch.tensor(rows, dtype=torch.float64), "gap": torch.tensor(self.gap, dtype=torch.float64)}
        return {**numbers, **best}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.steps = [AlignmentStep(int(step), *terms) for step, *terms in tensors["looks"].tolist()]
        self.gap = float(tensors["gap"])
        self.state = {name.removeprefix("best."): tensors[name] for name in tensors if name.startswith("best.")}


@torch.inference_mode(False)
def align_features(
    feature_map: FeatureMap,
    head: SourceHead,
    source_features: Tensor,
    inputs: Tensor,
    labels: Tensor,
    *,
    unlabelled: Tensor | None = None,
    body_inputs: Tensor | None = None,
    options: AlignmentOptions | None = None,
    report: Callable[[AlignmentStep], object] | None = None,
    places: Places | None = None,
) -> tuple[AlignmentStep, ...]:
    """Train the embedder of a feature map in place; the one with the smallest gap on labelled samples stays.

    Where the target's features lie among the source's from the start, nothing is to be aligned: steps would fit the few
    samples that there are, below what sampling alone gives, and move what was in its place. The embedder stays, and the
    only look is that at step 0.

    Args:
        feature_map: Its body stays as it is.
        head: Of the source, on scaled features.
        source_features: Of the proxy, scaled.
        inputs: Of the target; on any device.
        labels: Of the target, whole numbers from 0 on: classes of regression targets are made before.
        unlabelled: More inputs of the target, which take part in the alignment.
        body_inputs: What the source's body takes, for a sample of the proxy: means can be matched with these alone.
        options: How.
        report: Called with each look; at step 0 a second time if means are matched.
        places: Where steps are seen and kept: a run that was killed goes on from them to the same result.

    Raises:
        FitError: if no gap can be computed, or the body writes to its own tensors.
        FileError: if a checkpoint cannot be used.
    """
    options = options or AlignmentOptions()
    generator = generator_of(options.seed)
    classes = int(labels.max()) + 1
    device = next((parameter.device for parameter in feature_map.embedder.parameters()), inputs.device)
    labels = labels.to(device)
    sample = source_features[torch.randperm(len(source_features), generator=generator)[:SOURCE_ROWS]].to(device)
    looked_at = torch.randperm(len(inputs), generator=generator)[:LOOK_ROWS]
    optimiser = torch.optim.Adam(feature_map.embedder.parameters(), lr=options.rate)
    looks = _Looks()

    def map_inputs(rows: Tensor) -> tuple[Tensor, Tensor]:
        """What is aligned, and what the head reads."""
        if options.features == "body":
            features = feature_map(rows.to(device))
            return features, features
        body_inputs = feature_map.embedder(rows.to(device))
        return feature_map.source.mean_embedding(body_inputs), feature_map.features_of(body_inputs)

    def look_at_features(step: int) -> Tensor:
        with torch.no_grad():
            parts = [map_inputs(inputs[part]) for part in torch.split(looked_at, 256)]
            features = torch.cat([part[0] for part in parts])
            distance = float(wasserstein(features, sample))
            shares = head.probabilities(torch.cat([part[1] for part in parts]))
        crossed = distortion(shares, labels[looked_at], classes, seed=options.seed).crossed
        here = AlignmentStep(step, head.omega * distance, crossed)
        looks.add(here, here.gap if options.with_distortion else here.alignment, feature_map.embedder)
        if report is not None:
            report(here)
        return features

    def look(step: int) -> float:
        look_at_features(step)
        return looks.steps[-1].gap

    def take_step(step: int) -> float:
        with_distance, with_distortion = options.terms_at(step)
        chosen = torch.randperm(len(inputs), generator=generator)[: options.batch]
        rows, features = map_inputs(inputs[chosen])
        loss = torch.zeros((), device=device)
        if with_distance:
            if unlabelled is not None:
                others = torch.randperm(len(unlabelled), generator=generator)[: options.batch]
                rows = torch.cat([rows, map_inputs(unlabelled[others])[0]])
            loss = loss + head.omega * wasserstein(rows, sample, options.solver)
        if with_distortion:
            joint = joint_shares(head.probabilities(features), labels[chosen], classes)
            loss = loss + conditional_entropy(joint)
        optimiser.param_groups[0]["lr"] = options.rate_at(step)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    with _freeze(feature_map, head):
        if lies_among(look_at_features(0), source_features.to(device), generator_of(options.seed)):
            return tuple(looks.steps)
        match = None
        if body_inputs is not None and options.start != "rule":
            match = match_means(feature_map.embedder, inputs, body_inputs, unlabelled)
        if match is not None and (options.start == "means" or match.explained > CORRESPONDING):
            match.put_into(feature_map.embedder)
            looks = _Looks()
            look(0)
        take_steps(
            take_step,
            options.steps,
            optimiser=optimiser,
            trained=feature_map.embedder.state_dict(),
            generator=generator,
            look=look,
            every=options.every,
            memory=looks,
            places=places,
        )
        if not looks.state:
            raise FitError(
                f"Stage 1 could compute no gap in {options.steps} steps; look at the inputs, or take a smaller rate."
            )
        feature_map.embedder.load_state_dict(looks.state)
    return tuple(looks.steps)


@contextmanager
def _freeze(feature_map: FeatureMap, head: SourceHead) -> Iterator[None]:
    """Body and head as they are: no gradients, norms and dropout as in use; modes and flags come back in the end."""
    modes = {module: module.training for module in feature_map.modules()}
    free = [parameter for parameter in feature_map.body.parameters() if parameter.requires_grad]
    tensors = [*feature_map.body.state_dict(keep_vars=True).values(), *head.linear.parameters()]
    versions = [tensor._version for tensor in tensors]
    feature_map.eval()
    for parameter in free:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter in free:
            parameter.requires_grad_(True)
    if [tensor._version for tensor in tensors] != versions:
        raise FitError(
            "The source's body or head changed in stage 1, which trains the embedder alone; give a body that does not "
            "write to its own tensors when it is in evaluation mode."
        )
