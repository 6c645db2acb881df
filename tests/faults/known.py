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
    call: str  # the first one that is like this, with * for any part


@dataclass(frozen=True)
class Known:
    """One cause of violations.

    Attributes:
        kind: Of `tests.faults.trials.KINDS`.
        why: What is wrong.
        example: A trial in which it occurs.
        cases: In which cases it does, with * for any part of a name.
        faults: With which faults.
        calls: At which calls, with * for any part.
    """

    kind: str
    why: str
    example: Example
    cases: Sequence[str] = ("*",)
    faults: Sequence[Fault] = tuple(Fault)
    calls: Sequence[str] = ("*",)

    def is_cause_of(self, violation: Violation) -> bool:
        return (
            violation.kind == self.kind
            and any(fnmatchcase(violation.case, pattern) for pattern in self.cases)
            and Fault[violation.fault] in self.faults
            and any(fnmatchcase(violation.call, pattern) for pattern in self.calls)
        )


KILLS = (Fault.KILL_BEFORE, Fault.KILL_AFTER)
KNOWN: tuple[Known, ...] = (
    Known(
        "litter",
        "a temporary folder of new_folder and new_file is not claimed, and nothing sweeps it after a kill",
        Example("fit", False, Fault.KILL_BEFORE, "open64 .interbasin-*/map.json"),
        faults=KILLS,
    ),
)


def unknown(violations: Sequence[Violation]) -> list[Violation]:
    """Those that no known cause explains."""
    return [one for one in violations if not any(known.is_cause_of(one) for known in KNOWN)]
