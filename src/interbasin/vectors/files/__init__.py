"""Matrices of row vectors in files that may be larger than memory, read and written a batch at a time.

``base`` says what such a matrix is, opens one, reads two in step, and words what can be wrong with a file. One file per
format reads and writes it (``npy``, ``npz``, ``parquet`` with ``parquet_writer``); ``tables`` knows Arrow's tables.
"""

from interbasin.vectors.files.base import Batch, Reader, Vectors, default_rows_per_batch, open_vectors, paired_batches

__all__ = ["Batch", "Reader", "Vectors", "default_rows_per_batch", "open_vectors", "paired_batches"]
