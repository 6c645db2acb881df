"""The activations of a batch, paired as they arrive, and released as soon as their last partner has arrived."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from interbasin.activations.forward import Call, Caller, SteppedForward, without_autocast
from interbasin.activations.places import Reading
from interbasin.activations.plan import Key, Plan
from interbasin.activations.tokens import (
    Tokens,
    char_offsets,
    match_texts,
    match_tokens,
    pool_pieces,
    pool_tokens,
)
from interbasin.batches import OFFSETS, count_inputs
from interbasin.errors import DataError, InterbasinError, ShapeError, UnknownNameError
from interbasin.statistics import LayerwiseMoments, PairedMoments
from interbasin.text import one_line

# None: the automatic ones; False: none; a name in mapping batches; or a function of the network's inputs, which answers
# with a mask, or with a mapping from the path of a module to the mask of all that lies below it.
MaskOf: TypeAlias = "bool | str | Callable[[Any], Tensor | Mapping[str, Tensor]] | None"

AUTOMATIC = ("attention_mask", "decoder_attention_mask")
# As transformers names what attends to an encoder, and the layers in there that read the encoder's states.
CROSS_ATTENTION = frozenset({"EncDecAttention", "encoder_attn", "crossattention", "cross_attn"})
KEYS_AND_VALUES = ("k", "v", "k_proj", "v_proj", "key", "value", "kv_proj", "c_attn")


# ---------------------------------------------------------------------- which rows count


@dataclass(frozen=True)
class Masks:
    """The masks of one network's inputs, each true for what counts; ``scopes`` are those of parts of the network."""

    whole: Mapping[str, Tensor] = field(default_factory=dict)
    scopes: Mapping[str, Tensor] = field(default_factory=dict)

    def fitting(self, module: str, rows: torch.Size) -> Tensor | None:
        """The mask of the rows seen at a module, in their shape; None where every row counts."""
        masks = self.whole
        if self.scopes:
            masks = {name: mask for name, mask in self.scopes.items() if f"{module}.".startswith(f"{name}.")}
        # An encoder-decoder has two, and they may happen to have the same shape.
        own = _has_decoder_tokens(module.split("."))
        ranked = sorted(masks.items(), key=lambda item: item[0].startswith("decoder") != own)
        for _, mask in ranked:
            if len(rows) == 1 and rows[0] == len(mask):
                return None
            if len(rows) > 1 and rows[:2] == mask.shape:
                return mask.reshape(*mask.shape, *(1,) * (len(rows) - 2)).expand(rows)
            if len(rows) == 1 and rows[0] == mask.numel():
                return mask.flatten()
        # Biases of relative positions are looked up once for all inputs: no axis is that of inputs, nothing is padding.
        if len(rows) > 1 and all(any(size == mask.shape[1] for _, mask in ranked) for size in rows):
            return None
        if ranked:
            shapes = ", ".join(f"{name} {tuple(mask.shape)}" for name, mask in ranked)
            raise ShapeError(
                f"The mask does not fit what is seen at {module!r}: rows of shape {tuple(rows)}, found {shapes}; give "
                "one of shape (batch, tokens), a function that answers with a mask for each part of the network, or "
                "mask=False."
            )
        return None


def _has_decoder_tokens(path: list[str]) -> bool:
    """Whether a module of an encoder-decoder sees the decoder's tokens, by its path.

    So does what the network puts out, and what reads the decoder outside it. A table that both share is asked for by
    the encoder first, and keys and values of cross-attention are made of the encoder's states.
    """
    if "encoder" in path or path[-1] == "shared":
        return False
    return not (CROSS_ATTENTION.intersection(path) and path[-1] in KEYS_AND_VALUES)


def masks_of(inputs: Any, mask: MaskOf, device: torch.device | None) -> Masks | None:
    """The masks that go with one network's inputs; None if there is none."""
    if mask is None or isinstance(mask, bool):
        named = inputs if isinstance(inputs, Mapping) and mask is not False else {}
        tensors = {name: named[name] for name in AUTOMATIC if isinstance(named.get(name), Tensor)}
        # Masks of other ranks are the network's own affair: they say who sees whom.
        whole = {name: _true_or_false(tensor, name, device) for name, tensor in tensors.items() if tensor.ndim == 2}
        return Masks(whole) if whole else None
    if isinstance(mask, str):
        if not isinstance(inputs, Mapping):
            raise DataError(f"mask={mask!r} needs batches that are mappings, found {type(inputs).__name__}.")
        if mask not in inputs:
            raise UnknownNameError.of("mask in the batch", mask, map(str, inputs))
        return Masks({mask: _true_or_false(inputs[mask], mask, device)})
    if not callable(mask) or isinstance(mask, type):
        raise DataError(
            f"mask must be a name or a function, found a {type(mask).__name__}; masks differ from batch to batch."
        )
    try:
        answer = mask(inputs)
    except InterbasinError:
        raise
    # Whatever a function of the user's does, it is not our error to explain.
    except Exception as error:
        raise DataError(
            f"The mask function was called with the network's inputs ({type(inputs).__name__}) and failed "
            f"({type(error).__name__}: {one_line(error)}); give a function from inputs to a mask of shape "
            "(batch, tokens)."
        ) from error
    if isinstance(answer, Mapping):
        return Masks(scopes={name: _true_or_false(part, f"of {name!r}", device) for name, part in answer.items()})
    return Masks({"mask": _true_or_false(answer, "mask", device)})


def _true_or_false(mask: object, name: str, device: torch.device | None) -> Tensor:
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        kind = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ShapeError(f"A mask is a tensor of shape (batch, tokens), found {kind} for {name}; give it like that.")
    if bool(((mask != 0) & (mask != 1)).any()):
        raise DataError(
            f"A mask holds ones (or true) for what counts and zeros for padding, {name} holds other values."
        )
    return mask.to(device=device, dtype=torch.bool)


# ---------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class Activation:
    """What a reading gave: ``(batch, positions..., width)``, and which rows count (None: all)."""

    values: Tensor
    mask: Tensor | None = None


@dataclass
class Pairing:
    """Batch after batch, the rows of all pairs; ``pool`` and ``tokens`` are those of `record`."""

    plan: Plan
    sums: Sequence[PairedMoments | LayerwiseMoments]  # one for each pair of the plan, or one for all layers
    caller: Caller
    pool: str | None = None
    tokens: Tokens | None = None
    source: SteppedForward | None = None  # where the source runs step by step beside the target
    present: dict[Key, Activation] = field(default_factory=dict)  # what has arrived and still waits for a partner

    def start(self, calls: Sequence[Call]) -> None:
        """A new batch is about to be seen."""
        self.present.clear()
        self._calls = calls
        self._masks = [
            masks_of(call.inputs, self.caller.mask, device)
            for call, device in zip(calls, self.caller.devices, strict=True)
        ]
        offsets_of_calls = [call.inputs.get(OFFSETS) if isinstance(call.inputs, Mapping) else None for call in calls]
        self._offsets = [None if offsets is None else char_offsets(offsets) for offsets in offsets_of_calls]
        self._pieces: tuple[Tensor, Tensor, int] | None = None
        self._waiting: dict[Key, list[int]] = {}
        self._pairs = list(self.plan.pairs)
        for position, pair in enumerate(self._pairs):
            for key in dict.fromkeys(pair):
                self._waiting.setdefault(key, []).append(position)

    def take(self, network: int, reading: Reading, rows: Tensor) -> None:
        """Something has arrived: add it to the sums with every partner that is there, or can be fetched."""
        key, masks = (network, reading), self._masks[network]
        activation = Activation(rows, None if masks is None else masks.fitting(reading.place.module, rows.shape[:-1]))
        if self.pool is not None:
            size = count_inputs(self._calls[network].args, self._calls[network].kwargs)
            if rows.shape[0] != size:
                raise ShapeError(
                    f"Asked to pool what is seen at {reading.place}, where rows have shape {tuple(rows.shape[:-1])} "
                    f"for {size} inputs; record a place where the inputs stand on the first axis."
                )
            activation = _pool(activation, self.pool)
        self.present[key] = activation
        if self.source is not None and network == 0:
            self.source.rest()
        else:
            self._pair(key)
        if key in self.present:
            # The network goes on, and may write over what it gave.
            self.present[key] = Activation(activation.values.clone(), activation.mask)

    def _pair(self, key: Key) -> None:
        for position in list(self._waiting.get(key, ())):
            x, y = self._pairs[position]
            other = x if key == y else y
            if other not in self.present and self.source is not None:
                self.source.until(lambda other=other: other in self.present)  # type: ignore[misc]
            if other in self.present:
                self._add(position, self.present[x], self.present[y])
                for done in dict.fromkeys((x, y)):
                    self._waiting[done].remove(position)
                    if not self._waiting[done]:
                        del self.present[done]

    def _add(self, position: int, x: Activation, y: Activation) -> None:
        pair, moments = self._pairs[position], self.sums[position]
        assert isinstance(moments, PairedMoments)
        names = next(names for names, (a, b) in self.plan.requested.items() if (a.key, b.key) == pair)
        with _summing(f"recording {names[0]!r} (source) with {names[1]!r} (target)"):
            rows = self._rows([x] if x is y else [x, y], [0, 1])
            if len(rows[0]):
                moments.update(rows[0], rows[-1])

    def finish(self) -> None:
        """The batch is over: statistics of all layers are formed now, when all of them are there."""
        moments = self.sums[0]
        assert self.plan.layers is not None and isinstance(moments, LayerwiseMoments)
        sources, targets = self.plan.layers
        with _summing("recording all layers"):
            layers = [self.present[key] for key in (*sources.values(), *targets.values())]
            rows = self._rows(layers, [0] * len(sources) + [1] * len(targets))
            if all(map(len, rows)):
                moments.update(
                    dict(zip(sources, rows, strict=False)), dict(zip(targets, rows[len(sources) :], strict=True))
                )
        self.present.clear()

    # ------------------------------------------------------------------ rows

    def _rows(self, layers: Sequence[Activation], sides: Sequence[int]) -> list[Tensor]:
        """Paired rows of activations of the source (side 0) and the target (1). One mask does for all without."""
        by_text = self.tokens is not None and self.tokens.mode == "offsets" and len(layers) > 1
        if by_text and all(layer.values.ndim == 3 for layer in layers):
            *pieces, count = self._match_texts()
            return [pool_pieces(layer.values, pieces[side], count) for layer, side in zip(layers, sides, strict=True)]
        if not all(_same_rows(layers[0], layer) for layer in layers):
            layers = _match(layers, sides, self.tokens)
        masks = [layer.mask for layer in layers if layer.mask is not None]
        for mask in masks[1:]:
            _check_counts(masks[0], mask)
        shared = masks[0] if masks else None
        return [_counting_rows(layer.values, shared if layer.mask is None else layer.mask) for layer in layers]

    def _match_texts(self) -> tuple[Tensor, Tensor, int]:
        if self._pieces is None:
            source, target = self._offsets[0], self._offsets[-1]
            if source is None or target is None:
                raise DataError(
                    "tokens='offsets' aligns tokens by the characters they cover, but the batch says nothing of them; "
                    "give mappings with 'offset_mapping' (tokenizers make it with return_offsets_mapping=True)."
                )
            masks = [
                None if masks is None else masks.fitting("encoder", offsets.shape[:2])
                for masks, offsets in ((self._masks[0], source), (self._masks[-1], target))
            ]
            self._pieces = match_texts(source, target, masks)
        return self._pieces


@contextlib.contextmanager
def _summing(where: str) -> Iterator[None]:
    """A block inside a forward pass in which sums are formed that outlive it; errors say where they arose.

    The sums are ordinary tensors, in the precision of the data, whatever mode the network runs in.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(without_autocast())
        try:
            yield
        except InterbasinError as error:
            raise type(error)(f"{where}: {error}") from error


def _pool(activation: Activation, how: str) -> Activation:
    """One row per input; inputs that are nothing but padding do not count."""
    counts = None if activation.mask is None else activation.mask.flatten(1).any(dim=1)
    return Activation(pool_tokens(activation.values, how, activation.mask), counts)


def _same_rows(x: Activation, y: Activation) -> bool:
    """Whether rows pair as they are: equal shapes, or one of them flattened."""
    first, second = tuple(x.values.shape[:-1]), tuple(y.values.shape[:-1])
    if math.prod(first) != math.prod(second):
        return False
    axes = min(len(first), len(second))
    return first == second or axes == 1 or (first[0] == second[0] and axes == 2)


def _match(layers: Sequence[Activation], sides: Sequence[int], tokens: Tokens | None) -> list[Activation]:
    """The same with equal numbers of tokens, in the way that was asked for."""
    shapes = [tuple(layer.values.shape[:-1]) for layer in layers]
    listed = " and ".join(str(shape) for shape in dict.fromkeys(shapes))
    if tokens is None or tokens.mode == "offsets":
        raise ShapeError(
            f"rows of shapes {listed} do not pair; if the networks cut the same inputs into different numbers of "
            "tokens, pass tokens='interpolate2d' (patches of images), 'interpolate', 'mean' or 'offsets' (text), or "
            "pool='mean'."
        )
    if len({shape[0] for shape in shapes}) > 1:
        raise ShapeError(f"rows of shapes {listed} are not of the same number of inputs; give both networks the same.")
    if tokens.mode == "mean":
        return [_pool(layer, "mean") for layer in layers]
    if any(layer.mask is not None and not bool(layer.mask.all()) for layer in layers):
        raise DataError(
            f"Interpolating {listed} tokens would mix padding into what counts; use tokens='mean' or 'offsets'."
        )
    return [Activation(values) for values in match_tokens([layer.values for layer in layers], sides, tokens)]


def _check_counts(source: Tensor, target: Tensor) -> None:
    """Refuse masks that leave another number of rows of an input on each side."""
    counts = [mask.flatten(1).sum(dim=1) if mask.ndim > 1 else mask.sum()[None] for mask in (source, target)]
    if counts[0].shape == counts[1].shape and not torch.equal(counts[0].cpu(), counts[1].cpu()):
        raise ShapeError(
            f"the masks leave {int(counts[0].sum())} rows of the source and {int(counts[1].sum())} of the target, "
            "not the same number for each input; if the tokens differ, align them with tokens='offsets'."
        )


def _counting_rows(values: Tensor, mask: Tensor | None) -> Tensor:
    rows = values.flatten(0, -2)
    return rows if mask is None else rows[mask.flatten().to(rows.device)]
