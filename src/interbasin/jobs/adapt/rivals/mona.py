r"""MoNA [ma:24]: an embedder with which learning the target makes the body forget the least of what it knows; then
everything is fine-tuned.

No code was released. This follows what the abstract and published summaries say of the method; single choices may
differ from the paper's. Two loops are nested:

- *inner*: for a given embedder, body and head take one step of gradient descent on the target's loss. The step stands
  for the whole training, as in the paper; it is as long as `LOOK_AHEAD` steps of Adam at the body's rate, all in one
  direction, so that it means the same for every network.
- *outer*: the embedder is changed so that the body *after* that step still has good features of the source: samples of
  one class close together, all samples spread over the sphere (alignment and uniformity [wang:20], on features of
  length one). The gradient goes through the inner step, with its second derivatives.

The outer loss is ``target's loss + 0.5 (alignment + uniformity)``, the first at the weights before the step. To first
order its second term rewards embedders whose gradients on the target point where the source's do. The inner step is
taken back each time: the body stays as it is, to the bit. The head for the target, which begins with a probe, is the
one thing beside the embedder that goes on learning from step to step.

Ours are the length of the inner step, the weight, the source's samples (a bank of the proxy's inputs as the body takes
them) and the probe that the head begins with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from interbasin.jobs.adapt.feature_map import AlignmentStep, FeatureMap
from interbasin.jobs.adapt.fitting import Fitted, Trial, refine, share_alignment
from interbasin.jobs.adapt.network import TargetNetwork, start_head
from interbasin.jobs.adapt.setup import Setup
from interbasin.jobs.adapt.stage_one import take_steps
from interbasin.randomness import generator_of

WEIGHT = 0.5  # of what the body knows, beside the target's loss
LOOK_AHEAD = 10.0  # steps of the body's rate that the inner step is as long as
SHARPNESS = 2.0  # of uniformity, as in its paper
BODY = "feature_map.body."


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a step of the outer loop sees.

    Attributes:
        target: The target's loss, before the inner step.
        knowledge: Alignment and uniformity of the source's features, after it.
        head_gradients: Of the target's loss, by the head's parameters.
    """

    target: Tensor
    knowledge: Tensor
    head_gradients: tuple[Tensor, ...]

    @property
    def loss(self) -> Tensor:
        """What the embedder minimises."""
        return self.target + WEIGHT * self.knowledge


class _OnTaken(nn.Module):
    """Features of what the body takes, with tensors that bear the names that they have in a network."""

    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        self.feature_map = feature_map

    def forward(self, body_inputs: Tensor) -> Tensor:
        return self.feature_map.pool_states(self.feature_map.states_of(body_inputs))


def measure_knowledge(features: Tensor, labels: Tensor) -> Tensor:
    """Alignment and uniformity of labelled features on the sphere [wang:20]; the lower, the better.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
        >>> apart, mixed = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
        >>> bool(measure_knowledge(features, apart) < measure_knowledge(features, mixed))
        True
    """
    units = nn.functional.normalize(features, dim=1)
    first, second = torch.triu_indices(len(units), len(units), 1, device=units.device)
    squares = (units[first] - units[second]).square().sum(1)
    same = (labels[first] == labels[second]).to(squares)
    alignment = (squares * same).sum() / same.sum().clamp(min=1)
    uniformity = torch.logsumexp(-SHARPNESS * squares, 0) - math.log(max(1, len(squares)))
    return alignment + uniformity


def look_ahead(
    network: TargetNetwork, setup: Setup, batch: tuple[Tensor, Tensor], source: tuple[Tensor, Tensor], length: float
) -> Outlook:
    """Take the inner step and look at what the body then knows of the source; nothing is changed.

    Args:
        network: For the target.
        setup: What all methods begin with.
        batch: Inputs and labels of the target.
        source: What the body takes for inputs of the source, and their labels.
        length: Of the inner step, as the mean change of one weight.
    """
    weights = {
        name: tensor.detach().requires_grad_(True)
        for name, tensor in network.named_parameters()
        if name.startswith((BODY, "head.")) and tensor.is_floating_point()
    }
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
        target = setup.task.loss(functional_call(network, weights, (batch[0],)), batch[1])
        gradients = torch.autograd.grad(target, list(weights.values()), create_graph=True, materialize_grads=True)
        by_name = dict(zip(weights, gradients, strict=True))
        moved = _step({name: weights[name] for name in weights if name.startswith(BODY)}, by_name, length)
        features = functional_call(_OnTaken(network.feature_map), moved, (source[0],))
    head = tuple(by_name[name].detach() for name in by_name if name.startswith("head."))
    return Outlook(target, measure_knowledge(features, source[1]), head)


def _step(weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], length: float) -> dict[str, Tensor]:
    """Weights after a step down the gradients, whose root mean square over all weights is the length."""
    if not weights:  # a body that has nothing to learn
        return {}
    count = sum(tensor.numel() for tensor in weights.values())
    size = torch.stack([gradients[name].square().sum() for name in weights]).sum()
    factor = length * math.sqrt(count) / size.sqrt() if float(size.detach()) else 0.0
    return {name: tensor - factor * gradients[name] for name, tensor in weights.items()}


@torch.inference_mode(False)
def meta_learn(setup: Setup, rows: Tensor, feature_map: FeatureMap) -> tuple[AlignmentStep, ...]:
    """Train the embedder of a feature map in place, by the outer loop."""
    settings = setup.settings
    generator = generator_of(setup.seed)
    inputs, labels = setup.samples.inputs[rows], setup.labels[rows]
    network = TargetNetwork(feature_map, setup.task, inputs).eval()
    start_head(network, setup.task, inputs, labels)
    embedder = [parameter for parameter in feature_map.embedder.parameters() if parameter.requires_grad]
    head = list(network.head.parameters())
    optimiser = torch.optim.Adam([*embedder, *head], lr=settings.rival_rate)
    size = min(len(rows), settings.align_batch)
    length = LOOK_AHEAD * settings.body_rate

    def take_step(number: int) -> float:
        chosen = torch.randperm(len(rows), generator=generator)[:size].to(inputs.device)
        source = setup.bank.draw(size, generator)
        outlook = look_ahead(network, setup, (inputs[chosen], labels[chosen]), source, length)
        gradients = torch.autograd.grad(outlook.loss, embedder, materialize_grads=True)
        for parameter, gradient in zip([*embedder, *head], [*gradients, *outlook.head_gradients], strict=True):
            parameter.grad = gradient
        optimiser.step()
        return float(outlook.loss.detach())

    states = {"embedder": feature_map.embedder.state_dict(), "head": network.head.state_dict()}
    take_steps(
        take_step,
        settings.align_steps,
        optimiser=optimiser,
        trained={f"{part}.{name}": tensor for part, state in states.items() for name, tensor in state.items()},
        generator=generator,
        places=setup.places_of_stage_one("mona", feature_map.embedder, rows),
    )
    return ()


def fit_mona(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    """Learn an embedder that lets the body keep what it knows, then fine-tune everything."""
    return refine(setup, rows, trial, share_alignment(setup, "mona", rows, lambda new: meta_learn(setup, rows, new)))
