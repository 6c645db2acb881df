"""What ``adapter_config.json`` may say, and whether it speaks of the tensors that lie beside it.

PEFT builds the modules that a configuration names, and then loads what it finds for them; the rest it leaves out with a
warning at most. An adapter whose configuration and tensors are of two minds is therefore refused: what PEFT would make
of it is not what was trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from interbasin.errors import CheckpointError
from interbasin.text import list_names

ALL_LINEAR = "all-linear"  # PEFT's word for every linear layer
# Heads that PEFT adds to modules_to_save by itself, whether or not the network has them.
ADDED_BY_PEFT = ("classifier", "score", "qa_outputs")
BIASES = ("none", "all", "lora_only")
FLAGS = ("use_rslora", "use_dora", "fan_in_fan_out", "lora_bias")


# ---------------------------------------------------------------------- types


def find_fault(settings: Mapping[str, Any]) -> str | None:
    """The first setting that has a value which PEFT does not write; None if there is none."""
    rank, alpha, method = settings.get("r"), settings.get("lora_alpha"), settings.get("peft_type")
    base, saved = settings.get("base_model_name_or_path"), settings.get("modules_to_save")
    fits = {
        "peft_type": isinstance(method, str),
        "base_model_name_or_path": base is None or isinstance(base, str),
        "r": rank is None or (type(rank) is int and rank >= 0),
        "lora_alpha": alpha is None or _is_finite(alpha),
        "target_modules": _are_modules(settings.get("target_modules")),
        "exclude_modules": _are_modules(settings.get("exclude_modules")),
        "modules_to_save": not isinstance(saved, str) and _are_modules(saved),
        "rank_pattern": _is_pattern(settings.get("rank_pattern"), _is_rank),
        "alpha_pattern": _is_pattern(settings.get("alpha_pattern"), _is_finite),
    }
    if isinstance(method, str) and method.upper() == "LORA":  # other methods have words of their own
        fits |= {key: settings.get(key) is None or isinstance(settings[key], bool) for key in FLAGS}
        fits["bias"] = settings.get("bias") is None or settings["bias"] in BIASES
    return next((key for key, is_right in fits.items() if not is_right), None)


def _are_modules(value: object) -> bool:
    """Whether it is nothing, names of modules, or one expression for them."""
    if value is None or isinstance(value, str):
        return value is None or _is_expression(value)
    return isinstance(value, list | tuple | set) and all(isinstance(name, str) and name for name in value)


def _is_pattern(value: object, is_right: Callable[[object], bool]) -> bool:
    return not value or (
        isinstance(value, dict) and all(map(_is_expression, value)) and all(map(is_right, value.values()))
    )


def _is_expression(pattern: object) -> bool:
    """Whether it is a regular expression, as the names of layers in PEFT's patterns are."""
    try:
        return isinstance(pattern, str) and bool(re.compile(pattern))
    except re.error:
        return False


def _is_finite(value: object) -> bool:
    # Not math.isfinite, which fails for whole numbers that no float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _is_rank(value: object) -> bool:
    return isinstance(value, int | float) and _is_finite(value) and value >= 1 and int(value) == value


# ---------------------------------------------------------------------- agreement


def require_agreement(
    settings: Mapping[str, Any],
    factors: Mapping[str, str],
    whole: Collection[str],
    base: Iterable[str],
    *,
    is_linear: Callable[[str], bool],
    where: str,
) -> tuple[str, ...]:
    """Refuse a LoRA whose configuration and tensors contradict each other.

    Args:
        settings: The configuration.
        factors: Layer, by its name in the network beneath -> one of the factors that the file holds for it.
        whole: Tensors that the file holds beside the factors, by their names there.
        base: All tensors of the network beneath.
        is_linear: Whether a layer is one that PEFT means by ``"all-linear"``.
        where: What messages call the adapter.

    Returns:
        What a user should know: where the two differ and nothing is wrong for it.

    Raises:
        CheckpointError: names the tensor or the setting.
    """
    targets, excluded = settings.get("target_modules"), settings.get("exclude_modules")
    for layer, name in factors.items():
        linear = isinstance(targets, str) and targets.lower() == ALL_LINEAR
        if targets and not (is_linear(layer) if linear else _covers(targets, layer)):
            raise CheckpointError(
                f"{name} in {where} updates {layer}, which its configuration does not name (target_modules is "
                f"{_show(targets)}), so that PEFT would leave it out; give the configuration that belongs to these "
                "tensors."
            )
        if excluded and _covers(excluded, layer):
            raise CheckpointError(
                f"{name} in {where} updates {layer}, which its configuration leaves out (exclude_modules is "
                f"{_show(excluded)}); give the configuration that belongs to these tensors."
            )
    base = tuple(base)
    notes = [*_require_saved(settings, whole, base, where), *_note_biases(settings, factors, whole, base, where)]
    if settings.get("layers_to_transform") not in (None, []):
        notes.append(f"Whether {where} has factors in the layers of layers_to_transform alone was not looked at.")
    return tuple(notes)


def _require_saved(
    settings: Mapping[str, Any], whole: Collection[str], base: tuple[str, ...], where: str
) -> Iterable[str]:
    modules = {name[:end] for name in base for end, letter in enumerate(name) if letter == "."}
    unknown = []
    for name in settings.get("modules_to_save") or ():
        meant = [module for module in modules if module.endswith(name)]  # as PEFT matches them
        if not meant and name not in ADDED_BY_PEFT:
            unknown.append(name)
        if meant and not any(tensor.startswith(f"{module}.") for tensor in whole for module in meant):
            raise CheckpointError(
                f"The configuration of {where} says that {name} was trained whole (modules_to_save), and there is no "
                "tensor of it, so that what was trained is missing; save the adapter again with its save_pretrained."
            )
    if unknown:
        yield f"The configuration of {where} names {list_names(unknown)} in modules_to_save; the network has none."


def _note_biases(
    settings: Mapping[str, Any], factors: Mapping[str, str], whole: Collection[str], base: tuple[str, ...], where: str
) -> Iterable[str]:
    trained = settings.get("bias")
    if trained not in ("all", "lora_only") or any(name.endswith("bias") for name in whole):
        return
    if any(name.endswith("bias") and (trained == "all" or name.rpartition(".")[0] in factors) for name in base):
        yield (
            f"The configuration of {where} says that biases were trained (bias={trained!r}), and it holds none: those "
            "of the base stay."
        )


def _covers(modules: str | Collection[str], layer: str) -> bool:
    """Whether names of modules, or one expression for them, mean a layer; as PEFT has it."""
    if isinstance(modules, str):
        return re.fullmatch(modules, layer) is not None
    return any(layer == name or layer.endswith(f".{name}") for name in modules)


def _show(modules: str | Collection[str]) -> str:
    return repr(modules) if isinstance(modules, str) else list_names(sorted(modules))
