"""PaRe [cai:24]: while everything is fine-tuned, tokens of the source take the place of some of the target's, ever
fewer of them.

A gate, one linear layer, scores the tokens of both. Of the target those with the highest scores stay, of the source
those with the highest scores fill the rest. What comes out of the body for such a mixture is read by the target's head
and by the source's, and both losses count, the source's by its share of the tokens:

    loss(target) + 0.3 ((1 - share) loss(mixture, target's label) + share loss(mixture, source's label))

The share falls from a half to nothing over the training, so that the network in the end sees the target alone and is
used without tokens of the source. The mixture and the loss are as in the paper and its released code, with these
differences: the source's label is read by the recalibrated head of the source, which stays as it is; the gate is
trained through a factor of one whose gradient is that of the score's sigmoid, in place of the code's relaxed sampling
of subsets (both add Gumbel noise to the scores); and the share falls with every step.

A token is one position of what the body takes. Where that is a single vector, every number counts as one. Tokens that
stand before those of the input, such as a class token, are never replaced.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interbasin.jobs.adapt.fitting import Clock, Fitted, Trial, train_head_and_all
from interbasin.jobs.adapt.network import TargetNetwork
from interbasin.jobs.adapt.setup import Setup
from interbasin.randomness import generator_of

LARGEST_SHARE = 0.5  # of the source's tokens, at the beginning
WEIGHT = 0.3  # of the mixture's losses, as in the released code


def share_at(progress: float) -> float:
    """The share of the source's tokens, from the beginning of the training (0) to its end (1)."""
    return LARGEST_SHARE * (1 - progress)


class PatchReplacement(nn.Module):
    """What mixtures of source and target add to the loss, with the gate that makes them.

    Args:
        setup: With a bank of what the body takes for the source.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._setup = setup
        self._generator = generator_of(setup.seed)
        width = self._as_tokens(setup.bank.body_inputs[:1]).shape[2]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            self.gate = nn.Linear(width, 1).to(setup.bank.body_inputs.device)

    def forward(self, network: TargetNetwork, chosen: Tensor, progress: float) -> Tensor:
        setup = self._setup
        target = network.feature_map.embedder(setup.samples.inputs[chosen])
        source, classes = setup.bank.draw(len(chosen), self._generator)
        mixture, share = self.mix(target, source, share_at(progress))
        if not share:
            return torch.zeros((), device=chosen.device)
        states = network.feature_map.states_of(mixture)
        for_target = setup.task.loss(network.read_out(network.read_states(states)), setup.labels[chosen])
        for_source = cross_entropy(setup.head.linear(network.feature_map.pool_states(states)), classes)
        loss: Tensor = WEIGHT * ((1 - share) * for_target + share * for_source)
        return loss

    def mix(self, target: Tensor, source: Tensor, share: float) -> tuple[Tensor, float]:
        """What the body takes, with so many of the target's tokens replaced; and the share that they come to.

        Args:
            target, source: What the body takes, for as many inputs of each; they may differ in their numbers of tokens.
            share: Of the target's tokens, prefix not counted; rounded down.
        """
        tokens, others = self._as_tokens(target), self._as_tokens(source)
        first = self._setup.source.prefix_length
        count = min(int(share * (tokens.shape[1] - first)), others.shape[1] - first)
        if count < 1:
            return target, 0.0
        scores, other_scores = self._score(tokens), self._score(others)
        # Places and tokens in the order in which they stand, so that what follows each other goes on doing so.
        places = first + self._noisy(scores)[:, first:].argsort(1)[:, :count].sort(1).values
        brought = first + self._noisy(other_scores)[:, first:].argsort(1, descending=True)[:, :count].sort(1).values
        width = tokens.shape[2]
        new = (others * _as_factor(other_scores)).gather(1, brought[..., None].expand(-1, -1, width))
        mixture = (tokens * _as_factor(scores)).scatter(1, places[..., None].expand(-1, -1, width), new)
        return self._as_taken(mixture, target.shape), count / (tokens.shape[1] - first)

    def _score(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.gate(tokens)[..., 0]
        return scores

    def _noisy(self, scores: Tensor) -> Tensor:
        """Scores with Gumbel noise: the highest of them are a sample of tokens, likelier the higher they score."""
        drawn = torch.rand(scores.shape, generator=self._generator).clamp(1e-6, 1 - 1e-6)
        return scores.detach() - (-drawn.log()).log().to(scores)

    def _as_tokens(self, body_inputs: Tensor) -> Tensor:
        """What the body takes as ``(inputs, tokens, width)``."""
        if body_inputs.ndim == 2:
            return body_inputs[..., None]
        return (
            body_inputs.flatten(1, -2) if self._setup.source.layout in ("tokens", "grid") else body_inputs.flatten(2).mT
        )

    def _as_taken(self, tokens: Tensor, shape: torch.Size) -> Tensor:
        if len(shape) == 2 or self._setup.source.layout in ("tokens", "grid"):
            return tokens.reshape(shape)
        return tokens.mT.reshape(shape)


def _as_factor(scores: Tensor) -> Tensor:
    """One, with the gradient of the score's sigmoid."""
    sigmoid = scores.sigmoid()[..., None]
    return 1 + (sigmoid - sigmoid.detach())


def fit_pare(setup: Setup, rows: Tensor, trial: Trial) -> Fitted:
    """Fine-tune everything, with ever fewer tokens of the source mixed in."""
    return train_head_and_all(setup, rows, trial, setup.new_map(), Clock(), extra=PatchReplacement(setup))
