"""Files translated: what comes out, what goes along, and what is refused before anything is written."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.vectors.stores.translators import Plain, translated, vectors

from interbasin.errors import DataError, FileError
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.storage import journal

ROWS, WIDTH, NEW = 100, 6, 9
TRANSLATOR = Plain(WIDTH, NEW)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lists(x: Any, kind: Any = None) -> pa.Array:
    made = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    return made if kind is None else made.cast(kind)


def table(x: Any, **options: Any) -> pa.Table:
    count = len(x)
    return pa.table(
        {
            "id": [f"key {i}" for i in range(count)],
            "v.x": lists(x, **options),
            "more": pa.array([None if i % 3 else {"a": i, "b": ["t"] * (i % 4)} for i in range(count)]),
            "text": [None if i % 5 == 0 else "t" * i for i in range(count)],
        }
    )


def column(path: str, name: str = "v.x") -> np.ndarray:
    return np.stack(pq.read_table(path).column(name).to_numpy(zero_copy_only=False))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("batch", [1, 7, 100, 1000])
def test_npy(dtype, batch):
    x = vectors(ROWS, WIDTH, dtype)
    np.save("old.npy", x)
    before = Path("old.npy").read_bytes()
    done = translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=batch)
    y = np.load("new.npy")
    assert y.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(y, translated(TRANSLATOR, x.astype(y.dtype)))
    assert (done.rows, done.resumed_at, done.dtype) == (ROWS, 0, str(y.dtype))
    assert Path("old.npy").read_bytes() == before
    assert sorted(os.listdir()) == ["new.npy", "old.npy"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_keeps_its_other_arrays_and_its_compression(save):
    x = vectors(ROWS, WIDTH)
    save("old.npz", x=x, ids=np.arange(ROWS))
    translate_vectors(TRANSLATOR, "old.npz", "new.npz", rows_per_batch=30)
    with np.load("new.npz") as found:
        np.testing.assert_array_equal(found["x"], translated(TRANSLATOR, x))
        np.testing.assert_array_equal(found["ids"], np.arange(ROWS))
    kinds = [[one.compress_type for one in zipfile.ZipFile(name).infolist()] for name in ("old.npz", "new.npz")]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_parquet_passes_other_columns_through(compression, dtype):
    x = vectors(ROWS, WIDTH, dtype)
    old = table(x).replace_schema_metadata({"note": "kept"})
    pq.write_table(old, "old.parquet", compression=compression, row_group_size=17)
    translate_vectors(TRANSLATOR, "old.parquet", "new.parquet", column="v.x", rows_per_batch=30)
    new = pq.read_table("new.parquet")
    new.validate(full=True)
    assert new.schema.names == old.schema.names and new.schema.metadata == old.schema.metadata
    assert new.drop(["v.x"]).equals(old.drop(["v.x"]))
    assert new.schema.field("v.x").type.list_size == NEW
    np.testing.assert_array_equal(column("new.parquet"), translated(TRANSLATOR, x))
    before, after = (pq.ParquetFile(name).metadata for name in ("old.parquet", "new.parquet"))
    assert after.num_row_groups == 4 and after.num_rows == ROWS
    for place in range(after.num_columns):
        assert after.row_group(3).column(place).compression == before.row_group(0).column(place).compression
        assert after.row_group(3).column(place).path_in_schema == before.row_group(0).column(place).path_in_schema


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), WIDTH)])
def test_lists_stay_the_kind_of_lists_that_they_are(kind):
    x = vectors(ROWS, WIDTH)
    pq.write_table(table(x, kind=kind), "old.parquet")
    translate_vectors(TRANSLATOR, "old.parquet", "new.parquet", column="v.x")
    expected = pa.list_(pa.float32(), NEW) if pa.types.is_fixed_size_list(kind) else kind
    found = pq.read_schema("new.parquet").field("v.x").type
    assert (type(found), getattr(found, "list_size", 0)) == (type(expected), getattr(expected, "list_size", 0))
    np.testing.assert_array_equal(column("new.parquet"), translated(TRANSLATOR, x))


def test_tensors_of_a_fixed_shape_stay_tensors():
    x = vectors(ROWS, WIDTH)
    pq.write_table(pa.table({"v": pa.FixedShapeTensorArray.from_numpy_ndarray(x)}), "old.parquet")
    translate_vectors(TRANSLATOR, "old.parquet", "new.parquet")
    found = pq.read_table("new.parquet").column("v")
    assert found.type.shape == [NEW]
    np.testing.assert_array_equal(found.combine_chunks().to_numpy_ndarray(), translated(TRANSLATOR, x))


def test_columns_side_by_side_become_one_of_lists():
    x = vectors(ROWS, WIDTH)
    pq.write_table(pa.table({f"x{i}": x[:, i] for i in range(WIDTH)}), "old.parquet")
    translate_vectors(TRANSLATOR, "old.parquet", "new.parquet")
    assert pq.read_schema("new.parquet").names == ["vector"]
    np.testing.assert_array_equal(column("new.parquet", "vector"), translated(TRANSLATOR, x))


def test_from_one_format_to_another():
    x = vectors(ROWS, WIDTH)
    np.save("old.npy", x)
    translate_vectors(TRANSLATOR, "old.npy", "new.parquet")
    np.testing.assert_array_equal(column("new.parquet", "vector"), translated(TRANSLATOR, x))
    pq.write_table(pa.table({"v": lists(x)}), "old.parquet")
    translate_vectors(TRANSLATOR, "old.parquet", "new.npz")
    np.testing.assert_array_equal(np.load("new.npz")["x"], translated(TRANSLATOR, x))


@given(rows=st.integers(1, 40), width=st.integers(1, 5), batch=st.integers(1, 45), group=st.integers(1, 45))
def test_parquet_of_any_shape(rows, width, batch, group):
    translator, x = Plain(width, 3), vectors(rows, width)
    pq.write_table(pa.table({"v": lists(x), "n": range(rows)}), "any.parquet", row_group_size=group)
    translate_vectors(translator, "any.parquet", "made.parquet", column="v", rows_per_batch=batch, force=True)
    np.testing.assert_array_equal(column("made.parquet", "v"), translated(translator, x))
    assert pq.read_table("made.parquet").column("n").to_pylist() == list(range(rows))


def test_a_width_of_one_and_pages_of_many_rows():
    x = vectors(200_000, 2)
    pq.write_table(pa.table({"v": lists(x)}), "old.parquet")
    translate_vectors(Plain(2, 1), "old.parquet", "new.parquet", rows_per_batch=150_000)
    np.testing.assert_array_equal(column("new.parquet", "v"), translated(Plain(2, 1), x))
    translate_vectors(Plain(2, 7), "old.parquet", "wide.parquet", rows_per_batch=150_000)
    np.testing.assert_array_equal(column("wide.parquet", "v"), translated(Plain(2, 7), x))


def test_columns_without_a_place_are_not_dropped():
    pq.write_table(table(vectors(ROWS, WIDTH)), "old.parquet")
    with pytest.raises(
        FileError, match=r"columns beside its vectors \(id, more, text\), which a .npy file has no place"
    ):
        translate_vectors(TRANSLATOR, "old.parquet", "new.npy", column="v.x")
    assert os.listdir() == ["old.parquet"]


# What is in the way


def test_an_output_that_exists_is_not_overwritten_unasked():
    np.save("old.npy", vectors(ROWS, WIDTH))
    Path("new.npy").write_text("mine")
    with pytest.raises(FileError, match=r"new.npy exists already and nothing is overwritten unasked"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy")
    assert Path("new.npy").read_text() == "mine"
    translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=True)
    assert np.load("new.npy").shape == (ROWS, NEW)


def test_the_source_is_replaced_only_when_asked():
    x = vectors(ROWS, WIDTH)
    np.save("old.npy", x)
    with pytest.raises(FileError, match=r"is the source itself, which is never replaced unasked.*--in-place"):
        translate_vectors(TRANSLATOR, "old.npy", "./old.npy", force=True)
    np.testing.assert_array_equal(np.load("old.npy"), x)
    translate_vectors(TRANSLATOR, "old.npy", "old.npy", in_place=True)
    np.testing.assert_array_equal(np.load("old.npy"), translated(TRANSLATOR, x))


def test_quantised_files_are_told_by_what_is_stored():
    np.save("old.npy", np.ones((ROWS, WIDTH), dtype=np.int8))
    with pytest.raises(DataError, match=r"old.npy holds int8 vectors"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy")
    pq.write_table(pa.table({"v": lists(np.ones((ROWS, WIDTH), dtype=np.int8))}), "old.parquet")
    with pytest.raises(DataError, match=r"old.parquet holds int8 vectors"):
        translate_vectors(TRANSLATOR, "old.parquet", "new.parquet")
    translate_vectors(TRANSLATOR, "old.parquet", "new.parquet", scale=0.1)
    assert pq.read_schema("new.parquet").field("v").type.value_type == pa.float32()


# Going on


class Stopped(Exception):
    pass


def stop_at(rows: int) -> Any:
    def progress(done: int, all_rows: int) -> None:
        if done >= rows:
            raise Stopped

    return progress


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(kind):
    x = vectors(ROWS, WIDTH)
    if kind == "parquet":
        pq.write_table(table(x), "old.parquet")
    else:
        np.save("old.npy", x)
    old = "old.parquet" if kind == "parquet" else "old.npy"
    options = {"column": "v.x", "rows_per_batch": 7}
    translate_vectors(TRANSLATOR, old, f"whole.{kind}", **options)
    for rows in (7, 50, 99):
        with pytest.raises(Stopped):
            translate_vectors(TRANSLATOR, old, f"new.{kind}", **options, progress=stop_at(rows))
        assert not Path(f"new.{kind}").exists()
    done = translate_vectors(TRANSLATOR, old, f"new.{kind}", **options)
    assert done.resumed_at >= 98
    assert Path(f"new.{kind}").read_bytes() == Path(f"whole.{kind}").read_bytes()
    assert not list(Path().glob(".*"))


def stopped_run(translator: Plain = TRANSLATOR) -> None:
    np.save("old.npy", vectors(ROWS, WIDTH))
    with pytest.raises(Stopped):
        translate_vectors(translator, "old.npy", "new.npy", rows_per_batch=7, progress=stop_at(50))


def test_another_source_or_translator_does_not_go_on():
    stopped_run()
    np.save("other.npy", vectors(ROWS, WIDTH, seed=5))
    with pytest.raises(
        FileError, match=r"unfinished .*new.npy was begun from another source, or the source has changed"
    ):
        translate_vectors(TRANSLATOR, "other.npy", "new.npy")
    with pytest.raises(
        FileError, match=r"new.npy was begun by another translator, so this run cannot go on from it; remove"
    ):
        translate_vectors(Plain(WIDTH, NEW, seed=3), "old.npy", "new.npy")
    with pytest.raises(FileError, match=r"begun from another source.* and by another translator"):
        translate_vectors(Plain(WIDTH, 4), "other.npy", "new.npy")
    done = translate_vectors(Plain(WIDTH, NEW, seed=3), "old.npy", "new.npy", force=True)
    assert done.resumed_at == 0
    np.testing.assert_array_equal(np.load("new.npy"), translated(Plain(WIDTH, NEW, seed=3), np.load("old.npy")))


def test_after_a_restart_of_the_machine_only_what_was_flushed_counts(monkeypatch):
    stopped_run()
    monkeypatch.setattr(journal, "_boot", lambda: "another")
    done = translate_vectors(TRANSLATOR, "old.npy", "new.npy")
    assert done.resumed_at == 0
    np.testing.assert_array_equal(np.load("new.npy"), translated(TRANSLATOR, np.load("old.npy")))


def test_what_was_flushed_survives_a_restart(monkeypatch):
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_FLUSHES", 0.0)
    stopped_run()
    monkeypatch.setattr(journal, "_boot", lambda: "another")
    assert translate_vectors(TRANSLATOR, "old.npy", "new.npy").resumed_at > 40


def test_two_processes_do_not_write_one_output():
    np.save("old.npy", vectors(ROWS, WIDTH))

    def second(done: int, all_rows: int) -> None:
        if done > 10:
            translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7)

    with pytest.raises(FileError, match=r"Another process is writing .*new.npy at this moment"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7, progress=second)


def test_a_bad_row_is_told_and_the_run_goes_on_when_it_may():
    x = vectors(ROWS, WIDTH)
    x[60] = np.nan
    np.save("old.npy", x)
    with pytest.raises(DataError, match=r"In old.npy, row 60 \(counted from 0\) holds NaN"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7)
    done = translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7, bad_rows="keep")
    assert done.resumed_at > 0 and done.bad_rows["not finite"] == 1
    assert np.flatnonzero(np.isnan(np.load("new.npy")).any(axis=1)).tolist() == [60]


def test_what_fails_at_once_leaves_nothing_behind():
    x = vectors(ROWS, WIDTH)
    x[0] = 0
    np.save("old.npy", x)
    with pytest.raises(DataError, match="row 0"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7)
    assert os.listdir() == ["old.npy"]


# What was recorded of an unfinished run


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_another_scale_does_not_go_on(kind):
    np.save("old.npy", np.random.default_rng(0).integers(1, 100, (ROWS, WIDTH)).astype(np.int8))
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, "old.npy", f"new.{kind}", scale=0.5, rows_per_batch=7, progress=stop_at(50))
    with pytest.raises(
        FileError,
        match=rf"new.{kind} was begun with the scale 0.5, and 0.25 is asked for now, so this run cannot go on",
    ):
        translate_vectors(TRANSLATOR, "old.npy", f"new.{kind}", scale=0.25)
    assert translate_vectors(TRANSLATOR, "old.npy", f"new.{kind}", scale=0.5).resumed_at > 0


def test_a_run_that_kept_bad_rows_does_not_go_on_as_one_that_refuses_them():
    x = vectors(ROWS, WIDTH)
    x[3] = 0
    np.save("old.npy", x)
    options = {"rows_per_batch": 7}
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", bad_rows="keep", progress=stop_at(50), **options)
    with pytest.raises(FileError, match="begun with bad rows kept, and to refuse them is asked for now"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", **options)
    with pytest.raises(DataError, match="row 3"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=True, **options)


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "lance"])
@pytest.mark.parametrize("cut", [True, False])
def test_what_grew_must_still_be_there(kind, cut):
    output = "lance://new/t" if kind == "lance" else f"new.{kind}"
    np.save("old.npy", vectors(ROWS, WIDTH))
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, "old.npy", output, rows_per_batch=7, progress=stop_at(50))
    (folder,) = Path("new" if kind == "lance" else ".").glob(".interbasin-*")
    grows = folder / {"parquet": "vectors.parquet", "lance": "table.lance"}.get(kind, "vectors.npy")
    if kind == "lance":
        shutil.rmtree(grows)
    elif cut:
        os.truncate(grows, 300)
    else:
        grows.unlink()
    found = "has 300 of [0-9,]+ bytes" if cut and kind != "lance" else "is missing"
    with pytest.raises(
        FileError, match=rf"new.* is damaged, so this run cannot go on from it .*{found}\); remove .*{folder.name} to"
    ):
        translate_vectors(TRANSLATOR, "old.npy", output)
    done = translate_vectors(TRANSLATOR, "old.npy", output, force=True)
    assert (done.rows, done.resumed_at) == (ROWS, 0)
    if kind == "npy":
        np.testing.assert_array_equal(np.load("new.npy"), translated(TRANSLATOR, np.load("old.npy")))


def edited(state: dict[str, Any], **changes: object) -> dict[str, Any]:
    return {**state, **changes}


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda state: "{", r"damaged or cut off"),
        (lambda state: "[]", r"holds a JSON list"),
        (lambda state: {name: state[name] for name in ("format", "version", "work")}, r"does not say what was saved"),
        (lambda state: edited(state, boot=3), r"does not say what was saved"),
        (lambda state: edited(state, written={**state["written"], "rows": 49}), r"does not say what was saved"),
        (lambda state: edited(state, work={**state["work"], "translator": {}}), r"does not say what was saved"),
        (lambda state: edited(state, seal="00000000"), r"does not say what was saved"),
    ],
)
def test_a_damaged_state_is_told(damage, words):
    stopped_run()
    (folder,) = Path().glob(".interbasin-*")
    made = damage(json.loads((folder / "state.json").read_text()))
    (folder / "state.json").write_text(made if isinstance(made, str) else json.dumps(made))
    with pytest.raises(
        FileError,
        match=rf"new.npy is damaged, so .* \(its state.json cannot be read: .*{words}.*; remove .*{folder.name} to",
    ):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy")
    assert translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=True).resumed_at == 0
    assert sorted(os.listdir()) == ["new.npy", "old.npy"]


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "lance"])
def test_what_grew_must_still_be_what_was_saved(kind):
    """One bit of what is kept, anywhere in it: a run that went on from it would be silently wrong."""
    output = "lance://new/t" if kind == "lance" else f"new.{kind}"
    np.save("old.npy", vectors(ROWS, WIDTH))
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, "old.npy", output, rows_per_batch=7, progress=stop_at(50))
    (folder,) = Path("new" if kind == "lance" else ".").glob(".interbasin-*")
    names = {"npy": ["vectors.npy"], "npz": ["vectors.npy"], "parquet": ["vectors.parquet", "groups"]}
    files = [folder / name for name in names.get(kind, ())] or sorted(folder.glob("table.lance/data/*.lance"))
    saved = json.loads((folder / "state.json").read_text())["written"]
    for path in files:
        content = path.read_bytes()
        size = saved["sums"].get(path.name, [len(content)])[0]
        for place in (0, size // 2, size - 1):
            changed = bytearray(content)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises(FileError, match=rf"is damaged, so .*its .*{path.name} is not what was saved"):
                translate_vectors(TRANSLATOR, "old.npy", output)
        path.write_bytes(content)
    assert translate_vectors(TRANSLATOR, "old.npy", output).resumed_at > 0


def test_a_link_where_an_output_would_grow_is_refused_and_what_it_leads_to_stays(tmp_path):
    stopped_run()
    (folder,) = Path().glob(".interbasin-*")
    shutil.rmtree(folder)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "note").write_text("precious")
    folder.symlink_to(tmp_path / "precious", target_is_directory=True)
    for force in (False, True):
        with pytest.raises(FileError, match="a link stands there; remove it, or choose another output"):
            translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=force)
    assert (tmp_path / "precious" / "note").read_text() == "precious"
    folder.unlink()
    folder.write_text("a file")
    with pytest.raises(FileError, match="something that is no folder stands there"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy")


def test_a_link_in_place_of_what_grew_is_refused_and_not_written_through(tmp_path):
    stopped_run()
    (folder,) = Path().glob(".interbasin-*")
    (folder / "vectors.npy").rename("precious.npy")
    before = Path("precious.npy").read_bytes()
    (folder / "vectors.npy").symlink_to(tmp_path / "precious.npy")
    with pytest.raises(FileError, match=r"its vectors\.npy is a link"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy")
    assert Path("precious.npy").read_bytes() == before and not Path("new.npy").exists()
    translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=True)
    assert Path("precious.npy").read_bytes() == before and not Path("new.npy").is_symlink()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_that_name_with_other_things_in_it_is_left_alone(force):
    stopped_run()
    (folder,) = Path().glob(".interbasin-*")
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match=r"holds other things \(thesis\.txt\); move them away"):
        translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=force)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_nobody_else_can_read_what_is_not_complete():
    stopped_run()
    (folder,) = Path().glob(".interbasin-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_flushed_in_the_end_is_no_failure(monkeypatch):
    """The output is in its place by then; to run the same command again would be refused."""
    np.save("old.npy", vectors(ROWS, WIDTH))

    def flush(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("interbasin.storage.atomic.flush", flush)
    assert translate_vectors(TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7).rows == ROWS
    assert sorted(os.listdir()) == ["new.npy", "old.npy"]


def test_a_run_that_was_killed_after_its_output_was_in_place_is_tidied_up_by_the_next():
    np.save("old.npy", vectors(ROWS, WIDTH))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interbasin.storage.journal.shutil.rmtree", lambda *paths, **options: None)
        translate_vectors(TRANSLATOR, "old.npy", "new.npz", rows_per_batch=7)
    assert list(Path().glob(".interbasin-*"))
    translate_vectors(TRANSLATOR, "old.npy", "other.npy", rows_per_batch=7)
    assert sorted(os.listdir()) == ["new.npz", "old.npy", "other.npy"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("place", [5, 60, 99])
def test_a_damaged_archive_is_not_translated(save, place):
    x = vectors(40 * ROWS, WIDTH)
    save("old.npz", x=x)
    content = bytearray(Path("old.npz").read_bytes())
    at = content.find(x[40 * place].tobytes()) if save is np.savez else len(content) * place // 100
    content[at + 1] ^= 1
    Path("old.npz").write_bytes(content)
    words = r"old.npz could not be read \((Bad CRC-32 for file 'x.npy'|Error -3)"
    for _ in range(2):  # the second goes on where the first stopped
        with pytest.raises(FileError, match=words):
            translate_vectors(TRANSLATOR, "old.npz", "new.npy", rows_per_batch=280)
    assert not Path("new.npy").exists()


def appears(path: str) -> Any:
    def progress(done: int, all_rows: int) -> None:
        if done >= 50 and not Path(path).exists():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("precious")

    return progress


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "lance"])
def test_what_appears_during_a_run_is_not_overwritten(kind):
    output, path = ("lance://new/t", "new/t.lance/note") if kind == "lance" else (f"new.{kind}", f"new.{kind}")
    np.save("old.npy", vectors(ROWS, WIDTH))
    with pytest.raises(
        FileError,
        match=r"new.* exists already and nothing is overwritten unasked.*of which everything is kept: move it",
    ):
        translate_vectors(TRANSLATOR, "old.npy", output, rows_per_batch=7, progress=appears(path))
    assert Path(path).read_text() == "precious"
    shutil.rmtree("new/t.lance") if kind == "lance" else os.unlink(path)
    assert translate_vectors(TRANSLATOR, "old.npy", output).resumed_at == ROWS


def test_a_folder_that_appears_during_a_run_is_not_removed():
    np.save("old.npy", vectors(ROWS, WIDTH))
    with pytest.raises(FileError, match=r"Asked to write a file at new.npy, but a folder of that name exists"):
        translate_vectors(
            TRANSLATOR, "old.npy", "new.npy", rows_per_batch=7, force=True, progress=appears("new.npy/note")
        )
    assert Path("new.npy/note").read_text() == "precious"


def test_what_appears_during_a_run_is_replaced_where_that_is_asked():
    np.save("old.npy", vectors(ROWS, WIDTH))
    options = {"rows_per_batch": 7, "progress": appears("new.npy")}
    translate_vectors(TRANSLATOR, "old.npy", "new.npy", force=True, **options)
    assert np.load("new.npy").shape == (ROWS, NEW)
    translate_vectors(Plain(WIDTH, NEW), "old.npy", "old.npy", in_place=True, rows_per_batch=7)
    assert np.load("old.npy").shape == (ROWS, NEW)


@pytest.mark.parametrize("kind", ["npy", "parquet", "lance"])
def test_a_run_that_fails_leaves_no_folders_behind(kind):
    x = vectors(ROWS, WIDTH)
    x[0] = 0
    np.save("old.npy", x)
    os.mkdir("there")
    for place in ("there/a/b", "a/b"):
        output = f"lance://{place}/t" if kind == "lance" else f"{place}/new.{kind}"
        with pytest.raises(DataError, match=r"row 0 .*--bad-rows keep\)\.$"):
            translate_vectors(TRANSLATOR, "old.npy", output, rows_per_batch=7)
    assert sorted(os.listdir()) == ["old.npy", "there"] and not os.listdir("there")


# Full disks


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_too_little_room_is_told_before_the_work(kind, monkeypatch):
    np.save("old.npy", vectors(ROWS, WIDTH))
    used = type("Usage", (), {"free": 100})
    monkeypatch.setattr(journal.shutil, "disk_usage", lambda folder: used)
    with pytest.raises(FileError, match=r"will take 3.*e-06 GB and 1e-07 GB are free there; make room"):
        translate_vectors(TRANSLATOR, "old.npy", f"new.{kind}")
    assert os.listdir() == ["old.npy"]


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_disk_that_fills_up_loses_nothing(kind):
    np.save("old.npy", vectors(5000, WIDTH))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(FileError, match=r"Could not write .*: File too large; is there room") as caught:
            translate_vectors(TRANSLATOR, "old.npy", f"new.{kind}", rows_per_batch=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    resumed = translate_vectors(TRANSLATOR, "old.npy", f"new.{kind}", rows_per_batch=100)
    assert (resumed.resumed_at > 0) == (kind == "parquet")  # an array has its full length from the start
    assert ("What is done is kept: make room and run the same" in str(caught.value)) == (kind == "parquet")
    made = np.load("new.npy") if kind == "npy" else column("new.parquet", "vector")
    np.testing.assert_array_equal(made, translated(TRANSLATOR, np.load("old.npy")))


def test_a_disk_that_fills_up_while_an_archive_is_packed_is_not_blamed_on_the_source():
    x = vectors(600, WIDTH)
    np.savez("old.npz", x=x, beside=np.zeros(60_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(FileError, match=r"^Could not write new.npz: File too large; is there room.*is kept"):
            translate_vectors(TRANSLATOR, "old.npz", "new.npz", rows_per_batch=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert translate_vectors(TRANSLATOR, "old.npz", "new.npz", rows_per_batch=100).resumed_at == 600
    with np.load("new.npz") as made:
        np.testing.assert_array_equal(made["x"], translated(TRANSLATOR, x))
        assert made["beside"].shape == (60_000,)


@pytest.mark.parametrize("kind", ["npy", "parquet", "lance"])
def test_an_output_is_as_private_as_its_source(kind):
    np.save("old.npy", vectors(ROWS, WIDTH))
    os.chmod("old.npy", 0o600)
    before = os.umask(0o022)
    try:
        translate_vectors(TRANSLATOR, "old.npy", "lance://new/t" if kind == "lance" else f"new.{kind}")
    finally:
        os.umask(before)
    made = Path("new/t.lance") if kind == "lance" else Path(f"new.{kind}")
    assert not stat.S_IMODE(made.stat().st_mode) & 0o077
