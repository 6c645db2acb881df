"""Rows of vectors in and out: ``files`` (npy, npz, parquet) and ``stores`` (Lance, FAISS, PostgreSQL and files again).

Importing this package stays light: pyarrow and the libraries of stores are loaded by the functions that need them.
"""

from interbasin.vectors.files import Batch, Reader, Vectors, default_rows_per_batch, open_vectors, paired_batches
from interbasin.vectors.moments import moments_of_files

__all__ = [
    "Batch",
    "Reader",
    "Vectors",
    "default_rows_per_batch",
    "moments_of_files",
    "open_vectors",
    "paired_batches",
]
