"""The wirings that names of spaces are looked up in: as they were given, or found when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from torch import nn

from interbasin.errors import WiringError
from interbasin.networks.recording.passes import Caller, no_batch
from interbasin.networks.wiring.admission import named_tensors
from interbasin.networks.wiring.finding import wire
from interbasin.networks.wiring.wiring import Wiring

__all__ = ["Wirings", "wirings_of"]

# Of one network or of each; None: to be found; False: names are those of modules.
Wirings: TypeAlias = "Wiring | Sequence[Wiring] | Literal[False] | None"


def wirings_of(given: Any, caller: Caller, first: Any) -> Callable[[int], Wiring | None]:
    """The wiring of a network by its number.

    Args:
        given: As `record` takes them.
        caller: With the networks.
        first: The first batch, which a wiring is found with; None if there is none.

    Raises:
        WiringError: if what was given are no wirings, or not those of the networks.
    """
    if given is False:
        return lambda network: None
    found: dict[int, Wiring] = dict(enumerate(_listed(given, len(caller.networks))))
    for network, wiring in found.items():
        _refuse_other(caller.networks, network, wiring)

    def wiring_of(network: int) -> Wiring:
        if network not in found:
            if first is None:
                raise no_batch()
            call = caller.calls(first, 0)[network]
            try:
                found[network] = wire(caller.networks[network], call.example)
            except WiringError as error:
                if not call.hint:
                    raise
                raise WiringError(f"{error}{call.hint}") from error
        return found[network]

    return wiring_of


def _listed(given: Any, networks: int) -> list[Wiring]:
    if given is None:
        return []
    listed = [given] if isinstance(given, Wiring) else given
    if not isinstance(listed, Sequence) or not all(isinstance(one, Wiring) for one in listed):
        raise WiringError(
            f"Wirings are those that interbasin.wire finds, found {type(given).__name__}; give one for each network, "
            "None to have them found, or False to name modules instead of spaces."
        )
    if len(listed) != networks:
        raise WiringError(
            f"Recording {networks} network(s) needs as many wirings, found {len(listed)}; give one each, or none to "
            "have them found."
        )
    return list(listed)


def _refuse_other(networks: Sequence[nn.Module], network: int, wiring: Wiring) -> None:
    """Refuse a wiring that names tensors which its network does not have in that shape."""
    stranger = _stranger(networks[network], wiring)
    if stranger is None:
        return
    role = f" ({('source', 'target')[network]})" if len(networks) == 2 else ""
    swapped = len(networks) == 2 and _stranger(networks[1 - network], wiring) is None
    advice = "it fits the other network: are the two swapped?" if swapped else "find it with interbasin.wire."
    raise WiringError(
        f"The wiring of network {network}{role} is not one of this {type(networks[network]).__name__}: {stranger}; "
        + advice
    )


def _stranger(model: nn.Module, wiring: Wiring) -> str | None:
    """What a wiring says that is not so of a network, or None."""
    own = named_tensors(model)
    for name, tensor in wiring.tensors.items():
        if name not in own:
            return f"it knows a tensor {name!r}, which the network does not have"
        if tuple(own[name].shape) != tuple(tensor.shape):
            return f"it knows {name!r} in shape {tuple(tensor.shape)}, and the network has {tuple(own[name].shape)}"
    return None
