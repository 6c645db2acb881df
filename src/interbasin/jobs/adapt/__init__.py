"""Fine-tune a pre-trained model on a modality that it has never seen, and say whether pre-training helps at all."""

from interbasin.jobs.adapt.job import adapt
from interbasin.jobs.adapt.methods import METHODS
from interbasin.jobs.adapt.result import Adaptation, AdaptedRow
from interbasin.jobs.adapt.settings import PRESETS, Settings
from interbasin.jobs.adapt.source import Fittings, Source
from interbasin.jobs.adapt.verdict import Verdict

__all__ = ["METHODS", "PRESETS", "Adaptation", "AdaptedRow", "Fittings", "Settings", "Source", "Verdict", "adapt"]
