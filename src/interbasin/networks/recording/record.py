"""Activations of one network, or of two on the same inputs, streamed into statistics."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn

from interbasin.batches import Progress, as_batches, is_read_once, progress_bar
from interbasin.counting import counted
from interbasin.errors import DataError, InterbasinError, UnknownNameError, WiringError
from interbasin.networks.recording.choosing import At, refuse_other_moment
from interbasin.networks.recording.distributed import agreed, rank, summed, world_size
from interbasin.networks.recording.hooks import refuse_randomness
from interbasin.networks.recording.masks import MaskOf, known_mask
from interbasin.networks.recording.pairing import Manner, Sums
from interbasin.networks.recording.passes import Caller, no_batch, passes
from interbasin.networks.recording.plan import Plan, Spaces, make_plan
from interbasin.networks.recording.recording import Recording
from interbasin.networks.recording.state import Kept, State, digest_of, weights_of
from interbasin.networks.recording.tokens import POOLS, Tokens, as_tokens
from interbasin.networks.recording.wirings import Wirings, wirings_of
from interbasin.statistics.accumulation import Accumulator

__all__ = ["record"]

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
        pool: One row an input instead of one a token: the ``"mean"``, the ``"first"`` or the ``"last"`` token that is
            not padding.
        tokens: What to do where the networks have different numbers of tokens: ``"interpolate2d"``, ``"interpolate"``,
            ``"mean"``, ``"offsets"``, or `Tokens` in full.
        mask: Which tokens count. By default ``attention_mask`` where a batch has one; or the name of another in mapping
            batches, a function of a network's inputs, or False.
        labelled: Batches are pairs (inputs, labels), and the labels are left out.
        own_inputs: Each network has inputs of its own: batches are pairs (source's, target's) that say the same.
        batch_size: For data that are one tensor.
        progress: True for a bar on stderr, or a function that is told how many batches are done.
        state: A folder to keep the state in. If it holds that of the same recording, it goes on from there; the numbers
            are those of a run that was not interrupted.
        every: So many batches lie between two states.
        device: Where batches are moved to; by default to each network's first parameter.

    Raises:
        WiringError: if a space stands nowhere whole, a place is not come by, a network is being trained, or a wiring
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
            f"Asked to record on data, found a network ({type(data).__name__}) in its place; two networks are given as "
            "one pair: record((source, target), data, spaces)."
        )
    networks = _networks(models, own_inputs)
    refuse_other_moment(at)
    manner = Manner(_one_of(pool, (None, *POOLS), "way to pool"), as_tokens(tokens))
    all_pairs = _one_of(statistics, STATISTICS, "kind of statistics") == "layerwise"
    if state is not None and is_read_once(data):
        raise DataError(
            f"A recording that can be resumed needs data that can be read again, found a {type(data).__name__}; give a "
            "list, a DataLoader or a tensor, or leave state= out."
        )
    batches = as_batches(data, batch_size)
    caller = Caller(networks, known_mask(mask), labelled, own_inputs, None if device is None else _device(device))
    manners = {
        "statistics": statistics,
        "grams": grams,
        "pool": pool,
        "tokens": repr(manner.tokens),
        "mask": "a function" if callable(mask) else mask,
        "labelled": labelled,
        "own_inputs": own_inputs,
    }
    error: Exception | None = None
    try:
        first, stream = _begun(iter(batches))
        observe = caller.observer(first)
        plan = make_plan(networks, spaces, wirings_of(wirings, caller, first), observe, at=at, all_pairs=all_pairs)
        sums = Sums.empty(plan, grams)
        saved = None if state is None else State(state, _request(networks, plan) | manners, every)
        with progress_bar(progress, batches, silent=rank() > 0) as tell:
            done = _stream(stream, caller, plan, sums, manner, saved, tell)
    # Whatever it is, other processes that wait for this one have to hear of it.
    except Exception as found:
        error = found
    agreed(error)
    states, done = summed(sums.states, done)
    _refuse_nothing(states, done)
    return Recording.of(plan, states, done, grams)


def _request(networks: Sequence[nn.Module], plan: Plan) -> dict[str, Any]:
    """What a state has to agree with: the spaces, the networks, and how many share the work."""
    return {
        "spaces": plan.describe(),
        "networks": [weights_of(model) for model in networks],
        "processes": world_size(),
    }


def _stream(
    batches: Iterator[Any],
    caller: Caller,
    plan: Plan,
    sums: Sums,
    manner: Manner,
    state: State | None,
    tell: Callable[[int], object],
) -> int:
    """Add all batches to the sums; how many there were."""
    kept = None if state is None else state.load()
    if state is not None and kept is not None:
        sums.go_on(kept.sums, state.folder)
    start = written = 0 if kept is None else kept.batches
    digest, done = "", 0
    with passes(caller, plan) as run:
        for index, batch in enumerate(batches):
            if state is not None:
                digest = digest_of(batch, digest)
            if index >= start:
                calls = caller.calls(batch, index)
                with _in_batch(index):
                    run(calls, caller.pairing(calls, plan, sums, manner))
            done = index + 1
            if kept is not None and done == start:
                _refuse_other_data(digest, kept, state)
            tell(done)
            if state is not None and done - written >= state.every:
                state.save(Kept(sums.states, done, digest))
                written = done
    if kept is not None and done < start:
        _refuse_other_data(digest, kept, state)
    if state is not None and done > written:
        state.save(Kept(sums.states, done, digest))
    return done


@contextlib.contextmanager
def _in_batch(index: int) -> Iterator[None]:
    """An error says where in the data it arose."""
    try:
        yield
    except InterbasinError as error:
        raise type(error)(f"In batch {index}: {error}") from error


# ---------------------------------------------------------------------- checks


def _networks(models: nn.Module | Sequence[nn.Module], own_inputs: bool) -> list[nn.Module]:
    found = [models] if isinstance(models, nn.Module) else models
    if not isinstance(found, Sequence) or not 1 <= len(found) <= 2:
        raise WiringError("Recording takes one network or a pair (source, target); give one or two torch.nn.Modules.")
    for model in found:
        if not isinstance(model, nn.Module):
            raise WiringError(f"Asked to record a {type(model).__name__}; give a torch.nn.Module.")
        refuse_randomness(model)
    # The same network twice, on the same inputs, is one network, run once.
    return [found[0]] if len(found) == 2 and found[0] is found[1] and not own_inputs else list(found)


def _one_of(given: Any, known: Sequence[Any], kind: str) -> Any:
    if given not in known:
        raise UnknownNameError.of(kind, given, [str(name) for name in known if name is not None])
    return given


def _begun(stream: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """The first batch, which wirings are found with, and all of them."""
    for first in stream:
        return first, itertools.chain([first], stream)
    return None, iter(())


def _device(given: torch.device | str) -> torch.device:
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    # torch has many ways to say that it does not know a device, or was built without it.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"Batches were to be moved to device {given!r}, which torch cannot use here ({reason}); try 'cpu', or "
            "leave device= out to have them where each network is."
        ) from error
    if device.type == "meta":
        raise DataError("Tensors on device 'meta' hold no numbers to record; leave device= out, or try 'cpu'.")
    return device


def _refuse_other_data(digest: str, kept: Kept, state: State | None) -> None:
    if state is not None and digest != kept.digest:
        raise DataError(
            f"The state in {state.folder} holds {counted(kept.batches, 'batch', 'batches')}, but the data do not begin "
            "with that; resuming needs the same batches in the same order (a loader that does not shuffle, or one that "
            "shuffles with a seed of its own)."
        )


def _refuse_nothing(states: Sequence[Accumulator], batches: int) -> None:
    if not batches:
        raise no_batch()
    if not all(state.count for state in states):
        raise DataError(
            "No row was left to record: all batches are empty, or their masks leave nothing; check what they hold and "
            "what they mark."
        )
