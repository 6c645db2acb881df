"""Sequential regression: the target's layers, one after the other, fitted to what the tuned source does.

``layers``, ``tables`` and ``streams`` find what can be fitted, ``goals`` what each part aims at; ``sequence`` fits
them in the order of the data, on rows from ``feeds``, each by ``ridge``.
"""

from interbasin.jobs.transport.regression.sequence import Recipe, Regressed, regress

__all__ = ["Recipe", "Regressed", "regress"]
