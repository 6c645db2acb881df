"""Embeddings between encoders: translated, stitched, and carried through whole stores of vectors."""

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names

if TYPE_CHECKING:
    from interbasin.jobs.translate.apply import translate_vectors
    from interbasin.jobs.translate.auditing import Audit, audit, pool_rows
    from interbasin.jobs.translate.bridging import Bridge, bridge, match_threshold, recalibrate
    from interbasin.jobs.translate.cards import Card
    from interbasin.jobs.translate.doctoring import Checkup, Finding, doctor
    from interbasin.jobs.translate.evaluating import HeldOut, evaluate_translation
    from interbasin.jobs.translate.fitting import FittedMaps, fit_translation
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
    "audit",
    "bridge",
    "compose",
    "doctor",
    "evaluate_translation",
    "fit_translation",
    "match_threshold",
    "pool_rows",
    "recalibrate",
    "stitch",
    "translate_vectors",
]

_HOMES = {
    "Audit": "interbasin.jobs.translate.auditing",
    "Bridge": "interbasin.jobs.translate.bridging",
    "Card": "interbasin.jobs.translate.cards",
    "Checkup": "interbasin.jobs.translate.doctoring",
    "Finding": "interbasin.jobs.translate.doctoring",
    "FittedMaps": "interbasin.jobs.translate.fitting",
    "HeldOut": "interbasin.jobs.translate.evaluating",
    "RelativeDecoder": "interbasin.jobs.translate.relative",
    "RelativeEncoder": "interbasin.jobs.translate.relative",
    "Translator": "interbasin.jobs.translate.translator",
    "audit": "interbasin.jobs.translate.auditing",
    "bridge": "interbasin.jobs.translate.bridging",
    "compose": "interbasin.jobs.translate.translator",
    "doctor": "interbasin.jobs.translate.doctoring",
    "evaluate_translation": "interbasin.jobs.translate.evaluating",
    "fit_translation": "interbasin.jobs.translate.fitting",
    "match_threshold": "interbasin.jobs.translate.bridging",
    "pool_rows": "interbasin.jobs.translate.auditing",
    "recalibrate": "interbasin.jobs.translate.bridging",
    "stitch": "interbasin.jobs.translate.stitching",
    "translate_vectors": "interbasin.jobs.translate.apply",
}

# Applying a translation to a store needs no torch, which takes seconds to import in every worker of a cluster.
__getattr__, __dir__ = lazy_names(__name__, (), _HOMES)
