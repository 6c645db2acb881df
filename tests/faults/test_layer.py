"""The layer itself: each fault does what it says to the call it is meant for, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.layer import NO_COMPILER, Fault, Layer, find_compiler, layer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)]

# Prints what became of each call: 1 mkdir, 2 open, 3 and 4 write, 5 fsync, 6 rename, 7 unlink.
PROGRAM = """
def tell(name, call, *arguments):
    try:
        print(name, call(*arguments), flush=True)
    except OSError as error:
        print(name, error.strerror, flush=True)

tell("mkdir", os.mkdir, "sub")
tell("mkdir again", os.mkdir, "sub")
try:
    file = os.open("sub/file", os.O_WRONLY | os.O_CREAT)
except OSError as error:
    sys.exit(print("open", error.strerror, flush=True))
tell("write", os.write, file, b"12345678")
tell("write", os.write, file, b"abcdefgh")
tell("fsync", os.fsync, file)
tell("rename", os.replace, "sub/file", "sub/name")
open(os.devnull, "w").write("not watched")
open("sub/name").read()
tell("unlink", os.unlink, "sub/name")
"""
PLAIN = ["mkdir None", "mkdir again File exists", "write 8", "write 8", "fsync None", "rename None", "unlink None"]


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layer]:
    with layer(tmp_path_factory.mktemp("layer")) as found:
        yield found


def changed(**lines: str) -> list[str]:
    """What is printed, but for some lines: by the number of the call."""
    places = {"call_1": 0, "call_3": 2, "call_4": 3, "call_5": 4, "call_6": 5, "call_7": 6}
    return [{places[name]: line for name, line in lines.items()}.get(place, line) for place, line in enumerate(PLAIN)]


def test_calls_are_counted_with_their_names_and_nothing_else_is(armed, tmp_path):
    done = armed.run(PROGRAM, tmp_path)
    assert (done.code, done.output.splitlines(), done.report.hit) == (0, PLAIN, 0)
    labels = ["mkdir sub", "open64 sub/file", "write sub/file", "write sub/file", "fsync sub/file", "rename sub/name"]
    assert [call.label for call in done.report.calls] == [*labels, "unlink sub/name"]
    assert "".join(call.kind for call in done.report.calls) == "dowwfmr"
    assert [call.size for call in done.report.calls] == [0, 0, 8, 8, 0, 0, 0]


NO_ROOM, BROKEN = "No space left on device", "Input/output error"


@pytest.mark.parametrize(
    ("fault", "number", "hit", "lines"),
    [
        (Fault.ENOSPC, 3, 3, changed(call_3=f"write {NO_ROOM}")),
        (Fault.ENOSPC, 2, 2, [*PLAIN[:2], f"open {NO_ROOM}"]),
        (Fault.EIO, 5, 5, changed(call_5=f"fsync {BROKEN}")),
        (Fault.EIO, 6, 6, [*PLAIN[:5], f"rename {BROKEN}"]),
        (Fault.EIO, 7, 0, PLAIN),  # what is removed is removed
        (Fault.FULL, 3, 3, changed(call_3=f"write {NO_ROOM}", call_4=f"write {NO_ROOM}")),
        (Fault.SHORT, 3, 3, changed(call_3="write 4", call_4=f"write {NO_ROOM}")),
        (Fault.HALF, 3, 3, changed(call_3="write 4")),
        (Fault.HALF, 5, 0, PLAIN),
        (Fault.ENOSPC, 8, 0, PLAIN),
    ],
)
def test_a_fault_falls_on_its_call_alone(fault, number, hit, lines, armed, tmp_path):
    done = armed.run(PROGRAM, tmp_path, fault, number)
    assert done.report.hit == hit
    assert done.output.splitlines()[: len(lines)] == lines


@pytest.mark.parametrize("number", range(1, 8))
def test_a_kill_falls_right_before_or_right_after_its_call(number, armed, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, fault in ((before, Fault.KILL_BEFORE), (after, Fault.KILL_AFTER)):
        folder.mkdir()
        done = armed.run(PROGRAM, folder, fault, number)
        assert (done.code, done.report.hit, len(done.report.calls)) == (-9, number, number)
    left = [state(folder) for folder in (before, after)]
    assert left[0] != left[1] or number == 5  # a flush is not seen


def state(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def test_what_a_stream_keeps_is_lost_where_it_cannot_be_closed(armed, tmp_path):
    program = """
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
library.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
library.fwrite.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
library.fclose.argtypes = [ctypes.c_void_p]
file = library.fopen(b"stream", b"wb")
print(library.fwrite(b"content", 1, 7, file), library.fclose(file))
"""
    for fault, number, printed, content in (
        (Fault.NONE, 0, "7 0", b"content"),
        (Fault.ENOSPC, 2, "0 0", b""),
        (Fault.ENOSPC, 3, "7 -1", b""),
    ):
        done = armed.run(program, tmp_path, fault, number)
        assert (done.output.strip(), (tmp_path / "stream").read_bytes()) == (printed, content), done.errors
        assert [call.label for call in done.report.calls] == ["fopen stream", "fwrite stream", "fclose stream"]
