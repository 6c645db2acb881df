"""Batches led through the networks: what each is called with, and in which order they run."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.batches import call_arguments, count_inputs, device_of
from interbasin.errors import DataError
from interbasin.networks.recording.characters import OFFSETS
from interbasin.networks.recording.hooks import Listener, without_fast_path
from interbasin.networks.recording.lockstep import Beside
from interbasin.networks.recording.masks import MaskOf, masks_of
from interbasin.networks.recording.pairing import Manner, Pairing, Sums
from interbasin.networks.recording.plan import Plan
from interbasin.networks.recording.projections import Derivation, Projection, observe_attention
from interbasin.networks.recording.readings import Reading

__all__ = ["Call", "Caller", "no_batch", "passes"]


@dataclass(frozen=True)
class Call:
    """One network's share of a batch; ``hint`` is what else may be wrong if it cannot be called so."""

    inputs: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hint: str = ""

    @property
    def example(self) -> Any:
        """The arguments as one batch again, without what is not for the network."""
        return self.args if self.args else self.kwargs


@dataclass(frozen=True)
class Caller:
    """The networks, and how batches are meant."""

    networks: Sequence[nn.Module]
    mask: MaskOf
    labelled: bool
    own_inputs: bool
    device: torch.device | None

    def calls(self, batch: Any, index: int) -> list[Call]:
        """What each network is called with."""
        each = each_inputs(batch, len(self.networks), index, labelled=self.labelled, own_inputs=self.own_inputs)
        return [
            Call(
                inputs,
                *call_arguments(model, inputs, self._device(model), self._not_for(model)),
                self._hint(inputs),
            )
            for model, inputs in zip(self.networks, each, strict=True)
        ]

    def _not_for(self, model: nn.Module) -> tuple[str, ...]:
        """The name of the mask, where a network's forward has no parameter for it."""
        known = not isinstance(self.mask, str) or self.mask in inspect.signature(model.forward).parameters
        return () if known else (str(self.mask),)

    def _hint(self, inputs: Any) -> str:
        """What a pair may have been meant as, where it was taken for two arguments."""
        if self.labelled or self.own_inputs or not isinstance(inputs, list | tuple) or len(inputs) != 2:
            return ""
        other = " or, if it holds the source's inputs and the target's, own_inputs=True"
        return f" If a batch is a pair (inputs, labels), pass labelled=True{other if len(self.networks) == 2 else ''}."

    def pairing(self, calls: Sequence[Call], plan: Plan, sums: Sums, manner: Manner) -> Pairing:
        """A batch that is about to be seen."""
        each = list(zip(self.networks, calls, strict=True))
        return Pairing(
            plan,
            sums,
            manner,
            masks=[masks_of(call.inputs, self.mask, self._device(model)) for model, call in each],
            sizes=[count_inputs(call.args, call.kwargs) for call in calls],
            offsets=[_offsets(call.inputs) for call in calls],
        )

    def observer(self, first: Any) -> Callable[[int, Sequence[Projection]], dict[Projection, Derivation]]:
        """A function that leads the first batch through a network to see what projections are derived from."""

        def observe(network: int, projections: Sequence[Projection]) -> dict[Projection, Derivation]:
            if first is None:
                raise no_batch()
            call = self.calls(first, 0)[network]
            with without_fast_path():
                return observe_attention(
                    self.networks[network],
                    projections,
                    lambda listener: listener.forward(call.args, call.kwargs, call.hint),
                    self.called(network),
                )

        return observe

    def called(self, network: int) -> str:
        """What messages call a network."""
        name = type(self.networks[network]).__name__
        return name if len(self.networks) == 1 else f"{name} ({('source', 'target')[network]})"

    def _device(self, model: nn.Module) -> torch.device | None:
        return device_of(model) if self.device is None else self.device


def each_inputs(batch: Any, networks: int, index: int, *, labelled: bool, own_inputs: bool) -> list[Any]:
    """What each network is given of a batch, checked."""
    if labelled:
        batch = _pair(batch, index, "inputs and labels", "labelled")[0]
    if own_inputs and networks == 2:
        parts = _pair(batch, index, "the source's inputs and the target's", "own_inputs")
    else:
        parts = [batch] * networks
    for part in parts:
        if not isinstance(part, Tensor | Mapping | Sequence) or isinstance(part, str | bytes):
            raise DataError(
                f"Batch {index} is a {type(part).__name__}; give a tensor, a tuple of arguments or a mapping of "
                "keyword arguments."
            )
    return parts


def _pair(batch: Any, index: int, what: str, option: str) -> list[Any]:
    if not isinstance(batch, Sequence) or isinstance(batch, str) or len(batch) != 2:
        found = f"{len(batch)} parts" if isinstance(batch, Sequence) else f"a {type(batch).__name__}"
        raise DataError(f"Batch {index} should be a pair of {what}, found {found}; leave {option}=True out.")
    return list(batch)


def no_batch() -> DataError:
    return DataError("The data hold no batch at all, so there is nothing to record; give some.")


def _offsets(inputs: Any) -> Tensor | None:
    offsets = inputs.get(OFFSETS) if isinstance(inputs, Mapping) else None
    try:
        return None if offsets is None else torch.as_tensor(offsets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{OFFSETS} should be numbers of shape (batch, tokens, 2), found a {type(offsets).__name__} that is no "
            f"tensor ({error}); have the tokenizer pad it, with return_tensors='pt'."
        ) from error


@contextlib.contextmanager
def passes(caller: Caller, plan: Plan) -> Iterator[Callable[[Sequence[Call], Pairing], None]]:
    """Hooks on the networks, and a function that leads one batch through them.

    Two networks run in lockstep, so that activations need not wait in memory for their partners. Not where statistics
    need all layers at once, and not where a module serves both networks: what it may keep from call to call must not be
    disturbed in the middle of one.
    """
    networks = caller.networks
    lockstep = len(networks) == 2 and plan.layers is None and not _share_modules(networks)
    under_way: Pairing
    source: Beside

    def taking(network: int) -> Callable[[Reading, Tensor], None]:
        def take(reading: Reading, rows: Tensor) -> None:
            under_way.put(network, reading, rows)
            if lockstep and network == 0:
                source.rest()
            else:
                under_way.pair(network, reading)
            under_way.keep(network, reading)

        return take

    with without_fast_path(), contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(Listener(model, plan.readings(network), taking(network), caller.called(network)))
            for network, model in enumerate(networks)
        ]

        def run(calls: Sequence[Call], pairing: Pairing) -> None:
            nonlocal under_way, source
            under_way = pairing
            if lockstep:
                one, other = calls
                with Beside(lambda: listeners[0].forward(one.args, one.kwargs, one.hint)) as source:
                    pairing.fetch = source.until
                    listeners[1].forward(other.args, other.kwargs, other.hint)
                    source.until(lambda: False)
            else:
                for listener, call in zip(listeners, calls, strict=True):
                    listener.forward(call.args, call.kwargs, call.hint)
            pairing.close()

        yield run


def _share_modules(networks: Sequence[nn.Module]) -> bool:
    one, other = ({id(module) for module in model.modules()} for model in networks)
    return bool(one & other)
