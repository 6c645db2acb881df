"""Embeddings between encoders: translated, stitched, and carried through whole stores of vectors."""

from interbasin.jobs.translate.cards import Card
from interbasin.jobs.translate.relative import RelativeDecoder, RelativeEncoder
from interbasin.jobs.translate.stitching import stitch
from interbasin.jobs.translate.translator import Translator, compose

__all__ = ["Card", "RelativeDecoder", "RelativeEncoder", "Translator", "compose", "stitch"]
