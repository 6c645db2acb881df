"""What was recorded, in files and back."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.networks.recording.examples import mlp, numbers
from tests.test_storage import retensored

from interbasin.errors import FileError, UnknownNameError
from interbasin.networks.recording import Recording, record


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
    path.write_text(json.dumps(document | {"sums": [{}]}), "utf-8")
    with pytest.raises(FileError, match=r"The recording in .* is damaged \('grams'\)"):
        Recording.load(tmp_path / "r")
    broken = dict(document["sums"][0], sources=["source"], targets=["target"])
    path.write_text(json.dumps(document | {"sums": [broken], "notes": {}}), "utf-8")
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
    path.write_text(json.dumps(document), "utf-8")
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
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(FileError, match="it names no pair"):
        Recording.load(tmp_path / "r")
