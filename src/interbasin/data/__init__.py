"""The embedded data set, and readers for local files.

Importing this package stays light: scikit-learn and pyarrow are loaded by the functions that need them.
"""

from interbasin.data.batches import Batches, open_data, splits_of
from interbasin.data.digits import Digits, load_digits
from interbasin.data.streaming import moments_of_files
from interbasin.data.vectors import Vectors, default_rows_per_batch, open_vectors, paired_batches

__all__ = [
    "Batches",
    "Digits",
    "Vectors",
    "default_rows_per_batch",
    "load_digits",
    "moments_of_files",
    "open_data",
    "open_vectors",
    "paired_batches",
    "splits_of",
]
