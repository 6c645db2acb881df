"""A transport that was ended goes on from its state, to the same bytes."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fresh import Starter, starting
from tests.jobs.transport.test_job import mlp, rows, tuned_of
from tests.test_storage import left_in

import interbasin as ib
from interbasin.errors import FileError, UnknownNameError
from interbasin.jobs.transport.comparison import measure as comparison
from interbasin.jobs.transport.journal import Journal


class Batches:
    """Batches that count how often they are handed out, and can interrupt when it is the n-th time."""

    def __init__(self, data: torch.Tensor, last: int | None = None) -> None:
        self.batches, self.last, self.count = list(data.split(32)), last, 0

    def __iter__(self):
        for batch in self.batches:
            self.count += 1
            if self.count == self.last:
                raise KeyboardInterrupt
            yield batch


class Counted(torch.nn.Module):
    """A network that counts its calls."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network, self.calls = network, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.network(x)


def ask(state: Path | None, last: int | None = None, **more):
    source, target = Counted(mlp(16, 1)), Counted(mlp(24, 2))
    tuned = Counted(tuned_of(mlp(16, 1)))
    data = Batches(rows() + 3, last)
    generic = Batches(rows(128, seed=2) - 3)
    given = {"generic": generic, "method": "regression", "state": state} | more
    return ib.transport(source, tuned, target, data, **given), data, target


def same(one, other) -> bool:
    pair = one.model.state_dict(), other.model.state_dict()
    return one.metrics == other.metrics and all(torch.equal(tensor, pair[1][name]) for name, tensor in pair[0].items())


@pytest.mark.parametrize(
    ("more", "shares"),
    [
        pytest.param({}, (0.15, 0.5, 0.8), marks=pytest.mark.slow, id="dense"),
        pytest.param({"as_lora": 3}, (0.6,), id="lora"),
        pytest.param({"front": [5.0]}, (0.9,), marks=pytest.mark.slow, id="front"),
    ],
)
def test_a_run_that_was_interrupted_goes_on_to_the_same_bytes(more, shares, tmp_path):
    whole, data, _ = ask(None, **more)
    for share in shares:
        state, last = tmp_path / str(share), round(share * data.count)
        with pytest.raises(KeyboardInterrupt):
            ask(state, last, **more)
        again, _, _ = ask(state, **more)
        assert same(again, whole)
        assert again.front == () or [row.effect for row in again.front] == [row.effect for row in whole.front]


ROWS = ["none", "random", "direct", "theseus", "regression", "head-ridge", "tuned-source", "label-ridge"]


def without_seconds(rows):
    return [repr(replace(row, seconds=0.0)) for row in rows]  # repr: NaN is not equal to itself


@pytest.mark.slow
@pytest.mark.parametrize("last", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_rows_of_a_comparison_that_are_done_are_kept(last, tmp_path, monkeypatch):
    more = {"compare": ROWS, "method": "theseus", "validate": [(rows(32, seed=5), torch.arange(32) % 3)]}
    whole, _, _ = ask(None, **more)
    assert any(row.note for row in whole.compared) and any(row.accuracy is not None for row in whole.compared)
    tried, end = [], last

    def counted(*arguments):
        if len(tried) == end:
            raise KeyboardInterrupt
        tried.append(arguments[2])
        return measure(*arguments)

    measure = comparison._row
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_row", counted)
        with pytest.raises(KeyboardInterrupt):
            ask(tmp_path / "state", **more)
    tried.clear()
    end = None
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_row", counted)
        again, _, _ = ask(tmp_path / "state", **more)
        count = len(tried)
        third, _, _ = ask(tmp_path / "state", **more)
        assert len(tried) == count  # all of them are kept now, seconds included
        # With other labels, or another seed, nothing of it is taken.
        for change in ({"validate": [(rows(32, seed=5), torch.zeros(32).long())]}, {"seed": 3}):
            tried.clear()
            ask(tmp_path / "state", **(more | change))
            assert len(tried) == len(again.compared)
    assert count == len(whole.compared) - last
    assert without_seconds(again.compared) == without_seconds(whole.compared)
    assert list(map(repr, third.compared)) == list(map(repr, again.compared))


def test_a_damaged_row_is_tried_again(tmp_path):
    more = {"compare": ["none", "random"], "method": "theseus"}
    whole, _, _ = ask(tmp_path / "state", **more)
    (first, second) = sorted((tmp_path / "state").glob("compared-*/row-*/row.json"))
    first.write_text("{")
    second.with_suffix(".safetensors").write_bytes(b"no")
    assert without_seconds(ask(tmp_path / "state", **more)[0].compared) == without_seconds(whole.compared)


@pytest.mark.slow
def test_what_is_done_is_not_done_again(tmp_path):
    _, _, first = ask(tmp_path / "state")
    _, _, second = ask(tmp_path / "state")
    assert second.calls < 0.6 * first.calls
    # With other options nothing of it is taken.
    other, _, _ = ask(tmp_path / "state", generic_weight=4.0)
    assert same(other, ask(None, generic_weight=4.0)[0])


@pytest.mark.slow
def test_what_is_damaged_is_done_again(tmp_path):
    whole, _, _ = ask(tmp_path / "state")
    stages = sorted((tmp_path / "state").glob("fitted-*/stage-*/stage.safetensors"))
    assert len(stages) > 3
    content = bytearray(stages[1].read_bytes())
    content[-1] ^= 1
    stages[1].write_bytes(bytes(content))
    stages[2].with_suffix(".json").write_text("{")
    assert same(ask(tmp_path / "state")[0], whole)


def test_a_folder_of_someone_else_is_refused_before_any_work(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(FileError, match=r"holds other things \(letter.txt\)"):
        ask(tmp_path)
    with pytest.raises(FileError, match="is a file"):
        ask(tmp_path / "letter.txt")
    assert left_in(tmp_path) == ["letter.txt"]


@pytest.mark.slow
def test_a_full_disk_is_said_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    whole, _, _ = ask(None)

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("interbasin.storage.journal.write_record", full)
        with pytest.raises(FileError, match="No space left"):
            ask(tmp_path / "state")
    assert not list((tmp_path / "state").glob("fitted-*/stage-*"))
    assert not [path for path in (tmp_path / "state").rglob(".interbasin-*")]
    assert same(ask(tmp_path / "state")[0], whole)
    with monkeypatch.context() as patch:
        patch.setattr("interbasin.jobs.transport.result.line_chart", full)
        patch.setattr("interbasin.jobs.transport.result.bar_chart", full)
        with pytest.raises(FileError, match="No space left"):
            whole.save(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.slow
def test_a_state_is_for_one_run_at_a_time(tmp_path):
    refusals = []

    def again(text):
        if not refusals:
            with pytest.raises(FileError, match=r"Another process is writing the state in .*; wait for it") as refusal:
                ask(tmp_path / "state")
            refusals.append(refusal)

    whole, _, _ = ask(None)
    assert same(ask(tmp_path / "state", progress=again)[0], whole) and refusals
    assert not (tmp_path / "state" / "lock").exists()
    assert same(ask(tmp_path / "state")[0], whole)


def test_a_run_that_keeps_nothing_leaves_no_state(tmp_path):
    with pytest.raises(FileError, match="is a file"):
        (tmp_path / "file").write_text("")
        ask(tmp_path / "file")
    with pytest.raises(UnknownNameError):
        ask(tmp_path / "state", method="magic")
    assert left_in(tmp_path) == ["file"]


@pytest.mark.slow
def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    whole, _, _ = ask(tmp_path / "state")
    (stages, *_) = (tmp_path / "state").glob("fitted-*")
    for folder in (tmp_path / "state", stages):
        (folder / ".interbasin-new-abc").mkdir()
        (folder / ".interbasin-new-abc" / "recording.json").write_text("{")
    assert same(ask(tmp_path / "state")[0], whole)
    assert not list((tmp_path / "state").rglob(".interbasin-*"))


SCRIPT = """
import torch
from tests.jobs.transport.test_journal import ask
result = ask({state!r})[0]
torch.save({{"weights": result.model.state_dict(), "metrics": dict(result.metrics)}}, {path!r})
"""


@pytest.fixture(scope="module")
def starter(tmp_path_factory) -> Iterator[Starter]:
    with starting(tmp_path_factory.mktemp("printed"), "tests.jobs.transport.test_journal") as found:
        yield found


def script(folder: Path, name: str) -> str:
    return SCRIPT.format(state=str(folder / "state"), path=str(folder / name))


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path, starter):
    program = script(tmp_path, "result.pt")
    kills = 0
    for stages in (1, 3, 5):
        process = starter.start(program, tmp_path)
        while process.poll() is None and len(list((tmp_path / "state").glob("fitted-*/stage-*"))) < stages:
            time.sleep(0.005)
        if process.poll() is None:
            process.kill()
            kills += 1
        process.wait()
    assert kills
    done = starter.run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    found, whole = torch.load(tmp_path / "result.pt"), ask(None)[0]
    assert found["metrics"] == dict(whole.metrics)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(found["weights"][name], tensor)


@pytest.mark.slow
def test_processes_that_share_a_state_do_not_disturb_one_another(tmp_path, starter):
    runs = [starter.start(script(tmp_path, f"{number}.pt"), tmp_path) for number in range(3)]
    ended = [run.wait() for run in runs]
    whole = ask(None)[0]
    done = [number for number, run in enumerate(ended) if run.returncode == 0]
    # One that came while another was at work says so; one that came later took up what was there.
    told = [run.stderr for run in ended]
    assert done and all("Another process is writing the state" in text for n, text in enumerate(told) if n not in done)
    for number in done:
        found = torch.load(tmp_path / f"{number}.pt")
        assert found["metrics"] == dict(whole.metrics)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(found["weights"][name], tensor)


def test_of_a_mask_function_it_counts_what_it_answers(tmp_path):
    journal, data = Journal.at(tmp_path / "state"), [torch.ones(4, 3, 6, dtype=torch.float64)]
    folders = [
        journal.recording([mlp(8, 1)], data, mask=lambda batch, count=count: torch.arange(3).expand(4, 3) < count)
        for count in (2, 2, 3)
    ]
    assert folders[0] == folders[1] != folders[2]


class Times(torch.nn.Module):
    """A network whose forward function is not told by its modules and tensors."""

    def __init__(self, function) -> None:
        super().__init__()
        self.first, self._function = torch.nn.Linear(2, 3), function
        torch.nn.init.ones_(self.first.weight)
        torch.nn.init.zeros_(self.first.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(self.first(x))


def test_of_networks_it_counts_what_they_answer(tmp_path):
    journal, data = Journal.at(tmp_path / "state"), [torch.randn(4, 2, generator=torch.Generator().manual_seed(0))]
    functions = (torch.relu, torch.relu, torch.tanh)
    recorded = [journal.recording([Times(function)], data) for function in functions]
    assert recorded[0] == recorded[1] != recorded[2]
    fitted = [journal.stages([Times(function)], [data, None], Times(function), {}).folder for function in functions]
    assert fitted[0] == fitted[1] != fitted[2]
