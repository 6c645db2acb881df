"""Wirings and alignments on disk: what was saved comes back exactly, and what is damaged is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.records import seal_document
from tests.wiring.known_networks import attention, fused_attention, rows

from interbasin.errors import FileError, InterbasinError, MapError, ShapeError, UnknownNameError, WiringError
from interbasin.maps import Identity, Orthogonal
from interbasin.wiring import Alignment, Wiring, wire


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
    seal_document(path, document)


DAMAGES = {
    "a space without its group": lambda found: first(found["spaces"]).pop("group"),
    "a group that does not exist": lambda found: first(found["spaces"]).update(group="rubber"),
    "an axis of no known form": lambda found: first(found["tensors"]).update(axes=[{"blob": 1}]),
    "axes that are no list": lambda found: first(found["tensors"]).update(axes=3),
    "a role that does not exist": lambda found: first(found["tensors"]).update(
        axes=[{"in": "qkv", "role": "sings", "size": 3}]
    ),
    "no tensors": lambda found: found.pop("tensors"),
    "an axis too few": lambda found: first(found["tensors"])["axes"].pop(),
    "a shape of another size": lambda found: first(found["tensors"]).update(shape=[7, 12]),
    "a shape that is no number": lambda found: first(found["tensors"]).update(shape=["36", 12]),
    "a space that does not exist": lambda found: leaf(found).update({"in": "nowhere"}),
    "an axis of another size than its space": lambda found: leaf(found).update(size=5),
    "a grid without parts": lambda found: first(found["tensors"]).update(axes=[{"grid": []}, {"grid": []}]),
    "an activation in no space": lambda found: found["activations"].update(
        {"x:input:0": [{"in": "nowhere", "role": "write", "size": 3}]}
    ),
    "blocks of a space that does not exist": lambda found: inner(found).update(within=["nowhere"]),
    "a space within itself": lambda found: [space.update(within=[name]) for name, space in found["spaces"].items()],
    "another number of blocks": lambda found: inner(found).update(blocks=2),
    "a size that is a text": lambda found: inner(found).update(size="4"),
    "a place that is none": lambda found: first(found["spaces"]).update(writes=["qkv.weight[9]"]),
    "places that are no list": lambda found: first(found["spaces"]).update(reads=3),
    "a reason of numbers": lambda found: first(found["spaces"]).update(because={"kind": 1, "why": 2}),
    "a tie to nothing": lambda found: found["tied"].update({"a": "b"}),
    "a count that is none": lambda found: found["unknown"].update({"aten.x": "often"}),
    "unused tensors that are numbers": lambda found: found.update(unused=[3]),
}


def leaf(found: dict) -> dict:
    """The first axis of a tensor that lies in a space."""

    def search(part):
        if isinstance(part, dict):
            if "in" in part:
                return part
            part = list(part.values())
        return next((one for one in map(search, part) if one), None) if isinstance(part, list) else None

    return search(found["tensors"])


def inner(found: dict) -> dict:
    """The first space that has a map for each block."""
    return next(space for space in found["spaces"].values() if space["within"])


def first(found: dict) -> dict:
    return next(iter(found.values()))


def holder(document: dict) -> dict:
    """The part of a record that holds the wiring, wherever the format keeps it."""
    if "spaces" in document:
        return document
    return next((found for part in document.values() if isinstance(part, dict) and (found := holder(part))), {})


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_wiring_is_refused(damage: str, wiring: Wiring, tmp_path: Path) -> None:
    wiring.save(tmp_path / "wiring")
    edited(tmp_path / "wiring", "wiring", lambda document: DAMAGES[damage](holder(document)))
    with pytest.raises(FileError, match="is damaged"):
        Wiring.load(tmp_path / "wiring")
    wiring.sample().save(tmp_path / "alignment")
    edited(tmp_path / "alignment", "alignment", lambda document: DAMAGES[damage](holder(document)))
    with pytest.raises(FileError, match="is damaged"):
        Alignment.load(tmp_path / "alignment")


def test_a_damaged_wiring_is_refused_with_the_name_of_what_is_damaged(wiring: Wiring, tmp_path: Path) -> None:
    wiring.save(tmp_path / "wiring")
    edited(tmp_path / "wiring", "wiring", lambda document: holder(document)["tensors"]["qkv.weight"]["axes"].pop())
    with pytest.raises(FileError, match=r"tensor 'qkv\.weight' of a saved wiring is damaged: it has 1 axes"):
        Wiring.load(tmp_path / "wiring")


def test_a_folder_that_has_no_name_is_refused(wiring: Wiring) -> None:
    for write in (wiring.save, wiring.sample().save, Wiring.load, Alignment.load):
        with pytest.raises(FileError):
            write(None)


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


@pytest.mark.parametrize("maps", [None, [1], 3])
def test_an_alignment_needs_a_wiring_and_a_mapping(wiring: Wiring, maps: object) -> None:
    with pytest.raises(WiringError, match="maps must be a dict"):
        Alignment(wiring, maps)
    with pytest.raises(WiringError, match="belongs to a wiring"):
        Alignment(maps, {})


def test_only_spaces_that_exist_can_be_sampled(wiring: Wiring) -> None:
    with pytest.raises(UnknownNameError, match="no space named 'kqv'"):
        wiring.sample(spaces=["kqv"])
    with pytest.raises(WiringError, match="a list of names"):
        wiring.sample(spaces="qkv.0")


def test_an_alignment_knows_whether_it_is_exact(wiring: Wiring) -> None:
    turn = Orthogonal(torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q)
    (heads,) = wiring.spaces["qkv.0"].within
    assert wiring.sample().is_exact
    assert not Alignment(wiring, {heads: turn}).is_exact  # it mixes the heads


def test_a_space_of_heads_needs_one_map_for_each(wiring: Wiring) -> None:
    turn = Orthogonal(torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q)
    with pytest.raises(MapError, match="one map for each of its 3 blocks"):
        Alignment(wiring, {"qkv.0": turn})


def test_the_way_back_needs_blocks_that_change_places_whole() -> None:
    wiring = wire(attention(), rows(5, 12))
    alignment = wiring.sample()
    mixed = Orthogonal(torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q)
    with pytest.raises(MapError, match="can only change places"):
        Alignment(wiring, {**alignment.maps, "q.heads": mixed}).inverse()
