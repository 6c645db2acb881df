"""Example inputs: those that the user gave, as a file or a shape, and those made from a configuration of transformers.

There is no list of architectures: the name of the main input, the arguments of ``forward`` and the fields of the
configuration say what a network takes. Where they do not say enough, there are no example inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.arrays import as_tensor
from interbasin.checkpoints.safetensors_files import open_safetensors
from interbasin.checkpoints.torch_files import load_harmless
from interbasin.errors import DataError, FileError
from interbasin.extras import import_extra
from interbasin.models.base import Inputs, working_dtype_of
from interbasin.storage import as_path
from interbasin.text import one_line

SUPPORTED = ".npy, .npz, .pt or .safetensors"
BATCH = 2
LENGTH = 16  # tokens: a multiple of the blocks and strides that some architectures cut sequences into
IMAGE = 224  # pixels, where the configuration leaves the size open
FRAMES = 24  # of sound, behind the convolutions that a waveform enters by


# ---------------------------------------------------------------------- given


def given_inputs(
    model: nn.Module,
    path: str | PathLike[str] | None,
    shape: Sequence[int] | None,
    generator: torch.Generator,
) -> Inputs:
    """The batch in a file, or one of the given shape; floats in the dtype of the network."""
    dtype = working_dtype_of(model)
    return _cast(_read(as_path(path)), dtype, path) if path is not None else _draw(model, shape, dtype, generator)


def refuse_both(path: object, shape: object) -> None:
    """Refuse inputs that are given twice, or not as a file."""
    if path is not None and shape is not None:
        raise DataError("Example inputs were given twice, as a file and as a shape; give one of them.")
    if path is not None and not isinstance(path, str | PathLike):
        raise DataError(
            f"Example inputs are given as the name of a file, found a {type(path).__name__}; save them first."
        )


def _draw(model: nn.Module, shape: Sequence[int] | None, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    sizes = list(shape) if isinstance(shape, Sequence) else []
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise DataError(
            f"The shape of example inputs is a list of sizes, batch first, found {shape!r}; try (1, 3, 224, 224)."
        )
    try:
        if getattr(model, "main_input_name", None) == "input_ids":
            return {"input_ids": token_ids(model, tuple(sizes), generator)}
        return torch.randn(sizes, generator=generator).to(dtype)
    except (RuntimeError, TypeError, MemoryError) as error:  # what torch says of sizes that no machine holds
        raise DataError(
            f"Example inputs of shape {tuple(sizes)} do not fit into memory; give smaller sizes, batch first."
        ) from error


def _read(path: Path) -> Any:
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise FileError(
            f"{path} with example inputs cannot be looked at ({error.strerror}); give a {SUPPORTED} file."
        ) from error
    if not is_file:
        problem = "a folder" if is_folder else "no such file"
        raise FileError(f"Example inputs were to be read from {path}, but there is {problem}; give a {SUPPORTED} file.")
    if path.suffix == ".safetensors":
        stored = open_safetensors(path)
        return {name: stored[name] for name in stored.entries}
    if path.suffix in (".pt", ".pth", ".bin"):
        return load_harmless(path)
    if path.suffix not in (".npy", ".npz"):
        raise FileError(f"Example inputs are read from {SUPPORTED} files; {path} is none. Convert or rename it.")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            return content if isinstance(content, np.ndarray) else {name: content[name] for name in content.files}
    # A damaged archive makes numpy and zipfile raise many things.
    except Exception as error:
        raise FileError(f"{path} could not be read ({one_line(error)}); save it again, with plain numbers.") from error


def _cast(content: Any, dtype: torch.dtype, path: object) -> Inputs:
    what = f"What {path} holds"
    if isinstance(content, Mapping):
        if not content or not all(isinstance(name, str) for name in content):
            raise DataError(
                f"{what} should be arrays by name, found {list(content)!r}; name them as the arguments are named."
            )
        return {name: _cast_value(value, dtype, f"{name} in {path}") for name, value in content.items()}
    if isinstance(content, tuple | list) and any(isinstance(value, Tensor | np.ndarray) for value in content):
        return tuple(_cast_value(value, dtype, f"Argument {n} in {path}") for n, value in enumerate(content))
    alone: Tensor = _cast_value(as_tensor(content, what), dtype, what)
    return alone


def _cast_value(value: Any, dtype: torch.dtype, what: str) -> Any:
    if value is None or isinstance(value, bool | str):  # options, such as use_cache=False
        return value
    tensor = as_tensor(value, what)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


# ---------------------------------------------------------------------- made from a configuration


def example_inputs(
    model: nn.Module, generator: torch.Generator, preprocessor: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """One batch of keyword arguments for a network of transformers, or None if its configuration does not tell.

    ``preprocessor`` is what ``preprocessor_config.json`` says: the size of images may be there and nowhere else.
    """
    network: Any = model
    main, config = network.main_input_name, network.config
    takes = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    if main == "input_ids":
        inputs["input_ids"] = _ids(model, _length(config, LENGTH), generator)
        # Networks that read an image as tokens among the others (they have a token for it) can do without one.
        pictures = _field(config, "image_size") is not None and not _mentions(config, "image_token")
        if "pixel_values" in takes and pictures:
            inputs["pixel_values"] = _pixels(config, preprocessor, generator)
    elif main == "pixel_values":
        inputs["pixel_values"] = _pixels(config, preprocessor, generator)
    elif main in ("input_features", "input_values", "past_values"):
        inputs[main] = _signal(config, main, generator)
    if not inputs or any(value is None for value in inputs.values()):
        return None
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = _decoder_ids(model, generator)
        if inputs["decoder_input_ids"] is None:
            return None
    dtype = working_dtype_of(model)
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    return inputs | ({"use_cache": False} if "use_cache" in takes else {})


def token_ids(model: nn.Module, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Random tokens, none of them special but the last, which ends the text where there is a token for that."""
    config = model.config
    count = _field(config, "vocab_size")
    if not isinstance(count, int) or count < 1:
        raise DataError(
            "Tokens were to be drawn, but the configuration has no vocab_size; give example inputs as a file."
        )
    ordinary = torch.ones(count, dtype=torch.bool)
    for token in _special_tokens(config):
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
    height, width = _sides(_field(config, "image_size")) or _sides(_size_in(preprocessor)) or (IMAGE, IMAGE)
    frames = _field(config, "num_frames")
    shape = (BATCH, *([frames] if isinstance(frames, int) else []), channels or 3, height, width)
    return torch.randn(shape, generator=generator)


def _sides(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None


def _size_in(preprocessor: Mapping[str, Any] | None) -> Any:
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
    bins, per_channel = _field(config, "num_mel_bins"), _field(config, "input_feat_per_channel")
    shape: tuple[Any, ...]
    if main == "past_values":
        shape = (_field(config, "context_length"), _field(config, "num_input_channels"))
    elif main == "input_features" and per_channel:
        shape = (4 * LENGTH, per_channel)
    elif main == "input_features":
        positions = _field(config, "max_source_positions")
        shape = (bins, 2 * positions if isinstance(positions, int) else None)  # the second convolution has stride 2
    elif bins:
        shape = (_field(config, "max_length"), bins)
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
    return min([most, *(max(count - 2, 1) for count in positions if isinstance(count, int) and count > 0)])


def _special_tokens(config: Any) -> Iterator[int]:
    for part in _configurations(config):
        for name, value in vars(part).items():
            if name.endswith(("token_id", "token_index")):
                tokens = value if isinstance(value, list) else [value]
                yield from (token for token in tokens if isinstance(token, int))


def _mentions(config: Any, word: str) -> bool:
    return any(word in name for part in _configurations(config) for name in vars(part))


def _field(config: Any, *names: str) -> Any:
    """The first of the named fields that a configuration, or one inside it, has and does not leave open."""
    values = (getattr(part, name, None) for part in _configurations(config) for name in names)
    return next((value for value in values if value is not None), None)


def _configurations(config: Any) -> Iterator[Any]:
    """A configuration and those inside it, outer ones first."""
    kind = import_extra("transformers", "Reading the configuration of a network", "hf").PretrainedConfig
    waiting = [config]
    while waiting:
        part = waiting.pop(0)
        yield part
        waiting += [value for value in vars(part).values() if isinstance(value, kind)]
