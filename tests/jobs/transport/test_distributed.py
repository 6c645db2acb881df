"""Bases recorded by two processes, each with its half of the inputs: the maps of one process that has them all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.jobs.transport.small import Attending, ready

from interbasin.errors import DataError
from interbasin.jobs.transport import PreparedTransport, Update, prepare_transport, transport

ROOT = Path(__file__).parents[3]

WORKER = """
import sys
import torch
import torch.distributed as dist
from interbasin.jobs.transport import prepare_transport
from tests.jobs.transport.test_distributed import networks, numbers

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
source, target = networks()
prepared = prepare_transport(source, target, numbers()[rank::2])
update = {name: torch.ones_like(tensor) for name, tensor in source.state_dict().items()}
found = prepared.apply(update).update
if rank == 0:  # as the documentation has it
    prepared.save(f"{sys.argv[1]}/prepared")
    found.write(f"{sys.argv[1]}/update", model=target)
torch.save({name: found.tensor(name) for name in found}, f"{sys.argv[1]}/{rank}.pt")
dist.destroy_process_group()
"""


def networks() -> tuple[torch.nn.Module, torch.nn.Module]:
    return ready(Attending(6, seed=1)), ready(Attending(9, seed=2))


def numbers() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(16, 5, 4, dtype=torch.float64, generator=generator) for _ in range(4)]


@pytest.mark.slow
def test_two_processes_find_the_maps_of_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    answer = subprocess.run(
        [*launch, str(worker), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    source, target = networks()
    update = {name: torch.ones_like(tensor) for name, tensor in source.state_dict().items()}
    expected = prepare_transport(source, target, numbers()).apply(update).update
    again = PreparedTransport.load(tmp_path / "prepared", source, target).apply(update).update
    written = Update.of(tmp_path / "update", target)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for name in expected:
        torch.testing.assert_close(both[0][name], both[1][name], rtol=0, atol=0)
        torch.testing.assert_close(both[0][name], expected.tensor(name), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(again.tensor(name), both[0][name], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(written.tensor(name), both[0][name])


def test_a_verdict_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interbasin.jobs.transport.job.world_size", lambda: 2)
    source, target = networks()
    with pytest.raises(
        DataError, match=r"2 processes would each judge .* prepare_transport, which sums .* apply\(tuned\)"
    ):
        transport(source, {}, target, numbers())
