"""The folder that a job leaves: ``outcome.json`` (the request, versions, hashes of the inputs, metrics, timings), what
the job made, and plots. It is filled under a temporary name and renamed: it is there whole, or not at all.
"""

from interbasin.outcome.hashes import Digest, InputFiles
from interbasin.outcome.outcome import Artefact, Outcome
from interbasin.outcome.result import Result, Stages, Stopwatch
from interbasin.outcome.writing import Draft, new_outcome, refuse_outcome_in_the_way

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
