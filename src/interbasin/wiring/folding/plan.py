"""What can be folded: norms and scalings, recognised by what they compute, and a plan read off a wiring around them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.models.folding import Replacement, describe_reasons, group_reasons
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Axis, In, Role, Space, leaves
from interbasin.wiring.wiring import Wiring

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
    r"""The formula that ``module`` follows along its last axis, or along the channels of images; found by running it.

    No class is known by name. A module without children whose parameters are one vector, or a gain and a bias, is tried
    on random numbers against the few formulas that folding can use:

    .. math:: g \odot \frac{x - \bar x}{\sqrt{\mathrm{var}(x) + \epsilon}} + b, \qquad
              g \odot \frac{x}{\sqrt{\overline{x^2} + \epsilon}}, \qquad g \odot x

    with the stored vector as the gain, or as its difference from one. None if the module follows no formula.
    """
    own = dict(module.named_parameters(recurse=False))
    if any(True for _ in module.children()) or not 1 <= len(own) <= 2:
        return None
    if any(vector.ndim != 1 or not vector.is_floating_point() or vector.is_meta for vector in own.values()):
        return None
    gain = own.get("weight", next(iter(own.values())))
    bias = next((parameter for name, parameter in own.items() if parameter is not gain), None)
    if bias is not None and (bias.shape != gain.shape or "weight" not in own):
        return None
    trial = copy.deepcopy(module).double()
    generator = torch.Generator().manual_seed(SEED)
    # Off-centre and of uneven length, so that centring, squaring and the epsilon all show.
    x = torch.randn(ROWS, gain.numel(), generator=generator, dtype=torch.float64) + 0.5
    x = (x * torch.tensor([[1e-3], [0.1], [1.0], [10.0]], dtype=torch.float64)).to(gain.device)
    for axis, trial_input in ((-1, x), (1, _as_images(x))):
        try:
            with torch.no_grad():
                output = trial(trial_input)
        except Exception:  # whatever a module makes of these axes: it is then not one of ours
            continue
        if isinstance(output, Tensor) and output.shape == trial_input.shape:
            rows = output.double().movedim(axis, -1), trial_input.movedim(axis, -1)
            stored = gain.detach().double(), None if bias is None else bias.detach().double()
            return _match(*rows, *stored, module, axis)
    return None


def _as_images(x: Tensor) -> Tensor:
    """The same numbers as the channels of images, of which no two pixels are alike."""
    pixels = torch.arange(1.0, 7.0, dtype=x.dtype, device=x.device).reshape(2, 3)
    return x[:, :, None, None] * pixels


def _match(
    output: Tensor, x: Tensor, stored: Tensor, bias: Tensor | None, module: nn.Module, axis: int
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
            if float((output - expected).abs().max()) <= TOLERANCE * scale and not (
                kind == "scale" and bias is not None
            ):
                dtype = next(module.parameters()).dtype
                return Elementary(kind, gain, bias, torch.finfo(dtype).eps if stated is None else eps, axis)
    return None


# ---------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class _Place:
    """Where an elementary module stands: the space it reads and the space it puts out."""

    name: str
    before: str | None
    after: str | None


class Plan:
    """Which norms and scalings are folded, which streams lose their mean, and why the others are not.

    Attributes:
        streams: Spaces that are written by sums and read through norms alone, and the kind of those norms.
        norms: Read a stream, and weights alone read them: the gain moves into those.
        spelled: Read a stream, but something else reads them too: the gain becomes a linear layer behind the norm.
        dense: Write a stream from outside it, as behind an embedding: the same, and the norm itself stays.
        scalings: Their factors move into what writes them.
    """

    def __init__(self, wiring: Wiring, elementary: Mapping[str, Elementary], *, biases: bool = True) -> None:
        self.wiring = wiring
        self.elementary = elementary
        self.places = {name: self._place(name) for name in elementary}
        self.reasons: dict[str, str] = {}
        normal = [name for name, module in elementary.items() if module.kind != "scale"]
        self.scalings = [name for name in elementary if name not in normal and self._folds_back(name)]
        readable = [name for name in normal if self._folds_on(name)]
        self.streams = self._streams(readable)
        on_stream = [name for name in normal if self.places[name].before in self.streams]
        absorbed = {name for name in readable if biases or elementary[name].bias is None}
        self.norms = [name for name in on_stream if name in absorbed]
        self.spelled = [name for name in on_stream if name not in absorbed]
        self.dense = [name for name in normal if name not in on_stream and self.places[name].after in self.streams]

    @property
    def moves_biases(self) -> bool:
        return any(self.elementary[name].bias is not None for name in self.norms)

    def _place(self, name: str) -> _Place:
        sides = []
        along = self.elementary[name].axis
        for side in ("input", "output"):
            spaces = {
                _whole(axes[along])
                for place, axes in self.wiring.activations.items()
                if place.rpartition(":")[0] == f"{name}:{side}" and len(axes) > max(along, 0)
            }
            sides.append(spaces.pop() if len(spaces) == 1 else None)
        return _Place(name, *sides)

    def _space(self, name: str | None) -> Space | None:
        return None if name is None else self.wiring.spaces[name]

    def _folds_on(self, name: str) -> bool:
        """Whether nothing but weights reads what a norm puts out."""
        after = self._space(self.places[name].after)
        if not any(place.startswith(f"{name}:") for place in self.wiring.activations):
            self.reasons[name] = "it is not called on these inputs"
        elif after is None:
            self.reasons[name] = "what it puts out does not lie in one space, or is the network's output"
        elif after.group is not Group.INVERTIBLE:
            because = f": {after.because}" if after.because else ""
            self.reasons[name] = f"what it puts out is not read by weights alone{because}"
        elif not after.reads and not after.writes:
            self.reasons[name] = "no weight reads what it puts out"
        elif after.writes or any(self._shares(name, other) for other in self.places):
            self.reasons[name] = (
                "what it puts out is added to a stream (a post-norm network), so its gain has no reader to go into"
            )
        else:
            return True
        return False

    def _shares(self, name: str, other: str) -> bool:
        """Whether another module puts something out into the same space, or reads from it as from a stream."""
        mine = self.places[name].after
        if name == other:
            return False
        if self.places[other].before == mine:
            return True
        return self.places[other].after == mine and not _equal(self.elementary[name], self.elementary[other])

    def _folds_back(self, name: str) -> bool:
        """Whether what a scaling reads comes from weights alone, and goes nowhere else."""
        place, before = self.places[name], self._space(self.places[name].before)
        alone = all(other == name or place.before not in (at.before, at.after) for other, at in self.places.items())
        return before is not None and before.group is Group.INVERTIBLE and not before.reads and alone

    def _streams(self, readable: list[str]) -> dict[str, str]:
        streams: dict[str, str] = {}
        for stream in dict.fromkeys(self.places[name].before for name in readable):
            readers = [name for name, place in self.places.items() if place.before == stream]
            why = "what it reads does not lie in one space" if stream is None else self._obstacle(stream, readers)
            if why is None:
                assert stream is not None
                streams[stream] = self.elementary[readers[0]].kind
            for name in readers:
                if why is not None and self.elementary[name].kind != "scale":
                    self.reasons.setdefault(name, why)
        return streams

    def _obstacle(self, stream: str, readers: list[str]) -> str | None:
        """Why a stream cannot be turned even after folding, if it cannot."""
        space = self.wiring.spaces[stream]
        kinds = {self.elementary[name].kind for name in readers}
        scaled = any(self.places[name].after == stream for name in self.scalings)
        if not space.writes and not scaled:
            return f"what it reads, {stream!r}, is written by norms alone"
        if space.within:
            return f"it reads {stream!r}, which differs from block to block"
        if space.group is not Group.INVERTIBLE:
            return f"its stream {stream!r} is not only added to and read through norms: {space.because}"
        if "scale" in kinds:
            scaling = next(name for name in readers if self.elementary[name].kind == "scale")
            return f"its stream {stream!r} is scaled, by {scaling}, which no orthogonal map commutes with"
        if len(kinds) > 1:
            return f"its stream {stream!r} is read by norms of more than one kind"
        if kinds == {"layer"} and space.reads:
            return f"its stream {stream!r} is also read without a norm, by {space.reads[0]}"
        for name in self.elementary:
            if self.places[name].after != stream and self._mentions(name, stream, "output"):
                return f"{name} is called more than once, and not always to write its stream {stream!r}"
            if name not in readers and self._mentions(name, stream, "input"):
                return f"its stream {stream!r} is one part of what {name} normalises"
            stays = self.elementary[name].kind == "scale" and name not in self.scalings
            if stays and self.places[name].after == stream:
                return f"{name} scales what is added to its stream {stream!r}, and cannot be folded"
        return None

    def _mentions(self, name: str, stream: str, side: str) -> bool:
        return any(
            isinstance(leaf, In) and leaf.space == stream
            for place, axes in self.wiring.activations.items()
            if place.startswith(f"{name}:{side}:")
            for axis in axes
            for leaf, _ in leaves(axis)
        )

    def require_something(self, model: str) -> None:
        if not self.streams:
            reasons = "; ".join(describe_reasons(group_reasons(self.reasons)))
            raise WiringError(
                f"No norm of {model} can be folded. {reasons}. Keep to permutations in its stream, which need no "
                "folding."
            )

    def left(self) -> dict[str, str]:
        """The norms that stay as they are, and why."""
        done = {*self.norms, *self.spelled, *self.dense}
        unsaid = "what it reads is no stream that is read through norms alone"
        return {
            name: self.reasons.get(name, unsaid)
            for name, module in self.elementary.items()
            if module.kind != "scale" and name not in done
        }

    def replacements(self) -> dict[str, Replacement]:
        """What stands in the place of each norm and scaling that was folded."""
        kinds = {
            **dict.fromkeys(self.scalings, "nothing"),
            **dict.fromkeys(self.norms, "unit"),
            **dict.fromkeys(self.spelled, "spelled"),
            **{name: "spelled-centring" if self.elementary[name].kind == "layer" else "spelled" for name in self.dense},
        }
        return {
            name: Replacement(kind, module.width, module.eps, module.axis)
            for name, kind in kinds.items()
            for module in (self.elementary[name],)
        }


def _whole(axis: Axis) -> str | None:
    return axis.space if isinstance(axis, In) and axis.role is Role.WRITE else None


def _equal(one: Elementary, other: Elementary) -> bool:
    same_bias = one.bias is other.bias or (
        one.bias is not None and other.bias is not None and torch.equal(one.bias, other.bias)
    )
    return one.kind == other.kind and torch.equal(one.gain, other.gain) and same_bias
