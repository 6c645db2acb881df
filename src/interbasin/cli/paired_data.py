"""DATA that two networks are given alike: read for the first, with tokens that mean the same in both."""

from __future__ import annotations

import os
from typing import Any

from interbasin.cli.options import DataReader, InputOptions


def read_for_both(
    text: str, limit: int, input_options: InputOptions, source: str, target: str, like: Any, seed: int
) -> Any:
    """Batches of one DATA, which both networks can take."""
    reader = open_for_both(text, input_options, source, target, like, seed)
    batches = reader.read(reader.part_if_any("train"), limit)
    require_tokens_of_both(batches, source, target)
    return batches


def open_for_both(text: str, input_options: InputOptions, source: str, target: str, like: Any, seed: int) -> DataReader:
    has_own = tokenizer_of(source) is not None or tokenizer_of(target) is None
    return input_options.open(text, model=source if has_own else target, like=like, seed=seed)


def require_tokens_of_both(batches: Any, source: str, target: str) -> None:
    from interbasin.datasets.texts import TextSamples, require_same_tokens

    if isinstance(batches.samples, TextSamples):
        require_same_tokens([folder for folder in (tokenizer_of(source), tokenizer_of(target)) if folder is not None])


def tokenizer_of(model: str) -> str | None:
    """The folder of a network of transformers, if it holds a tokenizer."""
    from interbasin.models import parse_model
    from interbasin.models.from_transformers import snapshot

    name = parse_model(model)
    if name.kind not in ("folder", "hub"):
        return None
    folder = name.name if name.kind == "folder" else str(snapshot(name.name))
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
    return folder if any(os.path.exists(os.path.join(folder, file)) for file in files) else None
