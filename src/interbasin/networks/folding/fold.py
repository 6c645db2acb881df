r"""A network with the same function whose residual stream commutes with every orthogonal map.

A pre-norm network reads its stream through norms. With a LayerNorm's gain :math:`g` and bias :math:`b`, what reads it
computes :math:`W (g \odot n(x) + b)`, which is :math:`(W\,\mathrm{diag}(g))\,n(x) + W b`: gain and bias move into the
reader. The mean that LayerNorm takes away can be taken out of everything that writes the stream; then the norm is
:math:`x / \sqrt{\overline{x^2} + \epsilon}`, which turns with :math:`x`. A scaling behind a branch (layer scale) moves
into what writes it. Nothing is approximated.

What may be folded is decided by wiring: the norms are taken out of the graph, what comes out of each is a space of its
own, and only if nothing but weights reads that space (its group is all invertible maps) can anything be absorbed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.maps import Linear
from interbasin.networks.folding.folding import Folding, Replacement, grouped, keep_folding, told
from interbasin.networks.folding.recognise import Elementary, recognise
from interbasin.networks.folding.replacing import add_bias, put
from interbasin.networks.folding.ties import shared, tie_again, untie
from interbasin.networks.folding.unit import SpelledNorm, UnitNorm
from interbasin.networks.wiring.admission import admit, named_tensors, refuse_numbers_that_are_none
from interbasin.networks.wiring.carry import Mover
from interbasin.networks.wiring.checking import difference
from interbasin.networks.wiring.copying import copied, forget_what_was_derived
from interbasin.networks.wiring.finding import wire_around
from interbasin.networks.wiring.groups import Group
from interbasin.networks.wiring.spaces import Axis, In, Role, Space, leaves
from interbasin.networks.wiring.tracing import Inputs
from interbasin.networks.wiring.wiring import Wiring

__all__ = ["fold_norms"]

Model = TypeVar("Model", bound=nn.Module)

# How far the folded network may be from the given one, relative to the outputs, before folding is called a failure.
EQUAL = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


def fold_norms(model: Model, inputs: Inputs) -> Model:
    """A new network that computes the same, with norms that have no gain on a stream that has no mean.

    In it the residual stream moves by every orthogonal map. Tied heads become tensors of their own, norms become
    `UnitNorm`, and linear layers get a bias where a norm had one. Where something besides weights reads a norm of the
    stream (the network's output, say), its gain becomes a linear layer behind it. Norms that read no stream (of queries
    and keys, say) stay as they are: ``print(folding_of(folded))`` tells which, and why. `save_folded` writes the result
    so that `load_model` reads it.

    Args:
        model: In evaluation mode. It stays as it is.
        inputs: One batch, for tracing and to see that the function is the same.

    Raises:
        WiringError: if there is nothing that can be folded, with the reason for each norm: in a post-norm network the
            skip reads what the norm puts out, so its gain has no reader to go into.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from interbasin.networks.wiring import wire
        >>> layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=True, batch_first=True)
        >>> net = nn.Sequential(nn.Linear(4, 16), layer, nn.LayerNorm(16), nn.Linear(16, 3)).eval()
        >>> x = torch.randn(2, 5, 4)
        >>> folded = fold_norms(net, x)
        >>> print(wire(net, x).spaces["0"].group, "->", wire(folded, x).spaces["0"].group)
        permutation -> orthogonal
    """
    admit(model)
    refuse_numbers_that_are_none(model)
    folded = copied(model)
    forget_what_was_derived(folded)
    ties = untie(folded)
    elementary = {name: found for name, module in folded.named_modules() if (found := recognise(module)) is not None}
    if not any(one.kind != "scale" for one in elementary.values()):
        raise WiringError(
            f"{type(model).__name__} has no layer norm and no RMS norm with a gain; there is nothing to fold."
        )
    wiring = wire_around(folded, inputs, elementary)
    plan = _Plan(wiring, elementary)
    plan.require_something(type(model).__name__)
    with torch.no_grad():
        biases = _act(folded, plan)
    tie_again(folded, ties)
    keep_folding(folded, Folding(plan.replacements(), biases, tuple(shared(folded)), grouped(plan.left())))
    _require_the_same(model, folded, inputs, plan)
    return folded


def _require_the_same(model: nn.Module, folded: nn.Module, inputs: Inputs, plan: _Plan) -> None:
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    most = EQUAL.get(dtype, 1e-3)
    units = {name: one for name, one in folded.named_modules() if isinstance(one, UnitNorm)}
    try:
        gap = difference(model, folded, inputs)
        # What stands for the gain is there for its dtype: whoever reads its numbers would now read others.
        for unit in units.values():
            unit.weight.fill_(torch.nan)
        if not difference(model, folded, inputs) <= max(gap, most):
            raise _read_elsewhere(model, _first_reader(model, folded, inputs, units, most))
    except WiringError as error:
        if isinstance(error.__cause__, AttributeError | TypeError):  # of a bias that is no longer there
            raise _read_elsewhere(model, " or ".join([*plan.norms, *plan.spelled, *plan.dense][:3])) from error
        raise
    finally:
        for unit in units.values():
            unit.weight.fill_(1.0)
    if not gap <= most:
        raise WiringError(
            f"Folding {type(model).__name__} changed its outputs by {gap:.1e}, which it must not; please report this "
            "network."
        )


def _first_reader(
    model: nn.Module, folded: nn.Module, inputs: Inputs, units: Mapping[str, UnitNorm], most: float
) -> str:
    for name, unit in units.items():
        for other in units.values():
            other.weight.fill_(torch.nan if other is unit else 1.0)
        if not difference(folded, folded, inputs) <= most:
            return name
    return next(iter(units))


def _read_elsewhere(model: nn.Module, norm: str) -> WiringError:
    return WiringError(
        f"{type(model).__name__} reads the gain or the bias of {norm} outside of that norm, so that folding it would "
        "change what is read there; give that place a tensor of its own first (norm.weight.detach().clone())."
    )


# ---------------------------------------------------------------------- what can be folded


@dataclass(frozen=True)
class _Place:
    """Where an elementary module stands: the space it reads and the space it puts out."""

    name: str
    before: str | None
    after: str | None


class _Plan:
    """Which norms and scalings are folded, which streams lose their mean, and why the others are not.

    Attributes:
        streams: Spaces that are written by sums and read through norms alone, and the kind of those norms.
        norms: Read a stream, and weights alone read them: the gain moves into those.
        spelled: Read a stream, but something else reads them too: the gain becomes a linear layer behind the norm.
        dense: Write a stream from outside it, as behind an embedding: the same, and the norm itself stays.
        scalings: Their factors move into what writes them.
    """

    def __init__(self, wiring: Wiring, elementary: Mapping[str, Elementary]) -> None:
        self.wiring = wiring
        self.elementary = elementary
        self.places = {name: self._place(name) for name in elementary}
        self.reasons: dict[str, str] = {}
        normal = [name for name, one in elementary.items() if one.kind != "scale"]
        self.scalings = [name for name in elementary if name not in normal and self._folds_back(name)]
        readable = [name for name in normal if self._folds_on(name)]
        self.streams = self._streams(readable)
        on_stream = [name for name in normal if self.places[name].before in self.streams]
        self.norms = [name for name in on_stream if name in readable]
        self.spelled = [name for name in on_stream if name not in readable]
        self.dense = [name for name in normal if name not in on_stream and self.places[name].after in self.streams]

    def _place(self, name: str) -> _Place:
        sides = []
        for side in ("input", "output"):
            spaces = {
                _whole(axes[-1])
                for place, axes in self.wiring.activations.items()
                if place.rpartition(":")[0] == f"{name}:{side}" and axes
            }
            sides.append(spaces.pop() if len(spaces) == 1 else None)
        return _Place(name, *sides)

    def _space(self, name: str | None) -> Space | None:
        return None if name is None else self.wiring.spaces[name]

    def _folds_on(self, name: str) -> bool:
        """Whether nothing but weights reads what a norm puts out."""
        after = self._space(self.places[name].after)
        if after is None:
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
        found: dict[str, str] = {}
        for stream in dict.fromkeys(self.places[name].before for name in readable):
            readers = [name for name, place in self.places.items() if place.before == stream]
            why = "what it reads does not lie in one space" if stream is None else self._obstacle(stream, readers)
            if why is None:
                assert stream is not None
                found[stream] = self.elementary[readers[0]].kind
            for name in readers:
                if why is not None:
                    self.reasons.setdefault(name, why)
        return found

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
        if len(kinds) > 1:
            return f"its stream {stream!r} is read by norms of more than one kind"
        if kinds == {"layer"} and space.reads:
            return f"its stream {stream!r} is also read without a norm, by {space.reads[0]}"
        for name in self.elementary:
            if name not in readers and self._mentions(name, stream):
                return f"its stream {stream!r} is one part of what {name} normalises"
            stays = self.elementary[name].kind == "scale" and name not in self.scalings
            if stays and self.places[name].after == stream:
                return f"{name} scales what is added to its stream {stream!r}, and cannot be folded"
        return None

    def _mentions(self, name: str, stream: str) -> bool:
        return any(
            isinstance(leaf, In) and leaf.space == stream
            for place, axes in self.wiring.activations.items()
            if place.startswith(f"{name}:input:")
            for axis in axes
            for leaf, _ in leaves(axis)
        )

    def require_something(self, model: str) -> None:
        if not self.norms:
            raise WiringError(
                f"No norm of {model} can be folded. {'; '.join(told(grouped(self.reasons)))}. Keep to permutations in "
                "its stream, which need no folding."
            )

    def left(self) -> dict[str, str]:
        """The norms that stay as they are, and why."""
        done = {*self.norms, *self.spelled, *self.dense}
        unsaid = "what it reads is no stream that is read through norms alone"
        return {
            name: self.reasons.get(name, unsaid)
            for name, one in self.elementary.items()
            if one.kind != "scale" and name not in done
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
            name: Replacement(kind, self.elementary[name].width, self.elementary[name].eps)
            for name, kind in kinds.items()
        }


def _whole(axis: Axis) -> str | None:
    return axis.space if isinstance(axis, In) and axis.role is Role.WRITE else None


def _equal(one: Elementary, other: Elementary) -> bool:
    same_bias = one.bias is other.bias or (
        one.bias is not None and other.bias is not None and torch.equal(one.bias, other.bias)
    )
    return one.kind == other.kind and torch.equal(one.gain, other.gain) and same_bias


# ---------------------------------------------------------------------- folding


def _act(model: nn.Module, plan: _Plan) -> tuple[str, ...]:
    """Fold as planned; the linear layers that got a bias come back."""
    wiring, tensors = plan.wiring, named_tensors(model)
    biases: dict[str, None] = {}
    for name in plan.scalings:
        _scale_writers(tensors, wiring, plan.places[name].before, plan.elementary[name].gain)
    done: set[str] = set()
    for name in plan.norms:
        after = plan.places[name].after
        if after is not None and after not in done:
            done.add(after)
            biases |= dict.fromkeys(_scale_readers(model, tensors, wiring, after, plan.elementary[name]))
    centred = {stream for stream, kind in plan.streams.items() if kind == "layer"}
    for stream in centred:
        _centre_writers(tensors, wiring, stream)
    for name in plan.scalings:
        before, after = plan.places[name].before, plan.places[name].after
        if before is not None and after in centred:
            _centre_writers(tensors, wiring, before)
    for name, replacement in plan.replacements().items():
        new = put(model, name, replacement)
        if isinstance(new, SpelledNorm):
            _spell(new.gain, plan.elementary[name], centred=plan.places[name].after in centred)
    return tuple(biases)


def _spell(layer: nn.Linear, norm: Elementary, centred: bool) -> None:
    """The gain and bias of a norm as a linear layer, whose result has no mean where it is added to a stream of none."""
    weight, bias = torch.diag(norm.gain), torch.zeros_like(norm.gain) if norm.bias is None else norm.bias
    if centred:
        weight, bias = weight - weight.mean(0), bias - bias.mean()
    layer.weight.copy_(weight)
    assert layer.bias is not None
    layer.bias.copy_(bias)


class _Scaling:
    """Multiplies the units of a space by numbers of their own; stands in for a map while tensors are moved."""

    def __init__(self, factors: Tensor) -> None:
        self.factors = factors
        self.source_width = factors.numel()

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.factors.to(x)


def _moved(tensor: Tensor, axes: tuple[Axis, ...], wiring: Wiring, space: str, role: Role, factors: Tensor) -> Tensor:
    mover = Mover(wiring.spaces, {space: Linear(torch.ones(1, 1))})
    mover._sided = {(space, one): _Scaling(torch.ones_like(factors)) for one in Role}  # type: ignore[misc]
    mover._sided[space, role] = _Scaling(factors)  # type: ignore[assignment]
    return mover.move(tensor.double(), axes)


def _touching(wiring: Wiring, places: tuple[str, ...]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in places:
        name, _, axis = place.rpartition("[")
        found.setdefault(name, []).append(int(axis.rstrip("]")))
    return found


def _scale_readers(
    model: nn.Module, tensors: Mapping[str, Tensor], wiring: Wiring, space: str, norm: Elementary
) -> list[str]:
    biases = []
    for name, places in _touching(wiring, wiring.spaces[space].reads).items():
        tensor, axes = tensors[name], wiring.tensors[name].axes
        if norm.bias is not None:
            shifted = _moved(tensor, axes, wiring, space, Role.READ, 1 + norm.bias) - tensor.double()
            called = any(place.startswith(f"{name.rpartition('.')[0]}:input:") for place in wiring.activations)
            if _add_to_bias(model, name, places[0], shifted, called):
                biases.append(name.rpartition(".")[0])
        tensor.copy_(_moved(tensor, axes, wiring, space, Role.READ, norm.gain))
    return biases


def _scale_writers(tensors: Mapping[str, Tensor], wiring: Wiring, space: str | None, gain: Tensor) -> None:
    assert space is not None
    for name in _touching(wiring, wiring.spaces[space].writes):
        tensors[name].copy_(_moved(tensors[name], wiring.tensors[name].axes, wiring, space, Role.WRITE, gain))


def _centre_writers(tensors: Mapping[str, Tensor], wiring: Wiring, stream: str) -> None:
    width = wiring.spaces[stream].width
    centre = Linear(torch.eye(width, dtype=torch.float64) - 1 / width)
    mover = Mover(wiring.spaces, {stream: centre})
    for name in _touching(wiring, wiring.spaces[stream].writes):
        tensors[name].copy_(mover.move(tensors[name].double(), wiring.tensors[name].axes))


def _add_to_bias(model: nn.Module, name: str, axis: int, shifted: Tensor, called: bool) -> bool:
    """What the reader makes of the norm's bias goes into its own; whether that had to be made comes back."""
    path, _, local = name.rpartition(".")
    owner = model.get_submodule(path)
    amount = shifted.sum(axis)
    label = "bias" if local == "weight" else local.replace("weight", "bias")
    bias = getattr(owner, label, None)
    padded = any(one not in (0, "valid") for one in _tuple(getattr(owner, "padding", 0)))
    if amount.ndim > 1 and not padded:
        amount = amount.flatten(1).sum(1)
    # A weight that is used without calling its layer has no use for a bias there either.
    if amount.ndim != 1 or not called or (bias is None and not isinstance(owner, nn.Linear)):
        raise WiringError(
            f"The bias of a norm is read by {name}, a {type(owner).__name__} that has no bias to take it in; give that "
            "layer a bias of zeros first."
        )
    if bias is None:
        assert isinstance(owner, nn.Linear)
        add_bias(owner)
        owner.bias.copy_(amount)
        return True
    bias.copy_(bias.double() + amount)
    return False


def _tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
