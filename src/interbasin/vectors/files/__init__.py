"""Matrices of row vectors in files that may be larger than memory, read and written a batch at a time.

``base`` says what such a matrix is and words what can be wrong with a file, ``opening`` finds the format and reads two
matrices in step. One file per format reads and writes it (``npy``, ``npz``, ``parquet`` with ``parquet_writer``), and
``tables`` knows Arrow's tables.
"""

from interbasin.vectors.files.base import Batch, Reader, Vectors
from interbasin.vectors.files.opening import default_rows_per_batch, open_vectors, paired_batches

__all__ = ["Batch", "Reader", "Vectors", "default_rows_per_batch", "open_vectors", "paired_batches"]
