"""Quantised checkpoints are refused by name: their numbers are codes, on which no map can act."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from interbasin.errors import CheckpointError

__all__ = ["refuse_quantised_configuration", "refuse_quantised_file", "refuse_quantised_names"]

PRETTY = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "hqq": "HQQ", "fp8": "FP8", "quanto": "quanto"}

# GGUF, and the three formats that came before it (their magic numbers are stored with the low byte first).
GGUF = (b"GGUF", b"lmgg", b"tjgg", b"algg")

# Ends of names -> the method whose tensors are called so; the first that fits is named.
NAMES = {
    "GPTQ": r"\.g_idx$",
    "AWQ": r"\.qzeros$",
    "bitsandbytes": r"\.(SCB|weight_format|absmax|quant_map|nested_absmax|nested_quant_map)$|\.quant_state\.",
    "HQQ": r"\.W_q$",
    "compressed-tensors": r"\.weight_packed$",
    "FP8": r"\.weight_scale_inv$",
}

ADVICE = (
    "give the network that it was made from, or dequantise it: load it with transformers, call model.dequantize() and "
    "save_pretrained"
)


def refuse_quantised_configuration(path: Path, configuration: Mapping[str, Any]) -> None:
    """Refuse a ``config.json`` that tells of quantised weights.

    Raises:
        CheckpointError: If it does; names the method.
    """
    settings = configuration.get("quantization_config")
    if settings is None:
        return
    settings = settings if isinstance(settings, dict) else {}
    method = str(settings.get("quant_method") or "")
    if not method and any(key.startswith(("load_in_", "_load_in_", "bnb_")) for key in settings):
        method = "bitsandbytes"
    named = PRETTY.get(method.lower(), method) or "a method it does not name"
    raise CheckpointError(
        f"{path} says that the weights are quantised with {named}, which cannot be carried; {ADVICE}."
    )


def refuse_quantised_names(path: Path, names: Iterable[str]) -> None:
    """Refuse tensors whose names only a quantised network has.

    Raises:
        CheckpointError: If there are any; names the method and a tensor.
    """
    names = list(names)
    for method, pattern in NAMES.items():
        found = next((name for name in names if re.search(pattern, name)), None)
        # GPTQ and AWQ call the codes themselves qweight; without them the other names could be anyone's.
        if found and (method not in ("GPTQ", "AWQ") or any(name.endswith(".qweight") for name in names)):
            raise CheckpointError(
                f"{path} is quantised with {method} (it holds {found}), which cannot be carried; {ADVICE}."
            )


def refuse_quantised_file(path: Path, head: bytes) -> None:
    """Refuse a file that begins like one of llama.cpp's.

    Raises:
        CheckpointError: If it does.
    """
    if head.startswith(GGUF):
        raise CheckpointError(
            f"{path} is a GGUF file of llama.cpp, whose weights are quantised or laid out for it alone; give the "
            "network it was made from, or load it with transformers (from_pretrained(folder, gguf_file=name)) and save."
        )
