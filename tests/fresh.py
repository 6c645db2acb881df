"""Fresh processes without the wait: one process imports torch, and forks for every program that is to run.

What a program finds imported is what takes seconds and what no test is about: torch, and the command line. The
libraries of networks and torchvision, which the order of imports matters to, it has to import by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTER = """
import gc, importlib, json, os, sys, traceback
import torch
import interbasin.cli
for module in sys.argv[1:]:
    importlib.import_module(module)
assert not {"accelerate", "peft", "timm", "torchvision", "transformers"} & set(sys.modules)
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, int):  # how is that process?
        ended, status = os.waitpid(asked, os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
        continue
    program, folder, output, errors, words, environment = asked
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv[1:] = words
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    code = 0
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class Starter:
    """Runs programs, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path):
        self._process = process
        self._scratch = scratch
        self._started = 0

    def ask(self, question: object) -> Any:
        """Send a line to the process that forks, and read its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(
        self, program: str, folder: Path, *arguments: object, environment: Mapping[str, str] | None = None
    ) -> Running:
        """Start the text of a program in a folder, with arguments and with more variables of the environment."""
        self._started += 1
        output, errors = (self._scratch / f"{self._started}-{name}" for name in ("output", "errors"))
        asked = [program, str(folder), str(output), str(errors), [str(word) for word in arguments], environment or {}]
        return Running(self, self.ask(asked), program, output, errors)

    def run(self, program: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run the text of a program in a folder, with arguments."""
        return self.start(program, folder, *arguments).wait()

    def run_command(self, arguments: Sequence[object], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run ``interbasin`` with arguments."""
        words = ["interbasin", *map(str, arguments)]
        return self.run(f"import sys\nsys.argv = {words!r}\nfrom interbasin.__main__ import main\nmain()\n", folder)


@dataclass
class Running:
    """A program that was started."""

    starter: Starter
    pid: int
    program: str
    output: Path
    errors: Path
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.code is None:
            self.code = self.starter.ask(self.pid)
        return self.code

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it where it is, or send it another signal."""
        os.kill(self.pid, how)

    def wait_for(self, line: str) -> None:
        """Wait until it has printed a line; it fails the test if it ends before that."""
        while not (self.output.exists() and line in self.output.read_text("utf-8").splitlines()):
            assert self.poll() is None, self.errors.read_text("utf-8")
            time.sleep(0.005)

    def wait(self, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """What it printed, after its end; what takes longer than ``timeout`` seconds is ended."""
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                self.kill()
                raise subprocess.TimeoutExpired(self.program, timeout)
            time.sleep(0.005)
        # A process that was killed at once had no time to open them.
        printed = (path.read_text("utf-8") if path.exists() else "" for path in (self.output, self.errors))
        return subprocess.CompletedProcess(self.program, code, *printed)


@contextmanager
def starting(scratch: Path, *imports: str, environment: Mapping[str, str] = os.environ) -> Iterator[Starter]:
    """A `Starter` that keeps what is printed in the folder ``scratch``, and has imported more modules than torch."""
    words = [sys.executable, "-c", STARTER, *imports]
    found = {**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield Starter(process, scratch)
        process.kill()
