"""What a loaded network is, and how weights get into one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from torch import Tensor, nn

from interbasin.checkpoints import Checkpoint, open_checkpoint
from interbasin.errors import CheckpointError, DataError
from interbasin.models.folding import rebuild_as_folded
from interbasin.text import list_names, one_line, plural

# One batch: a tensor, a tuple of positional arguments, or a mapping of keyword arguments.
Inputs: TypeAlias = "Tensor | tuple[Any, ...] | Mapping[str, Any]"


@dataclass(frozen=True)
class LoadedModel:
    """A network with its weights, in evaluation mode.

    Attributes:
        model: The network.
        inputs: One batch of example inputs; None if none were given and none could be made.
        checkpoint: Where the weights came from; None if they are random, or the factory's own business.
        text: What was asked for.
        family: What kind of network it is: the ``model_type`` of transformers, the architecture of timm, or the class.
        unused: Tensors of the checkpoint that the network has no use for (with ``strict=False``).
        was_training: Whether a factory returned it in training mode.
    """

    model: nn.Module
    inputs: Inputs | None
    checkpoint: Checkpoint | None
    text: str
    family: str
    unused: tuple[str, ...] = field(default=())
    was_training: bool = False

    def require_inputs(self) -> Inputs:
        """The example inputs.

        Raises:
            DataError: If there are none; says how to give them.
        """
        if self.inputs is None:
            raise DataError(
                f"Example inputs for {self.text} are needed, and its configuration ({self.family}) does not tell what "
                "they look like; give them with inputs= (--inputs FILE) or input_shape= (--input-shape 1,3,224,224)."
            )
        return self.inputs


def load_weights(model: nn.Module, checkpoint: Checkpoint, what: str, *, strict: bool = True) -> tuple[str, ...]:
    """Put a checkpoint into ``model``, in the checkpoint's dtypes; the names that the model has no use for come back.

    If the checkpoint is that of a folded network, the model is folded first. Every tensor of the model must be there:
    tied ones once, and the counters of BatchNorm, which very old files lack, not at all. ``what`` is how messages call
    the network; ``strict``: names that the model has no use for are an error.
    """
    rebuild_as_folded(model, checkpoint, what)
    own = model.state_dict(keep_vars=True)
    for name, tensor in own.items():
        if name in checkpoint and isinstance(tensor, Tensor):
            _refuse_empty(name, tensor, what)
            if tuple(tensor.shape) != checkpoint.shape(name):
                raise CheckpointError(
                    f"{name} has shape {checkpoint.shape(name)} in {checkpoint.path} and {tuple(tensor.shape)} in "
                    f"{what}; these are the weights of another network, or of another size of it."
                )
            dtype = checkpoint.dtype(name)
            if tensor.requires_grad and not (dtype.is_floating_point or dtype.is_complex):
                raise CheckpointError(
                    f"{name} is of {dtype} in {checkpoint.path} and of {tensor.dtype} in {what}; these are not "
                    "weights, or quantised ones: give those that were saved from this network."
                )
            tensor.data = tensor.data.to(dtype)
    try:
        result = model.load_state_dict(checkpoint.state_dict(), strict=False)
    except (CheckpointError, MemoryError):
        raise
    # Networks may load in ways of their own.
    except Exception as error:
        raise CheckpointError(
            f"The weights in {checkpoint.path} could not be loaded into {what} ({type(error).__name__}: "
            f"{one_line(error)}); does its own load_state_dict load them?"
        ) from error
    there = {id(tensor) for name, tensor in own.items() if name in checkpoint}
    missing = [
        name
        for name in result.missing_keys
        if id(own.get(name)) not in there and not name.endswith(".num_batches_tracked")
    ]
    refuse_mismatch(checkpoint, what, missing, result.unexpected_keys if strict else [])
    return tuple(result.unexpected_keys)


def map_weights(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """``model`` with the weights of safetensors files as they lie there: the system reads a page when it is used.

    They take no memory of the process's own, and the system drops pages that it needs for others, so that a network may
    be larger than memory. Make the network on the meta device (``with torch.device("meta"):``) or under
    ``accelerate.init_empty_weights()``. The files must stay what they are while the network is used; writing into the
    weights makes copies of the pages, and leaves the files alone.

    Args:
        model: The network; it is changed, and put in evaluation mode.
        path: A file, or a folder of transformers.

    Raises:
        CheckpointError: If there is no such checkpoint, it is not in safetensors files, or not of this network; or if
            a buffer that no checkpoint holds is on the meta device.
    """
    map_checkpoint(model, open_checkpoint(path), f"the {type(model).__name__}")
    return model.eval().requires_grad_(False)


def map_checkpoint(model: nn.Module, checkpoint: Checkpoint, what: str, *, strict: bool = True) -> tuple[str, ...]:
    """What `load_weights` does, with the weights left in their files, as `map_weights` has them."""
    odd = next((file for file in checkpoint.files if file.suffix != ".safetensors"), None)
    if odd is not None:
        raise CheckpointError(f"{odd} cannot be mapped into memory; store the weights as safetensors first.")
    rebuild_as_folded(model, checkpoint, what)
    own = model.state_dict(keep_vars=True)
    for name in (name for name in own if name in checkpoint and tuple(own[name].shape) != checkpoint.shape(name)):
        raise CheckpointError(
            f"{name} has shape {checkpoint.shape(name)} in {checkpoint.path} and {tuple(own[name].shape)} in {what}; "
            "these are the weights of another network, or of another size of it."
        )
    tensors: dict[str, Tensor] = {}
    for file in checkpoint.files:
        with safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys() if name in checkpoint}  # noqa: SIM118
    for name, stored in checkpoint.ties.items():
        tensors[name] = tensors[stored]
    result = model.load_state_dict(tensors, strict=False, assign=True)
    there = {id(tensor): name for name, tensor in own.items() if name in tensors}
    tied = {name: there[id(tensor)] for name, tensor in own.items() if there.get(id(tensor), name) != name}
    for name, stored in tied.items():  # as they were before each name was given a tensor
        (place, _, leaf), (beside, _, other) = name.rpartition("."), stored.rpartition(".")
        model.get_submodule(place)._parameters[leaf] = model.get_submodule(beside)._parameters[other]
    missing = [name for name in result.missing_keys if name not in tied and not name.endswith(".num_batches_tracked")]
    refuse_mismatch(checkpoint, what, missing, result.unexpected_keys if strict else [])
    empty = [name for name, buffer in model.named_buffers() if buffer.device.type == "meta"]
    if empty:
        raise CheckpointError(
            f"{list_names(empty)} of {what} is on the meta device and in no checkpoint; make the network's buffers on "
            "the CPU, as accelerate.init_empty_weights() does."
        )
    return tuple(result.unexpected_keys)


@contextlib.contextmanager
def without_numbers(*, wanted: bool = True) -> Iterator[None]:
    """Networks that are made in the block have parameters without numbers, which take no memory; buffers are whole.

    They are for `map_checkpoint`. Parameters that are one tensor stay one.
    """
    if not wanted:
        yield
        return
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and param.device.type != "meta" and not nn.parameter.is_lazy(param):
            self._parameters[name] = nn.Parameter(param.to("meta"), param.requires_grad)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _refuse_empty(name: str, tensor: Tensor, what: str) -> None:
    """Refuse to load numbers into a tensor that has no room for them: nothing would be loaded, and nobody told."""
    if nn.parameter.is_lazy(tensor):
        raise CheckpointError(
            f"{name} of {what} has no shape yet (it is lazy); call the network once where it is made."
        )
    if tensor.device.type == "meta":
        raise CheckpointError(
            f"{name} of {what} is on the meta device, where no weights can be loaded; make it on the CPU."
        )


def refuse_mismatch(checkpoint: Checkpoint, what: str, missing: list[str], unexpected: list[str]) -> None:
    """Refuse weights whose names are not those of the network."""
    if missing:
        raise CheckpointError(
            f"{checkpoint.path} lacks {plural(len(missing), 'tensor')} of {what}: {list_names(missing)}"
            + (f" (and has {list_names(unexpected)}, which it does not know)" if unexpected else "")
            + "; give the weights that were saved from this network."
        )
    if unexpected:
        raise CheckpointError(
            f"{checkpoint.path} has {plural(len(unexpected), 'tensor')} that {what} has no use for: "
            f"{list_names(unexpected)}; give the network's own weights, or leave these aside with strict=False."
        )


def working_dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype in which floating-point inputs suit the network: that of its first such parameter."""
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(dtypes, torch.get_default_dtype())
