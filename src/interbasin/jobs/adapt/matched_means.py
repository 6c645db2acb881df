r"""A start for stage 1: the embedder whose mean output, position by position, is that of the source's embedder.

Optimal transport pulls features to the nearest ones of the source, and from a start that is far away it may end among
the wrong ones. What the body takes has a mean at every position (a digit is bright in the middle); where positions of
the two modalities correspond, these means say how channels correspond as well. The kernel :math:`K` of a new embedder
is then the solution of linear equations, with one row for each position :math:`p`:

.. math:: \min_K \sum_p \|\bar x_p K - \bar b_p\|^2 + \operatorname{tr} (K - K_0)^T N (K - K_0),

where :math:`\bar x_p` is the mean patch of the target, :math:`\bar b_p` what the source's body takes there on
average, :math:`K_0` the kernel that the embedder began with, and :math:`N` the covariance of the means' own error,
which is known from the samples: directions in which means say no more than chance are left as they are. No label is
needed. Whether positions correspond is measured: a kernel fitted to some positions has to tell the means at others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from interbasin.jobs.adapt.embedders import MapEmbedder, SignalEmbedder, TokenEmbedder

FOLDS = 5  # of positions
MOST_NUMBERS = 2**24  # of the patches that are held at a time
LARGEST_PATCH = 1024  # numbers; equations of more take longer than all of stage 1
LEAST = 1e-6  # of the mean square of a column: for columns that are zero everywhere


@dataclass(frozen=True, eq=False)
class MeanMatch:
    """A kernel under which means are the source's.

    Attributes:
        weight, bias: Of the convolution that cuts inputs into positions; no bias where it has none.
        explained: Of how the source's means differ from position to position, the share that a kernel fitted to other
            positions explains: near 1 where positions correspond, 0 or below where they do not.
    """

    weight: Tensor
    bias: Tensor | None
    explained: float

    @torch.no_grad()
    def put_into(self, embedder: nn.Module) -> None:
        """Give the embedder this kernel, in place."""
        cut: nn.Conv1d | nn.Conv2d = embedder.cut  # type: ignore[assignment]
        cut.weight.copy_(self.weight)
        if cut.bias is not None and self.bias is not None:
            cut.bias.copy_(self.bias)


@torch.no_grad()
def match_means(
    embedder: nn.Module, inputs: Tensor, body_inputs: Tensor, unlabelled: Tensor | None = None
) -> MeanMatch | None:
    """The kernel for an embedder under which means are the source's; None where there is no such thing.

    There is one where a single convolution cuts inputs into positions, each of at most `LARGEST_PATCH` numbers, and
    nothing but sums stands behind it.

    Args:
        embedder: Of `make_embedder`; it is not changed.
        inputs: Of the target, two at least.
        body_inputs: What the source's body takes, for a sample of the proxy.
        unlabelled: More inputs of the target.
    """
    inputs = inputs if unlabelled is None else torch.cat([inputs, unlabelled.to(inputs.device)])
    if not isinstance(embedder, TokenEmbedder | MapEmbedder | SignalEmbedder) or len(inputs) < 2:
        return None
    cut = embedder.cut
    if not isinstance(cut, nn.Conv1d | nn.Conv2d) or cut.weight[0].numel() > LARGEST_PATCH:
        return None
    wanted = embedder.cut_output_for(body_inputs.to(cut.weight).mean(0))
    if wanted is None:
        return None
    outputs = wanted.flatten(1).mT.double()  # (positions, channels)
    means, noise = _mean_patches(cut, inputs)
    start = cut.weight.flatten(1).mT.double()
    if cut.bias is not None:
        means = torch.cat([means, means.new_ones(len(means), 1)], 1)
        noise = nn.functional.pad(noise, (0, 1, 0, 1))  # the bias has no error of its own
        start = torch.cat([start, cut.bias.double()[None]])
    kernel = _solve(means, noise, outputs, start)
    weight = kernel[: means.shape[1] - (cut.bias is not None)]
    return MeanMatch(
        weight.mT.reshape(cut.weight.shape).to(cut.weight),
        None if cut.bias is None else kernel[-1].to(cut.bias),
        _explain(means, noise, outputs, start),
    )


def _solve(means: Tensor, noise: Tensor, outputs: Tensor, start: Tensor) -> Tensor:
    gram = means.mT @ means
    gram.diagonal().add_(LEAST * gram.diagonal().mean().clamp(min=LEAST))
    step: Tensor = torch.linalg.solve(gram + noise, means.mT @ (outputs - means @ start))
    return start + step


def _explain(means: Tensor, noise: Tensor, outputs: Tensor, start: Tensor) -> float:
    """Which share of the variance over positions is explained at positions that had no part in the fit."""
    places = torch.arange(len(means), device=means.device) % FOLDS
    residual = total = means.new_zeros(())
    for fold in range(min(FOLDS, len(means)) if len(means) > 1 else 0):
        held = places == fold
        kernel = _solve(means[~held], noise * (~held).double().mean(), outputs[~held], start)
        residual = residual + (outputs[held] - means[held] @ kernel).square().sum()
        total = total + (outputs[held] - outputs[~held].mean(0)).square().sum()
    return float(1 - residual / total) if float(total) > 0 else 0.0


def _mean_patches(cut: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The mean patch at each position, and the covariance of its error, summed over positions."""
    count, size = len(inputs), cut.weight[0].numel()
    numbers = max(1, _patches(cut, inputs[:1]).numel())
    total: Tensor | None = None
    squares = cut.weight.new_zeros(size, size, dtype=torch.float64)
    for part in torch.split(inputs, max(1, MOST_NUMBERS // numbers)):
        patches = _patches(cut, part).double()  # (samples, positions, patch)
        total = patches.sum(0) if total is None else total + patches.sum(0)
        rows = patches.flatten(0, 1)
        squares += rows.mT @ rows
    assert total is not None
    means = total / count
    return means, (squares - count * means.mT @ means) / (count * (count - 1))


def _patches(cut: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """What the kernel is multiplied with at each position: ``(samples, positions, numbers of a patch)``."""
    kernel, stride = cut.kernel_size, cut.stride
    padding = tuple(int(size) for size in cut.padding)
    inputs = inputs.to(cut.weight)
    if isinstance(cut, nn.Conv2d):
        return unfold(inputs, kernel, padding=padding, stride=stride).mT
    signals = inputs[:, None] if inputs.ndim == 2 else inputs.flatten(2)
    return unfold(signals[:, :, None], (1, *kernel), padding=(0, *padding), stride=(1, *stride)).mT
