"""Fine-tune a pre-trained model on a modality that it has never seen, and say whether pre-training helps at all."""

from interbasin.jobs.adapt.source import Fittings, Source

__all__ = ["Fittings", "Source"]
