"""Fresh processes without the wait: one process imports torch, and forks for every program that is to run.

What a program finds imported is what takes seconds and what no test is about: torch, and the command line. The
libraries of networks and torchvision, which the order of imports matters to, it has to import by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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
    program, folder, output, errors = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.chdir(folder)
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
    """Runs one program after the other, each in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path):
        self._process = process
        self._scratch = scratch

    def run(self, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run the text of a program in a folder."""
        assert self._process.stdin is not None and self._process.stdout is not None
        output, errors = self._scratch / "output", self._scratch / "errors"
        print(json.dumps([program, str(folder), str(output), str(errors)]), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(program, code, output.read_text("utf-8"), errors.read_text("utf-8"))

    def run_command(self, arguments: Sequence[object], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run ``interbasin`` with arguments."""
        words = ["interbasin", *map(str, arguments)]
        return self.run(f"import sys\nsys.argv = {words!r}\nfrom interbasin.__main__ import main\nmain()\n", folder)


@contextmanager
def starting(scratch: Path, *imports: str, environment: Mapping[str, str] = os.environ) -> Iterator[Starter]:
    """A `Starter` that keeps what is printed in the folder ``scratch``, and has imported more modules than torch."""
    words = [sys.executable, "-c", STARTER, *imports]
    found = {**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=found) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield Starter(process, scratch)
        process.kill()
