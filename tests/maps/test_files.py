"""Maps on disk: exact, whole, and suspicious of what they find."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.records import seal_document
from tests.test_storage import left_in, refused, retensored

from interbasin import maps
from interbasin.errors import FileError
from interbasin.maps import Affine, Blocks, Identity, Linear, Map, Orthogonal, Permutation, SignedPermutation

EVERY_KIND: list[Map] = [
    Identity(3),
    Permutation([2, -1, 0]),
    Permutation([4, 1], source_width=5),
    SignedPermutation([1, 0], [1, -1]),
    Orthogonal([[0.0, -1.0], [1.0, 0.0]]),
    Linear(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)),
    Linear([[0.1, 0.2], [0.3, 0.4]]),
    Affine(torch.ones(2, 3), [0.5, 0.25]),
    Affine(Permutation([1, 0]), [0.5, 0.25]),
    Blocks([Linear(torch.ones(2, 3)), Blocks([Identity(1), SignedPermutation([0], [-1])])], order=[1, 0]),
]
MAP_FILES = ["map", "map/map.json", "map/map.safetensors"]


def name(map: Map) -> str:
    return f"{map.kind} {map.target_width} from {map.source_width}"


def edit(folder: Path, **changes: object) -> None:
    path = folder / "map.json"
    document = json.loads(path.read_text("utf-8")) | changes
    seal_document(path, {key: value for key, value in document.items() if value is not ...})


def retensor(folder: Path, **changes: torch.Tensor | None) -> None:
    retensored(folder, "map", changes)


@pytest.fixture
def saved(tmp_path):
    def save(map: Map) -> Path:
        map.save(tmp_path / "map")
        return tmp_path / "map"

    return save


@pytest.mark.parametrize("map", EVERY_KIND, ids=name)
def test_every_kind_comes_back_exactly(map, saved, tmp_path):
    found = maps.load(saved(map))
    assert type(found) is type(map) and found == map
    assert left_in(tmp_path) == MAP_FILES


@pytest.mark.parametrize("map", EVERY_KIND, ids=name)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_map_cut_off_anywhere_is_named(map, share, saved):
    folder = saved(map)
    for file in ("map.safetensors", "map.json"):
        path = folder / file
        whole = path.read_bytes()
        path.write_bytes(whole[: min(int(share * len(whole)), len(whole) - 3)])
        refused(lambda: maps.load(folder), FileError, (str(folder), "damaged"))
        path.write_bytes(whole)
    assert maps.load(folder) == map


LINEAR, PERMUTATION = Linear([[1.0, 2.0], [3.0, 4.0]]), Permutation([1, 0])
BLOCKS = Blocks([LINEAR, Identity(1)])


@pytest.mark.parametrize(
    ("map", "kind", "words"),
    [
        (LINEAR, "orthogonal", ("Q Q^T Q",)),
        (LINEAR, "permutation", ("index",)),
        (LINEAR, "signed-permutation", ("index",)),
        (LINEAR, "affine", ("linear",)),
        (LINEAR, "identity", ("width",)),
        (LINEAR, "blocks", ("maps",)),
        (PERMUTATION, "signed-permutation", ("sign",)),
        (PERMUTATION, "linear", ("matrix",)),
        (BLOCKS, "linear", ("matrix",)),
        (Identity(2), "permutation", ("index",)),
        (LINEAR, "quadratic", ("'quadratic'", "linear")),
        (LINEAR, None, ("None",)),
        (LINEAR, ["linear"], ()),
        (LINEAR, ..., ("kind",)),
    ],
    ids=lambda value: str(getattr(value, "kind", value)) if not isinstance(value, tuple) else "",
)
def test_a_map_of_another_kind_than_it_says_is_refused(map, kind, words, saved):
    folder = saved(map)
    edit(folder, kind=kind)
    refused(lambda: maps.load(folder), FileError, (str(folder), *words))


@pytest.mark.parametrize(
    ("map", "changes", "words"),
    [
        (LINEAR, {"source_width": 3}, ("2 <- 3", "2 <- 2")),
        (LINEAR, {"target_width": 1}, ("1 <- 2", "2 <- 2")),
        (LINEAR, {"source_width": ...}, ("source_width",)),
        (Identity(2), {"source_width": 3}, ("2 <- 3",)),
        (Identity(2), {"width": 0}, ("at least 1",)),
        (Identity(2), {"width": "2"}, ("'2'",)),
        (PERMUTATION, {"source_width": 1}, ("0 to 0",)),
        (PERMUTATION, {"source_width": 2.0}, ("2.0",)),
        (PERMUTATION, {"source_width": 10**30}, ()),
        (PERMUTATION, {"target_width": 7}, ("7 <- 2",)),
        (BLOCKS, {"source_width": 4}, ("3 <- 4",)),
        (BLOCKS, {"maps": []}, ("at least one map",)),
        (BLOCKS, {"maps": 3}, ()),
        (BLOCKS, {"maps": [{"kind": "identity"}]}, ("width",)),
        (BLOCKS, {"maps": ["linear", "identity"]}, ()),
        (BLOCKS, {"maps": [{"kind": "identity", "width": 2, "source_width": 1, "target_width": 2}] * 2}, ("2 <- 1",)),
        (LINEAR, {"format": "interbasin.moments"}, ("'interbasin.moments'",)),
        (LINEAR, {"version": 2}, ("version 2", "update interbasin")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_document_that_disagrees_with_its_numbers_is_refused(map, changes, words, saved):
    folder = saved(map)
    edit(folder, **changes)
    refused(lambda: maps.load(folder), FileError, (str(folder), *words))


@pytest.mark.parametrize(
    ("map", "changes", "words"),
    [
        (LINEAR, {"matrix": None}, ("matrix",)),
        (LINEAR, {"matrix": torch.ones(2)}, ("(2,)",)),
        (LINEAR, {"matrix": torch.ones(3, 3)}, ("3 <- 3",)),
        (LINEAR, {"matrix": torch.full((2, 2), torch.nan)}, ("finite",)),
        (LINEAR, {"matrix": torch.eye(2, dtype=torch.complex64)}, ("complex64",)),
        (LINEAR, {"matrix": torch.eye(2).to(torch.float8_e4m3fn)}, ("float8",)),
        (Orthogonal(torch.eye(2)), {"matrix": 2 * torch.eye(2)}, ("Q Q^T Q",)),
        (Affine(torch.eye(2), [1.0, 2.0]), {"offset": None}, ("offset",)),
        (Affine(torch.eye(2), [1.0, 2.0]), {"offset": torch.ones(3)}, ("(3,)",)),
        (PERMUTATION, {"index": None}, ("index",)),
        (PERMUTATION, {"index": torch.tensor([0, 0])}, ("more than once",)),
        (PERMUTATION, {"index": torch.tensor([0, 5])}, ("[5]",)),
        (PERMUTATION, {"index": torch.tensor([0.0, 1.0])}, ("whole numbers",)),
        (SignedPermutation([0], [1]), {"sign": torch.tensor([3])}, ("+1 or -1",)),
        (BLOCKS, {"order": None}, ("order",)),
        (BLOCKS, {"order": torch.tensor([0])}, ("order of 2 blocks",)),
        (BLOCKS, {"0.matrix": None}, ("matrix",)),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_numbers_that_are_not_those_of_the_map_are_refused(map, changes, words, saved):
    folder = saved(map)
    retensor(folder, **changes)
    refused(lambda: maps.load(folder), FileError, (str(folder), *words))


def test_nothing_is_overwritten_unasked(saved, tmp_path):
    folder = saved(LINEAR)
    refused(lambda: PERMUTATION.save(folder), FileError, (str(folder), "exists already", "--force"))
    assert maps.load(folder) == LINEAR
    PERMUTATION.save(folder, force=True)
    assert maps.load(folder) == PERMUTATION
    assert left_in(tmp_path) == MAP_FILES


def test_force_does_not_touch_what_is_not_ours(tmp_path):
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "map.json").write_text('{"name": "a street map"}', "utf-8")
    refused(lambda: LINEAR.save(tmp_path / "map", force=True), FileError, ("did not write",))
    assert left_in(tmp_path) == ["map", "map/map.json"]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize(
    ("owner", "function"), [(safetensors.torch, "save_file"), (Path, "write_text")], ids=["numbers", "text"]
)
def test_a_save_that_fails_leaves_the_earlier_map(fault, owner, function, saved, tmp_path, monkeypatch):
    folder = saved(LINEAR)

    def fail(*arguments, **keywords):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fail)
        with pytest.raises((FileError, KeyboardInterrupt)):
            PERMUTATION.save(folder, force=True)
        with pytest.raises((FileError, KeyboardInterrupt)):
            PERMUTATION.save(tmp_path / "new")
    assert maps.load(folder) == LINEAR
    assert left_in(tmp_path) == MAP_FILES
