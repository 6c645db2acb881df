"""What was recorded, in files and back; and recordings that were interrupted and go on, bit for bit."""

from __future__ import annotations

import copy
import json
import signal
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.activations.examples import mlp, numbers, vit
from tests.profiles import at_most
from tests.records import seal_document
from tests.test_storage import retensored
from torch import nn

from interbasin.activations import Recording, record
from interbasin.activations.recording import digest_of, fingerprint
from interbasin.errors import DataError, FileError, InterbasinError, UnknownNameError


def same(one, other):
    assert one.moments.keys() == other.moments.keys()
    assert dict(one.places) == dict(other.places) and one.batches == other.batches
    for names, moments in one.moments.items():
        again = other.moments[names]
        assert (again.count, again.precision, again.batches) == (moments.count, moments.precision, moments.batches)
        for name in ("sources", "targets", "crosses"):
            for key, value in getattr(moments._state, name).items():
                found = getattr(again._state, name)[key]
                parts = (value, found) if isinstance(value, torch.Tensor) else (value.total, found.total)
                assert torch.equal(*parts)


@pytest.mark.parametrize("statistics", ["moments", "layerwise"])
def test_saved_and_loaded_it_is_the_same(tmp_path, statistics):
    found = record((mlp(0), mlp(1)), numbers(20, 5), ["0:output", "2:output"], statistics=statistics, batch_size=8)
    found.save(tmp_path / "r")
    again = Recording.load(tmp_path / "r")
    same(found, again)
    assert (again.layerwise is None) == (statistics == "moments")
    if again.layerwise is not None:
        assert torch.equal(again.layerwise.cka(), found.layerwise.cka())


def test_what_shares_statistics_shares_them_again(tmp_path):
    found = record(mlp(), numbers(9, 5), {"a": "0:output", "b": "0:output"}, wirings=False)
    found.save(tmp_path / "r")
    again = Recording.load(tmp_path / "r")
    assert again.moments["a", "a"] is again.moments["b", "b"]


def test_nothing_is_overwritten_unasked_and_damage_is_noticed(tmp_path):
    found = record(mlp(), numbers(9, 5), ["0:output"])
    found.save(tmp_path / "r")
    with pytest.raises(FileError, match="exists already"):
        found.save(tmp_path / "r")
    found.save(tmp_path / "r", force=True)
    path = tmp_path / "r" / "recording.json"
    document = json.loads(path.read_text("utf-8"))
    seal_document(path, document | {"sums": [{}]})
    with pytest.raises(FileError, match=r"The recording in .* is damaged \('grams'\)"):
        Recording.load(tmp_path / "r")
    broken = dict(document["sums"][0], sources=["source"], targets=["target"])
    seal_document(path, document | {"sums": [broken], "notes": {}})
    with pytest.raises(FileError, match="state of one that was not finished"):
        Recording.load(tmp_path / "r")


def test_it_says_what_it_is():
    assert repr(record(mlp(), numbers(9, 5), ["0:output"])) == "Recording(1 pair, 1 batch)"
    found = record(mlp(), numbers(9, 5), ["0:output"], statistics="layerwise")
    assert repr(found) == "Recording(all pairs of layers, 1 batch)"


def test_a_pair_that_was_not_recorded_is_told_with_the_nearest(tmp_path):
    found = record(mlp(), numbers(9, 5), ["0:output", "2:output"])
    found.save(tmp_path / "r")
    for one in (found, Recording.load(tmp_path / "r")):
        for pairs in (one.moments, one.places):
            with pytest.raises(UnknownNameError, match=r"named \('1:output', '0:output'\); try one of: \('0:output', "):
                _ = pairs["1:output", "0:output"]
            with pytest.raises(
                UnknownNameError, match=r"found the one name '0:output'; ask for \('0:output', '0:output'"
            ):
                _ = pairs["0:output"]
            with pytest.raises(UnknownNameError, match="no recorded pair"):
                _ = pairs[None]
            assert pairs.get("0:output") is None and ("a", "b") not in pairs


def test_a_name_that_is_none_is_refused():
    for folder in (None, 3, b"r"):
        with pytest.raises(FileError, match="is named by text"):
            Recording.load(folder)
        with pytest.raises(FileError, match="is named by text"):
            record(mlp(), numbers(9, 5), ["0:output"]).save(folder)


@pytest.mark.parametrize(
    ("key", "value"), [("count", -1), ("count", 10**30), ("batches", 0), ("sources", ["a"]), ("sources", [])]
)
def test_sums_that_cannot_be_are_noticed(tmp_path, key, value):
    record(mlp(), numbers(9, 5), ["0:output"]).save(tmp_path / "r")
    path = tmp_path / "r" / "recording.json"
    document = json.loads(path.read_text("utf-8"))
    document["sums"][0][key] = value
    seal_document(path, document)
    with pytest.raises(FileError, match="is damaged"):
        Recording.load(tmp_path / "r")


@pytest.mark.parametrize("made", [lambda t: t[:1], lambda t: t[None], lambda t: t.long()], ids=["cut", "axis", "whole"])
@pytest.mark.parametrize("name", ["0.source.0.origin", "0.source.0.total", "0.target.0.square", "0.cross.0.0"])
def test_tensors_that_do_not_fit_are_noticed(tmp_path, made, name):
    record(mlp(), numbers(9, 5), ["0:output"], grams=True).save(tmp_path / "r")
    tensors = load_file(tmp_path / "r" / "recording.safetensors")
    retensored(tmp_path / "r", "recording", {name: made(tensors[name]).contiguous().clone()})
    with pytest.raises(FileError, match="is damaged"):
        Recording.load(tmp_path / "r")


def test_a_recording_without_pairs_is_damaged(tmp_path):
    record(mlp(), numbers(9, 5), ["0:output"]).save(tmp_path / "r")
    path = tmp_path / "r" / "recording.json"
    document = json.loads(path.read_text("utf-8"))
    document["notes"]["pairs"] = []
    seal_document(path, document)
    with pytest.raises(FileError, match="it names no pair"):
        Recording.load(tmp_path / "r")


# ---------------------------------------------------------------------- states


SPACES = ["2:input", "2:output"]
ROOT = Path(__file__).parents[2]


class StopError(Exception):
    pass


def stop_after(batches):
    def told(done):
        if done == batches:
            raise StopError

    return told


@at_most(15)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["moments", "layerwise"]), st.booleans())
def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_numbers(tmp_path_factory, stop, every, statistics, grams):
    folder = tmp_path_factory.mktemp("state") / "s"
    models = mlp(0, dtype=torch.float32), mlp(1, dtype=torch.float32)
    data = list(numbers(8, 6, 5, dtype=torch.float32))
    spaces = ["0:output", "2:output"] if statistics == "layerwise" else SPACES
    options = {"statistics": statistics, "grams": grams}
    whole = record(models, data, spaces, **options)
    with pytest.raises(StopError):
        record(models, data, spaces, state=folder, every=every, progress=stop_after(stop), **options)
    seen = []
    resumed = record(models, data, spaces, state=folder, every=every, progress=seen.append, **options)
    same(whole, resumed)
    same(whole, record(models, data, spaces, state=folder, every=every, **options))


def test_batches_that_are_done_are_not_run_again(tmp_path):
    net = mlp()
    calls = []
    net.register_forward_pre_hook(lambda *_: calls.append(1))
    data = list(numbers(6, 4, 5))
    with pytest.raises(StopError):
        record(net, data, ["0:output"], state=tmp_path / "s", every=2, progress=stop_after(5))
    assert len(calls) == 5
    record(net, data, ["0:output"], state=tmp_path / "s", every=2)
    assert len(calls) == 5 + 2
    record(net, data, ["0:output"], state=tmp_path / "s")
    assert len(calls) == 7


KILLED = """
import sys, time, torch
from tests.activations.examples import numbers, vit
from interbasin.activations import record

def told(done):
    print(done, flush=True)
    time.sleep(0.05)

models = vit(0).float(), vit(1, width=36).float()
data = list(numbers(30, 2, 3, 32, 32, dtype=torch.float32))
record(models, data, ["blocks.0.mlp.fc2:input", "norm:input"], state=sys.argv[1], every=2, progress=told)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(tmp_path, starter):
    folder = tmp_path / "s"
    process = starter.start(KILLED, ROOT, folder)
    process.wait_for("7")
    process.kill()
    assert process.wait().returncode == -signal.SIGKILL
    kept = json.loads((folder / "recording.json").read_text("utf-8"))["notes"]["batches"]
    assert 6 <= kept < 30
    models = vit(0).float(), vit(1, width=36).float()
    data = list(numbers(30, 2, 3, 32, 32, dtype=torch.float32))
    spaces = ["blocks.0.mlp.fc2:input", "norm:input"]
    told = []
    resumed = record(models, data, spaces, state=folder, every=2, progress=told.append)
    same(record(models, data, spaces), resumed)


def test_the_state_of_another_recording_is_refused_with_what_differs(tmp_path):
    net, data = mlp(), list(numbers(3, 4, 5))
    record(net, data, ["0:output"], state=tmp_path / "s")

    def refused(match, *args, **options):
        with pytest.raises(DataError, match=match):
            record(*args, state=tmp_path / "s", **options)

    refused("belongs to another recording: it differs in spaces; choose another folder", net, data, ["2:output"])
    refused("differs in networks", mlp(1), data, ["0:output"])
    refused("differs in grams", net, data, ["0:output"], grams=True)
    refused("differs in statistics", net, data, ["0:output"], statistics="layerwise")
    refused("data do not begin", net, list(numbers(3, 4, 5, seed=1)), ["0:output"])
    refused("data do not begin", net, data[:2], ["0:output"])


def test_more_data_of_the_same_are_added(tmp_path):
    net, data = mlp(), list(numbers(5, 4, 5))
    record(net, data[:3], ["0:output"], state=tmp_path / "s")
    same(record(net, data, ["0:output"]), record(net, data, ["0:output"], state=tmp_path / "s"))


def test_data_that_can_be_read_only_once_cannot_be_resumed(tmp_path):
    with pytest.raises(DataError, match="A recording with state= reads the data more than once, found a generator"):
        record(mlp(), (x for x in numbers(3, 4, 5)), ["0:output"], state=tmp_path / "s")


def test_loaders_that_shuffle_are_noticed_when_they_are_resumed(tmp_path):
    rows = numbers(40, 5)
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    net = mlp()
    with pytest.raises(StopError):
        record(net, loader, ["0:output"], state=tmp_path / "s", every=1, progress=stop_after(3))
    with pytest.raises(DataError, match="a loader that does not shuffle"):
        record(net, loader, ["0:output"], state=tmp_path / "s")


def test_the_folder_of_a_state_holds_nothing_else(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("mine", "utf-8")
    with pytest.raises(FileError, match="holds other things; choose another"):
        record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "s")
    with pytest.raises(DataError, match="every must be a whole number of at least 1, got 0"):
        record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "t", every=0)


def test_a_damaged_state_is_refused(tmp_path):
    record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "s")
    path = tmp_path / "s" / "recording.json"
    document = json.loads(path.read_text("utf-8"))
    del document["notes"]["batches"]
    seal_document(path, document)
    with pytest.raises(FileError, match="is damaged"):
        record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "s")


def test_a_state_is_not_a_recording(tmp_path):
    record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "s")
    with pytest.raises(FileError, match="a state of one that was not finished"):
        Recording.load(tmp_path / "s")


def test_a_batch_that_fails_leaves_the_last_state(tmp_path):
    data = list(numbers(4, 4, 5))
    bad = [*data[:2], torch.full((4, 5), torch.nan, dtype=torch.float64), data[3]]
    started = time.monotonic()
    with pytest.raises(InterbasinError, match="In batch 2"):
        record(mlp(), bad, ["0:output"], state=tmp_path / "s", every=1)
    same(record(mlp(), data, ["0:output"]), record(mlp(), data, ["0:output"], state=tmp_path / "s"))
    assert time.monotonic() - started < 60


def test_one_changed_entry_of_weights_or_data_is_noticed(tmp_path):
    net = nn.Linear(100, 90).double()
    data = [numbers(50, 100), numbers(50, 100, seed=1)]
    record(net, data, [":output"], state=tmp_path / "s")
    changed = copy.deepcopy(net)
    changed.weight.data[1, 7] += 1e-9
    with pytest.raises(DataError, match="differs in networks"):
        record(changed, data, [":output"], state=tmp_path / "s")
    other = [data[0].clone(), data[1]]
    other[0][3, 3] += 1e-9
    with pytest.raises(DataError, match="the data do not begin"):
        record(net, other, [":output"], state=tmp_path / "s")
    assert record(net, data, [":output"], state=tmp_path / "s").batches == 2


def test_other_modules_with_the_same_weights_are_noticed(tmp_path):
    net, data = mlp(), numbers(4, 5)
    record(net, data, ["2:output"], state=tmp_path / "s")
    net[1] = nn.GELU()
    with pytest.raises(DataError, match="differs in networks"):
        record(net, data, ["2:output"], state=tmp_path / "s")


class Config:
    """A configuration as transformers has them."""

    def __init__(self, **values):
        self.values = values

    def to_dict(self):
        return self.values


class Configured(nn.Module):
    def __init__(self, heads=2, calls=None, **values):
        super().__init__()
        self.heads, self.config, self.counted = heads, Config(**values), calls


class Shown(nn.Module):
    def extra_repr(self):
        return f"through {object()!r}"


class Shy(nn.Module):
    def extra_repr(self):
        raise AttributeError("nothing to show")


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.2)),
        (lambda: nn.LayerNorm(4), lambda: nn.LayerNorm(4, eps=0.5)),
        (lambda: nn.MultiheadAttention(4, 2), lambda: nn.MultiheadAttention(4, 1)),
        (lambda: Configured(2), lambda: Configured(4)),
        (lambda: Configured(text={"act": "relu"}), lambda: Configured(text={"act": "gelu"})),
    ],
    ids=["slope", "eps", "heads", "argument", "configuration"],
)
def test_settings_tell_a_network_from_another(make, other):
    def printed(new):
        torch.manual_seed(0)
        return fingerprint(nn.Sequential(new()))

    assert printed(make) == printed(make) != printed(other)


def test_where_a_network_comes_from_and_what_it_counts_do_not_tell_it_from_another():
    prints = [
        fingerprint(Configured(calls=None, _name_or_path=place, transformers_version=place, kinds={"b", "a"}))
        for place in ("here", "there")
    ]
    counted = Configured(_name_or_path="", kinds={"a", "b"})
    counted.counted = 7
    assert prints[0] == prints[1] == fingerprint(counted)
    assert fingerprint(Shown()) == fingerprint(Shown()) and fingerprint(Shy()) == fingerprint(Shy())


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3).double()

    def forward(self, x, scale):
        return self.fc(x * scale)


def test_plain_values_in_a_batch_are_part_of_it(tmp_path):
    torch.manual_seed(0)
    net, x = Scaled(), numbers(4, 5)
    record(net, [{"x": x, "scale": 2.0}], ["fc:output"], state=tmp_path / "s")
    with pytest.raises(DataError, match="the data do not begin"):
        record(net, [{"x": x, "scale": 3.0}], ["fc:output"], state=tmp_path / "s")


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_batches_of_every_kind_have_a_digest(dtype):
    numbers = torch.arange(12).reshape(3, 4).mT
    values = numbers.to(dtype)
    assert digest_of([values]) == digest_of([values.clone()]) != digest_of([numbers.flip(0).to(dtype)])
    assert digest_of(values[:0]) != digest_of(values[:0].to(torch.float64))


def test_entries_that_change_places_change_the_digest():
    rows = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    swapped = rows.clone()
    swapped[:, [3, 7]] = rows[:, [7, 3]]  # the sum of all entries is the same, and so are most of them
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert digest_of(rows.to(dtype)) != digest_of(swapped.to(dtype))
    late = rows.clone()
    late[20, 50], late[20, 51] = rows[20, 51], rows[20, 50]
    assert digest_of(rows) != digest_of(late)


def test_the_digest_is_of_entries_and_not_of_how_they_lie_in_memory(monkeypatch):
    values = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(0))
    layouts = [values, values.permute(2, 0, 1).contiguous().permute(1, 2, 0), torch.stack([values, values], -1)[..., 0]]
    whole = digest_of(values)
    for piece in (3, 4, 7, 20, 1000):
        monkeypatch.setattr("interbasin.activations.recording.PIECE", piece)
        assert {digest_of(layout) for layout in layouts} == {whole}
    assert digest_of(values.mT) != whole


def test_a_state_with_hashes_of_an_older_version_is_recorded_again(tmp_path):
    net, data = mlp(), list(numbers(3, 4, 5))
    record(net, data, ["0:output"], state=tmp_path / "s")
    path = tmp_path / "s" / "recording.json"
    document = json.loads(path.read_text("utf-8"))
    del document["notes"]["request"]["hashes"]
    document["notes"]["digest"] = "0" * 64
    seal_document(path, document)
    same(record(net, data, ["0:output"]), record(net, data, ["0:output"], state=tmp_path / "s"))
    assert json.loads(path.read_text("utf-8"))["notes"]["digest"] != "0" * 64


@pytest.mark.parametrize("every", [None, 1.5, "2", True])
def test_between_two_states_lies_a_whole_number_of_batches(tmp_path, every):
    with pytest.raises(DataError, match=f"every must be a whole number of at least 1, got {every!r}"):
        record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "s", every=every)
    with pytest.raises(FileError, match="is named by text"):
        record(mlp(), numbers(4, 5), ["0:output"], state=3)


@pytest.mark.parametrize("sums", ["fewer", "others"])
def test_a_state_with_other_sums_is_refused(tmp_path, sums):
    record(mlp(), numbers(4, 5), SPACES, state=tmp_path / "s")
    path = tmp_path / "s" / "recording.json"
    document = json.loads(path.read_text("utf-8"))
    if sums == "fewer":
        del document["sums"][1]
    else:
        document["sums"][0]["sources"] = ["another"]
    seal_document(path, document)
    with pytest.raises(FileError, match=r"is damaged: its . sums are not of 2 pairs"):
        record(mlp(), numbers(4, 5), SPACES, state=tmp_path / "s")


TOGETHER = """
import sys
from tests.activations.examples import mlp, numbers
from interbasin.activations import record

data = list(numbers(150, 2, 5))
for _ in range(3):
    print(record(mlp(), data, ["2:input", "2:output"], state=sys.argv[1], every=1).count, flush=True)
"""


@pytest.mark.slow
def test_runs_that_share_a_state_do_not_disturb_one_another(tmp_path, starter):
    runs = [starter.start(TOGETHER, ROOT, tmp_path / "s") for _ in range(2)]
    assert [run.wait().stdout.split() for run in runs] == [["300"] * 3] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    same(
        record(mlp(), list(numbers(150, 2, 5)), SPACES),
        record(mlp(), list(numbers(150, 2, 5)), SPACES, state=tmp_path / "s"),
    )


def test_what_is_in_the_way_for_good_is_an_error(tmp_path, monkeypatch):
    tried = []

    def refuse(*args, **options):
        tried.append(1)
        raise FileError("in the way")

    monkeypatch.setattr("interbasin.activations.recording.save_sums", refuse)
    with pytest.raises(FileError, match="in the way"):
        record(mlp(), numbers(4, 5), ["0:output"], state=tmp_path / "s")
    assert len(tried) == 5
