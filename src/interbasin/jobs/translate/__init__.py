"""Embeddings between encoders: translated, stitched, and carried through whole stores of vectors.

The functions `audit`, `bridge` and `doctor` live in the modules of those names.
"""

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names

if TYPE_CHECKING:
    from interbasin.jobs.translate.apply import translate_vectors
    from interbasin.jobs.translate.audit import Audit, pool_rows
    from interbasin.jobs.translate.bridge import Bridge
    from interbasin.jobs.translate.doctor import Checkup, Finding
    from interbasin.jobs.translate.evaluate import HeldOut, evaluate_translation
    from interbasin.jobs.translate.fit import FittedMaps, fit_translation
    from interbasin.jobs.translate.relative import RelativeDecoder, RelativeEncoder
    from interbasin.jobs.translate.stitching import stitch
    from interbasin.jobs.translate.thresholds import match_threshold, recalibrate
    from interbasin.jobs.translate.translator import Card, Translator, compose

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

_MODULES = {
    "apply": ("translate_vectors",),
    "audit": ("Audit", "pool_rows"),
    "bridge": ("Bridge",),
    "doctor": ("Checkup", "Finding"),
    "evaluate": ("HeldOut", "evaluate_translation"),
    "fit": ("FittedMaps", "fit_translation"),
    "relative": ("RelativeDecoder", "RelativeEncoder"),
    "stitching": ("stitch",),
    "thresholds": ("match_threshold", "recalibrate"),
    "translator": ("Card", "Translator", "compose"),
}

# Each is imported when it is first used: scikit-learn takes a second, and not every command needs it.
__getattr__, __dir__ = lazy_names(
    __name__, (), {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)
