"""Lance tables translated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.vectors.stores.test_files import Stopped, lists, stop_at
from tests.vectors.stores.translators import Plain, translated, vectors

from interbasin.errors import FileError, StoreError
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.storage.journal import Unfinished
from interbasin.vectors.stores.lance import LanceSink

ROWS, TRANSLATOR = 300, Plain(6, 9)


@pytest.fixture(autouse=True)
def database(tmp_path, monkeypatch):
    """A table that was written in two goes and of which a row was deleted again."""
    import lancedb

    monkeypatch.chdir(tmp_path)
    database = lancedb.connect("db")
    whole = source(vectors(ROWS, 6))
    made = database.create_table("old", whole.slice(0, 200))
    made.add(whole.slice(200))
    made.delete("id = 'key 5'")
    return database


def table(name: str, folder: str = "db") -> Any:
    """The table ``name`` as a new connection reads it."""
    import lancedb

    return lancedb.connect(folder).open_table(name)


def source(x: np.ndarray) -> pa.Table:
    return pa.table(
        {"id": [f"key {i}" for i in range(len(x))], "v": lists(x), "n": pa.array(range(len(x)), pa.int16())}
    )


def of(table: pa.Table) -> np.ndarray:
    return np.stack(table.column("v").to_numpy(zero_copy_only=False))


@pytest.mark.parametrize("batch", [7, 100, 1000])
def test_order_ids_and_other_columns_are_kept(database, batch):
    old = database.open_table("old").to_arrow()
    done = translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", rows_per_batch=batch)
    new = table("new").to_arrow()
    assert done.rows == len(new) == ROWS - 1
    assert new.drop(["v"]).equals(old.drop(["v"]))
    np.testing.assert_array_equal(of(new), translated(TRANSLATOR, of(old)))
    assert database.open_table("old").to_arrow().equals(old)
    assert not list(Path("db").glob(".*"))


def test_nothing_is_said_of_a_table_that_is_new(database, capfd):
    translate_vectors(TRANSLATOR, "lance://db/old#v", "lance://db/new")
    assert capfd.readouterr().err == ""


def test_a_run_that_was_killed_before_its_first_word_begins_anew(database, monkeypatch):
    def killed(self: LanceSink) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(LanceSink, "_save", killed)
        patch.setattr(Unfinished, "close", Unfinished._release)
        with pytest.raises(Stopped):
            translate_vectors(TRANSLATOR, "lance://db/old#v", "lance://db/new")
    assert list(Path("db").glob(".interbasin*/table.lance"))
    translate_vectors(TRANSLATOR, "lance://db/old#v", "lance://db/new")
    assert database.open_table("new").count_rows() == ROWS - 1


def test_half_precision_is_kept(database):
    x = vectors(50, 6, "float16")
    database.create_table("half", source(x))
    translate_vectors(TRANSLATOR, "lance://db/half#v", "lance://db/new")
    new = table("new").to_arrow()
    assert new.schema.field("v").type.value_type == pa.float16()
    np.testing.assert_array_equal(of(new), translated(TRANSLATOR, x))


def test_between_tables_and_files(database):
    translate_vectors(TRANSLATOR, "lance://db/old", "new.parquet")
    translate_vectors(Plain(9, 6), "new.parquet", "lance://db/back", column="v")
    back = table("back").to_arrow()
    assert back.column("id").equals(database.open_table("old").to_arrow().column("id"))
    np.testing.assert_array_equal(of(back), translated(Plain(9, 6), of(pq.read_table("new.parquet"))))


def test_a_run_that_was_stopped_goes_on_to_the_same_table(database):
    options = {"rows_per_batch": 20}
    translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/whole", **options)
    for rows in (40, 200):
        with pytest.raises(Stopped):
            translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", **options, progress=stop_at(rows))
        assert not Path("db/new.lance").exists()
    done = translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", **options)
    assert done.resumed_at >= 200
    tables = [table(name).to_arrow() for name in ("new", "whole")]
    assert tables[0].equals(tables[1])


def test_a_batch_without_the_word_that_it_was_written_is_written_once(database):
    with pytest.raises(Stopped):
        translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", rows_per_batch=20, progress=stop_at(100))
    (folder,) = Path("db").glob(".interbasin-*")
    growing = table("table", str(folder))
    growing.add(growing.to_arrow().slice(0, 20))
    translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new")
    new = table("new").to_arrow()
    assert new.column("id").equals(database.open_table("old").to_arrow().column("id"))


def test_a_table_that_exists_is_not_overwritten_unasked(database):
    database.create_table("new", source(vectors(3, 6)))
    with pytest.raises(FileError, match="lance://db/new exists already and nothing is overwritten unasked"):
        translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new")
    translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", force=True)
    assert table("new").count_rows() == ROWS - 1


def test_a_folder_that_is_no_table_is_not_replaced():
    Path("db/new.lance").mkdir()
    with pytest.raises(FileError, match=r"Asked to replace db/new.lance, but that is no Lance table"):
        translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", force=True)


def test_what_the_library_refuses_is_one_sentence():
    pq.write_table(pa.table({"v": lists(vectors(5, 6)), "a.b": range(5)}), "old.parquet")
    with pytest.raises(
        StoreError, match=r"lance://db/new could not be read or written \(.*a.b cannot contain"
    ) as caught:
        translate_vectors(TRANSLATOR, "old.parquet", "lance://db/new", column="v")
    assert ".rs:" not in str(caught.value)
    assert not list(Path("db").glob(".*"))


def test_how_an_index_compares_is_found(database):
    from lancedb.index import IvfFlat

    database.open_table("old").create_index("v", config=IvfFlat(distance_type="dot", num_partitions=2))
    lossy = Plain(6, 9, carries_norms=False)
    done = translate_vectors(lossy, "lance://db/old", "lance://db/new")
    assert any("has an index over its vectors; the new table has none yet" in one for one in done.notes)
    assert any("is compared by inner product" in one for one in done.notes)


def test_a_file_that_lance_could_not_write_whole_is_noticed_before_the_next_batch(database, monkeypatch):
    """Lance goes on where the system refused to write the end of a file, and the table cannot be read then."""
    real = LanceSink._save

    def save(sink):
        if sink.rows >= 40:
            files = Path("db").glob(".interbasin-*/table.lance/data/*.lance")
            newest = max(files, key=lambda path: path.stat().st_mtime_ns)
            os.truncate(newest, newest.stat().st_size - 20)
        real(sink)

    with monkeypatch.context() as patch:
        patch.setattr(LanceSink, "_save", save)
        with pytest.raises(FileError, match=r"Could not write lance://db/new: a file of the table is cut off"):
            translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new", rows_per_batch=20)
    assert translate_vectors(TRANSLATOR, "lance://db/old", "lance://db/new").resumed_at == 20
    assert table("new").count_rows() == table("old").count_rows()
    assert len(table("new").to_arrow()) == table("old").count_rows()
