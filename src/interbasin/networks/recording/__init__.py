"""Recording: the activations of chosen spaces, streamed into statistics while the networks run."""

from interbasin.networks.recording.choose import standing
from interbasin.networks.recording.record import record
from interbasin.networks.recording.recording import Recording
from interbasin.networks.recording.tokens import Tokens

__all__ = ["Recording", "Tokens", "record", "standing"]
