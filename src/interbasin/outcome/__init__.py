"""The folder that a job leaves: ``outcome.json`` (the request, versions, hashes of the inputs, metrics, timings), what
the job made, and plots. It is filled under a temporary name and renamed: it is there whole, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin.outcome.hashes import InputFiles
from interbasin.outcome.outcome import Artefact, Outcome
from interbasin.outcome.writing import Draft, Stopwatch, new_outcome, refuse_outcome_in_the_way
from interbasin.storage.digest import Digest

if TYPE_CHECKING:
    from interbasin.outcome.result import Result, Stages

__all__ = [
    "Artefact",
    "Digest",
    "Draft",
    "InputFiles",
    "Outcome",
    "Result",
    "Stages",
    "Stopwatch",
    "new_outcome",
    "refuse_outcome_in_the_way",
]

# A result holds measures, and those take torch, which a merge from disk to disk does without.
__getattr__, __dir__ = lazy_names(__name__, (), dict.fromkeys(("Result", "Stages"), f"{__name__}.result"))
