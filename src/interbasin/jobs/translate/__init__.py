"""Embeddings between encoders: translated, stitched, and carried through whole stores of vectors.

The functions `audit`, `bridge` and `doctor` live in the folders of those names.
"""

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names

if TYPE_CHECKING:
    from interbasin.jobs.translate.apply import translate_vectors
    from interbasin.jobs.translate.audit import Audit, pool_rows
    from interbasin.jobs.translate.bridge import Bridge, match_threshold, recalibrate
    from interbasin.jobs.translate.cards import Card
    from interbasin.jobs.translate.doctor import Checkup, Finding
    from interbasin.jobs.translate.evaluate import HeldOut, evaluate_translation
    from interbasin.jobs.translate.fit import FittedMaps, fit_translation
    from interbasin.jobs.translate.relative import RelativeDecoder, RelativeEncoder
    from interbasin.jobs.translate.stitching import stitch
    from interbasin.jobs.translate.translator import Translator, compose

__all__ = [
    "Audit",
    "Bridge",
    "Card",
    "Checkup",
    "Finding",
    "FittedMaps",
    "HeldOut",
    "RelativeDecoder",
    "RelativeEncoder",
    "Translator",
    "compose",
    "evaluate_translation",
    "fit_translation",
    "match_threshold",
    "pool_rows",
    "recalibrate",
    "stitch",
    "translate_vectors",
]

_HOMES = {
    "Audit": "interbasin.jobs.translate.audit",
    "Bridge": "interbasin.jobs.translate.bridge",
    "Card": "interbasin.jobs.translate.cards",
    "Checkup": "interbasin.jobs.translate.doctor",
    "Finding": "interbasin.jobs.translate.doctor",
    "FittedMaps": "interbasin.jobs.translate.fit",
    "HeldOut": "interbasin.jobs.translate.evaluate",
    "RelativeDecoder": "interbasin.jobs.translate.relative",
    "RelativeEncoder": "interbasin.jobs.translate.relative",
    "Translator": "interbasin.jobs.translate.translator",
    "compose": "interbasin.jobs.translate.translator",
    "evaluate_translation": "interbasin.jobs.translate.evaluate",
    "fit_translation": "interbasin.jobs.translate.fit",
    "match_threshold": "interbasin.jobs.translate.bridge",
    "pool_rows": "interbasin.jobs.translate.audit",
    "recalibrate": "interbasin.jobs.translate.bridge",
    "stitch": "interbasin.jobs.translate.stitching",
    "translate_vectors": "interbasin.jobs.translate.apply",
}

# Applying a translation to a store needs no torch, which takes seconds to import in every worker of a cluster.
__getattr__, __dir__ = lazy_names(__name__, (), _HOMES)
