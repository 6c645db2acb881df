"""`interbasin.merge`: one network of several that share their coordinates."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.merge.methods import resolved
from interbasin.networks.checkpoints.checkpoint import Checkpoint
from interbasin.networks.checkpoints.layout import SHARD

if TYPE_CHECKING:
    from torch import Tensor, nn

    from interbasin.jobs.merge.files import Merged
    from interbasin.jobs.merge.recipe import Recipe

    Module = TypeVar("Module", bound=nn.Module)
else:
    Module = TypeVar("Module")

__all__ = ["DTYPES", "merge"]

# Those that a merged checkpoint can be written in.
DTYPES = ("float32", "float16", "bfloat16", "float64")


@overload
def merge(
    models: Sequence[Module],
    method: str = ...,
    *,
    weights: Sequence[float] | None = ...,
    base: nn.Module | None = ...,
    t: float | None = ...,
    density: float | None = ...,
    scale: float | None = ...,
    align: str | None = ...,
    inputs: Any = ...,
    seed: int = ...,
    reset: Any = ...,
) -> Module: ...


@overload
def merge(
    models: Sequence[Mapping[str, Tensor]],
    method: str = ...,
    *,
    weights: Sequence[float] | None = ...,
    base: Mapping[str, Tensor] | None = ...,
    t: float | None = ...,
    density: float | None = ...,
    scale: float | None = ...,
    dtype: Any = ...,
) -> dict[str, Tensor]: ...


@overload
def merge(
    models: Sequence[str | os.PathLike[str] | Checkpoint],
    method: str = ...,
    *,
    output: str | os.PathLike[str],
    weights: Sequence[float] | None = ...,
    base: str | os.PathLike[str] | Checkpoint | None = ...,
    t: float | None = ...,
    density: float | None = ...,
    scale: float | None = ...,
    dtype: Any = ...,
    align: str | None = ...,
    inputs: Any = ...,
    seed: int = ...,
    reset: Any = ...,
    max_shard_bytes: int = ...,
    force: bool = ...,
    progress: Callable[[int], None] | None = ...,
) -> Merged: ...


def merge(
    models: Sequence[Any],
    method: str = "average",
    *,
    weights: Sequence[float] | None = None,
    base: Any = None,
    t: float | None = None,
    density: float | None = None,
    scale: float | None = None,
    dtype: Any = None,
    align: str | None = None,
    inputs: Any = None,
    seed: int = 0,
    reset: Any = None,
    output: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = SHARD,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Any:
    r"""One network of several that share their coordinates; a tensor at a time.

    ====================  ========================================================================================
    ``lerp``              :math:`(1 - t) m_1 + t m_2`, two models
    ``slerp``             the arc between the directions of two tensors; the line, where they are all but parallel or
                          opposite or one is zero
    ``average``           :math:`\sum_i w_i m_i`, the weights divided by their sum
    ``task-arithmetic``   :math:`b + \lambda \sum_i w_i (m_i - b)`
    ``ties``              :math:`b + \lambda \tau`: every update trimmed to its ``density`` largest entries, a sign
                          elected for every number, the mean of the updates that have it
    ====================  ========================================================================================

    Calculated in float32 (float64 for such tensors) and rounded once. Tensors that are the same in all networks are
    taken as they are, and those that hold no real numbers come from the first (from the nearer end of a path). Networks
    that were trained apart do not share coordinates: ``align`` brings them into those of the first one.

    Args:
        models: Modules; mappings of names to tensors; or, with ``output``, folders and files with weights.
        method: One of the above.
        weights: One a model, equal ones by default: ones for task-arithmetic and ties. Not of the base, which has none.
        base: The network that the models were fine-tuned from, for task-arithmetic and ties; of the same sort as they.
        t: Where between two models, 0.5 by default; 0 is the first.
        density: For ties: the share of every update that is kept, in each tensor by itself; 0.5 by default.
        scale: For task-arithmetic and ties: :math:`\lambda`, what the merged update is multiplied with; 1 by default.
        dtype: Of the result, by torch's name; by default that of the first model, tensor by tensor. Not for modules.
        align: A method of `rebasin` that needs no data, for networks that were trained apart: all are brought into the
            coordinates of the first. They are then held in memory, and on disk must be MODELs that can be built.
        inputs: For ``align``: one batch to trace with; MODELs on disk often know one.
        seed: For ``align``.
        reset: Batches, labels and all if they have some, to estimate the running statistics of batch norms on: those of
            the merged network, because statistics that are merged like weights fit no network in between. It is then
            built and held in memory; on disk the first model must be a MODEL that can be built. For networks
            without batch norms see `interbasin.networks.repair`.
        output: A folder to write, or a file whose name ends in ``.safetensors``. Memory is needed for one tensor of
            each network. Configuration and tokenizer are those of the first model, a README.md says what was merged.
        max_shard_bytes: A file in ``output`` is closed before it grows beyond this.
        force: Replace what an earlier merge wrote there.
        progress: Called with the number of tensors that are done.

    Returns:
        A new module of the first one's class; a mapping of tensors; or, with ``output``, a `Merged` that tells what was
        written. Nothing that is given changes.

    Raises:
        UnknownNameError: if there is no such method or dtype.
        DataError: if weights, ``t``, ``density`` or the number of models do not fit the method, the base is missing,
            a LoRA is given for a network, a number comes out that is not finite, or statistics are to be reset of
            a network that has none.
        WiringError: if the networks are not of one architecture and depth.
        ShapeError: if they are not of equal widths.
        CheckpointError: if weights cannot be read, or are quantised.
        FileError: if ``output`` is in the way.

    Example:
        >>> import torch
        >>> a, b = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> middle = merge([a, b])
        >>> bool(torch.allclose(middle.weight, (a.weight + b.weight) / 2))
        True
        >>> merge([{"x": torch.tensor([0.0, 4.0])}, {"x": torch.tensor([4.0, 8.0])}], "lerp", t=0.25)
        {'x': tensor([1., 5.])}
    """
    if isinstance(models, str | bytes | Mapping | os.PathLike) or not isinstance(models, Sequence):
        raise DataError(f"merge takes a list of models, found a {type(models).__name__}; put them into a list.")
    if not models:
        raise DataError("merge was given no models; give at least one.")
    recipe = resolved(method, len(models), base=base is not None, weights=weights, t=t, density=density, scale=scale)
    kind = _kind(dtype)
    given = [*models, *([] if base is None else [base])]
    aligning = None if align is None else _aligning(align, base, inputs, seed)
    if output is not None:
        return _to_disk(
            given, recipe, base is not None, output, kind, aligning, reset, max_shard_bytes, force, progress
        )
    return _in_memory(given, recipe, base is not None, kind, aligning, reset)


def _aligning(method: str, base: object, inputs: Any, seed: int) -> tuple[str, Any, int]:
    from interbasin.jobs.rebasin.methods import METHODS, chosen

    if base is not None:
        raise DataError(
            "Networks that were fine-tuned from one base share its coordinates already, and would lose them by being "
            "aligned; leave align= out, or merge by a method without a base."
        )
    found, _ = chosen(method, None, has_data=True, has_labels=True)
    if found.needs:
        without = ", ".join(name for name, one in METHODS.items() if not one.needs)
        raise DataError(
            f"{method} looks at data, and a merge aligns by weights alone; align by {without}, or put the networks "
            "into common coordinates with rebasin first and merge what that gives."
        )
    return method, inputs, seed


def _to_disk(
    given: list[Any],
    recipe: Recipe,
    has_base: bool,
    output: str | os.PathLike[str],
    kind: str | None,
    aligning: tuple[str, Any, int] | None,
    reset: Any,
    max_shard_bytes: int,
    force: bool,
    progress: Callable[[int], None] | None,
) -> Merged:
    started = time.perf_counter()
    from interbasin.jobs.merge.files import merge_files, refuse_in_the_way
    from interbasin.jobs.merge.stored import open_network

    for one in given:
        if not isinstance(one, str | os.PathLike | Checkpoint):
            raise DataError(
                f"With an output, merge goes from disk to disk, and a {type(one).__name__} was given; give folders or "
                "files with weights, or merge in memory and use interbasin.networks.write_checkpoint."
            )
    if not isinstance(max_shard_bytes, int) or isinstance(max_shard_bytes, bool) or max_shard_bytes < 1:
        raise DataError(
            f"max_shard_bytes is a number of bytes, 1 or more, found {max_shard_bytes!r}; try 5_000_000_000."
        )
    opened, align = [open_network(one) for one in given], None
    if aligning is not None:
        from interbasin.jobs.merge.aligning import aligned_networks

        refuse_in_the_way(output, opened, force)
        opened, told = aligned_networks(given, opened, *aligning)
        align = (aligning[0], told)
    if reset is not None:
        from interbasin.jobs.merge.resetting import built_for_reset

        refuse_in_the_way(output, opened, force)
        reset = built_for_reset(given[0], opened[0], reset)
    models, base = (opened[:-1], opened[-1]) if has_base else (opened, None)
    return merge_files(
        models,
        output,
        recipe,
        base,
        kind=kind,
        align=align,
        reset=reset,
        max_shard_bytes=max_shard_bytes,
        force=force,
        progress=progress,
        started=started,
    )


def _in_memory(
    given: list[Any],
    recipe: Recipe,
    has_base: bool,
    kind: str | None,
    aligning: tuple[str, Any, int] | None,
    reset: Any,
) -> Any:
    from torch import nn

    from interbasin.jobs.merge.memory import merge_modules, merge_tensors

    models, base = (given[:-1], given[-1]) if has_base else (given, None)
    if all(isinstance(one, nn.Module) for one in given):
        if kind is not None:
            raise DataError("dtype is for checkpoints and tensors; for modules call .to(dtype) on the merged one.")
        if aligning is not None:
            from interbasin.jobs.merge.aligning import aligned_modules

            models = aligned_modules(models, *aligning)
        if reset is None:
            return merge_modules(models, recipe, base)
        from interbasin.jobs.merge.resetting import reset_module

        return reset_module(lambda: merge_modules(models, recipe, base), models[0], reset)
    if all(isinstance(one, Mapping) for one in given):
        if aligning is not None:
            raise DataError(
                "align= traces networks, and tensors alone tell no network; give modules, or MODELs on disk."
            )
        if reset is not None:
            raise DataError(
                "reset= runs the merged network, and tensors alone tell no network; give modules, or MODELs on disk."
            )
        return merge_tensors(models, recipe, base, kind)
    sorts = ", ".join(dict.fromkeys(type(one).__name__ for one in given))
    raise DataError(
        f"In memory merge takes modules or mappings of tensors, all of one sort, found {sorts}; give such, or for "
        "folders and files say where to write (output=)."
    )


def _kind(dtype: Any) -> str | None:
    if dtype is None:
        return None
    kind = str(dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise UnknownNameError.of("dtype to merge in", kind, DTYPES)
    return kind
