"""What was recorded, in files and back."""

from __future__ import annotations

import json

import pytest
import torch
from tests.networks.recording.examples import mlp, numbers

from interbasin.errors import FileError
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
    with pytest.raises(FileError, match=r"The recording in .* is damaged \('sources'\)"):
        Recording.load(tmp_path / "r")
    broken = dict(document["sums"][0], sources=["source"], targets=["target"])
    path.write_text(json.dumps(document | {"sums": [broken], "notes": {}}), "utf-8")
    with pytest.raises(FileError, match="state of one that was not finished"):
        Recording.load(tmp_path / "r")


def test_it_says_what_it_is():
    assert repr(record(mlp(), numbers(9, 5), ["0:output"])) == "Recording(1 pairs, 1 batches)"
    found = record(mlp(), numbers(9, 5), ["0:output"], statistics="layerwise")
    assert repr(found) == "Recording(all pairs of layers, 1 batches)"
