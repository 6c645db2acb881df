"""The writer: what it writes is what it was given, once, whole, and never over something else."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.checkpoints.strategies import NAMES, same, weights
from tests.test_storage import case, left_in, refused

from interbasin.checkpoints import open_checkpoint, write_checkpoint, write_into
from interbasin.checkpoints.write import is_our_file, is_our_folder
from interbasin.errors import CheckpointError, DataError, FileError

W = torch.arange(6.0).reshape(2, 3)
INDEX = "model.safetensors.index.json"


# Laws


@given(weights(), st.sampled_from((1, 7, 40, 200, 10**9)), st.booleans(), st.booleans())
def test_saving_then_loading_is_exact(tensors, shard, as_pairs, again):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write_checkpoint(path, iter(tensors.items()) if as_pairs else tensors, max_shard_bytes=shard)
        if again:  # what was read can be written, tied names and all
            write_checkpoint(Path(folder) / "again", open_checkpoint(path), max_shard_bytes=shard + 11)
            path = Path(folder) / "again"
        found = open_checkpoint(path)
        assert set(found) == set(tensors)
        assert all(same(found[name], tensors[name]) for name in tensors)
        assert all(found.shape(name) == tuple(tensors[name].shape) for name in tensors)
        assert all(file.stat().st_size for file in found.files)
        tied = {name: stored for name, stored in found.ties.items()}
        assert all(tensors[name].data_ptr() == tensors[stored].data_ptr() for name, stored in tied.items())


@given(weights(), st.dictionaries(NAMES, NAMES, max_size=3))
def test_one_file_is_what_the_library_reads(tensors, notes):
    notes.pop("interbasin", None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.safetensors"
        write_checkpoint(path, tensors, metadata=notes)
        checkpoint = open_checkpoint(path)
        reference = load_file(path)
        assert set(reference) == set(checkpoint.sources)
        assert all(same(reference[name], tensors[name]) for name in reference)
        assert dict(checkpoint.metadata) == {"format": "pt", **notes}
        assert left_in(Path(folder)) == ["one.safetensors"]


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 200))
def test_no_file_grows_beyond_the_limit_unless_one_tensor_does(sizes, limit):
    tensors = {f"t{number}": torch.zeros(size) for number, size in enumerate(sizes)}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "m", tensors, max_shard_bytes=limit)
        checkpoint = open_checkpoint(Path(folder) / "m")
        for file in checkpoint.files:
            held = [name for name, source in checkpoint.sources.items() if source.path == file]
            assert sum(4 * tensors[name].numel() for name in held) <= limit or len(held) == 1 or limit < 4


# Ties and views


def test_tied_weights_are_written_once_and_come_back_under_both_names(tmp_path):
    write_checkpoint(tmp_path / "m", {"embed": W, "head": W.detach()})
    assert set(load_file(tmp_path / "m" / "model.safetensors")) == {"embed"}
    found = open_checkpoint(tmp_path / "m")
    assert dict(found.ties) == {"head": "embed"} and same(found["head"], W) and found.shape("head") == (2, 3)


def test_a_tie_across_shards_is_kept(tmp_path):
    write_checkpoint(tmp_path / "m", [("a", W), ("b", W + 1), ("c", W)], max_shard_bytes=24)
    found = open_checkpoint(tmp_path / "m")
    assert len(found.files) == 2 and dict(found.ties) == {"c": "a"} and same(found["c"], W)


def test_views_of_one_memory_are_written_as_tensors_of_their_own(tmp_path):
    tensors = {"all": W, "turned": W.mT, "row": W[0], "column": W[:, 0]}
    write_checkpoint(tmp_path / "m", tensors)
    found = open_checkpoint(tmp_path / "m")
    assert not found.ties and all(same(found[name], tensors[name]) for name in tensors)


def test_a_tensor_made_where_another_was_is_not_taken_for_it(tmp_path):
    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(50):  # each is freed before the next is made, often in the same place
            yield f"t{number}", torch.full((1000,), float(number))

    write_checkpoint(tmp_path / "m", stream(), max_shard_bytes=1)
    found = open_checkpoint(tmp_path / "m")
    assert not found.ties and all(found[f"t{number}"][0] == number for number in range(50))


@pytest.mark.slow
def test_no_more_than_a_shard_is_in_memory(tmp_path):
    alive = 0
    most = 0

    class Counted(torch.Tensor):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal alive, most
        for number in range(40):
            alive += 1
            most = max(most, alive)
            yield f"t{number}", torch.zeros(1000).as_subclass(Counted)

    write_checkpoint(tmp_path / "m", stream(), max_shard_bytes=5 * 4000)
    assert most <= 7 and len(open_checkpoint(tmp_path / "m").files) == 8


def test_conjugates_are_written_as_what_they_stand_for(tmp_path):
    value = torch.tensor([1 + 2j], dtype=torch.complex64)
    write_checkpoint(tmp_path / "m", {"c": value.conj(), "n": value.conj().imag})
    found = open_checkpoint(tmp_path / "m")
    assert found["c"].item() == 1 - 2j and found["n"].item() == -2


# Likeness


def model_folder(path: Path, tensors: dict[str, torch.Tensor], **files: str) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    for name, text in {"config_json": '{"model_type": "gpt2"}', **files}.items():
        (path / name.replace("_json", ".json").replace("_txt", ".txt")).write_text(text, "utf-8")
    return path


def test_of_tied_names_the_one_is_kept_that_the_other_checkpoint_keeps(tmp_path):
    like = model_folder(tmp_path / "like", {"head": W})
    for number, given_like in enumerate((like, str(like), open_checkpoint(like))):
        write_checkpoint(tmp_path / str(number), {"embed": W, "head": W}, like=given_like)
        assert dict(open_checkpoint(tmp_path / str(number)).ties) == {"embed": "head"}
        assert left_in(tmp_path / str(number)) == ["config.json", "model.safetensors"]


def test_names_that_the_other_checkpoint_stores_apart_are_stored_apart(tmp_path):
    like = model_folder(tmp_path / "like", {"embed": W, "head": W.clone()})
    write_checkpoint(tmp_path / "m", {"embed": W, "head": W}, like=like)
    assert set(load_file(tmp_path / "m" / "model.safetensors")) == {"embed", "head"}
    torch.save({"embed": W, "head": W}, tmp_path / "tied.pt")
    write_checkpoint(tmp_path / "n", open_checkpoint(tmp_path / "tied.pt"), like=like)
    assert set(load_file(tmp_path / "n" / "model.safetensors")) == {"embed", "head"}


def test_a_configuration_alone_can_be_the_likeness(tmp_path):
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "config.json").write_text("{}", "utf-8")
    write_checkpoint(tmp_path / "m", {"w": W}, like=tmp_path / "like")
    assert left_in(tmp_path / "m") == ["config.json", "model.safetensors"]


def test_an_adapter_stays_one_file_by_its_own_name(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text('{"peft_type": "LORA"}', "utf-8")
    save_file({"x": W, "y": W.clone()}, tmp_path / "a" / "adapter_model.safetensors")
    write_checkpoint(tmp_path / "b", {"x": W + 1, "y": W}, like=tmp_path / "a", max_shard_bytes=1)
    assert left_in(tmp_path / "b") == ["adapter_config.json", "adapter_model.safetensors"]
    assert open_checkpoint(tmp_path / "b").kind == "adapter" and is_our_folder(tmp_path / "b")


def test_an_adapter_can_be_given_another_base(tmp_path):
    (tmp_path / "a").mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": "old", "revision": "main", "r": 2}
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    save_file({"x": W}, tmp_path / "a" / "adapter_model.safetensors")
    write_checkpoint(tmp_path / "b", {"x": W}, like=tmp_path / "a", base=tmp_path / "new")
    adapter = open_checkpoint(tmp_path / "b").adapter
    assert (adapter.base, adapter.rank) == (str(tmp_path / "new"), 2)
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text("utf-8")) == settings


@pytest.mark.parametrize("name", ["b", "b.safetensors"])
def test_a_base_for_what_is_no_adapter_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="base= names the network of an adapter"):
        write_checkpoint(tmp_path / name, {"x": W}, base="new")
    assert left_in(tmp_path) == []


def test_a_likeness_that_is_not_there_is_named(tmp_path):
    words = ("missing", "there is nothing there")
    refused(lambda: write_checkpoint(tmp_path / "m", {}, like=tmp_path / "missing"), CheckpointError, words)
    assert left_in(tmp_path) == []


def test_the_index_is_as_transformers_reads_it(tmp_path):
    write_checkpoint(tmp_path / "m", {"b": W, "a": W + 1}, max_shard_bytes=24)
    index = json.loads((tmp_path / "m" / INDEX).read_text("utf-8"))
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index == {"metadata": {"total_size": 48}, "weight_map": {"a": second, "b": first}}
    assert left_in(tmp_path) == ["m", f"m/{first}", f"m/{second}", f"m/{INDEX}"]


# What cannot be written


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        case("an array", {"a": [1.0]}, DataError, "a is a list"),
        case("sparse", {"a": W.to_sparse()}, DataError, "a is sparse (torch.sparse_coo)", "to_dense"),
        case(
            "complex doubles",
            {"a": W.to(torch.complex128)},
            DataError,
            "a is of complex128, which a safetensors file cannot hold",
        ),
        case("no numbers", {"a": W.to("meta")}, DataError, "a has a shape but no numbers"),
        case("a name that is a number", {1: W}, DataError, "stored by name, found 1"),
        case("no name", {"": W}, DataError, "stored by name, found ''"),
        case("a reserved name", {"__metadata__": W}, DataError, "'__metadata__'"),
        case("half a character", {"\ud800": W}, DataError, "UTF-8"),
        case("a name twice", [("a", W), ("a", W + 1)], DataError, "Two tensors are named 'a'"),
    ],
)
@pytest.mark.parametrize("name", ["m", "m.safetensors"])
def test_what_cannot_be_stored_is_refused_and_nothing_is_left(name, tensors, error, words, tmp_path):
    refused(lambda: write_checkpoint(tmp_path / name, tensors), error, words)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, "5GB"])
def test_a_limit_that_is_none_is_refused(limit, tmp_path):
    refused(lambda: write_checkpoint(tmp_path / "m", {}, max_shard_bytes=limit), DataError, ("max_shard_bytes",))


@pytest.mark.parametrize("notes", [{"a": 1}, {1: "a"}, {"interbasin": "x"}])
def test_notes_that_cannot_be_kept_are_refused(notes, tmp_path):
    for name in ("m", "m.safetensors"):
        refused(lambda name=name: write_checkpoint(tmp_path / name, {}, metadata=notes), DataError, ("text to text",))
    assert left_in(tmp_path) == []


def test_a_source_that_fails_half_way_leaves_nothing(tmp_path):
    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", W
        yield "b", W
        raise ZeroDivisionError

    for name in ("m", "m.safetensors"):
        with pytest.raises(ZeroDivisionError):
            write_checkpoint(tmp_path / name, stream(), max_shard_bytes=1)
    assert left_in(tmp_path) == []


# What is in the way


@pytest.mark.parametrize("name", ["m", "m.safetensors"])
def test_nothing_is_overwritten_unasked_and_ours_is_replaced_when_asked(name, tmp_path):
    path = tmp_path / name
    write_checkpoint(path, {"w": W})
    before = left_in(tmp_path)
    refused(lambda: write_checkpoint(path, {"w": W + 1}), FileError, (str(path), "exists already", "force"))
    assert same(open_checkpoint(path)["w"], W) and left_in(tmp_path) == before
    write_checkpoint(path, {"w": W + 1}, force=True)
    assert same(open_checkpoint(path)["w"], W + 1) and left_in(tmp_path) == before


def test_a_folder_of_ours_is_replaced_by_one_with_other_files(tmp_path):
    like = model_folder(tmp_path / "like", {"a": W}, vocab_txt="a", tokenizer_json="{}")
    write_checkpoint(tmp_path / "m", {"a": W, "b": W + 1}, like=like, max_shard_bytes=1)
    assert is_our_folder(tmp_path / "m") and len(left_in(tmp_path / "m")) == 6
    write_checkpoint(tmp_path / "m", open_checkpoint(tmp_path / "m"), force=True)
    assert left_in(tmp_path / "m") == ["model.safetensors"] and is_our_folder(tmp_path / "m")


def test_a_file_of_someone_else_is_never_replaced(tmp_path):
    save_file({"w": W}, tmp_path / "theirs.safetensors")
    (tmp_path / "text.safetensors").write_text("mine", "utf-8")
    for name in ("theirs", "text"):
        path = tmp_path / f"{name}.safetensors"
        assert not is_our_file(path)
        refused(lambda path=path: write_checkpoint(path, {}, force=True), FileError, ("did not write that file",))
    assert (tmp_path / "text.safetensors").read_text("utf-8") == "mine"


def test_a_folder_of_someone_else_is_never_replaced(tmp_path):
    like = model_folder(tmp_path / "like", {"a": W})
    assert not is_our_folder(like)
    refused(lambda: write_checkpoint(like, {"a": W}, force=True), FileError, ("did not write",))
    write_checkpoint(tmp_path / "m", {"a": W})
    for put in (
        lambda: (tmp_path / "m" / "thesis.tex").write_text("years of work", "utf-8"),
        lambda: save_file({"w": W}, tmp_path / "m" / "other.safetensors"),
        lambda: (tmp_path / "m" / "link").symlink_to(tmp_path / "like"),
    ):
        put()
        refused(lambda: write_checkpoint(tmp_path / "m", {}, force=True), FileError, ("did not write",))
        for extra in ("thesis.tex", "other.safetensors", "link"):
            (tmp_path / "m" / extra).unlink(missing_ok=True)
    assert same(open_checkpoint(tmp_path / "m")["a"], W)


def test_what_someone_wrote_there_in_the_meantime_is_kept(tmp_path):
    def stream(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
        yield "w", W
        path.write_text("theirs", "utf-8") if path.suffix else (
            path.mkdir(),
            (path / "t").write_text("theirs", "utf-8"),
        )

    for name in ("m", "m.safetensors"):
        path = tmp_path / name
        refused(lambda path=path: write_checkpoint(path, stream(path)), FileError, ("exists already",))
    assert left_in(tmp_path) == ["m", "m.safetensors", "m/t"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder.safetensors", ("a folder of that name exists",)),
        ("link.safetensors", ("no ordinary file",)),
        ("file/below.safetensors", ("is not a folder",)),
        ("x" * 300 + ".safetensors", ("name too long",)),
        ("a\0b.safetensors", ("cannot be the name of a folder or file",)),
    ],
)
def test_a_place_that_cannot_be_written_is_named(name, words, tmp_path):
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "file").write_text("mine", "utf-8")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "nowhere")
    before = left_in(tmp_path)
    refused(lambda: write_checkpoint(tmp_path / name, {"w": W}, force=True), FileError, words)
    assert left_in(tmp_path) == before


def test_missing_parents_are_made(tmp_path):
    write_checkpoint(tmp_path / "a" / "b.safetensors", {"w": W})
    write_checkpoint(tmp_path / "a" / "c" / "d", {"w": W})
    assert same(open_checkpoint(tmp_path / "a" / "b.safetensors")["w"], W)


def test_what_is_left_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_checkpoint(tmp_path / "m.safetensors", {"w": W})
        write_checkpoint(tmp_path / "m", {"w": W})
    finally:
        os.umask(before)
    assert (tmp_path / "m.safetensors").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "m" / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_being_filled_can_be_written_into(tmp_path):
    (tmp_path / "report.html").write_text("", "utf-8")
    write_into(tmp_path, {"w": W})
    assert left_in(tmp_path) == ["model.safetensors", "report.html"]


@pytest.mark.parametrize("step", ["mkdtemp", "fsync", "replace"])
def test_a_step_that_fails_leaves_nothing(step, tmp_path, monkeypatch):
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile if step == "mkdtemp" else os, step, full)
    for name in ("m", "m.safetensors"):
        refused(lambda name=name: write_checkpoint(tmp_path / name, {"w": W}), FileError, ("No space left on device",))
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", ["m", "m.safetensors"])
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        pytest.param(None, ("a mapping of names to tensors", "found a NoneType"), id="nothing"),
        pytest.param(3, ("found a int",), id="number"),
        pytest.param("weights", ("found a str",), id="text"),
        pytest.param(W, ("found a Tensor",), id="tensor"),
        pytest.param(torch.nn.Linear(2, 2), ("found the network itself (Linear)", "state_dict()"), id="network"),
        pytest.param([W], ("pairs of a name and a tensor, and number 0 is a Tensor",), id="no pairs"),
        pytest.param([("a", W), ("b", W, W)], ("number 1 is a tuple",), id="triples"),
    ],
)
def test_what_is_no_tensors_by_name_is_refused(tmp_path, name, tensors, words):
    refused(lambda: write_checkpoint(tmp_path / name, tensors), DataError, words)
    assert left_in(tmp_path) == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused(tmp_path):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    refused(lambda: write_checkpoint(tmp_path / "m", {"a": nested}), DataError, ("a is a nested tensor",))


def test_names_of_files_are_text(tmp_path):
    for path in (None, 3, b"m"):
        refused(lambda path=path: write_checkpoint(path, {"a": W}), FileError, ("named by text",))
        refused(lambda path=path: write_into(path, {"a": W}), FileError, ("named by text",))
        if path is not None:
            words = ("like=", "named by text")
            refused(lambda path=path: write_checkpoint(tmp_path / "m", {"a": W}, like=path), CheckpointError, words)
    refused(lambda: write_into(tmp_path / "none", {"a": W}), CheckpointError, ("which is no folder", "make it first"))


@pytest.mark.parametrize("metadata", ["notes", [("a", "b")], {"a": "\ud800"}, {"\ud800": "a"}], ids=repr)
def test_notes_are_whole_text_to_text(tmp_path, metadata):
    refused(
        lambda: write_checkpoint(tmp_path / "m", {"a": W}, metadata=metadata), DataError, ("Notes in a checkpoint",)
    )
    refused(lambda: write_checkpoint(tmp_path / "m", {"a": W}, max_shard_bytes=True), DataError, ("got True",))
