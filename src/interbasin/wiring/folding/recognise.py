r"""What a module computes along its last axis, or along the channels of images, found by running it.

No class is known by name. A module without children whose parameters are one vector, or a gain and a bias, is tried on
random numbers against the few formulas that folding can use:

.. math:: g \odot \frac{x - \bar x}{\sqrt{\mathrm{var}(x) + \epsilon}} + b, \qquad
          g \odot \frac{x}{\sqrt{\overline{x^2} + \epsilon}}, \qquad g \odot x

with the stored vector as the gain, or as its difference from one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Large enough to tell any two of the formulas apart, small enough for a step that a module takes in float32.
TOLERANCE = 1e-5
ROWS, SEED = 4, 0


@dataclass(frozen=True)
class Elementary:
    """A normalisation (``"layer"`` or ``"rms"``) or a plain scaling (``"scale"``), with its effective gain and bias.

    Attributes:
        axis: Along which it works: the last one (-1), or the channels of images (1).
    """

    kind: str
    gain: Tensor
    bias: Tensor | None
    eps: float
    axis: int = -1

    @property
    def width(self) -> int:
        return self.gain.numel()


def recognise(module: nn.Module) -> Elementary | None:
    """The formula that ``module`` follows, or nothing if it follows none of them."""
    own = dict(module.named_parameters(recurse=False))
    if any(True for _ in module.children()) or not 1 <= len(own) <= 2 or any(one.ndim != 1 for one in own.values()):
        return None
    if any(not one.is_floating_point() or one.device.type == "meta" for one in own.values()):
        return None
    gain = own.get("weight", next(iter(own.values())))
    bias = next((one for name, one in own.items() if one is not gain), None)
    if bias is not None and (bias.shape != gain.shape or "weight" not in own):
        return None
    trial = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(SEED)
    # Off-centre and of uneven length, so that centring, squaring and the epsilon all show.
    x = torch.randn(ROWS, gain.numel(), generator=generator, dtype=torch.float64) + 0.5
    x = (x * torch.tensor([[1e-3], [0.1], [1.0], [10.0]], dtype=torch.float64)).to(gain.device)
    for axis, given in ((-1, x), (1, _as_images(x))):
        try:
            with torch.no_grad():
                found = trial(given)
        except Exception:  # whatever a module makes of these axes: it is then not one of ours
            continue
        if isinstance(found, Tensor) and found.shape == given.shape:
            rows = found.double().movedim(axis, -1), given.movedim(axis, -1)
            stored = gain.detach().double(), None if bias is None else bias.detach().double()
            return _match(*rows, *stored, module, axis)
    return None


def _as_images(x: Tensor) -> Tensor:
    """The same numbers as the channels of images, of which no two pixels are alike."""
    pixels = torch.arange(1.0, 7.0, dtype=x.dtype, device=x.device).reshape(2, 3)
    return x[:, :, None, None] * pixels


def _match(
    found: Tensor, x: Tensor, stored: Tensor, bias: Tensor | None, module: nn.Module, axis: int
) -> Elementary | None:
    stated = next((vars(module)[name] for name in ("eps", "variance_epsilon", "epsilon") if name in vars(module)), 0.0)
    # Torch's own RMS norm without a stated epsilon takes that of the dtype it computes in.
    eps = torch.finfo(x.dtype).eps if stated is None else float(stated)
    centred = x - x.mean(-1, keepdim=True)
    shapes = {
        "layer": centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt(),
        "rms": x / (x.square().mean(-1, keepdim=True) + eps).sqrt(),
        "scale": x,
    }
    for kind, normal in shapes.items():
        for gain in (stored, 1 + stored):
            expected = normal * gain + (0 if bias is None else bias)
            scale = float(expected.abs().max()) or 1.0
            if float((found - expected).abs().max()) <= TOLERANCE * scale and not (
                kind == "scale" and bias is not None
            ):
                dtype = next(module.parameters()).dtype
                return Elementary(kind, gain, bias, torch.finfo(dtype).eps if stated is None else eps, axis)
    return None
