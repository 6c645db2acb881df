"""Example inputs for networks of transformers, made from their configuration.

There is no list of architectures: the name of the main input, the arguments of ``forward`` and the fields of the
configuration say what a network takes. Where they do not say enough, there are no example inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.errors import DataError
from interbasin.extras import import_extra
from interbasin.models.base import working_dtype_of

BATCH = 2
LENGTH = 16  # tokens: a multiple of the blocks and strides that some architectures cut sequences into
IMAGE = 224  # pixels, where the configuration leaves the size open
FRAMES = 24  # of sound, behind the convolutions that a waveform enters by


def example_inputs(
    model: nn.Module, generator: torch.Generator, preprocessor: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """One batch of keyword arguments that ``model`` can be called with, or None if its configuration does not tell.

    Args:
        model: A network of transformers.
        generator: Draws them.
        preprocessor: What ``preprocessor_config.json`` says; the size of images may be there and nowhere else.
    """
    network: Any = model
    main, config = network.main_input_name, network.config
    takes = inspect.signature(model.forward).parameters
    found: dict[str, Any] = {}
    if main == "input_ids":
        found["input_ids"] = _ids(model, _length(config, LENGTH), generator)
        # Networks that read an image as tokens among the others (they have a token for it) can do without one.
        pictures = _field(config, "image_size") is not None and not _mentions(config, "image_token")
        if "pixel_values" in takes and pictures:
            found["pixel_values"] = _pixels(config, preprocessor, generator)
    elif main == "pixel_values":
        found["pixel_values"] = _pixels(config, preprocessor, generator)
    elif main in ("input_features", "input_values", "past_values"):
        found[main] = _signal(config, main, generator)
    if not found or any(value is None for value in found.values()):
        return None
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        found["decoder_input_ids"] = _decoder_ids(model, generator)
        if found["decoder_input_ids"] is None:
            return None
    dtype = working_dtype_of(model)
    found = {name: value.to(dtype) if value.is_floating_point() else value for name, value in found.items()}
    return found | ({"use_cache": False} if "use_cache" in takes else {})


def token_ids(model: nn.Module, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random tokens, none of them special but the last, which ends the text where there is a token for that.

    Raises:
        DataError: If the configuration does not say how many tokens there are.
    """
    config = model.config
    count = _field(config, "vocab_size")
    if not isinstance(count, int) or count < 1:
        raise DataError(
            "Tokens were to be drawn, but the configuration has no vocab_size; give example inputs as a file."
        )
    ordinary = torch.ones(count, dtype=torch.bool)
    for token in _special(config):
        if 0 <= token < count:
            ordinary[token] = False
    choices = ordinary.nonzero().flatten() if bool(ordinary.any()) else torch.arange(count)
    ids = choices[torch.randint(len(choices), shape, generator=generator)]
    end = _field(config, "eos_token_id")
    if isinstance(end, int) and 0 <= end < count:
        ids[..., -1] = end  # where classifiers and pairs of encoders read their answer
    return ids


def _ids(model: nn.Module, length: int, generator: torch.Generator) -> Tensor | None:
    if not isinstance(_field(model.config, "vocab_size"), int):
        return None
    # A classifier on top of a decoder finds the last token by the padding behind it, or takes one text at a time.
    alone = type(model).__name__.endswith("SequenceClassification") and _field(model.config, "pad_token_id") is None
    return token_ids(model, (1 if alone else BATCH, length), generator)


def _decoder_ids(model: nn.Module, generator: torch.Generator) -> Tensor | None:
    # What a network does not generate, it reads off beside the text that goes in: then both are equally long.
    network: Any = model
    most = LENGTH // 2 if network.can_generate() else LENGTH
    ids = _ids(model, _length(network.config, most, "max_target_positions"), generator)
    start = _field(network.config, "decoder_start_token_id")
    if ids is not None and isinstance(start, int) and start >= 0:
        ids[:, 0] = start
    return ids


def _pixels(config: Any, preprocessor: Mapping[str, Any] | None, generator: torch.Generator) -> Tensor | None:
    channels = _field(config, "num_channels", "in_channels")
    height, width = _sides(_field(config, "image_size")) or _sides(_advised(preprocessor)) or (IMAGE, IMAGE)
    frames = _field(config, "num_frames")
    shape = (BATCH, *([frames] if isinstance(frames, int) else []), channels or 3, height, width)
    return torch.randn(shape, generator=generator)


def _sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None


def _advised(preprocessor: Mapping[str, Any] | None) -> Any:
    for key in ("crop_size", "size"):
        size = (preprocessor or {}).get(key)
        if isinstance(size, dict) and {"height", "width"} <= set(size):
            return [size["height"], size["width"]]
        if isinstance(size, dict) and "shortest_edge" in size:
            return size["shortest_edge"]
        if isinstance(size, int):
            return size
    return None


def _signal(config: Any, main: str, generator: torch.Generator) -> Tensor | None:
    """Sound or a series: a waveform, a spectrogram or the past, by which fields the configuration has."""
    sizes = {
        name: _field(config, name)
        for name in (
            "num_mel_bins",
            "max_source_positions",
            "max_length",
            "input_feat_per_channel",
            "context_length",
            "num_input_channels",
        )
    }
    bins, positions = sizes["num_mel_bins"], sizes["max_source_positions"]
    shape: tuple[Any, ...] = ()
    if main == "past_values":
        shape = (sizes["context_length"], sizes["num_input_channels"])
    elif main == "input_features" and sizes["input_feat_per_channel"]:
        shape = (4 * LENGTH, sizes["input_feat_per_channel"])
    elif main == "input_features":
        shape = (bins, 2 * positions if isinstance(positions, int) else None)  # the second convolution has stride 2
    elif bins:
        shape = (sizes["max_length"], bins)
    else:
        shape = (_samples(config),)
    if not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    return torch.randn((BATCH, *shape), generator=generator)


def _samples(config: Any) -> int | None:
    """How long a waveform must be so that `FRAMES` frames come out of the convolutions it enters by."""
    kernels, strides = _field(config, "conv_kernel"), _field(config, "conv_stride")
    if not isinstance(kernels, list | tuple) or not isinstance(strides, list | tuple):
        return None
    length = FRAMES
    for kernel, stride in reversed(list(zip(kernels, strides, strict=True))):
        length = (length - 1) * stride + kernel
    return int(length)


def _length(config: Any, most: int, *limits: str) -> int:
    """How many tokens: no more than there are positions."""
    positions = [_field(config, name) for name in (*limits, "max_position_embeddings", "n_positions")]
    # Some families lose the first two positions to padding.
    return min([most, *(max(one - 2, 1) for one in positions if isinstance(one, int) and one > 0)])


def _special(config: Any) -> Iterator[int]:
    for one in _configurations(config):
        for name, value in vars(one).items():
            if name.endswith(("token_id", "token_index")):
                yield from (
                    token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)
                )


def _mentions(config: Any, word: str) -> bool:
    return any(word in name for one in _configurations(config) for name in vars(one))


def _field(config: Any, *names: str) -> Any:
    """The first of the named fields that a configuration, or one inside it, has and does not leave open."""
    for one in _configurations(config):
        for name in names:
            value = getattr(one, name, None)
            if value is not None:
                return value
    return None


def _configurations(config: Any) -> Iterator[Any]:
    """A configuration and those inside it, outer ones first."""
    kind = import_extra("transformers", "Reading the configuration of a network", "hf").PretrainedConfig
    waiting = [config]
    while waiting:
        one = waiting.pop(0)
        yield one
        waiting += [value for value in vars(one).values() if isinstance(value, kind)]
