"""Example inputs that the user gave: a file, or a shape to draw at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from interbasin.models.base import Inputs, working_dtype_of
from interbasin.storage import as_path
from interbasin.text import one_line

SUPPORTED = ".npy, .npz, .pt or .safetensors"


def given_inputs(
    model: nn.Module,
    path: str | PathLike[str] | None,
    shape: Sequence[int] | None,
    generator: torch.Generator,
) -> Inputs:
    """The batch in a file, or one of the given shape; floats in the dtype of the network.

    Raises:
        DataError: If both are given, or neither makes a batch.
        FileError: If the file cannot be read.
    """
    refuse_both(path, shape)
    dtype = working_dtype_of(model)
    return _cast(_read(as_path(path)), dtype, path) if path is not None else _drawn(model, shape, dtype, generator)


def refuse_both(path: object, shape: object) -> None:
    """Refuse inputs that are given twice, or not as a file.

    Raises:
        DataError: If they are.
    """
    if path is not None and shape is not None:
        raise DataError("Example inputs were given twice, as a file and as a shape; give one of them.")
    if path is not None and not isinstance(path, str | PathLike):
        raise DataError(
            f"Example inputs are given as the name of a file, found a {type(path).__name__}; save them, or pass them "
            "to interbasin.wire yourself."
        )


def _drawn(model: nn.Module, shape: Sequence[int] | None, dtype: torch.dtype, generator: torch.Generator) -> Inputs:
    sizes = list(shape) if isinstance(shape, Sequence) else []
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise DataError(
            f"The shape of example inputs is a list of sizes, batch first, found {shape!r}; try (1, 3, 224, 224)."
        )
    try:
        if getattr(model, "main_input_name", None) == "input_ids":
            from interbasin.models.example_inputs import token_ids

            return {"input_ids": token_ids(model, tuple(sizes), generator)}
        return torch.randn(sizes, generator=generator).to(dtype)
    except (RuntimeError, TypeError, MemoryError) as error:  # what torch says of sizes that no machine holds
        raise DataError(
            f"Example inputs of shape {tuple(sizes)} do not fit into memory; give smaller sizes, batch first."
        ) from error


def _read(path: Path) -> Any:
    try:
        there, folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise FileError(
            f"Example inputs were to be read from {path}, which cannot be looked at ({error.strerror}); give a "
            f"{SUPPORTED} file."
        ) from error
    if not there:
        found = "a folder" if folder else "no such file"
        raise FileError(f"Example inputs were to be read from {path}, but there is {found}; give a {SUPPORTED} file.")
    if path.suffix == ".safetensors":
        stored = open_safetensors(path)
        return {name: stored.read(name) for name in stored.entries}
    if path.suffix in (".pt", ".pth", ".bin"):
        return load_harmless(path)
    if path.suffix not in (".npy", ".npz"):
        raise FileError(f"Example inputs are read from {SUPPORTED} files; {path} is none. Convert or rename it.")
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    # A damaged archive makes numpy and zipfile raise many things.
    except Exception as error:
        raise FileError(f"{path} could not be read ({one_line(error)}); save it again, with plain numbers.") from error


def _cast(found: Any, dtype: torch.dtype, path: object) -> Inputs:
    what = f"What {path} holds"
    if isinstance(found, Mapping):
        if not found or not all(isinstance(name, str) for name in found):
            raise DataError(
                f"{what} should be arrays by name, found {list(found)!r}; name them as the arguments are named."
            )
        return {name: _one(value, dtype, f"{name} in {path}") for name, value in found.items()}
    if isinstance(found, tuple | list) and any(isinstance(value, Tensor | np.ndarray) for value in found):
        return tuple(_one(value, dtype, f"Argument {number} in {path}") for number, value in enumerate(found))
    alone: Tensor = _one(as_tensor(found, what), dtype, what)
    return alone


def _one(value: Any, dtype: torch.dtype, what: str) -> Any:
    if value is None or isinstance(value, bool | str):  # options, such as use_cache=False
        return value
    tensor = as_tensor(value, what)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
