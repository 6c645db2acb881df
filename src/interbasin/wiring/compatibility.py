"""Whether two networks have one architecture, and so one wiring; if not, which tensor or space differs."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.batches import Inputs
from interbasin.checkpoints.lora import is_adapter_name
from interbasin.errors import ShapeError, WiringError
from interbasin.text import plural
from interbasin.wiring.axes.spaces import Space
from interbasin.wiring.check import difference, round_off
from interbasin.wiring.folding import folding_of
from interbasin.wiring.trace.copying import copied
from interbasin.wiring.trace.preflight import refuse_numbers_that_are_none
from interbasin.wiring.wire import wire
from interbasin.wiring.wiring import Wiring

SAME_FUNCTION = 0.01  # of the outputs: epsilons of norms and approximations of one function change less
SAME_CURVE = 2e-3  # GELU and its approximation by tanh are 5e-4 apart, GELU and SiLU 0.2
_ACTIVATIONS = (
    *("torch.nn.modules.activation", "torch.nn.functional", "torch._C._nn"),
    *("transformers.activations", "timm.layers.activations"),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_DEEPEST = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size)
# Where torch keeps what has no part in forward, or is compared elsewhere.
_APART = {"_parameters", "_buffers", "_modules", "training"}
_TRANSPORT = "carrying updates between unequal networks is the job of transport, which is not part of this version yet"


def common_wiring(source: nn.Module, target: nn.Module, inputs: Inputs, known: Wiring | None = None) -> Wiring:
    """The wiring of both networks. The target is traced, and run, only where it could compute something else.

    Args:
        source, target: The networks.
        inputs: One batch.
        known: The wiring of the source, if the caller has it.

    Raises:
        WiringError, ShapeError: if the networks have different wirings, or none.
    """
    wiring = wire(source, inputs) if known is None else known
    if not made_alike(source, target):
        require_same_wiring(wiring, wire(target, inputs))
        _require_same_function(source, target, inputs)
    return wiring


def is_folded(network: nn.Module) -> bool:
    """Whether the norms of a network are folded into the layers that read them."""
    try:
        folding_of(network)
    except WiringError:
        return False
    return True


def require_same_tensors(source: nn.Module, target: nn.Module) -> None:
    """Refuse networks that do not hold the same tensors, or hold values that are not finite.

    Raises:
        WiringError: if one of them is no network, lacks a tensor, holds NaN, or ties what the other does not.
    """
    for network, side in ((source, "source"), (target, "target")):
        if not isinstance(network, nn.Module):
            raise WiringError(f"The {side} of re-basin is a network, found a {type(network).__name__}; give a module.")
        refuse_numbers_that_are_none(network)
    ours, theirs = source.state_dict(), target.state_dict()
    adapter = next((name for name in sorted(ours.keys() ^ theirs.keys()) if is_adapter_name(name)), None)
    if adapter is not None:
        raise WiringError(
            f"Only one of the two networks carries an adapter ({adapter}), which stands beside the weights that "
            "re-basin moves; merge it into its base first (PEFT: model.merge_and_unload(), then save_pretrained)."
        )
    for tensors, others, side in ((ours, theirs, "target"), (theirs, ours, "source")):
        missing = [name for name in tensors if name not in others]
        if missing:
            if is_folded(source) is not is_folded(target):
                which, rest = ("source", "target") if is_folded(source) else ("target", "source")
                raise WiringError(
                    f"The norms of the {which} are folded into what reads them and those of the {rest} are not, so "
                    "that the two hold different tensors; fold both with stay_in_class=False."
                )
            more = f" and {plural(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
            raise WiringError(
                f"Asked to put {type(source).__name__} into the coordinates of {type(target).__name__}, but the {side} "
                f"has no {missing[0]!r}{more}; re-basin needs two networks of one architecture and depth "
                f"({_TRANSPORT})."
            )
    own, other = ({name for name, _ in network.named_parameters()} for network in (source, target))
    for name in sorted(own ^ other):
        tied, untied = ("target", "source") if name in own else ("source", "target")
        raise WiringError(
            f"{name} is tied to another tensor in the {tied} and a tensor of its own in the {untied}; re-basin needs "
            "the same ties in both (check the configurations, as tie_word_embeddings of transformers)."
        )


def require_same_wiring(source: Wiring, target: Wiring) -> None:
    """Refuse networks whose spaces differ: other widths, another number of heads, another non-linearity.

    Raises:
        ShapeError: if a space has another width.
        WiringError: if they differ in anything else.
    """
    for name, space in source.spaces.items():
        other = target.spaces.get(name)
        if other is None:
            raise WiringError(
                f"The target has no space {name!r}, which the source has: the two networks compute differently "
                "although their tensors have the same names; re-basin needs one architecture (check the "
                "configurations)."
            )
        if (space.size, space.blocks) != (other.size, other.blocks):
            raise ShapeError(
                f"Space {name!r} is {_describe_width(space)} in the source and {_describe_width(other)} in the target; "
                f"re-basin needs equal widths ({_TRANSPORT})."
            )
        if space.group is not other.group:
            raise WiringError(
                f"Space {name!r} may move by {space.group} maps in the source and by {other.group} maps in the target: "
                "the two networks compute differently; check the configurations."
            )
    for name, tensor in source.tensors.items():
        if name in target.tensors and tensor.shape != target.tensors[name].shape:
            raise ShapeError(
                f"{name} has shape {tensor.shape} in the source and {target.tensors[name].shape} in the target; "
                f"re-basin needs equal shapes ({_TRANSPORT})."
            )
        if name in target.tensors and tensor.axes != target.tensors[name].axes:
            raise WiringError(
                f"{name} is used differently by the two networks, although they have the same tensors; check the "
                "configurations."
            )


def _require_same_function(source: nn.Module, target: nn.Module, inputs: Inputs) -> None:
    """Refuse a target that computes something else with the source's weights than the source does.

    Spaces do not show it: behind a ReLU and behind a GELU units may be permuted alike.
    """
    with_its_weights = copied(target).eval()
    with_its_weights.load_state_dict(source.state_dict())
    change = difference(copied(source).eval(), with_its_weights, inputs)
    if change > max(SAME_FUNCTION, round_off(source), round_off(target)):
        which = differing_activation(source, target)
        raise WiringError(
            f"With the source's weights the target gives other outputs than the source (by {change:.0%} of their size)"
            f"{f': {which}' if which else ''}. The two hold the same tensors and compute differently, as with another "
            "activation or another setting; re-basin needs one architecture (check the configurations)."
        )


def require_same_activations(one: nn.Module, other: nn.Module) -> None:
    """Refuse two networks with different activations, as far as their modules show them; nothing is traced.

    Raises:
        WiringError: names the module.
    """
    which = differing_activation(one, other)
    if which is not None:
        raise WiringError(
            f"The two networks compute differently: {which}. What lies between their weights is between two different "
            "functions; give networks of one architecture, or set the same activation in both."
        )


def differing_activation(one: nn.Module, other: nn.Module) -> str | None:
    """Where an activation of two networks differs, in words; None if none is known to.

    Activations are compared by what they compute: the same function may have several classes.
    """
    theirs = dict(other.named_modules())
    for name, mine in one.named_modules():
        yours = theirs.get(name)
        if yours is None:
            continue
        pairs = [(name, mine, yours)] if _is_bare(mine) and _is_bare(yours) else []
        for key, value in vars(mine).items():
            if isinstance(value, _FUNCTIONS) and isinstance(vars(yours).get(key), _FUNCTIONS):
                pairs.append((f"{name}.{key}".lstrip("."), value, vars(yours)[key]))
        for place, first, second in pairs:
            if _bend_differently(first, second):
                shown = _describe_activation(first), _describe_activation(second)
                return f"{place or 'the network'} is {shown[0]} in one and {shown[1]} in the other"
    return None


def _is_bare(module: nn.Module) -> bool:
    """Whether it holds no tensors and no modules, as most activations do."""
    return not (module._parameters or module._buffers or module._modules)


def _bend_differently(one: Any, other: Any) -> bool:
    if one is other or not (_is_activation(one) or _is_activation(other)):
        return False
    first, second = _bent(one), _bent(other)
    if first is None or second is None or first.shape != second.shape:
        return False
    return float((first - second).abs().nan_to_num(torch.inf).max()) > SAME_CURVE


def _is_activation(value: Any) -> bool:
    home = (type(value) if isinstance(value, nn.Module) else value).__module__ or "torch"  # of functions in C: None
    return home.startswith(_ACTIVATIONS)


def _bent(activation: Any) -> Tensor | None:
    """What an activation makes of numbers from -8 to 8; None if it is not to be had this way."""
    function = copied(activation).eval() if isinstance(activation, nn.Module) else activation
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            bent = function(torch.linspace(-8, 8, 64).expand(2, 64).clone())
    except Exception:  # it takes something else: nothing is known of it
        return None
    return bent if isinstance(bent, Tensor) else None


def _describe_activation(activation: Any) -> str:
    return repr(activation) if isinstance(activation, nn.Module) else getattr(activation, "__name__", repr(activation))


def _describe_width(space: Space) -> str:
    return f"{space.blocks} blocks of {space.size}" if space.blocks > 1 else f"{space.size} wide"


# ---------------------------------------------------------------------- without tracing


def made_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks are of the same modules, with equal settings and tensors of equal shape and kind.

    What a network computes follows from its classes and from what its modules hold besides tensors. Where all of that
    is plain enough to be compared, and equal, one wiring is the other's. False where something cannot be compared: the
    networks may be alike all the same.
    """
    ours, theirs = list(one.named_modules()), list(other.named_modules())
    if [(name, type(module)) for name, module in ours] != [(name, type(module)) for name, module in theirs]:
        return False
    return all(_alike_modules(mine, yours) for (_, mine), (_, yours) in zip(ours, theirs, strict=True))


def _alike_modules(one: nn.Module, other: nn.Module) -> bool:
    if one.training != other.training or vars(one).keys() != vars(other).keys():
        return False
    for held in ("_parameters", "_buffers"):
        if not _equal(getattr(one, held), getattr(other, held), 0):
            return False
    return all(_equal(vars(one)[name], vars(other)[name], 0) for name in vars(one) if name not in _APART)


def _equal(one: Any, other: Any, depth: int) -> bool:
    if type(one) is not type(other) or depth > _DEEPEST:
        return False
    if isinstance(one, _PLAIN):
        return bool(one == other)
    if isinstance(one, Tensor):
        # Their numbers do not matter to a wiring, unless they are no parameters: a table may be one of angles or not.
        same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return same and (isinstance(one, nn.Parameter) or one.is_floating_point() or bool(torch.equal(one, other)))
    if isinstance(one, types.FunctionType | types.BuiltinFunctionType):
        return one is other
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_equal(*pair, depth + 1) for pair in zip(one, other, strict=True))
    if isinstance(one, set | frozenset):
        return bool(one == other)
    if isinstance(one, nn.Module):  # held outside the tree: it is part of the function, and nothing else compares it
        return one is other or made_alike(one, other)
    if hasattr(one, "__dict__") and not callable(one):
        return _equal(vars(one), vars(other), depth + 1)
    return False
