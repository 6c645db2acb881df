"""What a DATA means: a string becomes batches that can be iterated over as often as needed.

``opening`` finds the format, and one file per kind of format reads it: ``arrays``, ``images``, ``texts``, ``tables``,
``text_tables``, ``fields`` (PDEBench) and ``nas_bench`` (NAS-Bench-360). ``base`` says what comes out and turns it into
what a network takes, ``pairs`` reads all of it into tensors. ``digits`` is the embedded data set; ``generated`` writes
data that are made, from ``equations`` or with ``planted`` gaps. ``labels`` says which documents are right for which
query. Importing this package stays light: scikit-learn, pyarrow and h5py are loaded by the functions that need them.
"""

from interbasin.datasets.base import Batches
from interbasin.datasets.digits import Digits, load_digits
from interbasin.datasets.opening import open_data, splits_of
from interbasin.datasets.pairs import read_pairs

__all__ = ["Batches", "Digits", "load_digits", "open_data", "read_pairs", "splits_of"]
