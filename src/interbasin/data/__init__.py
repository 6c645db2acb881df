"""The embedded data set, and readers for local files.

Importing this package stays light: scikit-learn and pyarrow are loaded by the functions that need them.
"""

from typing import TYPE_CHECKING, Any

from interbasin.data.batches import Batches, open_data, splits_of
from interbasin.data.digits import Digits, load_digits
from interbasin.data.streaming import moments_of_files
from interbasin.data.vectors import Vectors, default_rows_per_batch, open_vectors, paired_batches

if TYPE_CHECKING:
    from interbasin.data.vectors.stores import translate_vectors

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
    "translate_vectors",
]


def __getattr__(name: str) -> Any:
    # A job of its own, which nobody waits for who only reads.
    if name == "translate_vectors":
        from interbasin.data.vectors.stores import translate_vectors

        return translate_vectors
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
