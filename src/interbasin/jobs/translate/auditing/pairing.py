"""Whether pairs are pairs: rows in another order fit no map, and an audit of them would blame the models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from interbasin.errors import FitError
from interbasin.jobs.translate.auditing.material import Material
from interbasin.jobs.translate.auditing.unseen import Unseen
from interbasin.jobs.translate.translator import Translator
from interbasin.text import plural

__all__ = ["doubt_of_pairs"]

FEWEST, MOST = 20, 1000  # pairs that are held out: of fewer nothing is told, and more tell nothing new
DEVIATIONS = 3.0  # of the mean rank of random partners: what pairs have to be better by


def doubt_of_pairs(material: Material, method: Translator, fitted: Unseen) -> str | None:
    """A warning where translations of pairs that were held out are no nearer to their partners than to others.

    Args:
        material: What there is.
        method: What translates.
        fitted: The same, with the maps that were fitted without some pairs, if there are any.
    """
    held = fitted.parts == 0
    rows = np.flatnonzero(held)[:MOST]
    if len(rows) < FEWEST:
        return None
    try:
        translator = (
            fitted.others[0]
            if fitted.others
            else clone(method).fit(material.old_pairs[~held], material.new_pairs[~held])
        )
    except FitError:  # too few for this method; nothing is told then
        return None
    found, wanted = (
        _directions(one) for one in (translator.transform(material.old_pairs[rows]), material.new_pairs[rows])
    )
    cosines = found @ wanted.T
    own = np.diag(cosines)
    # Ties count half, so that translations that are all alike are taken for chance.
    nearer = (cosines > own[:, None]).sum(1) + ((cosines == own[:, None]).sum(1) - 1) / 2
    share = float(nearer.mean()) / (len(rows) - 1)
    if share < 0.5 - DEVIATIONS / np.sqrt(12 * len(rows)):
        return None
    hits = int((nearer < 1).sum())
    return (
        f"The pairs do not look like pairs: of {plural(len(rows), 'pair')} that the map did not see, translations "
        f"find the right partner of {hits:,} (chance finds 1), with a mean cosine of {own.mean():.2f} to partners and "
        f"{cosines.mean():.2f} to all; are rows in the same order?"
    )


def _directions(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = np.asarray(rows, dtype=np.float64)
    norms: NDArray[np.float64] = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.maximum(norms, 1e-300)
