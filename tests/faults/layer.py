"""Processes in which the n-th call that changes a folder fails: the small C library, compiled, preloaded and armed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tests.fresh import Running, Starter, starting

SOURCE = Path(__file__).with_name("preloaded.c")
ROOT = Path(__file__).parents[2]
NO_COMPILER = "there is no C compiler (cc) to compile the library that makes calls fail"
MOST_CALLS, HEAD, ENTRY = 8192, struct.Struct("ll"), struct.Struct("c23s224sl")  # as in preloaded.c
# What a command needs, imported and called before the fork.
IMPORTS = ("torch._dynamo", "scipy.optimize", "scipy.linalg", "scipy.stats", "onnx", "onnxruntime", "tests.faults.warm")
PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
PLAIN["LANCEDB_LOG"] = "error"  # which the program sets before it imports Lance; here that is imported before


class Fault(IntEnum):
    """What happens at the n-th call; numbered as in preloaded.c."""

    NONE = 0
    ENOSPC = 1  # it fails, and later ones do not
    EIO = 2
    FULL = 3  # it fails for want of room, and so does every later one that needs room
    SHORT = 4  # half of the bytes are written, and the next write fails for want of room
    HALF = 5  # half of the bytes are written, and the program is to write the others
    KILL_BEFORE = 6  # SIGKILL
    KILL_AFTER = 7
    INTERRUPT = 8  # SIGINT, as Ctrl-C sends it
    TERMINATE = 9  # SIGTERM, as schedulers send it

    @property
    def kills(self) -> bool:
        return self in (Fault.KILL_BEFORE, Fault.KILL_AFTER)

    @property
    def signals(self) -> bool:
        return self in (Fault.INTERRUPT, Fault.TERMINATE)

    def can_fall_on(self, call: Call) -> bool:
        """Whether there is such a fault of such a call; removing fails for nobody, but may be the last that is done."""
        if self.kills or self.signals:
            return True
        if self in (Fault.SHORT, Fault.HALF):
            return call.kind == "w" or (self is Fault.SHORT and call.kind == "s")
        if self is Fault.FULL:
            return call.kind in "owsd"
        return call.kind != "r"


@dataclass(frozen=True)
class Call:
    """A call that changed the folder, or was to change it."""

    kind: str  # a letter of preloaded.c
    name: str
    path: str  # inside the folder
    size: int  # bytes that were to be written

    @property
    def label(self) -> str:
        """Its name and path, the same in every run."""
        return without_drawn(f"{self.name} {self.path}")


def without_drawn(name: str) -> str:
    """A name without its parts that are drawn at random."""
    return re.sub(r"\.(interbasin-|tmp)[\w-]+", r".\1*", name)


@dataclass(frozen=True)
class Report:
    """What the library counted in one process."""

    calls: tuple[Call, ...]
    hit: int  # the call that the fault fell on; 0 if there was none

    @classmethod
    def read(cls, path: Path) -> Report:
        content = path.read_bytes() if path.exists() else b""
        if len(content) < HEAD.size:  # killed before it was armed
            return cls((), 0)
        count, hit = HEAD.unpack_from(content)
        assert count <= MOST_CALLS, f"{count} calls are more than the report has room for"
        entries = ENTRY.iter_unpack(content[HEAD.size : HEAD.size + count * ENTRY.size])
        return cls(tuple(Call(*map(_text, words), size) for *words, size in entries), hit)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


@dataclass(frozen=True)
class Done:
    """A process that ended, or was ended."""

    code: int
    output: str
    errors: str
    report: Report


@dataclass
class Layer:
    """Starts programs in a folder, armed with a fault."""

    starter: Starter
    library: Path
    scratch: Path

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def start(self, program: str, folder: Path, fault: Fault = Fault.NONE, number: int = 0) -> tuple[Running, Path]:
        """Start the text of a program whose ``number``-th call below ``folder`` meets the fault."""
        report = self.scratch / f"report-{next(self._numbers)}"
        where = f"{os.fsencode(folder)!r}, {os.fsencode(report)!r}"
        arming = (
            "import ctypes, os, sys\n"
            "sys.path.insert(0, os.getcwd())\n"
            f"library = ctypes.CDLL({str(self.library)!r})\n"
            "library.arm_faults.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_int]\n"
            f"assert library.arm_faults({where}, {number}, {int(fault)}) == 0\n"
        )
        return self.starter.start(arming + program, folder), report

    def finish(self, running: Running, report: Path) -> Done:
        """What became of it, when it has ended."""
        done = running.wait(timeout=300)
        found = Done(done.returncode, done.stdout, done.stderr, Report.read(report))
        for path in (report, running.output, running.errors):
            path.unlink(missing_ok=True)
        return found

    def run(self, program: str, folder: Path, fault: Fault = Fault.NONE, number: int = 0) -> Done:
        """Start a program and wait for its end."""
        return self.finish(*self.start(program, folder, fault, number))


def command_program(words: tuple[str, ...]) -> str:
    """The text of a program that runs ``interbasin`` with these words."""
    return f"sys.argv = {['interbasin', *words]!r}\nfrom interbasin.__main__ import main\nmain()\n"


def function_program(function: str, **arguments: object) -> str:
    """The text of a program that calls a function of `tests.faults.writers`; our errors are as those of a command."""
    named = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return (
        "from interbasin.errors import InterbasinError\n"
        f"from tests.faults.writers import {function}\n"
        f"try:\n    {function}({named})\n"
        "except InterbasinError as error:\n    sys.exit(print(f'Error: {error}', file=sys.stderr) or 1)\n"
    )


def find_compiler() -> str | None:
    return shutil.which("cc")


@contextlib.contextmanager
def layer(scratch: Path) -> Iterator[Layer]:
    """A layer whose library is compiled into the folder ``scratch``, where it keeps what programs print, too."""
    compiler = find_compiler()
    assert compiler is not None, NO_COMPILER
    library = scratch / "preloaded.so"
    words = [
        compiler,
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run(words, check=True)
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | PLAIN
    environment["LD_PRELOAD"] = str(library)
    with starting(scratch, *IMPORTS, environment=environment) as starter:
        yield Layer(starter, library, scratch)
