"""What a DATA means: a string becomes batches that can be iterated over as often as needed.

``opening`` finds the format, one file per format reads it (``arrays``, ``tables``, ``texts``, ``images``, ``idx``),
``shaping`` turns what was read into what a network takes, and ``base`` says what comes out. ``digits`` is the embedded
data set. Importing this package stays light: scikit-learn and pyarrow are loaded by the functions that need them.
"""

from interbasin.datasets.base import Batches
from interbasin.datasets.digits import Digits, load_digits
from interbasin.datasets.opening import open_data, splits_of

__all__ = ["Batches", "Digits", "load_digits", "open_data", "splits_of"]
