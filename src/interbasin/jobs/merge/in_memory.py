"""Merging in memory: modules, and mappings of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from interbasin.checkpoints.in_memory import HeldTensors
from interbasin.errors import DataError
from interbasin.jobs.merge.kernel import MergedTensors
from interbasin.jobs.merge.methods import Recipe
from interbasin.wiring.compatibility import require_same_activations
from interbasin.wiring.trace.copying import copied, forget_what_was_derived

Model = TypeVar("Model", bound=nn.Module)


def merge_in_memory(
    models: Sequence[Any], recipe: Recipe, kind: str | None, align: tuple[str, Any, int] | None, reset: Any
) -> Any:
    """The merged network, or its tensors; see `interbasin.merge`.

    Args:
        models: Modules or mappings and, for a recipe that needs one, the base behind them.
        align: The method of alignment, inputs to trace with, and a seed.
    """
    if all(isinstance(model, nn.Module) for model in models):
        if kind is not None:
            raise DataError("dtype is for checkpoints and tensors; for modules call .to(dtype) on the merged one.")
        if align is not None:
            from interbasin.jobs.merge.networks import align_modules

            models = align_modules(models, *align)
        if reset is None:
            return _merge_modules(models, recipe)
        from interbasin.jobs.merge.networks import reset_module

        return reset_module(lambda: _merge_modules(models, recipe), models[0], reset)
    if not all(isinstance(model, Mapping) for model in models):
        sorts = ", ".join(dict.fromkeys(type(model).__name__ for model in models))
        raise DataError(
            f"In memory merge takes modules or mappings of tensors, all of one sort, got {sorts}; files need output=."
        )
    for name, value, needs in (("align", align, "traces networks"), ("reset", reset, "runs the merged network")):
        if value is not None:
            raise DataError(f"{name}= {needs}, and tensors alone tell no network; give modules, or MODELs on disk.")
    return _merge_tensors(models, recipe, kind)


def _merge_modules(models: Sequence[Model], recipe: Recipe) -> Model:
    """A new module of the first one's class; none of the given ones changes."""
    tensors = _merge_tensors(models, recipe)
    for other in models[1:]:
        require_same_activations(models[0], other)
    # What a module keeps beside its tensors has no arithmetic: the first one's stays.
    merged = copied(models[0])
    merged.load_state_dict(models[0].state_dict() | tensors)
    forget_what_was_derived(merged)
    return merged


def _merge_tensors(
    models: Sequence[nn.Module | Mapping[str, Tensor]], recipe: Recipe, kind: str | None = None
) -> dict[str, Tensor]:
    """New tensors, on the devices of the first model's; those that are tied in it are tied again."""
    labels = [f"model {number + 1}" for number in range(len(models))]
    if recipe.has_base:
        labels[-1] = "the base"
    held = [HeldTensors(model, label) for model, label in zip(models, labels, strict=True)]
    merged = MergedTensors([*zip(labels, held, strict=True)], recipe, kind)
    tensors = {name: merged[name].to(held[0].tensors[name].device) for name in merged.entries}
    order = models[0].state_dict() if isinstance(models[0], nn.Module) else models[0]
    return {name: tensors[merged.stored_name(name)] for name in order if name in merged}
