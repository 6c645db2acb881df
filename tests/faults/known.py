"""Violations that are known and not yet mended; an entry whose example no longer occurs fails, and is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.faults.layer import Fault
from tests.faults.trials import Violation


@dataclass(frozen=True)
class Example:
    """A trial in which it occurs."""

    case: str
    over: bool
    fault: Fault
    call: str  # with * for any part
    place: int = 0  # among the calls like this


@dataclass(frozen=True)
class Known:
    """One cause of violations.

    Attributes:
        kinds: Of `tests.faults.trials.KINDS`.
        why: What is wrong.
        example: A trial in which it occurs.
        cases: In which cases it does, with * for any part of a name.
        faults: With which faults.
        calls: At which calls, with * for any part.
    """

    kinds: Sequence[str]
    why: str
    example: Example
    cases: Sequence[str] = ("*",)
    faults: Sequence[Fault] = tuple(Fault)
    calls: Sequence[str] = ("*",)

    def is_cause_of(self, violation: Violation) -> bool:
        return (
            violation.kind in self.kinds
            and any(fnmatchcase(violation.case, pattern) for pattern in self.cases)
            and Fault[violation.fault] in self.faults
            and any(fnmatchcase(violation.call, pattern) for pattern in self.calls)
        )


KNOWN: tuple[Known, ...] = ()


def cause_of(violation: Violation) -> Known | None:
    """What is known to cause it."""
    return next((known for known in KNOWN if known.is_cause_of(violation)), None)


def unknown(violations: Sequence[Violation]) -> list[Violation]:
    """Those that no known cause explains."""
    return [one for one in violations if cause_of(one) is None]
