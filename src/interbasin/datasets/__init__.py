"""What a DATA means: a string becomes batches that can be iterated over as often as needed.

``opening`` finds the format and reads tables, one file per other format reads it (``arrays``, ``texts``, ``images``),
and ``base`` says what comes out and turns it into what a network takes. ``digits`` is the embedded data set, ``labels``
says which documents are right for which query. Importing this package stays light: scikit-learn and pyarrow are loaded
by the functions that need them.
"""

from interbasin.datasets.base import Batches
from interbasin.datasets.digits import Digits, load_digits
from interbasin.datasets.opening import open_data, splits_of

__all__ = ["Batches", "Digits", "load_digits", "open_data", "splits_of"]
