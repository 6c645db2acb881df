"""Theseus in bounded memory: the same update, from files to files, a tensor at a time."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.jobs.transport.small import Attending, Plain, ready
from tests.test_storage import left_in
from torch import Tensor, nn

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.errors import CheckpointError, DataError, FileError, WiringError
from interbasin.extras import import_extra
from interbasin.jobs.transport import Update, prepare_transport, transport_on_disk
from interbasin.jobs.transport.theseus.maps import observe
from interbasin.models import map_weights
from interbasin.outcome import Outcome

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def changed(network: nn.Module, seed: int = 5) -> nn.Module:
    other, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    return other


def attending(**options: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    inputs = torch.randn(64, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return ready(Attending(6, seed=1, **options)), ready(Attending(9, seed=2, **options)), inputs


@pytest.mark.parametrize("heads", ["free", pytest.param("matched", marks=pytest.mark.slow)])
@pytest.mark.parametrize("memory", [1, 10**9], ids=["a pair a pass", "one pass"])
def test_it_writes_what_a_prepared_transport_gives(tmp_path: Path, heads: Any, memory: int) -> None:
    source, target, inputs = attending()
    tuned = changed(source)
    written = transport_on_disk(source, tuned, target, inputs, tmp_path / "out", heads=heads, memory=memory, alpha=1.5)
    expected = prepare_transport(source, target, inputs, heads=heads).apply(tuned, 1.5)
    found = Update.of(tmp_path / "out", target)
    assert set(found) == set(expected.update)
    for name in expected.update:
        torch.testing.assert_close(found.tensor(name), expected.update.tensor(name), rtol=1e-9, atol=1e-11)
    told = [[(row.source, row.target, row.status, row.reason) for row in each.moved] for each in (written, expected)]
    assert told[0] == told[1]
    assert [row.share for row in written.moved] == pytest.approx([row.share for row in expected.moved])
    assert [row.unobserved for row in written.moved] == pytest.approx(
        [row.unobserved for row in expected.moved], abs=1e-9
    )
    assert (len(written.stages.passes) == 1) == (memory > 1)


@pytest.mark.slow
def test_maps_that_drop_and_scale_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    source, target, inputs = attending()
    tuned, few = changed(source), inputs[:2]  # too few rows to see all directions
    for options in ({"unobserved": "drop"}, {"scale": "rms"}):
        folder = tmp_path / "-".join(options.values())
        transport_on_disk(source, tuned, target, few, folder, memory=1, **options)  # type: ignore[arg-type]
        expected = prepare_transport(source, target, few, **options).apply(tuned).update  # type: ignore[arg-type]
        found = Update.of(folder, target)
        for name in expected:
            torch.testing.assert_close(found.tensor(name), expected.tensor(name), rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_a_lora_stays_one(tmp_path: Path) -> None:
    transformers = import_extra("transformers", "This test", "hf")
    peft = import_extra("peft", "This test", "hf")
    shape = {"vocab_size": 50, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    source, target = (
        transformers.LlamaForCausalLM(
            transformers.LlamaConfig(hidden_size=width, intermediate_size=2 * width, **shape)
        ).eval()
        for width in (16, 24)
    )
    adapted = peft.get_peft_model(
        copy.deepcopy(source), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    ).eval()
    data = [{"input_ids": torch.randint(0, 50, (8, 12), generator=torch.Generator().manual_seed(3))}]
    transport_on_disk(source, adapted, target, data, tmp_path)
    found = Update.of(tmp_path, target)
    assert found.rank == 2
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    with pytest.raises(FileError, match="exists already"):
        transport_on_disk(source, adapted, target, data, tmp_path)
    expected = prepare_transport(source, target, data).apply(adapted).update
    for name in expected:
        torch.testing.assert_close(found.tensor(name), expected.tensor(name), rtol=1e-4, atol=1e-5)


def test_the_model_is_written_with_the_update(tmp_path: Path) -> None:
    source, target, inputs = ready(Plain(6)), ready(Plain(8, seed=1)), torch.randn(40, 5, dtype=torch.float64)
    tuned = changed(source)
    transport_on_disk(source, tuned, target, inputs, tmp_path, model=True)
    found = open_checkpoint(tmp_path / "model")
    wanted = Update.of(tmp_path, target).added_to(target).state_dict()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def test_a_dry_run_tells_what_it_takes_and_writes_nothing(tmp_path: Path) -> None:
    source, target, inputs = attending()
    told: list[str] = []
    tuned = changed(source)
    out = tmp_path / "out"
    written = transport_on_disk(source, tuned, target, inputs, out, memory=1, dry_run=True, progress=told.append)
    assert not out.exists() and written.moved == ()
    assert written.stages.memory > 0 and written.stages.seconds > 0
    assert told == [str(written.stages)] and "passes over the data" in told[0]


def test_what_cannot_be_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source, target, inputs = ready(Plain(6)), ready(Plain(8, seed=1)), torch.randn(40, 5, dtype=torch.float64)
    with pytest.raises(DataError, match="memory"):
        transport_on_disk(source, changed(source), target, inputs, tmp_path / "out", memory=0)
    with pytest.raises(DataError, match="alpha"):
        transport_on_disk(source, changed(source), target, inputs, tmp_path / "out", alpha=float("nan"))
    assert not (tmp_path / "out").exists()
    transport_on_disk(source, changed(source), target, inputs, tmp_path / "out")
    with pytest.raises(FileError, match="exists already"):
        transport_on_disk(source, changed(source), target, inputs, tmp_path / "out")
    transport_on_disk(source, changed(source), target, inputs, tmp_path / "out", force=True)
    with pytest.raises(DataError, match="without a folder"):
        transport_on_disk(source, changed(source), target, inputs)
    assert left_in(tmp_path) == ["out", "out/moved.csv", "out/outcome.json", "out/update.safetensors"]


def test_it_leaves_an_outcome_with_the_account_and_says_that_nothing_was_judged(tmp_path: Path) -> None:
    source, target, inputs = attending()
    written = transport_on_disk(source, changed(source), target, inputs, tmp_path / "out", alpha=0.5, memory=1)
    outcome = Outcome.load(tmp_path / "out")
    outcome.verify()
    assert outcome.job == "transport" and outcome.request["memory"] == 1 and outcome.metrics["alpha"] == 0.5
    assert outcome.metrics["share_moved"] + outcome.metrics["share_skipped"] == pytest.approx(1)
    assert outcome.table("moved")["source"] == [row.source for row in written.moved]
    assert outcome.notes == written.notes and "there is no verdict" in outcome.notes[-1]
    assert any("the largest tensors and spaces have to fit" in note for note in outcome.notes)
    assert set(outcome.written()) == {"update.safetensors", "moved.csv"}


@pytest.mark.parametrize("where", ["observe", "Carrier"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    source, target, inputs = attending()

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"interbasin.jobs.transport.theseus.on_disk.{where}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        transport_on_disk(source, changed(source), target, inputs, tmp_path / "out", memory=1)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("heads", ["free", pytest.param("matched", marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: Any
) -> None:
    source, target, inputs = attending()
    tuned, state, place = changed(source), tmp_path / "state", "interbasin.jobs.transport.theseus.on_disk.observe"
    asked = (source, tuned, target, inputs)
    passes = len(transport_on_disk(*asked, tmp_path / "whole", memory=1, heads=heads).stages.passes)
    recorded: list[int] = []

    def stop(*arguments: Any, **options: Any) -> Any:
        if len(recorded) == passes - 1:
            raise KeyboardInterrupt
        recorded.append(1)
        return observe(*arguments, **options)

    monkeypatch.setattr(place, stop)
    with pytest.raises(KeyboardInterrupt):
        transport_on_disk(*asked, tmp_path / "out", memory=1, heads=heads, state=state)
    assert not (tmp_path / "out").exists() and recorded
    if heads == "free":  # with more maps than one kept, one is damaged, and fitted again
        damaged = next(state.glob("maps-*/*/*-map/*.safetensors"))
        damaged.write_bytes(damaged.read_bytes()[:-8])

    again: list[tuple[str, str]] = []

    def count(*arguments: Any, **options: Any) -> Any:
        again.extend(arguments[2])
        return observe(*arguments, **options)

    monkeypatch.setattr(place, count)
    told: list[str] = []
    transport_on_disk(*asked, tmp_path / "out", memory=1, heads=heads, state=state, progress=told.append)
    assert 0 < len(again) < passes and any("done before" in line for line in told)
    for name in ("update.safetensors", "moved.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # Another request finds nothing of its own there.
    again.clear()
    transport_on_disk(*asked, tmp_path / "other", memory=1, heads=heads, state=state, centered=False)
    assert len(again) == passes


def test_a_fine_tune_with_nan_is_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, inputs = attending()
    tuned = changed(source)
    next(tuned.parameters()).data.view(-1)[0] = float("nan")
    write_checkpoint(tmp_path / "tuned.safetensors", tuned.state_dict())

    def record(*arguments: object, **options: object) -> None:
        raise AssertionError("recorded")

    monkeypatch.setattr("interbasin.jobs.transport.theseus.on_disk.observe", record)
    with pytest.raises(DataError, match="NaN"):
        transport_on_disk(source, tmp_path / "tuned.safetensors", target, inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"merge_weights": [1, 0.5]}, {"merge": "ties", "density": 0.3}])
def test_several_fine_tunes_are_merged_on_the_way(tmp_path: Path, options: Any) -> None:
    source, target, inputs = attending()
    tuned = [changed(source, seed) for seed in (5, 6)]
    transport_on_disk(source, tuned, target, inputs, tmp_path / "out", **options)
    expected = prepare_transport(source, target, inputs).apply(tuned, **options).update
    found = Update.of(tmp_path / "out", target)
    for name in expected:
        torch.testing.assert_close(found.tensor(name), expected.tensor(name), rtol=1e-9, atol=1e-11)


class Tied(nn.Module):
    """A table of tokens that is also the head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table, self.mid, self.head = nn.Embedding(7, width), nn.Linear(width, width), nn.Linear(width, 7)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mid(self.table(x))))  # type: ignore[no-any-return]


def test_tied_names_with_updates_of_their_own_are_refused(tmp_path: Path) -> None:
    tokens, update = torch.arange(7).repeat(4, 2), {"head.weight": torch.ones(7, 4), "table.weight": torch.zeros(7, 4)}
    with pytest.raises(WiringError, match=r"call interbasin.transport without memory="):
        transport_on_disk(Tied(4).eval(), update, Tied(6).eval(), tokens, tmp_path / "out")
    assert left_in(tmp_path) == []


# ---------------------------------------------------------------------- weights that stay in their files


def empty(width: int) -> nn.Module:
    with torch.device("meta"):
        return Plain(width)


def test_mapped_weights_compute_what_loaded_ones_do(tmp_path: Path) -> None:
    network, inputs = Plain(6), torch.randn(3, 5)
    write_checkpoint(tmp_path / "some.safetensors", network.state_dict())
    mapped = map_weights(empty(6), tmp_path / "some.safetensors")
    torch.testing.assert_close(mapped(inputs), network(inputs))
    before = (tmp_path / "some.safetensors").read_bytes()
    mapped.up.bias.add_(1)  # type: ignore[union-attr, operator]
    assert (tmp_path / "some.safetensors").read_bytes() == before


def test_mapped_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "some.safetensors", Plain(6).state_dict())
    with pytest.raises(CheckpointError, match=r"up\.weight has shape"):
        map_weights(empty(7), tmp_path / "some.safetensors")
    write_checkpoint(tmp_path / "less.safetensors", {"up.weight": Plain(6).up.weight.detach()})
    with pytest.raises(CheckpointError, match="lacks 3 tensors"):
        map_weights(empty(6), tmp_path / "less.safetensors")
    torch.save(Plain(6).state_dict(), tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match="cannot be mapped"):
        map_weights(empty(6), tmp_path / "old.pt")
    with torch.device("meta"):
        network = nn.Sequential(nn.Linear(2, 2))
        network.register_buffer("steps", torch.zeros(2), persistent=False)
    write_checkpoint(tmp_path / "linear.safetensors", nn.Sequential(nn.Linear(2, 2)).state_dict())
    with pytest.raises(CheckpointError, match="steps of the Sequential is on the meta device"):
        map_weights(network, tmp_path / "linear.safetensors")


def test_tied_tensors_stay_one_when_they_are_mapped(tmp_path: Path) -> None:
    network = Tied(4).eval()
    stored = {name: tensor for name, tensor in network.state_dict().items() if name != "head.weight"}
    write_checkpoint(tmp_path / "tied.safetensors", stored)
    with torch.device("meta"):
        made = Tied(4)
    mapped: Any = map_weights(made, tmp_path / "tied.safetensors")
    assert mapped.head.weight is mapped.table.weight
    torch.testing.assert_close(mapped(torch.arange(7)), network(torch.arange(7)))


class Residual(nn.Module):
    """Blocks on one stream, each with a hidden space of its own that is as wide."""

    def __init__(self, width: int, depth: int, inputs: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(inputs, width), nn.Linear(width, 8)
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + 0.1 * down(torch.relu(up(x)))
        return self.head(x)  # type: ignore[no-any-return]


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


WORKER = """
import json, sys, threading
from pathlib import Path
import torch
from interbasin.jobs.transport import transport_on_disk
from interbasin.models import map_weights
from interbasin.outcome import Outcome
from tests.jobs.transport.theseus.test_on_disk import Residual, status

torch.set_num_threads(1)
folder, depth, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
small = Residual(8, 1, 8).eval()
transport_on_disk(small, {"up.0.bias": torch.ones(8)}, small, torch.randn(64, 8), folder / "warm")  # imports and pools
with torch.device("meta"):
    networks = [Residual(width, depth, 64) for width in (512, 640)]
source, target = [map_weights(each, folder / name) for each, name in zip(networks, ("a.safetensors", "b.safetensors"))]
data = torch.randn(600, 64, generator=torch.Generator().manual_seed(0))
before, peak, done = status("RssAnon"), [0], threading.Event()

def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], status("RssAnon"))

watcher = threading.Thread(target=watch)
watcher.start()
written = transport_on_disk(source, folder / "tuned.safetensors", target, data, folder / "out", memory=14_000_000)
done.set()
watcher.join()
print(json.dumps({"peak": peak[0] - before, "estimate": written.stages.memory, "passes": len(written.stages.passes)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_checkpoint_larger_than_memory_is_carried(tmp_path: Path) -> None:
    """79 MB of weights, and a limit of 36 on what the process holds of its own beside what it began with.

    Pages of files do not count: the system drops them when it needs the memory for something else. Nor does memory that
    was given back to the allocator, so that is made to return it: by default glibc keeps what it has once handed out.
    """
    depth, limit = 24, 36_000_000
    for name, width, seed in (("a", 512, 0), ("b", 640, 1), ("tuned", 512, 0)):
        torch.manual_seed(seed)
        network = Residual(width, depth, 64)
        write_checkpoint(
            tmp_path / f"{name}.safetensors", (changed(network) if name == "tuned" else network).state_dict()
        )
    size = (tmp_path / "b.safetensors").stat().st_size
    assert size > 2 * limit
    returning = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **returning}
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(depth), str(limit)]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert answer.returncode == 0, answer.stderr[-2000:]
    told = json.loads(answer.stdout)
    assert told["peak"] < limit and told["passes"] > 1
    assert told["peak"] / 2 < told["estimate"] < 2 * told["peak"]
    assert (tmp_path / "out" / "update.safetensors").stat().st_size > 2 * limit
