"""The plan of a transport: the same account as the transport's own, from one pass and without a fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.laws.strategies import generator
from torch import nn

from interbasin import transport
from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.jobs.transport import plan_transport


def network(width: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3)).eval()


@pytest.fixture(scope="module")
def pair():
    source, target = network(8), network(12, 1)
    update = {name: torch.randn_like(tensor) for name, tensor in source.state_dict().items()}
    return source, update, target, torch.randn(160, 6, generator=generator(0))


@pytest.mark.parametrize("method", ["theseus", "regression"])
def test_what_is_planned_is_what_happens(pair, method):
    plan, result = plan_transport(*pair, method=method), transport(*pair, method=method)
    account = [[(row.source, row.target, row.status) for row in each.moved] for each in (plan, result)]
    assert account[0] == account[1]
    assert sum(plan.share(status) for status in ("moved", "kept", "skipped")) == pytest.approx(1)
    seen = {(row.source, row.target): row.full for row in result.spaces}
    assert {(row.source, row.target): row.full for row in plan.spaces} == seen
    assert set(plan.seconds) == {method} and plan.seconds[method] > 0 and plan.memory > 0


def test_auto_lists_the_methods_that_can_be_tried(pair):
    source, update, target, data = pair
    plan = plan_transport(source, update, target, data)
    assert set(plan.seconds) == {"theseus", "regression", "auto"}
    assert "A regression would fit 2 layers of the target." in plan.notes
    same = plan_transport(source, update, network(8, 2), data)
    assert set(same.seconds) == {"theseus", "regression", "direct", "auto"}
    assert {row.status for row in plan_transport(source, update, network(8, 2), data, method="direct").moved} == {
        "kept"
    }


def test_few_inputs_show_few_directions(pair):
    source, update, target, data = pair
    (space,) = plan_transport(source, update, target, data[:4]).spaces
    assert space.seen < space.full == 8 and space.widths == (8, 12)


def test_nothing_is_run_that_cannot_be_done(pair):
    source, update, target, data = pair
    with pytest.raises(UnknownNameError, match="magic"):
        plan_transport(source, update, target, data, method="magic")
    with pytest.raises(ShapeError, match="take theseus or regression"):
        plan_transport(source, update, target, data, method="direct")
    with pytest.raises(DataError, match="more than once"):
        plan_transport(source, update, target, iter([data]))
    with pytest.raises(UnknownNameError, match="sideways"):
        plan_transport(source, update, target, data, unobserved="sideways")  # type: ignore[arg-type]


def wide(kind: str, width: int) -> nn.Module:
    """A network of which hidden spaces take most, or a table."""
    torch.manual_seed(width)
    if kind == "table":
        return nn.Sequential(
            nn.Embedding(100 * width, width // 4), nn.Linear(width // 4, 8), nn.ReLU(), nn.Linear(8, 3)
        )
    hidden = [module for _ in range(4) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *hidden, nn.Linear(width, 8))


def drawn(kind: str, count: int, width: int) -> torch.Tensor:
    numbers = generator(0)
    table = torch.randint(100 * width, (count, 8), generator=numbers)
    return table if kind == "table" else torch.randn(count, 64, generator=numbers)


WORKER = """
import json, sys, threading
import torch
from interbasin import transport
from interbasin.jobs.transport import plan_transport
from tests.jobs.transport.test_plan import drawn, wide
from tests.jobs.transport.theseus.test_on_disk import changed, status

torch.set_num_threads(1)
kind, method = sys.argv[1:]

def ask(width, count):
    networks = [wide(kind, width).eval(), wide(kind, width + width // 4).eval()]
    return networks[0], changed(networks[0]), networks[1], drawn(kind, count, width)

transport(*ask(16, 64), method=method)  # imports and pools
before, peak, done = status("RssAnon"), [0], threading.Event()
asked = ask(384, 256)

def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], status("RssAnon"))

watcher = threading.Thread(target=watch)
watcher.start()
transport(*asked, method=method)
done.set()
watcher.join()
print(json.dumps({"peak": peak[0] - before, "estimate": plan_transport(*asked, method=method).memory}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["theseus", "regression"])
@pytest.mark.parametrize("kind", ["spaces", "table"])
def test_the_memory_that_is_planned_is_about_what_is_taken(kind, method):
    """The peak of what the process holds of its own, networks included."""
    root = Path(__file__).parents[3]
    answer = subprocess.run(
        [sys.executable, "-c", WORKER, kind, method],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout)
    assert found["peak"] / 3 < found["estimate"] < 3 * found["peak"], found
    assert found["peak"] > 50e6
