"""Folding: the gains of norms moved into what reads them, so that the residual stream can be turned freely."""

from interbasin.models.folding import Folding, folding_of
from interbasin.wiring.folding.fold import fold_norms, save_folded

__all__ = ["Folding", "fold_norms", "folding_of", "save_folded"]
