"""Several real processes on this machine that train or record together, as torchrun would start them."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.fresh import Starter

ROOT = Path(__file__).parents[1]


def run_together(starter: Starter, code: str, *arguments: object, count: int = 2) -> list[list[str]]:
    """The lines that each process printed; a process that fails fails the test, with what it complained of."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    workers = [
        starter.start(code, ROOT, *arguments, environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
    try:
        printed = [worker.wait(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
    for done in printed:
        assert done.returncode == 0, done.stderr
    return [done.stdout.splitlines() for done in printed]
