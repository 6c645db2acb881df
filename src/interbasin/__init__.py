"""Carry what one trained neural network knows into another. Public names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from interbasin._version import __version__

if TYPE_CHECKING:
    from interbasin import data, errors, fit, maps, statistics
    from interbasin.errors import InterbasinError
    from interbasin.statistics import LayerwiseMoments, PairedMoments

__all__ = [
    "InterbasinError",
    "LayerwiseMoments",
    "PairedMoments",
    "__version__",
    "data",
    "errors",
    "fit",
    "maps",
    "statistics",
]

_FOLDERS = ("data", "errors", "fit", "maps", "statistics")
_HOMES = {
    "InterbasinError": "interbasin.errors",
    "LayerwiseMoments": "interbasin.statistics",
    "PairedMoments": "interbasin.statistics",
}


def __getattr__(name: str) -> Any:
    # torch takes a second to import: it is not paid for before something needs it.
    if name in _FOLDERS:
        return importlib.import_module(f"interbasin.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'interbasin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
