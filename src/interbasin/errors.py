"""The exception tree. Every message says what was asked, what was found and what to try.

InterbasinError
├── ShapeError         (ValueError)   widths, ranks or row counts that do not fit together
├── DataError          (ValueError)   values that cannot be used: NaN, infinity, nothing at all, the wrong dtype
│   └── DivergedError                 a training whose loss is no longer finite
├── MapError           (ValueError)   a matrix or an index that is not the kind of map it was said to be
├── FitError           (ValueError)   a fit that cannot be made, or that the caller asked to have converged
├── WiringError        (ValueError)   a network that cannot be traced, wired, carried or recorded as asked
├── UnknownNameError   (LookupError)  a name that is not registered; lists the nearest known ones
├── FileError          (OSError)      a file that is missing, in the way, truncated or not what its name says
│   ├── CheckpointError               the same of a network's weights; names the file and the tensor
│   └── StoreError                    the same of a table in a vector store, or its server; never with a password
└── MissingExtraError  (ImportError)  an optional dependency that is not there or does not import; names the extra

The command line prints the message alone and exits with code 1; anything outside this tree is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from interbasin.text import redact

__all__ = [
    "CheckpointError",
    "DataError",
    "DivergedError",
    "FileError",
    "FitError",
    "InterbasinError",
    "MapError",
    "MissingExtraError",
    "ShapeError",
    "StoreError",
    "UnknownNameError",
    "WiringError",
]

# So many known names are all listed; of more, the nearest ones.
ALL, NEAREST = 12, 5


class InterbasinError(Exception):
    """What every error of this package is. No message repeats a password, whichever address it quotes."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact(one) if isinstance(one, str) else one for one in arguments))


class ShapeError(InterbasinError, ValueError):
    """Widths, ranks or row counts do not fit together."""


class DataError(InterbasinError, ValueError):
    """Values cannot be used: not finite, empty, or of a dtype that has no arithmetic here."""


class DivergedError(DataError):
    """The loss of a training is no longer finite."""


class MapError(InterbasinError, ValueError):
    """A matrix or an index is not the kind of map it was said to be."""


class FitError(InterbasinError, ValueError):
    """A fit cannot be made, or did not converge although the caller required it."""


class WiringError(InterbasinError, ValueError):
    """A network cannot be traced, wired, carried or recorded as asked."""


class UnknownNameError(InterbasinError, LookupError):
    """A name is not registered."""

    @classmethod
    def of(cls, kind: str, asked: object, known: Iterable[str]) -> UnknownNameError:
        """The error for ``asked``, with the known names sorted by likeness to it; of many, the nearest."""
        names = sorted(known)
        likeness = {name: difflib.SequenceMatcher(None, str(asked).lower(), name.lower()).ratio() for name in names}
        nearest = sorted(names, key=lambda name: -likeness[name])
        shown = nearest if len(nearest) <= ALL else nearest[:NEAREST]
        more = f" (and {len(nearest) - len(shown)} more)" if len(nearest) > len(shown) else ""
        told = ", ".join(shown) or "(none registered)"
        return cls(f"There is no {kind} named {asked!r}; try one of: {told}{more}.")


class FileError(InterbasinError, OSError):
    """A file is missing, in the way, truncated, or not what its name says."""

    # OSError shows its arguments as "[Errno ...]" when there are two; we always give one sentence.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CheckpointError(FileError):
    """A network's weights are missing, damaged, quantised, or not what their index says."""


class StoreError(FileError):
    """A table of a vector store is missing, in the way or not what it should be, or its server went away."""


class MissingExtraError(InterbasinError, ImportError):
    """An optional dependency is not installed, or cannot be imported. Raised by `interbasin.extras.import_extra`."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtraError:
        return cls(f"{what} needs the {extra!r} extra, which is not installed; run: pip install 'interbasin[{extra}]'.")
