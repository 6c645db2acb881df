"""Folding: the gains of norms moved into what reads them, so that the residual stream can be turned freely."""

from interbasin.networks.folding.fold import fold_norms

__all__ = ["fold_norms"]
