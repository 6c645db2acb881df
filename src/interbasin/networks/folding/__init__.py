"""Folding: the gains of norms moved into what reads them, so that the residual stream can be turned freely."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interbasin.networks.folding.files import save_folded
    from interbasin.networks.folding.fold import fold_norms
    from interbasin.networks.folding.folding import Folding, folding_of

__all__ = ["Folding", "fold_norms", "folding_of", "save_folded"]

_HOMES = {"Folding": "folding", "fold_norms": "fold", "folding_of": "folding", "save_folded": "files"}


def __getattr__(name: str) -> Any:
    # A folded network is loaded without what traces networks.
    if name in _HOMES:
        value = getattr(importlib.import_module(f"interbasin.networks.folding.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'interbasin.networks.folding' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
