"""Which space and which tensor of one network belongs to which of another, for networks of different architectures."""

from interbasin.correspondence.correspondence import Correspondence
from interbasin.correspondence.pairs import Segment, SpacePair, TensorPair, Unmatched

__all__ = ["Correspondence", "Segment", "SpacePair", "TensorPair", "Unmatched"]
