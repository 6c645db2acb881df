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


KILLS = (Fault.KILL_BEFORE, Fault.KILL_AFTER)
FAILURES = (Fault.ENOSPC, Fault.EIO, Fault.FULL, Fault.SHORT)
TO_FAISS, TO_LANCE = "translate apply to faiss", "translate apply to lance"
KNOWN: tuple[Known, ...] = (
    Known(
        ("litter",),
        "a temporary folder of new_folder and new_file is not claimed, and nothing sweeps it after a kill",
        Example("fit", False, Fault.KILL_BEFORE, "open64 .interbasin-*/map.json"),
        cases=(
            "fit*",
            "compare",
            "inspect",
            "merge to a file",
            TO_FAISS,
            "data*",
            "save *",
            "write *",
            "record *",
            "train *",
        ),
        faults=KILLS,
    ),
    Known(
        ("litter",),
        "the temporary folder of an outcome is there before it is claimed",
        Example("translate fit", False, Fault.KILL_BEFORE, "open64 .interbasin-*/.claimed-soon"),
        faults=KILLS,
        calls=("mkdir .interbasin-*", "open64 .interbasin-*/.claimed-soon", "rename .interbasin-*/.claimed"),
    ),
    Known(
        ("litter",),
        "an outcome is no longer claimed when it is flushed and renamed, nor the older one when it is removed",
        Example("translate fit", False, Fault.KILL_BEFORE, "rename out"),
        faults=KILLS,
        calls=(
            *("unlink .interbasin-*/.claimed*", "fsync .interbasin-*", "rename out", "renameat2 out"),
            *("unlinkat .interbasin-*", "rmdir .interbasin-*"),
        ),
    ),
    Known(
        ("litter",),
        "killed after the rename, a translation in place leaves its folder, and cannot be run again",
        Example("translate apply in place", False, Fault.KILL_AFTER, "rename old.npy"),
        cases=("translate apply in place",),
        faults=(*KILLS, Fault.ENOSPC, Fault.EIO),
    ),
    Known(
        ("advice",),
        "the folder cannot be flushed after the rename, and the same command is advised, which is refused",
        Example("translate apply to npy", False, Fault.EIO, "fsync ."),
        cases=("translate apply *",),
        faults=FAILURES,
        calls=("fsync .", "fsync new"),
    ),
    Known(
        ("message",),
        "a full disk while an archive is packed is taken for damage to the source",
        Example("translate apply to npz", False, Fault.EIO, "write .interbasin-*/vectors.npz", 2),
        cases=("translate apply to npz",),
        faults=FAILURES,
    ),
    Known(
        ("lost",),
        "the older table is removed before the new one has its name",
        Example(TO_LANCE, True, Fault.EIO, "rename new/t.lance"),
        cases=(TO_LANCE,),
    ),
    Known(
        ("partial",),
        "the older table is removed file by file under its final name",
        Example(TO_LANCE, True, Fault.KILL_AFTER, "unlinkat new/t.lance/*"),
        cases=(TO_LANCE,),
        faults=KILLS,
    ),
    Known(
        ("message",),
        "what Lance logs stands beside our sentence on stderr",
        Example(TO_LANCE, False, Fault.FULL, "open64 new/.interbasin-*/table.lance/_versions/.tmp*"),
        cases=(TO_LANCE,),
        faults=FAILURES,
    ),
    Known(
        ("partial", "unreported", "message", "again"),
        "FAISS does not notice that a file could not be closed, and an index that is cut off gets its final name",
        Example(TO_FAISS, False, Fault.ENOSPC, "fclose .interbasin-*/out.index"),
        cases=(TO_FAISS,),
        faults=FAILURES,
    ),
    Known(
        ("partial", "unreported", "again"),
        "a disk that fails is taken for a method that cannot be tried, and another method is chosen",
        Example("transport, method auto", False, Fault.ENOSPC, "mkdir .interbasin-*/state/fitted-*/.interbasin-*"),
        cases=("transport, method auto",),
        faults=FAILURES,
        calls=("* .interbasin-*/state/fitted-*",),
    ),
    Known(
        ("again",),
        "a state that is partly removed is taken for a damaged one",
        Example("transport", False, Fault.KILL_AFTER, "unlinkat .interbasin-*/state/*"),
        cases=("transport*", "adapt"),
        faults=KILLS,
        calls=("unlinkat .interbasin-*/state/*", "rmdir .interbasin-*/state/*"),
    ),
    Known(
        ("again",),
        "a checkpoint of a training that is partly removed is taken for a damaged one",
        Example("train with checkpoint", False, Fault.KILL_AFTER, "unlinkat checkpoint/*"),
        cases=("train with checkpoint",),
        faults=KILLS,
        calls=("unlinkat checkpoint/*", "rmdir checkpoint"),
    ),
)


def cause_of(violation: Violation) -> Known | None:
    """What is known to cause it."""
    return next((known for known in KNOWN if known.is_cause_of(violation)), None)


def unknown(violations: Sequence[Violation]) -> list[Violation]:
    """Those that no known cause explains."""
    return [one for one in violations if cause_of(one) is None]
