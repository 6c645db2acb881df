"""What reaches the disk: whole or not at all, never over something else, and read back with suspicion.

`case`, `refused`, `retensored`, `layout_of` and `left_in` are what the other tests of bad input are written with.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tests.records import seal_document

from interbasin.errors import FileError, InterbasinError
from interbasin.storage import (
    atomic,
    is_ours,
    new_file,
    new_folder,
    read_record,
    records,
    refuse_what_is_in_the_way,
    write_record,
)
from interbasin.storage.records import SEAL

# More than file systems allow in one name.
TOO_LONG = "x" * 300


def case(label: str, action: Callable[..., object], error: type[InterbasinError], *words: str) -> Any:
    """A row of a table of bad input: what is done, the error it gets, and the words that must be in the message."""
    return pytest.param(action, error, words, id=label)


def refused(action: Callable[[], object], error: type[InterbasinError], words: tuple[str, ...] = ()) -> str:
    """The message of the error that ``action`` raises: ours, on one line, a sentence, with ``words`` in it."""
    with pytest.raises(error) as caught:
        action()
    assert isinstance(caught.value, InterbasinError)
    message = str(caught.value)
    assert message == message.strip() and message.endswith((".", "?")), message
    assert "\n" not in message and "Errno" not in message, message
    assert [word for word in words if word not in message] == [], message
    return message


def retensored(folder: Path, name: str, changes: dict[str, torch.Tensor | None]) -> None:
    """Put other tensors (None: no tensor) into a record as a version without checksums would have written them."""
    path, document = folder / f"{name}.safetensors", folder / f"{name}.json"
    found = json.loads(document.read_text("utf-8"))
    tensors = {key: tensor for key, tensor in (load_file(path) | changes).items() if tensor is not None}
    save_file(tensors, path, metadata={"mark": "0123456789abcdef"})
    found["mark"] = "0123456789abcdef"
    del found["checksum"], found[SEAL]
    document.write_text(json.dumps(found), "utf-8")


def layout_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[tuple[int, ...], int]]:
    """How tensors lie in memory, as far as it can show in the last bit of a product: strides and alignment."""
    return {name: (tensor.stride(), tensor.data_ptr() % 64) for name, tensor in tensors.items()}


def left_in(folder: Path) -> list[str]:
    """Everything in a folder, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def save_number(folder: Path, number: float = 1.0, force: bool = False) -> None:
    with new_folder(folder, force=force) as temporary:
        write_record(temporary, "thing", "thing", 1, {"number": number}, {"number": torch.tensor([number])})


def number_in(folder: Path) -> float:
    document, tensors = read_record(folder, "thing", "thing", 1)
    assert tensors["number"].item() == document["number"]
    return float(document["number"])


@pytest.fixture
def saved(tmp_path):
    save_number(tmp_path / "saved")
    return tmp_path / "saved"


def edit(folder: Path, **changes: object) -> None:
    path = folder / "thing.json"
    document = json.loads(path.read_text("utf-8")) | changes
    seal_document(path, document)


# Writing


def test_a_record_comes_back_as_it_was(saved, tmp_path):
    assert number_in(saved) == 1.0
    assert left_in(tmp_path) == ["saved", "saved/thing.json", "saved/thing.safetensors"]


def test_missing_parents_are_made(tmp_path):
    save_number(tmp_path / "a" / "b" / "c")
    assert number_in(tmp_path / "a" / "b" / "c") == 1.0


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    save_number(tmp_path / "empty")
    assert number_in(tmp_path / "empty") == 1.0
    assert left_in(tmp_path) == ["empty", "empty/thing.json", "empty/thing.safetensors"]


def test_what_is_left_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        save_number(tmp_path / "shared")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o750


def test_views_are_written_as_tensors_of_their_own(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    with new_folder(tmp_path / "views") as temporary:
        write_record(temporary, "thing", "thing", 1, {}, {"a": base, "b": base.mT, "c": base[:, 1]})
    _, tensors = read_record(tmp_path / "views", "thing", "thing", 1)
    assert torch.equal(tensors["b"], base.mT) and torch.equal(tensors["c"], base[:, 1])


def test_tensors_come_back_row_by_row_in_memory_of_their_own(tmp_path):
    column = torch.randn(9, 1, dtype=torch.float64).mT  # one row whose stride is 1, as some factorisations give it
    tensors = {"a": column, "b": torch.randn(3, dtype=torch.float64), "c": torch.randn(5, 4).mT, "d": torch.tensor(2.0)}
    with new_folder(tmp_path / "r") as folder:
        write_record(folder, "r", "r", 1, {}, tensors)
    _, found = read_record(tmp_path / "r", "r", "r", 1)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert layout_of(found) == {"a": ((9, 1), 0), "b": ((1,), 0), "c": ((5, 1), 0), "d": ((), 0)}


def test_a_folder_that_exists_is_refused_and_stays(saved, tmp_path):
    refused(lambda: save_number(saved, 2.0), FileError, (str(saved), "exists already", "force"))
    assert number_in(saved) == 1.0
    assert left_in(tmp_path) == ["saved", "saved/thing.json", "saved/thing.safetensors"]


def test_force_replaces_a_folder_of_ours(saved, tmp_path):
    save_number(saved, 2.0, force=True)
    assert number_in(saved) == 2.0
    assert left_in(tmp_path) == ["saved", "saved/thing.json", "saved/thing.safetensors"]


@pytest.mark.parametrize("content", ["{}", '{"format": "theirs"}', '{"format": 3}', "[]", "{", "", "\x00"])
def test_force_never_replaces_a_folder_that_is_not_ours(content, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text(content, "utf-8")
    words = (str(folder), "did not write")
    refused(lambda: save_number(folder, force=True), FileError, words)
    assert (folder / "config.json").read_text("utf-8") == content
    assert left_in(tmp_path) == ["theirs", "theirs/config.json"]


def test_force_does_not_delete_what_someone_else_put_beside_our_files(saved, tmp_path):
    (saved / "thesis.tex").write_text("years of work", "utf-8")
    refused(lambda: save_number(saved, 2.0, force=True), FileError, (str(saved),))
    assert (saved / "thesis.tex").read_text("utf-8") == "years of work"
    assert number_in(saved) == 1.0


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_the_way_is_refused_and_stays(force, tmp_path):
    (tmp_path / "file").write_text("mine", "utf-8")
    refused(lambda: save_number(tmp_path / "file", force=force), FileError, ("a file of that name exists",))
    assert (tmp_path / "file").read_text("utf-8") == "mine"
    assert left_in(tmp_path) == ["file"]


def test_a_link_to_nowhere_is_refused_and_stays(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(lambda: save_number(tmp_path / "link", force=True), FileError, (str(tmp_path / "link"),))
    assert left_in(tmp_path) == ["link"]


def test_force_through_a_link_leaves_nothing_half_done(saved, tmp_path):
    (tmp_path / "link").symlink_to(saved)
    try:
        save_number(tmp_path / "link", 2.0, force=True)
    except FileError:
        assert number_in(saved) == 1.0
    else:
        assert number_in(tmp_path / "link") == 2.0
    assert [name for name in left_in(tmp_path) if name.startswith(".")] == []


def test_the_working_directory_itself_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: save_number(Path(".")), FileError)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param(("file", "below"), (), id="below a file"),
        pytest.param((TOO_LONG,), ("name too long",), id="a name that is too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(parts, words, tmp_path):
    (tmp_path / "file").write_text("mine", "utf-8")
    destination = tmp_path.joinpath(*parts)
    refused(lambda: save_number(destination), FileError, (str(destination), *words))
    assert left_in(tmp_path) == ["file"]


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path):
    save_number(tmp_path / TOO_LONG[:250])
    assert number_in(tmp_path / TOO_LONG[:250]) == 1.0


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole_with_and_without_an_exchange(exchange, saved, tmp_path, monkeypatch):
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *paths: False)
    save_number(saved, 2.0, force=True)
    assert number_in(saved) == 2.0
    assert left_in(tmp_path) == ["saved", "saved/thing.json", "saved/thing.safetensors"]


def test_files_of_two_records_are_never_taken_for_one(saved, tmp_path):
    save_number(tmp_path / "other", 2.0)
    (saved / "thing.safetensors").write_bytes((tmp_path / "other" / "thing.safetensors").read_bytes())
    refused(lambda: number_in(saved), FileError, (str(saved), "do not belong together"))


def test_files_can_be_read_by_whoever_may_read_the_folder(saved):
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o666 & ~atomic._umask()}


def full_disk(*arguments: object, **keywords: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(*arguments: object, **keywords: object) -> None:
    raise KeyboardInterrupt


def full_disk_in_safetensors(*arguments: object, **keywords: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


STEPS = {
    "the tensors": lambda patch, fault: patch.setattr("safetensors.torch.save_file", fault),
    "the document": lambda patch, fault: patch.setattr(Path, "write_text", fault),
    "the permissions": lambda patch, fault: patch.setattr(Path, "chmod", fault),
    "the flush": lambda patch, fault: patch.setattr(os, "fsync", fault),
    "the exchange": lambda patch, fault: patch.setattr(atomic, "_exchange", fault),
    "the first rename": lambda patch, fault: without_exchange(patch, fault),
    "the second rename": lambda patch, fault: without_exchange(patch, after(1, os.replace, fault)),
}


def without_exchange(patch: pytest.MonkeyPatch, replace: Callable[..., object]) -> None:
    """As on systems that cannot exchange two folders in one step."""
    patch.setattr(atomic, "_exchange", lambda *paths: False)
    patch.setattr(os, "replace", replace)


def after(calls: int, real: Callable[..., object], fault: Callable[..., object]) -> Callable[..., object]:
    """``real`` for a number of calls, ``fault`` once, then ``real`` again."""
    done = iter(range(10**6))

    def call(*arguments: object, **keywords: object) -> object:
        return (fault if next(done) == calls else real)(*arguments, **keywords)

    return call


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_leaves_what_was_there_before(step, saved, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        STEPS[step](patch, full_disk)
        words = (str(saved), "No space left on device", "room on the disk")
        refused(lambda: save_number(saved, 2.0, force=True), FileError, words)
    assert number_in(saved) == 1.0
    assert left_in(tmp_path) == ["saved", "saved/thing.json", "saved/thing.safetensors"]


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_leaves_what_was_there_before(step, saved, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        STEPS[step](patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            save_number(saved, 2.0, force=True)
    assert number_in(saved) == 1.0
    assert left_in(tmp_path) == ["saved", "saved/thing.json", "saved/thing.safetensors"]


def test_a_full_disk_that_safetensors_reports_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save_file", full_disk_in_safetensors)
    words = ("thing.safetensors", "No space left on device", "room on the disk")
    refused(lambda: save_number(tmp_path / "new"), FileError, words)
    assert left_in(tmp_path) == []


def test_a_temporary_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic.tempfile, "mkdtemp", full_disk)
    refused(lambda: save_number(tmp_path / "new"), FileError, (str(tmp_path / "new"), "No space left on device"))
    assert left_in(tmp_path) == []


def test_an_error_of_the_caller_passes_through_and_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "new") as temporary:
        (temporary / "begun").write_text("half", "utf-8")
        raise ZeroDivisionError
    assert left_in(tmp_path) == []


def test_refusing_early_says_what_writing_would_say(saved, tmp_path):
    early = refused(lambda: refuse_what_is_in_the_way(saved, force=False), FileError)
    late = refused(lambda: save_number(saved), FileError)
    assert early == late
    refuse_what_is_in_the_way(saved, force=True)
    refuse_what_is_in_the_way(tmp_path / "new", force=False)


def test_a_folder_is_ours_by_any_document_with_our_format(saved, tmp_path):
    assert is_ours(saved)
    assert not is_ours(tmp_path)


# Reading


def put(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def make_folder(name: str) -> Callable[[Path], object]:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        case("no document", lambda f: (f / "thing.json").unlink(), FileError, "thing.json is missing"),
        case("no tensors", lambda f: (f / "thing.safetensors").unlink(), FileError, "thing.safetensors is missing"),
        case("an empty document", put("thing.json", ""), FileError, "thing.json is damaged or cut off"),
        case("half a document", put("thing.json", '{"format": "inter'), FileError, "damaged or cut off"),
        case("not text", put("thing.json", b"\xff\xfe\x00"), FileError, "damaged or cut off"),
        case("a list", put("thing.json", "[1, 2]"), FileError, "JSON list", "expected an object"),
        case("brackets without end", put("thing.json", "[" * 10**5), FileError, "damaged or cut off"),
        case("a folder for a document", make_folder("thing.json"), FileError, "thing.json"),
        case("another format", lambda f: edit(f, format="interbasin.other"), FileError, "'interbasin.other'"),
        case("no format", lambda f: edit(f, format=None), FileError, "its format is None"),
        case("a later version", lambda f: edit(f, version=2), FileError, "format version 2", "update interbasin"),
        case("version zero", lambda f: edit(f, version=0), FileError, "format version 0"),
        case("a version in words", lambda f: edit(f, version="1"), FileError, "format version '1'"),
        case("no version", lambda f: edit(f, version=None), FileError, "format version None"),
        case("empty tensors", put("thing.safetensors", b""), FileError, "damaged or cut off"),
        case("noise for tensors", put("thing.safetensors", b"\xff" * 100), FileError, "damaged or cut off"),
        case("a pickle for tensors", put("thing.safetensors", b"\x80\x04K\x01."), FileError, "damaged or cut off"),
        case("a folder for tensors", make_folder("thing.safetensors"), FileError, "thing.safetensors"),
    ],
)
def test_a_damaged_record_is_named(damage, error, words, saved):
    damage(saved)
    refused(lambda: number_in(saved), error, (str(saved), *words))


@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        case("nothing", lambda folder: folder / "missing", FileError, "there is nothing there"),
        case("a file", lambda folder: folder / "saved" / "thing.json", FileError, "it is a file"),
        case("below a file", lambda folder: folder / "saved" / "thing.json" / "x", FileError, "nothing there"),
        case("a folder without one", lambda folder: folder, FileError, "There is no saved thing in"),
        case("a name that is too long", lambda folder: folder / TOO_LONG, FileError),
    ],
)
def test_a_record_that_is_not_there_is_named(where, error, words, saved, tmp_path):
    refused(lambda: number_in(where(tmp_path)), error, (str(where(tmp_path)), *words))


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 30, -1])
def test_tensors_cut_off_anywhere_are_named(kept, saved):
    path = saved / "thing.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(lambda: number_in(saved), FileError, (str(path), "damaged or cut off"))


def test_names_that_no_folder_can_have_are_refused(tmp_path, monkeypatch):
    refused(lambda: save_number(Path("a\0b")), FileError, ("cannot be the name of a folder",))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(lambda: save_number(tmp_path / "link"), FileError, ("link to nothing",))
    monkeypatch.chdir(tmp_path)
    refused(lambda: save_number(Path(".")), FileError, ("current folder",))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused(lambda: save_number(tmp_path / "new"), FileError, ("is not yours to write",))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_a_number_that_changed_on_the_disk_is_noticed(tmp_path, dtype):
    tensors = {"one": torch.ones(5, 3).to(dtype), "empty": torch.ones(0, 3), "single": torch.tensor(2.0)}
    with new_folder(tmp_path / "saved", ("thing",)) as folder:
        write_record(folder, "thing", "thing", 1, {"said": "so"}, tensors)
    assert read_record(tmp_path / "saved", "thing", "thing", 1)[0]["said"] == "so"
    path = tmp_path / "saved" / "thing.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    refused(lambda: read_record(tmp_path / "saved", "thing", "thing", 1), FileError, ("damaged", str(path)))
    retensored(tmp_path / "saved", "thing", {"empty": None})  # as an earlier version wrote it, without a checksum
    assert set(read_record(tmp_path / "saved", "thing", "thing", 1)[1]) == {"one", "single"}


def test_an_edited_document_of_a_record_is_noticed(tmp_path):
    document = {"steps": 3, "parts": {2: "a", 10: "b"}, "pair": (1, 2.5)}
    with new_folder(tmp_path / "saved", ("thing",)) as folder:
        write_record(folder, "thing", "thing", 1, document, {})
    path = tmp_path / "saved" / "thing.json"
    assert read_record(tmp_path / "saved", "thing", "thing", 1)[0]["parts"] == {"2": "a", "10": "b"}
    words = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(dict(reversed(words.items()))), "utf-8")  # in another order it says the same
    assert read_record(tmp_path / "saved", "thing", "thing", 1)[0]["steps"] == 3
    for edited in (words | {"steps": 4}, words | {"more": 1}, {key: words[key] for key in words if key != "seal"}):
        path.write_text(json.dumps(edited), "utf-8")
        expected = (str(path), "does not say what was saved")
        refused(lambda: read_record(tmp_path / "saved", "thing", "thing", 1), FileError, expected)


def test_equal_records_are_equal_byte_by_byte(saved, tmp_path):
    save_number(tmp_path / "again")
    save_number(tmp_path / "other", 2.0)
    for name in ("thing.json", "thing.safetensors"):
        assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
        assert (saved / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_every_byte_of_a_document_matters(saved, monkeypatch):
    monkeypatch.setattr(records, "READS", 1)
    path = saved / "thing.json"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert number_in(saved) == 1.0
        except FileError:
            continue
        assert content[place : place + 1].isspace()  # one space for another is no difference


def test_a_record_of_an_earlier_version_has_no_seal_and_is_read_all_the_same(saved):
    retensored(saved, "thing", {})
    assert "seal" not in json.loads((saved / "thing.json").read_text("utf-8")) and number_in(saved) == 1.0
    # What was never written by an earlier version can ask for it.
    expected = ("does not say what was saved",)
    refused(lambda: read_record(saved, "thing", "thing", 1, sealed=True), FileError, expected)


# What would never end, or fill the memory


def test_a_document_that_is_a_pipe_or_huge_is_refused_before_it_is_read(saved, monkeypatch):
    path = saved / "thing.json"
    path.unlink()
    os.mkfifo(path)
    refused(lambda: number_in(saved), FileError, (str(path), "no ordinary file"))
    assert not is_ours(saved)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**40)
    refused(lambda: number_in(saved), FileError, (str(path), "1,099,511,627,776 bytes"))
    assert not is_ours(saved)


def test_a_header_that_is_made_to_be_slow_is_refused_before_it_is_read(saved):
    path = saved / "thing.safetensors"
    content = path.read_bytes()
    with path.open("wb") as file:
        file.write((99_000_000).to_bytes(8, "little") + content[8:])
        file.truncate(10**8)
    refused(lambda: number_in(saved), FileError, (str(path), "99,000,000 bytes"))


# What comes or goes in the last moment


def save_text(path: Path, text: str = "new", force: bool = False, mode: int = 0o666) -> None:
    ours = lambda file: file.read_text("utf-8") in ("old", "new")  # noqa: E731
    with new_file(path, force=force, ours=ours, mode=lambda: mode) as temporary:
        temporary.write_text(text, "utf-8")


def once(patch: pytest.MonkeyPatch, name: str, first: Callable[[], object]) -> None:
    """Have something else happen just before a step of `atomic` is taken for the first time."""
    real, calls = getattr(atomic, name), iter(range(10**6))

    def step(*arguments: object) -> object:
        if next(calls) == 0:
            first()
        return real(*arguments)

    patch.setattr(atomic, name, step)


@pytest.mark.parametrize("rename", ["renameat2", "link", "neither"])
def test_a_file_that_appears_in_the_last_moment_is_not_overwritten(rename, tmp_path, monkeypatch):
    path = tmp_path / "file"
    if rename != "renameat2":
        monkeypatch.setattr(atomic, "_rename", lambda *arguments: False)
    if rename == "neither":  # as on a stick: then there is a moment left, after the last look
        monkeypatch.setattr(os, "link", full_disk)
        save_text(path)
        assert path.read_text("utf-8") == "new"
        return
    once(monkeypatch, "_rename_to_nothing", lambda: path.write_text("precious", "utf-8"))
    refused(lambda: save_text(path), FileError, ("file exists already",))
    assert path.read_text("utf-8") == "precious" and left_in(tmp_path) == ["file"]


def test_what_takes_the_place_of_what_may_be_replaced_goes_back_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old", "utf-8")
    once(monkeypatch, "_exchange", lambda: path.write_text("precious", "utf-8"))
    refused(lambda: save_text(path, force=True), FileError, ("this command did not write that file",))
    assert path.read_text("utf-8") == "precious" and left_in(tmp_path) == ["file"]


def test_a_folder_that_takes_the_place_of_one_of_ours_goes_back_there(saved, tmp_path, monkeypatch):
    once(monkeypatch, "_exchange", lambda: (saved / "note").write_text("precious", "utf-8"))
    refused(lambda: save_number(saved, 2.0, force=True), FileError, ("this command did not write",))
    assert number_in(saved) == 1.0 and (saved / "note").read_text("utf-8") == "precious"
    assert [name for name in left_in(tmp_path) if name.startswith(".")] == []


def test_what_goes_in_the_last_moment_is_no_hindrance(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old", "utf-8")
    once(monkeypatch, "_exchange", path.unlink)
    save_text(path, force=True)
    assert path.read_text("utf-8") == "new" and left_in(tmp_path) == ["file"]


def test_where_something_comes_and_goes_for_ever_nothing_is_written(tmp_path, monkeypatch):
    def exists(*arguments: object) -> None:
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(atomic, "_rename_to_nothing", exists)
    refused(lambda: save_text(tmp_path / "file"), FileError, ("comes and goes", "choose another name"))
    assert left_in(tmp_path) == []


def test_folders_that_were_made_for_what_did_not_come_about_go_again(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full_disk)
    refused(lambda: save_number(tmp_path / "a" / "b" / "c"), FileError)
    refused(lambda: save_text(tmp_path / "a" / "b" / "c"), FileError)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    "mode, of_file, of_folder", [(0o600, 0o600, 0o700), (0o640, 0o640, 0o750), (0o444, 0o644, 0o755)]
)
def test_what_comes_from_private_files_is_private(mode, of_file, of_folder, tmp_path):
    before = os.umask(0o022)
    try:
        save_text(tmp_path / "file", mode=mode)
        with new_folder(tmp_path / "folder", mode=lambda: mode) as temporary:
            (temporary / "inner").write_text("new", "utf-8")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder/inner", "folder")]
    assert modes == [of_file, of_file, of_folder]


def test_what_a_killed_writer_left_is_removed_by_the_next_one_beside_it(tmp_path):
    child = os.fork()
    if not child:
        with new_file(tmp_path / "file") as temporary:
            temporary.write_text("half", "utf-8")
            os._exit(9)  # as SIGKILL: nothing is tidied up
    os.waitpid(child, 0)
    assert any(name.startswith(".interbasin-") for name in left_in(tmp_path))
    save_text(tmp_path / "other")
    assert left_in(tmp_path) == ["other"]
