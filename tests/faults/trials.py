"""A case with a fault at one of its calls, once more without, and what has to be true after each."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.faults.cases import Case
from tests.faults.contents import contents, exact_contents
from tests.faults.layer import Call, Done, Fault, Layer, command_program, without_drawn
from tests.faults.world import make_world, write_lance

# What the program has to do wherever a call fails: kind of violation -> what it is.
KINDS = {
    "partial": "something incomplete stands under the final name",
    "lost": "the old result is gone, and the new one is not there",
    "input": "an input has changed",
    "exit": "a failure does not end with exit code 1",
    "message": "a failure is not told in one sentence",
    "unreported": "a call failed, and the program says that all went well",
    "half": "a write that wrote only a part is not gone on with",
    "advice": "the advice that the message gives does not work",
    "litter after an error": "a program that ended by itself left something beside the output",
    "again": "the same command fails when it is run again",
    "different": "the same command gives other bytes when it is run again",
    "litter": "after the second run something of ours is left beside the output",
}
# Failures that the program answers in another way, and then says nothing of: case, call -> how.
ANSWERED = {
    ("*", "renameat2 *"): "where folders cannot be exchanged in one step, the old one is stepped aside",
    ("*", "open64 *.npz"): "Python opens an archive for writing alone where it cannot for reading and writing",
    ("*", "sendfile64 *"): "Python copies by reading and writing where this fails at the beginning",
    ("*", "fsync ."): "the output is in its place by then, and only a machine that stops now might lose its name",
    ("*", "fsync new"): "the same, of a table in a folder of its own",
    ("*", "fsync .interbasin-[*]"): "the same, of a part of an outcome, which is flushed as a whole later",
    ("*", "fsync .interbasin-[*]/state"): "the same, of a result that is kept, and made again if its name is lost",
    ("*lance", "rename new/.interbasin-[*]"): "the same, beside a table",
    ("*", "rename .interbasin-[*]"): "what cannot be put aside before it is removed is removed where it is",
    ("*lance", "* new/.interbasin-*/table.lance/*"): "Lance does without hints of versions, and writes others again",
    ("transport*", "* .interbasin-*/state/*"): "the state of a recording is written again",
    ("record with state", "*"): "the state of a recording is written again",
}
INTERRUPTED = re.compile(r"Interrupted; [^\n]+\.")
SENTENCE = re.compile(r"Error: [^\n]+[.?]")


@dataclass(frozen=True)
class Violation:
    """A promise that was broken in one trial."""

    case: str
    over: bool  # over an older result
    fault: str
    number: int
    call: str
    kind: str  # of KINDS
    found: str


@dataclass(frozen=True)
class Trial:
    """Where a fault is to fall."""

    fault: Fault
    number: int


@dataclass
class Bench:
    """One case, fresh or over an older result, in a folder of its own.

    Attributes:
        calls: Those of a run that nothing disturbs.
        trials: How many faults have fallen.
    """

    layer: Layer
    case: Case
    over: bool
    home: Path
    calls: tuple[Call, ...] = ()
    trials: int = 0
    _wanted: dict[str, bytes] = field(default_factory=dict)
    _older: dict[str, bytes] | None = None

    def __post_init__(self) -> None:
        self.folder, self._begin = self.home / "here", self.home / "begin"
        shutil.rmtree(self.home, ignore_errors=True)
        world = self.layer.scratch / "world"
        if not world.exists():
            world.mkdir()
            make_world(world)
        shutil.copytree(world, self._begin)
        if self.case.is_lance:
            write_lance(self._begin)
        if self.over:
            made = self.layer.run(self.case.older_program(), self._begin)
            assert made.code == 0, made.errors
        self._inputs = self._files(self._begin)
        self._older = exact_contents(self._begin / self.case.output)
        first, again = (self._undisturbed() for _ in range(2))
        assert first == again, f"{self.case.name}: two runs that nothing disturbs differ: {_differences(first, again)}"

    def _undisturbed(self) -> dict[str, bytes]:
        self.reset()
        done = self.layer.run(self._program, self.folder)
        assert done.code == 0 and not done.report.hit, done.errors
        self.calls = done.report.calls
        wanted = contents(self.folder / self.case.output)
        assert wanted is not None and self._left() == set(), self._left()
        assert self._changed_inputs() == []
        seen, written = sum(call.size for call in self.calls), exact_contents(self.folder / self.case.output)
        assert written is not None and seen >= sum(map(len, written.values())), "bytes came there by an unknown way"
        self._wanted = wanted
        self._wanted_others = {name: contents(self.folder / name) for name in self.case.others}
        return wanted

    @property
    def _program(self) -> str:
        return self.case.program(force=self.over)

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._begin, self.folder)

    # ------------------------------------------------------------------ which trials there are

    def every_trial(self) -> list[Trial]:
        """Each fault at each call that it can fall on."""
        return [
            Trial(fault, number)
            for fault in Fault
            if fault is not Fault.NONE and not (fault.signals and self.case.function)  # the caller's own business
            for number, call in enumerate(self.calls, 1)
            if fault.can_fall_on(call)
        ]

    def some_trials(self, count: int, draw: random.Random) -> list[Trial]:
        """Drawn from all of them; always the first and last calls."""
        every, last = self.every_trial(), len(self.calls)
        edges = [trial for trial in every if trial.number in (1, 2, last - 1, last)]
        middle = [trial for trial in every if trial not in edges]
        at_edges = draw.sample(edges, min(len(edges), (count + 1) // 2))
        return at_edges + draw.sample(middle, min(len(middle), count - len(at_edges)))

    def find(self, pattern: str) -> list[int]:
        """The numbers of the calls like this."""
        return [number for number, call in enumerate(self.calls, 1) if fnmatchcase(call.label, pattern)]

    # ------------------------------------------------------------------ one trial

    def run(self, trial: Trial) -> list[Violation]:
        """What is wrong after the fault, and after the same command once more."""
        self.reset()
        done = self.layer.run(self._program, self.folder, trial.fault, trial.number)
        if not done.report.hit:  # threads do not keep their order; in the others nothing may go wrong
            return self._violations(trial, done, [] if done.code == 0 else [("exit", f"{done.code}, without a fault")])
        self.trials += 1
        return self._violations(trial, done, [*self._after_fault(trial.fault, done), *self._after_second_run(done)])

    def judge_kill(self, done: Done) -> list[Violation]:
        """What is wrong in `folder` after a kill at any moment, and after the same command once more."""
        self.trials += 1
        trial = Trial(Fault.KILL_AFTER, len(done.report.calls))
        return self._violations(trial, done, [*self._after_fault(trial.fault, done), *self._after_second_run(done)])

    def run_twice_at_once(self) -> list[Violation]:
        """What is wrong after two programs have run at the same time, and after the same command once more."""
        self.reset()
        program = self._program
        running = [self.layer.start(program, self.folder) for _ in range(2)]
        ended = [self.layer.finish(*each) for each in running]
        found = []
        for done in ended:
            if done.code not in (0, 1) or (done.code and not SENTENCE.fullmatch(done.errors.strip())):
                found.append(("message", f"exit code {done.code}: {done.errors[-300:]!r}"))
        if all(done.code for done in ended):
            found.append(("exit", " and ".join(done.errors.strip() for done in ended)))
        found += self._after_fault(Fault.KILL_AFTER, Done(-9, "", "", ended[0].report))  # no end of its own to judge
        found += self._after_second_run(ended[0])
        self.trials += 1
        return self._violations(Trial(Fault.NONE, 0), ended[0], found)

    def _violations(self, trial: Trial, done: Done, found: list[tuple[str, str]]) -> list[Violation]:
        calls = done.report.calls
        call = calls[trial.number - 1].label if 0 < trial.number <= len(calls) else ""
        head = (self.case.name, self.over, trial.fault.name, trial.number, call)
        return [Violation(*head, kind, text) for kind, text in found]

    def _after_fault(self, fault: Fault, done: Done) -> Iterator[tuple[str, str]]:
        yield from self._check_end(fault, done)
        if not self.case.grows:
            yield from self._check_output()
        if changed := self._changed_inputs():
            yield "input", ", ".join(changed)
        if not fault.kills and not self.case.resumes and (left := self._left()):
            yield "litter after an error", ", ".join(sorted(left))

    def _check_end(self, fault: Fault, done: Done) -> Iterator[tuple[str, str]]:
        call = done.report.calls[done.report.hit - 1] if done.report.hit else None
        if fault.signals:
            yield from self._check_interrupt(done)
        elif fault.kills:
            if done.code != -9:
                yield "exit", f"{done.code} after SIGKILL"
        elif done.code == 0:
            if done.errors:
                yield "message", f"exit code 0, and yet {done.errors[-300:]!r}"
            if fault is not Fault.HALF and not (call and self._is_answered(call)):
                yield "unreported", f"exit code 0; {'complete' if self._is_complete() else 'NOT complete'}"
        elif fault is Fault.HALF:
            yield "half", f"exit code {done.code}: {done.errors[-300:]!r}"
        else:
            if done.code != 1:
                yield "exit", f"{done.code}: {done.errors[-300:]!r}"
            if not SENTENCE.fullmatch(done.errors.strip()) or "Errno" in done.errors:
                yield "message", repr(done.errors[-600:])

    def _check_interrupt(self, done: Done) -> Iterator[tuple[str, str]]:
        if done.code == 130:
            if not INTERRUPTED.fullmatch(done.errors.strip()):
                yield "message", repr(done.errors[-600:])
            elif "nothing half-written" in done.errors and (left := self._left()):
                yield "advice", f"{done.errors.strip()} Yet there is {', '.join(sorted(left))}"
        elif done.code not in (0, -2, -15) or not self._is_complete():  # it came when all was done
            yield "exit", f"{done.code}: {done.errors[-300:]!r}"

    def _is_answered(self, call: Call) -> bool:
        patterns = (call_like for case_like, call_like in ANSWERED if fnmatchcase(self.case.name, case_like))
        return self._is_complete() and any(fnmatchcase(call.label, pattern) for pattern in patterns)

    def _check_output(self) -> Iterator[tuple[str, str]]:
        found = exact_contents(self.folder / self.case.output)
        if found == self._older or self._is_complete():
            return
        if not found and self._older is not None:
            yield "lost", "nothing is there" if found is None else "an empty folder is there"
        elif not found:
            if found is not None:
                yield "partial", "an empty folder is there"
        else:
            yield "partial", self._difference()

    def _is_complete(self) -> bool:
        try:
            return contents(self.folder / self.case.output) == self._wanted
        except ValueError:
            return False

    def _difference(self) -> str:
        try:
            return _differences(self._wanted, contents(self.folder / self.case.output) or {})
        except ValueError as error:
            return str(error)

    def _after_second_run(self, first: Done) -> Iterator[tuple[str, str]]:
        was_complete = self._is_complete()
        done = self.layer.run(self._program, self.folder)
        if done.code and was_complete and not self.over:
            # It is done, and nothing is overwritten unasked.
            if "run the same command" in first.errors:
                yield "advice", f"{first.errors.strip()} Then: {done.errors.strip()}"
            # What is replaced has another width then, and cannot be translated again; anything else sweeps there, too.
            again = command_program(("clean", "--quiet")) if self.case.is_in_place else self.case.program(force=True)
            done = self.layer.run(again, self.folder)
        if done.code:
            yield "again", f"exit code {done.code}: {done.errors[-600:]!r}"
            return
        if not self._is_complete():
            yield "different", self._difference()
        for name, wanted in self._wanted_others.items():
            if (found := contents(self.folder / name)) != wanted:
                yield "different", f"{name}: {_differences(wanted or {}, found or {})}"
        if changed := self._changed_inputs():
            yield "input", ", ".join(changed)
        if left := self._left():
            yield "litter", ", ".join(sorted(left))

    # ------------------------------------------------------------------ what lies in the folder

    def _files(self, folder: Path) -> list[str]:
        """Files that are neither the output nor what may lie beside it."""
        named = tuple(f"{name}/" for name in (self.case.output, *self.case.others))
        names = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
        return [name for name in names if not f"{name}/".startswith(named)]

    def _changed_inputs(self) -> list[str]:
        here = {name: self.folder / name for name in self._inputs}
        begun = {name: (self._begin / name).read_bytes() for name in self._inputs}
        return [name for name, path in here.items() if not path.is_file() or path.read_bytes() != begun[name]]

    def _left(self) -> set[str]:
        """What is neither an input nor an output: files, and folders with nothing in them."""
        named = tuple(f"{name}/" for name in (self.case.output, *self.case.others))
        paths = {path for path in self.folder.rglob("*") if path.is_file() or not any(path.iterdir())}
        names = {str(path.relative_to(self.folder)) for path in paths}
        begun = {str(path.relative_to(self._begin)) for path in self._begin.rglob("*")}
        new = {name for name in names - begun if not f"{name}/".startswith(named)}
        return {without_drawn(name) for name in new}


def _differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> str:
    words = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    words += [f"{name} is new" for name in found.keys() - wanted.keys()]
    words += [f"{name} differs" for name in wanted.keys() & found.keys() if wanted[name] != found[name]]
    return ", ".join(sorted(words))[:400]


def benches(layer: Layer, cases: Sequence[Case], home: Path) -> Iterator[Bench]:
    """Every case, fresh and over an older result where it replaces one."""
    for number, (case, over) in enumerate(itertools.product(cases, (False, True))):
        if not over or case.replaces:
            yield Bench(layer, case, over, home / str(number))


def as_document(violations: list[Violation]) -> list[dict[str, Any]]:
    return [asdict(violation) for violation in violations]
