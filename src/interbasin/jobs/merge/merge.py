"""`interbasin.merge`: one network of several that share their coordinates."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from interbasin.checkpoints.checkpoint import Checkpoint
from interbasin.checkpoints.write import SHARD
from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.merge.methods import resolve

if TYPE_CHECKING:
    from torch import Tensor, nn

    from interbasin.jobs.merge.on_disk import MergeResult

    Module = TypeVar("Module", bound=nn.Module)
else:
    Module = TypeVar("Module")

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
) -> MergeResult: ...


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
    r"""One network of several that share their coordinates, made tensor by tensor.

    ====================  ========================================================================================
    ``lerp``              :math:`(1 - t) m_1 + t m_2`, two models
    ``slerp``             the arc between the directions of two tensors; the line, where they are all but parallel or
                          opposite or one is zero; refused where that line passes through zero
    ``average``           :math:`\sum_i w_i m_i`, the weights divided by their sum
    ``task-arithmetic``   :math:`b + \lambda \sum_i w_i (m_i - b)`
    ``ties``              :math:`b + \lambda \tau`: every update trimmed to its ``density`` largest entries, a sign
                          elected for each number, the mean of the updates that have it
    ====================  ========================================================================================

    Calculated in float32 (float64 for such tensors) and rounded once. Tensors that are the same in all networks are
    taken as they are, and those that hold no real numbers come from the first (from the nearer end of a path). Networks
    that were trained apart do not share coordinates: ``align`` brings them into those of the first one.

    Args:
        models: Modules; mappings of names to tensors; or, with ``output``, folders and files with weights.
        method: One of the above.
        weights: One per model, equal ones by default: ones for task-arithmetic and ties. The base has none.
        base: The network that the models were fine-tuned from, for task-arithmetic and ties; of the same sort as they.
        t: Where between two models, 0.5 by default; 0 is the first.
        density: For ties: the share of every update that is kept, in each tensor by itself; 0.5 by default.
        scale: For task-arithmetic and ties: :math:`\lambda`, what the merged update is multiplied with; 1 by default.
        dtype: Of the result, by torch's name; by default that of the first model, tensor by tensor. Not for modules.
        align: A method of `rebasin` that needs no data, for networks that were trained apart: all are brought into the
            coordinates of the first. They are then held in memory, and on disk must be MODELs that can be built.
        inputs: For ``align``: one batch to trace with; MODELs on disk often know one.
        seed: For ``align``.
        reset: Batches, labels and all if they have some, to estimate the running statistics of batch norms on, because
            statistics that are merged like weights fit no network in between. The merged network is then built and held
            in memory; on disk the first model must be a MODEL that can be built. For networks without batch norms see
            `interbasin.batch_norm.repair`.
        output: A folder to write, or a file whose name ends in ``.safetensors``. Memory is needed for one tensor of
            each network. Configuration and tokenizer are those of the first model, a README.md says what was merged.
        max_shard_bytes: A file in ``output`` is closed before it grows beyond this.
        force: Replace what an earlier merge wrote there.
        progress: Called with the number of tensors that are done.

    Returns:
        A new module of the first one's class; a mapping of tensors; or, with ``output``, a `MergeResult` that
        tells what was written. Nothing that is given changes.

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
    recipe = resolve(method, len(models), base=base is not None, weights=weights, t=t, density=density, scale=scale)
    kind = None if dtype is None else str(dtype).removeprefix("torch.")
    if kind not in (None, *DTYPES):
        raise UnknownNameError.of("dtype to merge in", kind, DTYPES)
    networks = [*models, *([] if base is None else [base])]
    aligning = None
    if align is not None:
        _require_alignment_by_weights(align, base)
        aligning = (align, inputs, seed)
    if output is None:
        from interbasin.jobs.merge.in_memory import merge_in_memory

        return merge_in_memory(networks, recipe, kind, aligning, reset)
    from interbasin.jobs.merge.on_disk import merge_on_disk

    return merge_on_disk(
        networks,
        recipe,
        output,
        kind=kind,
        align=aligning,
        reset=reset,
        max_shard_bytes=max_shard_bytes,
        force=force,
        progress=progress,
    )


def _require_alignment_by_weights(method: str, base: object) -> None:
    from interbasin.jobs.rebasin.methods import METHODS

    if base is not None:
        raise DataError(
            "Networks that were fine-tuned from one base share its coordinates already, and would lose them by being "
            "aligned; leave align= out, or merge by a method without a base."
        )
    if METHODS[method].needs:
        without = ", ".join(name for name, other in METHODS.items() if not other.needs)
        raise DataError(
            f"{method} looks at data, and a merge aligns by weights alone; align by {without}, or put the networks "
            "into common coordinates with rebasin first and merge what that gives."
        )
