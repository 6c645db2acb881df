"""What a DATA on the command line means: a string becomes batches that can be iterated over as often as needed.

``opening`` finds the format, one file a format reads it (``arrays``, ``tables``, ``texts``, ``images``), ``shaping``
makes of what was read what a network takes, and ``base`` says what comes out.
"""

from interbasin.data.batches.base import Batches
from interbasin.data.batches.opening import open_data, splits_of

__all__ = ["Batches", "open_data", "splits_of"]
