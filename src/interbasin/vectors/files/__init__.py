"""Matrices of row vectors in files that may be larger than memory, read a batch at a time.

``base`` says what such a matrix is, ``opening`` finds the format, one file a format reads it
(``npy``, ``npz``, ``parquet``), ``pairs`` reads two matrices in step, ``faults`` words what can be wrong with a file.
"""

from interbasin.vectors.files.base import Batch, Reader, Vectors
from interbasin.vectors.files.opening import default_rows_per_batch, open_vectors, paired_batches

__all__ = ["Batch", "Reader", "Vectors", "default_rows_per_batch", "open_vectors", "paired_batches"]
