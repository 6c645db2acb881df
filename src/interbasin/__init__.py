"""Carry what one trained neural network knows into another. Public names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin._version import __version__

if TYPE_CHECKING:
    from interbasin import data, errors, evaluate, fit, maps, networks, outcome, statistics
    from interbasin.correspondence import Correspondence
    from interbasin.errors import InterbasinError
    from interbasin.jobs.merge import merge
    from interbasin.jobs.rebasin import rebasin, rebasin_many
    from interbasin.jobs.translate import (
        RelativeDecoder,
        RelativeEncoder,
        Translator,
        audit,
        bridge,
        compose,
        doctor,
        stitch,
    )
    from interbasin.networks.folding import fold_norms
    from interbasin.networks.paths import interpolate
    from interbasin.networks.recording import record
    from interbasin.networks.wiring import Alignment, Wiring, carry, wire
    from interbasin.statistics import LayerwiseMoments, PairedMoments

__all__ = [
    "Alignment",
    "Correspondence",
    "InterbasinError",
    "LayerwiseMoments",
    "PairedMoments",
    "RelativeDecoder",
    "RelativeEncoder",
    "Translator",
    "Wiring",
    "__version__",
    "audit",
    "bridge",
    "carry",
    "compose",
    "data",
    "doctor",
    "errors",
    "evaluate",
    "fit",
    "fold_norms",
    "interpolate",
    "maps",
    "merge",
    "networks",
    "outcome",
    "rebasin",
    "rebasin_many",
    "record",
    "statistics",
    "stitch",
    "wire",
]

_FOLDERS = ("data", "errors", "evaluate", "fit", "maps", "networks", "outcome", "statistics")
_HOMES = {
    "Alignment": "interbasin.networks.wiring",
    "Correspondence": "interbasin.correspondence",
    "InterbasinError": "interbasin.errors",
    "LayerwiseMoments": "interbasin.statistics",
    "PairedMoments": "interbasin.statistics",
    "RelativeDecoder": "interbasin.jobs.translate",
    "RelativeEncoder": "interbasin.jobs.translate",
    "Translator": "interbasin.jobs.translate",
    "Wiring": "interbasin.networks.wiring",
    "audit": "interbasin.jobs.translate",
    "bridge": "interbasin.jobs.translate",
    "carry": "interbasin.networks.wiring",
    "compose": "interbasin.jobs.translate",
    "doctor": "interbasin.jobs.translate",
    "fold_norms": "interbasin.networks.folding",
    "interpolate": "interbasin.networks.paths",
    "merge": "interbasin.jobs.merge",
    "rebasin": "interbasin.jobs.rebasin",
    "rebasin_many": "interbasin.jobs.rebasin",
    "record": "interbasin.networks.recording",
    "stitch": "interbasin.jobs.translate",
    "wire": "interbasin.networks.wiring",
}

# torch takes a second to import: it is not paid for before something needs it.
__getattr__, __dir__ = lazy_names(__name__, _FOLDERS, _HOMES)
