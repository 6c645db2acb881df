"""Wirings and alignments on disk: what was saved comes back exactly, and what is damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.networks.wiring.known_networks import attention, fused_attention, rows

from interbasin.errors import FileError, InterbasinError, MapError, ShapeError, UnknownNameError
from interbasin.maps import Identity, Orthogonal
from interbasin.networks.wiring import Alignment, Wiring, wire


@pytest.fixture(scope="module", params=["3 heads channels", "heads 3 channels"])
def wiring(request: pytest.FixtureRequest) -> Wiring:
    return wire(fused_attention(request.param), rows(5, 12))


def test_a_saved_wiring_comes_back_equal(wiring: Wiring, tmp_path: Path) -> None:
    wiring.save(tmp_path / "wiring")
    again = Wiring.load(tmp_path / "wiring")
    assert again == wiring
    assert (str(again), repr(again), again.coverage) == (str(wiring), repr(wiring), wiring.coverage)


def test_a_saved_alignment_comes_back_bit_for_bit(wiring: Wiring, tmp_path: Path) -> None:
    alignment = wiring.sample(seed=3)
    alignment.save(tmp_path / "alignment")
    again = Alignment.load(tmp_path / "alignment")
    assert again.wiring == wiring
    assert list(again.maps) == list(alignment.maps)
    for name, one in alignment.maps.items():
        assert type(again.maps[name]) is type(one)
        assert torch.equal(again.maps[name].matrix, one.matrix)
    assert again.is_exact


def test_nothing_is_overwritten_unless_it_is_asked_for(wiring: Wiring, tmp_path: Path) -> None:
    wiring.save(tmp_path / "wiring")
    with pytest.raises(FileError):
        wiring.save(tmp_path / "wiring")
    wiring.save(tmp_path / "wiring", force=True)
    assert Wiring.load(tmp_path / "wiring") == wiring


def edited(folder: Path, name: str, change) -> None:
    path = folder / f"{name}.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


DAMAGES = {
    "a space without its group": lambda found: first(found["spaces"]).pop("group"),
    "a group that does not exist": lambda found: first(found["spaces"]).update(group="rubber"),
    "an axis of no known form": lambda found: first(found["tensors"]).update(axes=[{"blob": 1}]),
    "axes that are no list": lambda found: first(found["tensors"]).update(axes=3),
    "a role that does not exist": lambda found: first(found["tensors"]).update(
        axes=[{"in": "qkv", "role": "sings", "size": 3}]
    ),
    "no tensors": lambda found: found.pop("tensors"),
}


def first(found: dict) -> dict:
    return next(iter(found.values()))


def holder(document: dict) -> dict:
    """The part of a record that holds the wiring, wherever the format keeps it."""
    if "spaces" in document:
        return document
    return next(found for part in document.values() if isinstance(part, dict) and (found := holder(part)))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_wiring_is_refused(damage: str, wiring: Wiring, tmp_path: Path) -> None:
    wiring.save(tmp_path / "wiring")
    edited(tmp_path / "wiring", "wiring", lambda document: DAMAGES[damage](holder(document)))
    with pytest.raises(FileError):
        Wiring.load(tmp_path / "wiring")


def test_a_truncated_wiring_is_refused(wiring: Wiring, tmp_path: Path) -> None:
    wiring.save(tmp_path / "wiring")
    path = tmp_path / "wiring" / "wiring.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(FileError):
        Wiring.load(tmp_path / "wiring")


def test_a_missing_file_is_refused(wiring: Wiring, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        Wiring.load(tmp_path / "nowhere")
    wiring.sample().save(tmp_path / "alignment")
    with pytest.raises(FileError):
        Wiring.load(tmp_path / "alignment")  # an alignment is not a wiring


def test_an_alignment_refuses_maps_of_other_spaces_and_widths(wiring: Wiring) -> None:
    with pytest.raises(UnknownNameError, match="qkv"):
        Alignment(wiring, {"qkv.7": Identity(4)})
    with pytest.raises(ShapeError, match="12 wide and its map reads width 4"):
        Alignment(wiring, {"qkv.0": Identity(4)})
    with pytest.raises(InterbasinError):
        Alignment(wiring, {"qkv.0": torch.eye(12)})


def test_an_alignment_knows_whether_it_is_exact(wiring: Wiring) -> None:
    turn = Orthogonal(torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q)
    assert wiring.sample().is_exact
    assert not Alignment(wiring, {"qkv.0": turn}).is_exact  # it mixes the heads


def test_the_way_back_needs_one_map_for_each_block(wiring: Wiring) -> None:
    turn = Orthogonal(torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q)
    with pytest.raises(MapError, match="one map for each of its 3 blocks"):
        Alignment(wiring, {"qkv.0": turn}).inverse()


def test_the_way_back_needs_blocks_that_change_places_whole() -> None:
    wiring = wire(attention(), rows(5, 12))
    alignment = wiring.sample()
    mixed = Orthogonal(torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q)
    with pytest.raises(MapError, match="can only change places"):
        Alignment(wiring, {**alignment.maps, "q.heads": mixed}).inverse()
