"""Generic weights for any network: nothing zero, nothing constant, nothing that blows up.

A freshly made network hides mistakes: its biases are zero, its gains one, its running statistics trivial and the last
layer of every residual branch often switched off. :func:`randomise` gives everything that is learned a value of its
own, at a scale that keeps activations of order one, from the kind of module, the name, the shape and the value that a
tensor had at first.
"""

from __future__ import annotations

import math
import re

import torch
from tests.architectures.architecture import Inputs, run
from torch import Generator, Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm

CONVOLUTIONS = (nn.modules.conv._ConvNd,)
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
NORMS = (*BATCH_NORMS, nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# Whose range matters: recurrences that must decay, step sizes, and the norms that a weight normalisation keeps.
DELICATE = re.compile(r"A_log|dt_bias|dt_proj\.bias|time_(decay|first|mix\w*)|recurrent_param|original0|weight_g")
TABLE = re.compile(r"bias|embed|pos|token|table|query|probe|latent|register|prefix")


def randomise(network: nn.Module, seed: int, inputs: Inputs | None = None) -> nn.Module:
    """Give every parameter and running statistic of ``network`` a generic value, in place.

    With ``inputs``, running statistics are drawn around those of what passes through, as in a trained network. Without,
    they are drawn around zero and one, and in a deep network with batch normalisation signals may grow or die out.

    Frozen gains and biases, which are stored buffers, count as parameters. Other buffers (masks, frequencies, fixed
    kernels) belong to the architecture and are left as they are. Tensors that are shared stay shared.
    """
    generator = torch.Generator().manual_seed(seed)
    modules = dict(network.named_modules())
    stored = network.state_dict().keys()
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if tensor.is_floating_point() and tensor.numel():
                tensor.copy_(parameter(name, tensor, modules[name.rpartition(".")[0]], generator))
        for name, tensor in network.named_buffers():
            if name.endswith("running_mean"):
                tensor.copy_(0.3 * normal(tensor, generator))
            elif name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 1.5 + 0.5)
            elif name in stored and is_frozen(tensor):
                tensor.copy_(parameter(name, tensor, modules[name.rpartition(".")[0]], generator))
        for module in modules.values():
            if isinstance(module, nn.utils.parametrize.ParametrizationList) and isinstance(module[0], _SpectralNorm):
                # Its estimate of the largest singular value belongs to the weight that was just replaced.
                module[0]._power_method(module[0]._reshape_weight_to_matrix(module.original), 30)
        if inputs is not None:
            settle(network, inputs, generator)
    return network


def settle(network: nn.Module, inputs: Inputs, generator: Generator) -> None:
    """Draw running statistics around those of what ``inputs`` bring to each normalisation."""

    def draw(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        channels = arguments[0].transpose(0, 1).flatten(1)
        mean, variance = channels.mean(1), channels.var(1, correction=0)
        deviation = 0.3 * normal(mean, generator) * variance.sqrt()
        scale = torch.rand(mean.shape, generator=generator) * 1.5 + 0.5
        module.running_mean.copy_(mean + deviation)
        # No less than the mean square: where inputs look alike, their difference would be blown up, and rounding too.
        module.running_var.copy_(variance.clamp_min(channels.square().mean()) * scale)

    normed = [one for one in network.modules() if isinstance(one, BATCH_NORMS) and one.running_var is not None]
    hooks = [module.register_forward_pre_hook(draw) for module in normed]
    run(network, inputs)
    for hook in hooks:
        hook.remove()
    network.train().eval()  # forgets what some networks keep between calls while they do not train


def is_frozen(buffer: Tensor) -> bool:
    """Whether a buffer is a vector of zeros or of ones: a bias or a gain that is not trained."""
    is_vector = 1 < buffer.numel() == max(buffer.shape) and buffer.is_floating_point()
    return is_vector and bool((buffer == buffer.flatten()[0]).all()) and buffer.flatten()[0].item() in (0, 1)


def normal(tensor: Tensor, generator: Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator)


def parameter(name: str, tensor: Tensor, owner: nn.Module, generator: Generator) -> Tensor:
    """A generic value for the parameter ``name`` of the module ``owner``."""
    noise = normal(tensor, generator)
    last = name.rpartition(".")[2]
    first = tensor.flatten()[0].item()
    constant = bool((tensor == first).all())
    if DELICATE.search(name) and not (constant and first == 0):
        return tensor * (1 + 0.1 * noise).clamp(0.5, 1.5)
    if isinstance(owner, nn.Embedding):
        return noise
    if tensor.ndim >= 2 and last == "weight" and isinstance(owner, CONVOLUTIONS):
        return noise * math.sqrt(2 / tensor[0].numel())  # the 2 makes up for a rectifier
    if tensor.ndim >= 2 and last == "weight" and isinstance(owner, nn.Linear):
        return noise / math.sqrt(tensor.shape[1])
    if isinstance(owner, NORMS) and last == "weight":
        return gain(1.0, noise)
    if max(tensor.shape, default=1) == tensor.numel() and constant:  # a vector or a scalar, whatever its shape
        if "bias" in last or (first == 0 and tensor.ndim == 1):  # also gains that are stored as what they add to one
            return first + 0.3 * noise
        if first != 0 or tensor.ndim == 0:
            return gain(first, noise)
        return noise
    if tensor.ndim < 2:
        return 0.3 * noise if "bias" in last else noise
    if constant and first != 0:
        return gain(first, noise)
    if constant or tensor.shape[0] == 1 or TABLE.search(last):
        return noise
    # A weight that stands by itself. Most multiply from the left; GPT-2's transposed linear layers do not.
    return noise / math.sqrt(tensor.shape[0] if type(owner).__name__ == "Conv1D" else tensor.shape[-1])


def gain(first: float, noise: Tensor) -> Tensor:
    """Positive factors around ``first``, or around one where it is nearly zero, as layer scales are at first."""
    return (first if abs(first) >= 0.2 else 1.0) * (1 + 0.3 * noise).clamp_min(0.1)
