"""An adaptation in two processes that train together."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.jobs.adapt.examples import make_mlp, make_proxy, make_target
from tests.processes import run_together

import interbasin as ib

pytestmark = pytest.mark.slow

OPTIONS = {"method": "naive", "steps": 6, "align_steps": 1}
WORKER = """
import os, sys
import torch
from safetensors.torch import save_file
import interbasin as ib
from tests.jobs.adapt.examples import make_mlp, make_proxy, make_target
from tests.jobs.adapt.test_processes import OPTIONS

torch.set_num_threads(1)
out, rank = sys.argv[1], os.environ["RANK"]
for run in range(2):  # the second one goes on from what the first one kept
    result = ib.adapt(make_mlp(), make_proxy(), make_target(), state=f"{out}/state", **OPTIONS)
save_file({**result.model.state_dict()}, f"{out}/{rank}.safetensors")
print(result.verdict.choice, result.metrics["error_valid"], flush=True)
torch.distributed.destroy_process_group()
"""


def test_two_processes_adapt_as_one_does(tmp_path, starter):
    first, second = run_together(starter, WORKER, tmp_path)
    alone = ib.adapt(make_mlp(), make_proxy(), make_target(), **OPTIONS)
    assert first == second == [f"{alone.verdict.choice} {alone.metrics['error_valid']}"]
    weights = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(weights[0][name], weights[1][name])
        torch.testing.assert_close(weights[0][name], tensor, rtol=1e-4, atol=1e-5)
