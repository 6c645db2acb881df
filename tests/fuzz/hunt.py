"""Mutants read in processes that may die: what comes of each, whoever is killed on the way.

A child reads one mutant after the other and says which before it begins. When it crashes, hangs or runs out of memory,
the mutant it had begun is to blame, and another child goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.formats import FORMATS, Reading, digest
from tests.fuzz.mutations import damage
from tests.fuzz.trees import Tree, read_tree, remove, write_tree

from interbasin.cli.output import shorten
from interbasin.errors import InterbasinError

# What may come of a mutant: a clean refusal, the same result as ever, or the result that another reader finds too.
GOOD = ("refused", "right", "as others")
# And what must not.
BAD = ("traceback", "crash", "hang", "memory", "message", "wrong")

CPU_SECONDS, WALL_SECONDS = 10, 10
ROOM = 3 * 2**30  # bytes of addresses more than a child begins with; threads and arenas take most of them
RESIDENT = 512 * 2**20  # bytes in memory more than before a mutant of a few kilobytes
LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class Mutant:
    """A damaged corpus.

    Attributes:
        format, variant: What it was.
        reading: Which of the format's readings it goes through.
        words: What was done to it.
        tree: What is left.
        name: How reports call it.
    """

    format: str
    variant: str
    reading: int
    words: Sequence[str]
    tree: Tree = field(repr=False)
    name: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came of a mutant; ``detail`` is the message, the traceback or the signal."""

    mutant: Mutant
    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Corpora:
    """What is whole: trees by format and variant, and the digest that each reading has of them."""

    trees: dict[tuple[str, str], Tree]
    digests: dict[tuple[str, str, int], str]

    def mutant(self, format_name: str, seed: int, number: int) -> Mutant:
        """The mutant of that number; the same whenever it is asked for."""
        variants, readings = list(FORMATS[format_name].makers), FORMATS[format_name].readings
        variant = variants[number % len(variants)]
        others = [content for tree in self.trees.values() for content in tree.values() if isinstance(content, bytes)]
        random = Random(f"{seed} {format_name} {number}")
        tree, words = damage(random, self.trees[format_name, variant], others)
        reading = number // len(variants) % len(readings)
        return Mutant(
            format_name, variant, reading, words, tree, f"--format {format_name!r} --seed {seed} --first {number}"
        )


def make_corpora(scratch: Path, formats: Iterable[str] = FORMATS) -> Corpora:
    """All that is whole, made in a process of its own: what it imports and starts stays out of this one."""
    place = scratch / "corpora.pickle"
    child = os.fork()
    if not child:
        with _ending():
            trees, digests = {}, {}
            for name in formats:
                for variant, make in FORMATS[name].makers.items():
                    folder = scratch / "corpus"
                    write_tree({}, folder)
                    make(folder)
                    tree = trees[name, variant] = read_tree(folder)
                    for number, reading in enumerate(FORMATS[name].readings):
                        found = _read_in(reading, tree, folder, scratch / "written")
                        if reading.reference is not None:
                            write_tree(tree, folder)
                            assert found == digest(reading.reference(folder)), f"{name} {variant}: readers differ"
                        digests[name, variant, number] = found
            place.write_bytes(pickle.dumps(Corpora(trees, digests)))
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the corpora could not be made"
    corpora = pickle.loads(place.read_bytes())
    assert isinstance(corpora, Corpora)
    return corpora


def judge(mutants: Sequence[Callable[[], Mutant]], corpora: Corpora, scratch: Path) -> Iterator[Verdict]:
    """What comes of each mutant, in order; they are made when they are read."""
    begun = done = 0
    while begun < len(mutants):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            with _ending():
                _judge_in_child(mutants[begun:], corpora, scratch, writer)
                os._exit(0)
        os.close(writer)
        current: int | None = None
        with os.fdopen(reader, encoding="utf-8") as lines:
            for line in lines:
                said = json.loads(line)
                if isinstance(said, int):
                    current = begun + said
                else:
                    assert current is not None
                    yield Verdict(mutants[current](), *said)
                    done, current = current + 1, None
        status = os.waitpid(child, 0)[1]
        if current is not None:
            yield Verdict(mutants[current](), *_death(status))
            done = current + 1
        if done == begun:
            raise RuntimeError(f"mutant {begun} could not be made:\n{(scratch / 'printed').read_text('utf-8')}")
        begun = done


def _death(status: int) -> tuple[str, str]:
    """The verdict on a mutant that ended its process."""
    code = os.waitstatus_to_exitcode(status)
    if -code in (signal.SIGPROF, signal.SIGALRM):
        return "hang", f"more than {CPU_SECONDS} seconds of work, or {WALL_SECONDS} of waiting"
    return "crash", signal.Signals(-code).name if code < 0 else f"the process ended itself with code {code}"


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """The life of a child: whatever happens, it never comes back to where it was forked."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _judge_in_child(mutants: Sequence[Callable[[], Mutant]], corpora: Corpora, scratch: Path, pipe: int) -> None:
    with (scratch / "printed").open("w") as printed:  # libraries complain of damage before they give up
        os.dup2(printed.fileno(), 2)
    for how in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(how, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + ROOM, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    with os.fdopen(pipe, "w", encoding="utf-8") as answers:
        for number, make in enumerate(mutants):
            mutant = make()
            print(json.dumps(number), file=answers, flush=True)
            print(json.dumps(_verdict(mutant, corpora, scratch)), file=answers, flush=True)


def _verdict(mutant: Mutant, corpora: Corpora, scratch: Path) -> tuple[str, str]:
    reading = FORMATS[mutant.format].readings[mutant.reading]
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory is counted from here
    before = _memory("VmHWM")
    signal.alarm(WALL_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        found = _read_in(reading, mutant.tree, scratch / "mutant", scratch / "written")
        verdict, detail = "right", ""
    except InterbasinError as error:
        verdict, detail = "refused", str(error)
        shown = shorten(detail)  # as the command line prints it
        if not shown.isprintable() or not shown.endswith((".", "?")) or len(shown) > LONGEST_MESSAGE:
            verdict = "message"
    except MemoryError:
        return "memory", traceback.format_exc()
    except BaseException:
        return "traceback", traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    if (grown := _memory("VmHWM") - before) > RESIDENT:
        return "memory", f"{grown:,} bytes more than before"
    if verdict == "right" and found != corpora.digests[mutant.format, mutant.variant, mutant.reading]:
        return _compare(found, reading, mutant, scratch)
    return verdict, detail


def _compare(found: str, reading: Reading, mutant: Mutant, scratch: Path) -> tuple[str, str]:
    """The verdict on another result than that of the whole file."""
    if reading.reference is None:
        return "wrong", "another result than that of the whole file"
    write_tree(mutant.tree, scratch / "mutant")
    try:
        expected = digest(reading.reference(scratch / "mutant"))
    except Exception as error:
        return "wrong", f"another result than that of the whole file, which another reader refuses: {error!r:.300}"
    return ("as others", "") if expected == found else ("wrong", "another result than that of another reader")


def _read_in(reading: Reading, tree: Tree, folder: Path, scratch: Path) -> str:
    write_tree(tree, folder)
    remove(scratch)
    return digest(reading.read(folder, scratch))


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def count(verdicts: Iterable[Verdict]) -> dict[str, dict[str, int]]:
    """Format -> verdict -> how many."""
    counts: dict[str, Counter[str]] = {}
    for one in verdicts:
        counts.setdefault(one.mutant.format, Counter())[one.verdict] += 1
    return {name: {verdict: counter[verdict] for verdict in (*GOOD, *BAD)} for name, counter in counts.items()}


def to_table(counts: dict[str, dict[str, Any]]) -> str:
    """The counts for people."""
    heads = ("format", "mutants", *GOOD, *BAD)
    rows = [(name, sum(row.values()), *row.values()) for name, row in counts.items()]
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    widths = [max(len(str(row[n])) for row in (heads, *rows)) for n in range(len(heads))]
    lines = [
        "  ".join(
            str(cell).ljust(width) if n == 0 else str(cell).rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (heads, *rows)
    ]
    return "\n".join(lines)
