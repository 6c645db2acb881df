"""Carry what one trained neural network knows into another. Public names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin._version import __version__

if TYPE_CHECKING:
    from interbasin import (
        activations,
        batch_norm,
        checkpoints,
        datasets,
        errors,
        evaluate,
        fit,
        jobs,
        maps,
        models,
        outcome,
        statistics,
        vectors,
        wiring,
    )
    from interbasin.activations import record
    from interbasin.correspondence import Correspondence
    from interbasin.errors import InterbasinError
    from interbasin.jobs.adapt import Source, adapt
    from interbasin.jobs.comparison import compare_networks
    from interbasin.jobs.merge import merge
    from interbasin.jobs.rebasin import rebasin, rebasin_many
    from interbasin.jobs.translate import RelativeDecoder, RelativeEncoder, Translator, compose, stitch
    from interbasin.jobs.translate.audit import audit
    from interbasin.jobs.translate.bridge import bridge
    from interbasin.jobs.translate.doctor import doctor
    from interbasin.jobs.transport import carry_probe, carry_vector, finetune, prepare_transport, transport
    from interbasin.paths import interpolate
    from interbasin.statistics import LayerwiseMoments, PairedMoments
    from interbasin.wiring import Alignment, Wiring, carry, wire
    from interbasin.wiring.folding import fold_norms

__all__ = [
    "Alignment",
    "Correspondence",
    "InterbasinError",
    "LayerwiseMoments",
    "PairedMoments",
    "RelativeDecoder",
    "RelativeEncoder",
    "Source",
    "Translator",
    "Wiring",
    "__version__",
    "activations",
    "adapt",
    "audit",
    "batch_norm",
    "bridge",
    "carry",
    "carry_probe",
    "carry_vector",
    "checkpoints",
    "compare_networks",
    "compose",
    "datasets",
    "doctor",
    "errors",
    "evaluate",
    "finetune",
    "fit",
    "fold_norms",
    "interpolate",
    "jobs",
    "maps",
    "merge",
    "models",
    "outcome",
    "prepare_transport",
    "rebasin",
    "rebasin_many",
    "record",
    "statistics",
    "stitch",
    "transport",
    "vectors",
    "wire",
    "wiring",
]

_FOLDERS = (
    "activations",
    "batch_norm",
    "checkpoints",
    "datasets",
    "errors",
    "evaluate",
    "fit",
    "jobs",
    "maps",
    "models",
    "outcome",
    "statistics",
    "vectors",
    "wiring",
)
_HOMES = {
    "Correspondence": "interbasin.correspondence",
    "Alignment": "interbasin.wiring",
    "InterbasinError": "interbasin.errors",
    "LayerwiseMoments": "interbasin.statistics",
    "PairedMoments": "interbasin.statistics",
    "RelativeDecoder": "interbasin.jobs.translate",
    "RelativeEncoder": "interbasin.jobs.translate",
    "Source": "interbasin.jobs.adapt",
    "Translator": "interbasin.jobs.translate",
    "Wiring": "interbasin.wiring",
    "adapt": "interbasin.jobs.adapt",
    "audit": "interbasin.jobs.translate.audit",
    "bridge": "interbasin.jobs.translate.bridge",
    "carry": "interbasin.wiring",
    "carry_probe": "interbasin.jobs.transport",
    "carry_vector": "interbasin.jobs.transport",
    "compare_networks": "interbasin.jobs.comparison",
    "compose": "interbasin.jobs.translate",
    "doctor": "interbasin.jobs.translate.doctor",
    "finetune": "interbasin.jobs.transport",
    "fold_norms": "interbasin.wiring.folding",
    "interpolate": "interbasin.paths",
    "merge": "interbasin.jobs.merge",
    "prepare_transport": "interbasin.jobs.transport",
    "rebasin": "interbasin.jobs.rebasin",
    "rebasin_many": "interbasin.jobs.rebasin",
    "record": "interbasin.activations",
    "stitch": "interbasin.jobs.translate",
    "transport": "interbasin.jobs.transport",
    "wire": "interbasin.wiring",
}

# torch takes a second to import: it is not paid for before something needs it.
__getattr__, __dir__ = lazy_names(__name__, _FOLDERS, _HOMES, unlisted=("data", "networks"))
