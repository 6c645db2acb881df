"""Recording: the activations of chosen spaces, streamed into statistics while the networks run."""

from interbasin.activations.places import standing
from interbasin.activations.record import record
from interbasin.activations.recording import Recording
from interbasin.activations.tokens import Tokens

__all__ = ["Recording", "Tokens", "record", "standing"]
