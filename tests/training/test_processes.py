"""Several processes that train together as one would; mixed precision; and neither where nobody asked."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tests.processes import run_together
from tests.test_storage import refused
from tests.training.examples import assert_same
from tests.training.shares import fit_line

from interbasin.errors import DataError, MissingExtraError
from interbasin.training import Checkpoint, train
from interbasin.training import processes as module
from interbasin.training.processes import Processes

ROOT = Path(__file__).parents[2]

WORKER = """
import os, sys
import torch
from safetensors.torch import save_file
from interbasin.errors import InterbasinError
from interbasin.training import Checkpoint, train
from tests.training.shares import fit_line, fit_with_dropout

torch.set_num_threads(1)
out, rank = sys.argv[1], os.environ["RANK"]
for name, options in {
    "uneven": {"steps": 11},
    "accumulate": {"epochs": 2, "accumulate": 3, "schedule": "one-cycle", "optimiser": "adamw"},
    "single rows": {"steps": 5, "batch_size": 1},
}.items():
    save_file(fit_line(processes=True, **options), f"{out}/{name}.{rank}.safetensors")
lines = []
whole, training = fit_with_dropout(processes=True, report=lines.append)
save_file(whole, f"{out}/whole.{rank}.safetensors")
try:
    fit_with_dropout(processes=True, stop_at=9, checkpoint=Checkpoint(f"{out}/checkpoint", steps=2))
except KeyboardInterrupt:
    pass
part, resumed = fit_with_dropout(processes=True, checkpoint=Checkpoint(f"{out}/checkpoint", steps=2))
save_file(part, f"{out}/part.{rank}.safetensors")
print(rank, len(lines), resumed == training, resumed.resumed_from, flush=True)
weight = torch.ones(2, requires_grad=True)
try:
    data = [torch.tensor([1.0, float("nan")])]
    train([weight], data, lambda batch, _: (weight.mean() * batch).mean(), epochs=1, rate=0.1, processes=True)
except InterbasinError as error:
    print(rank, weight.tolist(), type(error).__name__, error, flush=True)
alone = torch.zeros(1, requires_grad=True)
train([alone], [torch.ones(1)], lambda batch, _: (alone - int(rank)).square().sum(), epochs=2, rate=0.1)
print(rank, round(float(alone), 2), flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, starter):
    """What two processes on this machine trained together, and the lines that each printed."""
    folder = tmp_path_factory.mktemp("two")
    return folder, run_together(starter, WORKER, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("uneven", {"steps": 11}),
        ("accumulate", {"epochs": 2, "accumulate": 3, "schedule": "one-cycle", "optimiser": "adamw"}),
        ("single rows", {"steps": 5, "batch_size": 1}),
    ],
)
def test_two_processes_end_with_the_weights_of_one_that_has_whole_batches(two_processes, name, options):
    folder, _ = two_processes
    first, second = (load_file(folder / f"{name}.{rank}.safetensors") for rank in range(2))
    assert_same(first, second)
    wanted = fit_line(**options)
    assert first.keys() == wanted.keys()
    for key, tensor in wanted.items():
        rounding = 1e-9 if tensor.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(first[key], tensor, rtol=rounding, atol=rounding * 1e-2)


@pytest.mark.slow
def test_two_processes_go_on_from_a_checkpoint_to_the_same_bits(two_processes):
    folder, lines = two_processes
    whole, other, part, other_part = (
        load_file(folder / f"{name}.{rank}.safetensors") for name in ("whole", "part") for rank in range(2)
    )
    assert_same(whole, other)
    assert_same(part, whole)
    assert_same(other_part, whole)
    # Only the main one reports.
    assert [line[0] for line in lines] == ["0 3 True 8", "1 0 True 8"]


@pytest.mark.slow
def test_a_loss_of_one_process_that_is_not_finite_stops_all_before_the_weights_change(two_processes):
    _, lines = two_processes
    for rank, line in enumerate(lines):
        assert line[1].startswith(f"{rank} [1.0, 1.0] DivergedError The loss of training is nan in batch 0 of epoch 1")


@pytest.mark.slow
def test_processes_that_were_not_asked_to_train_together_train_apart(two_processes):
    _, lines = two_processes
    assert [line[2] for line in lines] == ["0 0.0", "1 0.2"]


@pytest.mark.slow
def test_one_process_at_full_precision_never_imports_accelerate(tmp_path):
    program = (
        "import sys, torch\nfrom interbasin.training import Checkpoint, train\n"
        "w = torch.zeros(1, requires_grad=True)\n"
        "train([w], [0], lambda b, _: w.sum(), epochs=1, rate=.1, processes=True, checkpoint=Checkpoint(sys.argv[1]))\n"
        "print(sorted({'accelerate', 'tensorboard', 'rich'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "c")]
    assert subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "[]"


# ---------------------------------------------------------------------- shares of batches


def share_of(batch: object, count: int) -> list[tuple[object, float]]:
    shares = []
    for index in range(count):
        processes = Processes([torch.ones(1)], None, together=False)
        processes.count, processes.index = count, index
        shares.append(processes.share(batch))
    return shares


@pytest.mark.parametrize(("rows", "count"), [(6, 2), (7, 2), (5, 3), (1, 2), (2, 5)])
def test_shares_are_all_rows_once_and_weigh_as_much_as_they_hold(rows, count):
    inputs, labels = torch.arange(rows * 2.0).reshape(rows, 2), torch.arange(rows)
    shares = share_of(({"x": inputs}, labels), count)
    assert torch.equal(torch.cat([batch[0]["x"] for batch, _ in shares]), inputs)
    assert torch.equal(torch.cat([batch[1] for batch, _ in shares]), labels)
    means = [weight * float(batch[1].float().mean()) for batch, weight in shares if weight]
    assert sum(means) / count == pytest.approx(float(labels.float().mean()))


def test_a_batch_without_rows_is_the_same_for_all():
    assert share_of(7, 2) == [(7, 1.0), (7, 1.0)]
    assert share_of(("text", torch.ones(())), 2)[1][1] == 1.0


# ---------------------------------------------------------------------- mixed precision


def fit_at(precision: str | None, **options: object) -> tuple[list[torch.dtype], tuple[float, ...], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(32, 4, generator=generator), torch.zeros(4, 1, requires_grad=True)
    dtypes = []

    def loss(batch, index):
        outputs = batch @ weight
        dtypes.append(outputs.dtype)
        return (outputs.float() - batch[:, :1]).square().mean()

    training = train([weight], torch.split(inputs, 8), loss, epochs=6, rate=0.1, precision=precision, **options)
    return dtypes, training.losses, weight.detach()


def test_bfloat16_multiplies_at_half_precision_and_the_loss_falls():
    dtypes, losses, weight = fit_at("bf16")
    assert set(dtypes) == {torch.bfloat16} and weight.dtype == torch.float32
    assert losses[-1] < 0.3 * losses[0]
    assert torch.allclose(weight, fit_at(None)[2], atol=0.02)


def test_half_precision_on_the_cpu_is_refused():
    refused(lambda: fit_at("fp16"), DataError, ("precision='fp16' needs an accelerator", "try 'bf16'"))


def test_what_accelerate_refuses_is_passed_on(monkeypatch):
    def refuse(**options):
        raise ValueError("another precision was fixed before")

    monkeypatch.setattr(module, "import_extra", lambda *names: SimpleNamespace(Accelerator=refuse))
    refused(
        lambda: fit_at("bf16"),
        DataError,
        ("precision='bf16' was asked for, and Accelerate refuses (another precision",),
    )


def test_tensors_on_another_device_than_accelerate_uses_are_refused(monkeypatch):
    elsewhere = SimpleNamespace(Accelerator=lambda **options: SimpleNamespace(device=torch.device("cuda")))
    monkeypatch.setattr(module, "import_extra", lambda *names: elsewhere)
    refused(lambda: fit_at("bf16"), DataError, ("of tensors on 'cpu', and Accelerate uses 'cuda'", "move the tensors"))


def test_processes_that_accelerate_does_not_see_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    alone = SimpleNamespace(num_processes=1)
    monkeypatch.setattr(module, "_start_accelerator", lambda parameters, precision: alone)
    refused(
        lambda: fit_at(None, processes=True), DataError, ("in 2 processes, of which Accelerate finds 1", "torchrun")
    )


def test_accelerate_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match="Training with precision='bf16' needs"):
        fit_at("bf16")


class Double:
    """Accelerate as it is with a scale of gradients, which it has on accelerators alone."""

    num_processes, process_index = 1, 0

    def __init__(self, scale: float) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)

    def autocast(self):
        return contextlib.nullcontext()

    def backward(self, value):
        self.scaler.scale(value).backward()


def test_gradients_that_overflow_leave_out_the_step_and_the_schedule(monkeypatch):
    monkeypatch.setattr(module, "_start_accelerator", lambda parameters, precision: Double(2.0**127))
    rates = []
    weight = torch.zeros(1, requires_grad=True)
    train(
        [weight],
        [torch.tensor([8.0])],
        lambda batch, _: (weight - batch).square().sum(),
        steps=12,
        rate=0.1,
        precision="fp16",
        schedule="cosine",
        progress=lambda step, steps, loss: rates.append(loss),
    )
    assert rates[0] == rates[1] == 64.0 and rates[-1] < 64.0


def test_the_scale_of_gradients_is_kept_in_a_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_start_accelerator", lambda parameters, precision: Double(4.0))
    _, wanted, weight = fit_at("fp16")

    def stop(step, steps, loss):
        if step == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_at("fp16", checkpoint=Checkpoint(tmp_path / "c", steps=6), progress=stop)
    scale = json.loads((tmp_path / "c" / "training.json").read_text("utf-8"))["scale"]
    assert scale["scale"] == 16.0 and scale["_growth_tracker"] == 2
    _, losses, again = fit_at("fp16", checkpoint=Checkpoint(tmp_path / "c", steps=6))
    assert losses == wanted and torch.equal(again, weight)
