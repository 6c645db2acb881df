"""Two processes that record together, each its own share of the data: as one pass over all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.activations.examples import mlp, numbers
from tests.activations.test_recording import same
from tests.processes import run_together

from interbasin.activations import Recording, record
from interbasin.activations.distributed import _sum
from interbasin.errors import ShapeError
from interbasin.statistics import PairedMoments

SPACES = ["0", "2:output"]
ROOT = Path(__file__).parents[2]

WORKER = """
import sys
import torch
import torch.distributed as dist
from interbasin.errors import InterbasinError
from interbasin.activations import record
from interbasin.wiring.wire import wire
from tests.activations.examples import mlp, numbers

out = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
models = mlp(0), mlp(1, 6)
rows = numbers(40, 5) + 3
mine = rows[20 * rank :][:20]
wirings = [wire(model, rows[:2]) for model in models]

def stop(done):
    if done == 2:
        raise KeyboardInterrupt

def recorded(what, rows, spaces, **options):
    found = record(models, rows, spaces, batch_size=6, wirings=wirings, **options)
    found.save(f"{out}/{what}/{rank}")

recorded("equal", mine, ["0", "2:output"])
recorded("one is empty", rows if rank else rows[:0], ["0", "2:output"])
recorded("layerwise", mine, ["0:output", "2:output"], statistics="layerwise")
state = {"state": f"{out}/state", "every": 1}
try:
    recorded("interrupted", mine, ["0", "2:output"], progress=stop, **state)
except KeyboardInterrupt:
    recorded("resumed", mine, ["0", "2:output"], **state)
try:
    recorded("bad", mine * torch.nan if rank else mine, ["0"])
except InterbasinError as error:
    print(f"{rank} {type(error).__name__}: {error}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, starter):
    """What two processes on this machine recorded together, and what they printed."""
    folder = tmp_path_factory.mktemp("two")
    return folder, ["\n".join(lines) for lines in run_together(starter, WORKER, folder)]


def close(one, other):
    for names, moments in one.moments.items():
        again = other.moments[names]
        assert again.count == moments.count
        for found, wanted in (
            (again.cross(), moments.cross()),
            (again.cross(centered=False), moments.cross(centered=False)),
            (again.mean_source, moments.mean_source),
            (again.mean_target, moments.mean_target),
            (again.squares_source(), moments.squares_source()),
            (again.squares_target(), moments.squares_target()),
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12 * float(wanted.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["equal", "one is empty", "layerwise", "resumed"])
def test_two_processes_have_what_one_pass_over_all_the_data_gives(two_processes, what):
    folder, _ = two_processes
    spaces, options = SPACES, {}
    if what == "layerwise":
        spaces, options = ["0:output", "2:output"], {"statistics": "layerwise"}
    whole = record((mlp(0), mlp(1, 6)), numbers(40, 5) + 3, spaces, batch_size=6, **options)
    first, second = (Recording.load(folder / what / str(rank)) for rank in range(2))
    close(whole, first)
    same(first, second)
    assert first.batches == (7 if what == "one is empty" else 8)
    assert sorted(path.name for path in (folder / "state").iterdir()) == ["process-0-of-2", "process-1-of-2"]


@pytest.mark.slow
def test_what_fails_in_one_process_is_said_in_all(two_processes):
    _, printed = two_processes
    assert "0 DataError: Process 1 of 2 could not record its share, so none can: In batch 0" in printed[0]
    assert "1 DataError: In batch 0" in printed[1]


def test_processes_with_different_networks_are_refused():
    state = PairedMoments.of(numbers(3, 2), numbers(3, 2))._state
    with pytest.raises(ShapeError, match="The processes recorded spaces of different widths"):
        _sum(state, [(3, 1, 0.0, {"source": 2}, {"target": 2}), (3, 1, 0.0, {"source": 3}, {"target": 2})])
