"""Several real processes on this machine that train or record together, as torchrun would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_together(code: str, *arguments: object, count: int = 2) -> list[list[str]]:
    """The lines that each process printed; a process that fails fails the test, with what it complained of."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=ROOT,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        printed = [worker.communicate(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, complaint) in zip(workers, printed, strict=True):
        assert worker.returncode == 0, complaint
    return [text.splitlines() for text, _ in printed]
