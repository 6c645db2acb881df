"""Activations of one network, or of two on the same inputs, streamed into statistics."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from interbasin.activations.distributed import fail_together, rank, sum_over_processes
from interbasin.activations.forward import (
    ROLES,
    Call,
    Caller,
    Listener,
    SteppedForward,
    listen,
    require_determinism,
)
from interbasin.activations.pairing import MaskOf, Pairing
from interbasin.activations.places import At, require_at
from interbasin.activations.plan import Spaces, Wirings, make_plan, no_batch_error
from interbasin.activations.recording import Recording, State
from interbasin.activations.tokens import POOLS, Tokens
from interbasin.batches import Progress, as_batches, device_of, progress_bar, require_reiterable
from interbasin.errors import DataError, InterbasinError, UnknownNameError, WiringError
from interbasin.statistics import LayerwiseMoments, PairedMoments

STATISTICS = ("moments", "layerwise")


def record(
    models: nn.Module | Sequence[nn.Module],
    data: Any,
    spaces: Spaces,
    *,
    wirings: Wirings = None,
    at: At = "post",
    statistics: Literal["moments", "layerwise"] = "moments",
    grams: bool = False,
    pool: Literal["mean", "first", "last"] | None = None,
    tokens: str | Tokens | None = None,
    mask: MaskOf = None,
    labelled: bool = False,
    own_inputs: bool = False,
    batch_size: int = 32,
    progress: Progress = None,
    state: str | os.PathLike[str] | None = None,
    every: int = 50,
    device: torch.device | str | None = None,
) -> Recording:
    """Statistics of chosen spaces of one network, or of two on the same inputs.

    Rows are added to the statistics inside hooks, while the networks run, and nothing is held from batch to batch. Two
    networks take turns: the source stops at each activation until the target has come to the one that belongs to it,
    so that within a batch little is held either. With `torch.distributed` initialised, each process records the data it
    is given, and the statistics are summed over all of them.

    Args:
        models: One network, or a pair (source, target). In evaluation mode; they stay as they are.
        data: Batches to iterate over, or a tensor to be cut into batches. A batch is a tensor, a tuple of positional
            arguments or a mapping of keyword arguments.
        spaces: What to record: a list of names (the same in both networks), a list of pairs (source, target), or a
            mapping from either to the place to take it at (or a pair of places). A name is that of a space of the
            wiring; one with a colon, such as ``"head:input"``, is a module's input or output as it is. q, k and v
            inside `torch.nn.MultiheadAttention` are ``"attn:q"``, ``"attn:k"`` and ``"attn:v"``. Their moments are
            derived from those of what goes in; one more forward pass on the first batch shows what that is. The wiring
            knows the places of modules that hold tensors; at others, such as activation functions, a space is taken
            at your word where the width fits. For ``"layerwise"`` also a pair of lists, of the source's layers and of
            the target's.
        wirings: Of the networks, where they are known; found by tracing the first batch where they are needed and not
            given. False: names are those of modules, and mean their outputs.
        at: ``"post"``: where a space is read, non-linearities and all; ``"pre"``: where it is written.
        statistics: ``"moments"``: `PairedMoments` of each pair. ``"layerwise"``: `LayerwiseMoments` of every layer
            with every other, for CKA; their rows have to agree.
        grams: Also keep Gram matrices (``"layerwise"`` always does).
        pool: One row per input instead of one per token: the ``"mean"``, or the ``"first"`` or ``"last"`` token that
            is not padding.
        tokens: What to do where the networks have different numbers of tokens: ``"interpolate2d"``, ``"interpolate"``,
            ``"mean"``, ``"offsets"``, or `Tokens` in full.
        mask: Which tokens count. By default ``attention_mask`` where a batch has one; or the name of another in mapping
            batches, a function of a network's inputs, or False.
        labelled: Batches are pairs (inputs, labels), and the labels are left out.
        own_inputs: Each network has inputs of its own: batches are pairs (source's, target's) that say the same.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function to be called with the number of batches that are done.
        state: A folder to keep the state in. If it holds the state of the same recording, this one goes on from there;
            the numbers are those of a run that was not interrupted.
        every: The number of batches between two states.
        device: Where batches are moved to; by default to each network's first parameter.

    Raises:
        WiringError: if a space stands nowhere whole, a place is not reached, a network is being trained, or a wiring
            is of another network.
        UnknownNameError: if there is no such space or module.
        DataError, ShapeError: if there are no data, a network fails on them, they hold NaN, or rows do not pair; says
            in which batch.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> seen = record(net, torch.randn(100, 4, generator=torch.Generator().manual_seed(0)), ["0"])
        >>> seen.moments["0", "0"]
        PairedMoments(8 <- 8, 100 rows)
    """
    if isinstance(data, nn.Module):
        raise WiringError(
            f"Found a network ({type(data).__name__}) in place of data; give a pair: record((source, target), data)."
        )
    networks = _check_networks(models, own_inputs)
    require_at(at)
    for kind, value, known in (("way to pool", pool, (None, *POOLS)), ("kind of statistics", statistics, STATISTICS)):
        if value not in known:
            raise UnknownNameError.of(kind, value, [name for name in known if name is not None])
    if tokens is not None and not isinstance(tokens, Tokens):
        tokens = Tokens(tokens)  # type: ignore[arg-type]
    if state is not None:
        require_reiterable(data, "A recording with state=")
    batches = as_batches(data, batch_size)
    moved_to = None if device is None else _check_device(device)
    devices = [device_of(model) if moved_to is None else moved_to for model in networks]
    names = [type(model).__name__ for model in networks]
    if len(networks) == 2:
        names = [f"{name} ({role})" for name, role in zip(names, ROLES, strict=True)]
    caller = Caller(networks, names, devices, mask, labelled, own_inputs)
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    failure: Exception | None = None
    try:
        stream = iter(batches)
        head = list(itertools.islice(stream, 1))
        plan = make_plan(caller, spaces, wirings, head[0] if head else None, at=at, all_pairs=statistics == "layerwise")
        sums: list[PairedMoments | LayerwiseMoments] = (
            [PairedMoments(grams=grams or derives) for derives in plan.pairs.values()]
            if plan.layers is None
            else [LayerwiseMoments()]
        )
        saved = None
        if state is not None:
            options = {
                "statistics": statistics,
                "grams": grams,
                "pool": pool,
                "tokens": repr(tokens),
                "mask": "a function" if callable(mask) else mask,
                "labelled": labelled,
                "own_inputs": own_inputs,
            }
            saved = State(state, networks, plan, options, every)
        pairing = Pairing(plan, sums, caller, pool, tokens)
        with progress_bar(progress, batches, silent=several and rank() > 0) as tell:
            done = _stream(itertools.chain(head, stream), pairing, saved, tell)
    except Exception as error:
        if not several:
            raise
        failure = error
    if several:
        # Whatever it is, other processes that wait for this one have to hear of it.
        fail_together(failure)
        done = sum_over_processes(sums, done)
    if not done:
        raise no_batch_error()
    if not all(moments._state.count for moments in sums):
        raise DataError("No row was left to record: all batches are empty, or their masks leave nothing.")
    return Recording.of(plan, sums, done, grams)


def _check_networks(models: nn.Module | Sequence[nn.Module], own_inputs: bool) -> list[nn.Module]:
    networks = [models] if isinstance(models, nn.Module) else models
    if not isinstance(networks, Sequence) or not 1 <= len(networks) <= 2:
        raise WiringError("Recording takes one network or a pair (source, target); give one or two torch.nn.Modules.")
    for model in networks:
        if not isinstance(model, nn.Module):
            raise WiringError(f"Asked to record a {type(model).__name__}; give a torch.nn.Module.")
        require_determinism(model)
    # The same network twice, on the same inputs, is one network, run once.
    same = len(networks) == 2 and networks[0] is networks[1] and not own_inputs
    return [networks[0]] if same else list(networks)


def _check_device(name: torch.device | str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    # torch has many ways to say that it does not know a device, or was built without it.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"Batches were to be moved to device {name!r}, which torch cannot use here ({reason}); try 'cpu', or "
            "leave device= out to have them where each network is."
        ) from error
    if device.type == "meta":
        raise DataError("Tensors on device 'meta' hold no numbers to record; leave device= out, or try 'cpu'.")
    return device


def _stream(batches: Iterable[Any], pairing: Pairing, state: State | None, tell: Callable[[int], object]) -> int:
    """Add all batches to the sums; how many there were."""
    if state is not None:
        state.load(pairing.sums)
    start = 0 if state is None else state.start
    done = 0
    caller, plan = pairing.caller, pairing.plan
    # Two networks run step by step, so that activations need not wait in memory for their partners. Not where
    # statistics need all layers at once, and not where a module serves both networks: what it may keep from call to
    # call must not be disturbed in the middle of one.
    modules = [{id(module) for module in model.modules()} for model in caller.networks]
    in_step = len(modules) == 2 and plan.layers is None and not modules[0] & modules[1]
    with contextlib.ExitStack() as stack:
        listeners = []
        for network, model in enumerate(caller.networks):
            readings = [reading for number, reading in plan.keys if number == network]
            take = functools.partial(pairing.take, network)
            listeners.append(stack.enter_context(listen(model, readings, take, caller.names[network])))
        for index, batch in enumerate(batches):
            if state is not None:
                state.see(batch)
            if index >= start:
                calls = caller.calls(batch, index)
                try:
                    _run(listeners, calls, pairing, in_step)
                except InterbasinError as error:
                    raise type(error)(f"In batch {index}: {error}") from error
            done = index + 1
            tell(done)
            if state is not None:
                state.save(done)
    if state is not None:
        state.save(done, is_last=True)
    return done


def _run(listeners: Sequence[Listener], calls: Sequence[Call], pairing: Pairing, in_step: bool) -> None:
    """Lead one batch through the networks, ``in_step`` or one after the other."""
    pairing.start(calls)
    if in_step:
        try:
            with SteppedForward(lambda: listeners[0].forward(calls[0])) as pairing.source:
                listeners[1].forward(calls[1])
                pairing.source.until(lambda: False)
        finally:
            pairing.source = None  # it leads back here, and sums must not wait for a collector to be let go of
    else:
        for listener, call in zip(listeners, calls, strict=True):
            listener.forward(call)
    if pairing.plan.layers is not None:
        pairing.finish()
