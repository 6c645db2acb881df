"""Folding: the gains of norms moved into what reads them, so that the residual stream can be turned freely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names

if TYPE_CHECKING:
    from interbasin.networks.folding.files import save_folded
    from interbasin.networks.folding.fold import fold_norms
    from interbasin.networks.folding.folding import Folding, folding_of

__all__ = ["Folding", "fold_norms", "folding_of", "save_folded"]

_HOMES = {"Folding": "folding", "fold_norms": "fold", "folding_of": "folding", "save_folded": "files"}

# A folded network is loaded without what traces networks.
__getattr__, __dir__ = lazy_names(__name__, (), {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
