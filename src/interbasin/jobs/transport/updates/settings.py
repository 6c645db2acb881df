"""Whether a tuned network of transformers computes with its weights what its base would, by their configurations.

A transport carries weights. Where a fine-tune also has another activation function, base of its rotations or eps, its
weights in the source are another network than the one that was trained.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from interbasin.checkpoints.checkpoint import read_json
from interbasin.errors import DataError
from interbasin.text import list_names

CONFIGURATION = "config.json"
# Settings that say nothing of what a network answers when it is given inputs in evaluation: where it came from and how
# it was trained, what it is asked to put out beside, and how its tensors are tied, which they show themselves.
_HARMLESS = re.compile(
    r"_.*|transformers_version|(torch_)?dtype|architectures|auto_map|name_or_path|torchscript|reference_compile"
    r"|attn_implementation|use_cache|id2label|label2id|num_labels|problem_type|task_specific_params|finetuning_task"
    r"|(bos|eos|pad|sep|cls|unk|mask|decoder_start|forced_bos|forced_eos)_token_id|tie_.*|output_.*|return_dict"
    r"|initializer_.*|.*_init_(std|range)|init_std|gradient_checkpointing|pretraining_tp|chunk_size_feed_forward"
    r"|.*drop.*|.*loss.*|.*jitter.*|apply_spec_augment|mask_(time|feature)_.*"
)
# Rotations that depend on how many positions a network was made for; elsewhere a table shows that, or nothing does.
_BY_LENGTH = ("dynamic", "yarn", "longrope")
_LENGTH = "max_position_embeddings"


def refuse_other_settings(tuned: Any, source: nn.Module, label: str) -> None:
    """Refuse a fine-tune whose configuration has its weights compute something else than the source does with them.

    Args:
        tuned: A module, or a folder. Where it has no configuration, or the source has none, nothing is known.
        source: The base.
        label: How messages call the fine-tune.

    Raises:
        DataError: names the settings, and both values.
    """
    config: Any = getattr(source, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        return
    theirs = _settings_in(tuned, config) if isinstance(tuned, Path) else _settings_of(getattr(tuned, "config", None))
    ours = _settings_of(config)
    rotations = f"{[each.get(key) for each in (ours, theirs) for key in ('rope_parameters', 'rope_scaling')]}"
    differences = [
        f"{name} is {value!r} and {own!r}"
        for name, value, own in _differences(theirs, ours)
        if name != _LENGTH or any(kind in rotations for kind in _BY_LENGTH)
    ]
    if differences:
        raise DataError(
            f"{label[:1].upper()}{label[1:]} and the source say that they compute differently: "
            f"{list_names(differences)}. Transport carries weights only, so that the tuned network has to be the "
            "source with other weights; give the source that it was trained from, with the same settings."
        )


def _settings_in(folder: Path, config: Any) -> dict[str, Any]:
    """What the configuration in a folder says, with the defaults of the source's own kind; empty if there is none."""
    if not (folder / CONFIGURATION).is_file():
        return {}
    document = read_json(folder / CONFIGURATION)
    if document.get("model_type", config.model_type) != config.model_type:
        return document
    try:
        return _settings_of(type(config).from_dict(copy.deepcopy(document)))
    except Exception:  # transformers raises whatever it likes for values that it does not know
        return document


def _settings_of(config: Any) -> dict[str, Any]:
    return dict(config.to_dict()) if callable(getattr(config, "to_dict", None)) else {}


def _differences(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Settings that differ, with both values. What is only in one of two whole configurations is no setting of both."""
    whole = not above or "model_type" in ours
    for name in ours if whole else dict.fromkeys([*ours, *theirs]):
        if _HARMLESS.fullmatch(str(name)) or (whole and name not in theirs):
            continue
        value, own = theirs.get(name), ours.get(name)
        if isinstance(value, Mapping) and isinstance(own, Mapping):
            yield from _differences(value, own, f"{above}{name}.")
        elif _plain(value) != _plain(own):
            yield f"{above}{name}", value, own


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
