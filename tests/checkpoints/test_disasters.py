"""A disk that fills up and a program that is killed, really: nothing half written under the final name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.checkpoints.strategies import same
from tests.test_storage import left_in

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.errors import FileError

resource = pytest.importorskip("resource")  # as is os.fork, of Unix

pytestmark = pytest.mark.slow

W = torch.arange(5_000.0)
COUNT = 20


def in_another_process(action: Callable[[int], None]) -> tuple[int, int]:
    """A process that does ``action`` with a pipe to write to; its number, and the other end of the pipe."""
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    code = 2
    try:
        action(writer)
        code = 0
    except FileError as error:
        os.write(writer, str(error).encode())
        code = 1
    finally:
        os._exit(code)


def writing(path: Path, *, pause: float = 0.0, force: bool = False) -> Callable[[int], None]:
    """Writes a checkpoint of ten shards, and a byte to the pipe before every tensor."""

    def write(pipe: int) -> None:
        def stream() -> Iterator[tuple[str, torch.Tensor]]:
            for number in range(COUNT):
                os.write(pipe, b".")
                time.sleep(pause)
                yield f"t{number}", torch.full((5_000,), float(number))

        write_checkpoint(path, stream(), max_shard_bytes=40_000, force=force)

    return write


def killed_after(tensors: int, process: int, pipe: int, wait: float = 0.0) -> None:
    for _ in range(tensors):
        assert os.read(pipe, 1) == b"."
    time.sleep(wait)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(pipe)


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".interbasin-")]


@pytest.mark.parametrize("name", ["m", "m.safetensors"])
def test_a_disk_that_fills_up_is_named_and_leaves_what_was_there(name, tmp_path):
    path = tmp_path / name
    write_checkpoint(path, {"before": W})
    before = left_in(tmp_path)

    def write(pipe: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        writing(path, force=True)(pipe)

    process, pipe = in_another_process(write)
    with os.fdopen(pipe) as reader:
        message = reader.read().lstrip(".")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 1
    assert str(path) in message and "File too large" in message and "room on the disk" in message
    assert left_in(tmp_path) == before and same(open_checkpoint(path)["before"], W)


@pytest.mark.parametrize("name", ["m", "m.safetensors"])
@pytest.mark.parametrize("force", [False, True])
def test_a_program_that_is_killed_leaves_no_checkpoint_or_the_one_before(force, name, tmp_path):
    path = tmp_path / name
    if force:
        write_checkpoint(path, {"before": W})
    killed_after(8, *in_another_process(writing(path, pause=0.005, force=force)))
    assert len(hidden(tmp_path)) == 1 and set(os.listdir(tmp_path)) - set(hidden(tmp_path)) <= {name}
    if force:
        assert same(open_checkpoint(path)["before"], W)
    else:
        assert not path.exists()
    write_checkpoint(path, {"after": W}, force=True)  # what was left behind is in nobody's way
    assert set(open_checkpoint(path)) == {"after"}


@pytest.mark.parametrize("force", [False, True])
def test_a_program_that_is_killed_at_any_moment_leaves_all_or_nothing(force, tmp_path):
    for number in range(20):
        path = tmp_path / f"m{number}"
        if force:
            write_checkpoint(path, {"before": W})
        # While the last shards are written, flushed and renamed.
        killed_after(COUNT, *in_another_process(writing(path, force=force)), wait=0.001 * number)
        if not path.exists():
            assert not force
            continue
        checkpoint = open_checkpoint(path)
        assert set(checkpoint) in ({"before"} if force else set(), {f"t{i}" for i in range(COUNT)})
        assert all(checkpoint[name][-1] == (W[-1] if name == "before" else float(name[1:])) for name in checkpoint)
