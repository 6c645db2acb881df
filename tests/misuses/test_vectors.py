"""Misuses of VECTORS: files that hold no matrix, stores that are not there, rows that cannot be translated."""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from tests.misuses.table import misuses, public, the
from tests.test_storage import TOO_LONG

from interbasin import Translator
from interbasin.errors import DataError, FileError, ShapeError, StoreError, UnknownNameError

LISTS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def opened(name: str, content: Any, **options: Any) -> Any:
    return public.open_vectors(the.file(name, content), **options)


def rows_of(name: str, content: Any, **options: Any) -> list[Any]:
    return list(opened(name, content, **options).batches(2))


def table(**columns: Any) -> pyarrow.Table:
    return pyarrow.table(columns)


def pair_of_one_name() -> pyarrow.Table:
    return pyarrow.Table.from_arrays([pyarrow.array([1.0]), pyarrow.array([2.0])], names=["a", "a"])


def archive(compression: int, order: str = "C") -> bytes:
    array, memory = io.BytesIO(), io.BytesIO()
    np.save(array, np.asarray(np.ones((4, 3)), order=order))
    with zipfile.ZipFile(memory, "w", compression) as file:
        file.writestr("x.npy", array.getvalue())
    return memory.getvalue()


def pipe() -> Path:
    folder = the.files({"notes.md": "beside a pipe"})
    os.mkfifo(folder / "pipe.npy")
    return the.changed(folder, "notes.md", "beside a pipe") / "pipe.npy"


@misuses(
    ("vectors that are not there", lambda: public.open_vectors("gone.npy"), FileError, "gone.npy"),
    ("vectors of a name that is too long", lambda: public.open_vectors(TOO_LONG + ".npy"), FileError, "long"),
    ("nothing for vectors", lambda: public.open_vectors(None), TypeError, "NoneType"),
    ("vectors in a folder", lambda: public.open_vectors(the.someones_folder), FileError, "directory"),
    ("vectors in another format", lambda: opened("rows.csv", "1,2"), FileError, "'.csv'"),
    ("vectors without an ending", lambda: opened("rows", "1,2"), FileError, "extension"),
    *(
        (f"an empty .{end}", lambda end=end: opened(f"rows.{end}", b""), FileError, "empty")
        for end in ("npy", "npz", "parquet")
    ),
    *(
        (f"a text as .{end}", lambda end=end: opened(f"rows.{end}", "hello, world"), FileError, f"rows.{end}")
        for end in ("npy", "npz", "parquet")
    ),
    ("an array as a table", lambda: opened("rows.parquet", the.old_npy.read_bytes()), FileError, "NumPy"),
    ("an array that is cut off", lambda: opened("rows.npy", the.old_npy.read_bytes()[:200]), FileError, "cut short"),
    (
        "a header that makes no sense",
        lambda: opened("rows.npy", b"\x93NUMPY\x01\x00\x03\x00{x\n"),
        FileError,
        "rows.npy",
    ),
    ("a vector for a matrix", lambda: opened("rows.npy", np.zeros(7)), ShapeError, "(7,)"),
    ("a number for a matrix", lambda: opened("rows.npy", np.zeros(())), ShapeError, "()"),
    ("a matrix without rows", lambda: opened("rows.npy", np.zeros((0, 4))), DataError, "no rows"),
    ("a matrix without columns", lambda: opened("rows.npy", np.zeros((4, 0))), DataError, "(4, 0)"),
    *(
        (
            f"a matrix of {dtype}",
            lambda dtype=dtype: opened("rows.npy", np.zeros((2, 2), dtype=dtype)),
            DataError,
            "rows.npy",
        )
        for dtype in ("c8", "U3", "S3", "M8[s]", "V2")
    ),
    ("a structured array", lambda: opened("rows.npy", np.zeros((2, 2), dtype=[("a", "f4")])), DataError, "rows.npy"),
    ("pickled objects", lambda: opened("rows.npy", np.array([[{}]])), DataError, "run code"),
    (
        "an archive of several arrays",
        lambda: opened("rows.npz", {"train": the.queries, "test": the.queries}),
        DataError,
        "--column",
    ),
    (
        "an array that the archive has not",
        lambda: opened("rows.npz", {"train": the.queries}, column="tests"),
        UnknownNameError,
        "train",
    ),
    ("an archive without arrays", lambda: opened("rows.npz", {}), DataError, "np.savez"),
    ("an archive by another compression", lambda: opened("rows.npz", archive(zipfile.ZIP_BZIP2)), FileError, "12"),
    (
        "an archive of columns that are compressed",
        lambda: opened("rows.npz", archive(zipfile.ZIP_DEFLATED, order="F")),
        DataError,
        "Fortran",
    ),
    ("a pipe", lambda: public.open_vectors(pipe()), FileError, "pipe"),
    ("an archive that is cut off", lambda: opened("rows.npz", b"PK\x03\x04" + bytes(40)), FileError, "cut short"),
    (
        "a table that is cut off",
        lambda: opened("rows.parquet", the.old_parquet.read_bytes()[:100]),
        FileError,
        "cut short",
    ),
    ("a table of two columns of lists", lambda: opened("rows.parquet", table(a=LISTS, b=LISTS)), DataError, "--column"),
    ("a table of text", lambda: opened("rows.parquet", table(text=["a", "b"])), DataError, "text"),
    ("a table of ids and numbers", lambda: opened("rows.parquet", table(id=[1, 2], d=[0.1, 0.2])), DataError, "id"),
    ("a table without columns", lambda: opened("rows.parquet", table()), DataError, "none"),
    (
        "a column that the table has not",
        lambda: opened("rows.parquet", table(vector=LISTS), column="vectors"),
        UnknownNameError,
        "vector",
    ),
    (
        "a column of text",
        lambda: opened("rows.parquet", table(text=["a"], vector=[[1.0]]), column="text"),
        DataError,
        "'text'",
    ),
    ("two columns of one name", lambda: opened("rows.parquet", pair_of_one_name()), DataError, "a (double)"),
    (
        "a column of which there are two",
        lambda: opened("rows.parquet", pair_of_one_name(), column="a"),
        DataError,
        "'a'",
    ),
    (
        "a table without rows",
        lambda: opened("rows.parquet", table(a=pyarrow.array([], pyarrow.list_(pyarrow.float32())))),
        DataError,
        "no rows",
    ),
    (
        "a table of rows of no numbers",
        lambda: opened("rows.parquet", table(a=pyarrow.array([[], []], pyarrow.list_(pyarrow.float32())))),
        DataError,
        "no numbers",
    ),
    ("rows of different lengths", lambda: rows_of("rows.parquet", table(v=[[1.0, 2.0], [1.0]])), ShapeError, "row 1"),
    ("a row that is null", lambda: rows_of("rows.parquet", table(v=[[1.0, 2.0], None])), DataError, "row 1"),
    ("a number that is null", lambda: rows_of("rows.parquet", table(v=[[1.0, 2.0], [1.0, None]])), DataError, "row 1"),
    ("batches of no rows", lambda: public.open_vectors(the.old_npy).batches(0), ShapeError, "0 rows"),
    ("a start behind the end", lambda: public.open_vectors(the.old_npy).batches(1, 31), ShapeError, "31"),
    (
        "pairs in batches of no rows",
        lambda: public.paired_batches(*[public.open_vectors(the.old_npy)] * 2, 0),
        ShapeError,
        "0",
    ),
    (
        "pairs of other numbers of rows",
        lambda: public.paired_batches(public.open_vectors(the.old_npy), opened("few.npy", np.ones((4, 2))), 2),
        ShapeError,
        "few.npy",
    ),
    ("statistics of batches of no rows", lambda: moments(rows_per_batch=0), ShapeError, "0"),
    ("statistics kept in someone's folder", lambda: moments(keep=the.someones_folder), FileError, "someones"),
    ("statistics kept in a name that is too long", lambda: moments(keep=TOO_LONG), FileError, "long"),
    (
        "statistics of other files",
        lambda: moments(the.new_npy, the.old_npy, keep=the.kept_statistics),
        DataError,
        "other files",
    ),
    ("Gram matrices that were not kept", lambda: moments(keep=the.kept_statistics, grams=True), DataError, "Gram"),
    (
        "statistics of NaN",
        lambda: moments(target=the.file("nan.npy", np.full((30, 3), math.nan))),
        DataError,
        "nan.npy",
    ),
    (
        "statistics of other numbers of rows",
        lambda: moments(target=the.file("few.npy", np.ones((9, 3)))),
        ShapeError,
        "few.npy",
    ),
)
def test_vectors_that_cannot_be_read_are_refused(misuse):
    misuse.check()


def moments(source: Any = None, target: Any = None, **options: Any) -> Any:
    old, new = source or the.old_npy, target or the.new_npy
    return public.moments_of_files(public.open_vectors(old), public.open_vectors(new), **options)


def translate(source: Any = None, output: Any = "out.npy", translator: Any = None, **options: Any) -> Any:
    source = the.old_npy if source is None else source
    return public.translate_vectors(the.translator if translator is None else translator, source, output, **options)


def spoiled(value: float) -> Any:
    rows = np.load(the.old_npy)
    rows[3] = value
    return the.file("bad.npy", rows)


def huge(dtype: type, value: float) -> Any:
    rows = np.load(the.old_npy).astype(dtype)
    rows[3] = value
    return the.file("huge.npy", rows)


def twice_beside() -> pyarrow.Table:
    lists = pyarrow.array(np.load(the.old_npy).tolist())
    return pyarrow.Table.from_arrays([lists, pyarrow.array(range(30)), pyarrow.array(range(30))], ["v", "n", "n"])


class Promising:
    """A translator of one's own that does not keep its word."""

    source_width, target_width, carries_norms = 4, 9, True

    def transform(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, :3]


class Steep(Promising):
    """A translator whose vectors are ten times as long."""

    target_width = 3

    def transform(self, rows: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return 10 * rows[:, :3]


def back(lengths: float = 1.0, method: str = "ridge") -> Translator:
    """From three numbers to the four of the index."""
    old = np.load(the.old_npy)
    return Translator(method=method).fit(
        np.load(the.new_npy), lengths * old / np.linalg.norm(old, axis=1, keepdims=True)
    )


@misuses(
    ("a source that is not there", lambda: translate("gone.npy"), FileError, "gone.npy"),
    ("nothing for a source", lambda: public.translate_vectors(the.translator, None, "out.npy"), TypeError, "NoneType"),
    ("an output over a file", lambda: translate(output=the.new_npy), FileError, "force"),
    ("an output over the source", lambda: translate(output=the.old_npy, force=True), FileError, "in_place"),
    ("an output in another format", lambda: translate(output="out.csv"), FileError, "out.csv"),
    ("an output below a file", lambda: translate(output=the.letter / "out.npy"), FileError, "not a folder"),
    ("an unknown engine", lambda: translate(engine="spark"), UnknownNameError, "local"),
    ("an unknown word for bad rows", lambda: translate(bad_rows="drop"), DataError, "'keep'"),
    ("batches of no rows", lambda: translate(rows_per_batch=0), ShapeError, "0 rows"),
    ("rows of the target's width", lambda: translate(the.new_npy), ShapeError, "3"),
    ("rows of another width", lambda: translate(the.file("wide.npy", np.ones((5, 7)))), ShapeError, "7"),
    ("a row of NaN", lambda: translate(spoiled(math.nan)), DataError, "row 3"),
    ("a row of zeros", lambda: translate(spoiled(0.0)), DataError, "row 3"),
    ("rows that are quantised", lambda: translate(the.file("q.npy", np.ones((5, 4), np.int8))), DataError, "scale="),
    (
        "bits that are packed",
        lambda: translate(the.file("q.npy", np.ones((5, 4), np.uint8))),
        DataError,
        "32 dimensions",
    ),
    ("a scale for floats", lambda: translate(scale=2.0), DataError, "float32"),
    *(
        (
            f"a scale of {scale}",
            lambda scale=scale: translate(the.file("q.npy", np.ones((5, 4), np.int8)), scale=scale),
            DataError,
            "scale",
        )
        for scale in (math.inf, math.nan, 0.0, -1.0, 1e300)
    ),
    ("columns without a place", lambda: translate(the.old_parquet, column="v"), FileError, "id"),
    (
        "a column that is not there",
        lambda: translate(the.old_parquet, "out.parquet", column="w"),
        UnknownNameError,
        "'w'",
    ),
    (
        "a table with two columns of one name",
        lambda: translate(the.file("x.parquet", twice_beside()), "out.parquet", column="v"),
        DataError,
        "n",
    ),
    (
        "float16 that becomes too large",
        lambda: translate(huge(np.float16, 6e4), translator=Steep()),
        DataError,
        "float16",
    ),
    (
        "float32 that becomes too large",
        lambda: translate(huge(np.float32, 3e38), translator=Steep()),
        DataError,
        "float32",
    ),
    ("a translator that promises another width", lambda: translate(translator=Promising()), ShapeError, "(30, 3)"),
    (
        "an index for the engine ray",
        lambda: translate(f"faiss://{the.faiss_index}", "faiss://new.index", engine="ray"),
        FileError,
        "engine='ray'",
    ),
    ("a file to wrap", lambda: translate(wrap=True), FileError, "FAISS"),
    ("a Lance table that has no name", lambda: translate("lance://"), FileError, "lance://FOLDER/TABLE"),
    (
        "a Lance folder that is not there",
        lambda: translate("lance://nowhere/old", "lance://db/new"),
        StoreError,
        "nowhere",
    ),
    (
        "a Lance table that is not there",
        lambda: translate(f"lance://{the.lance}/older", "lance://db/new"),
        UnknownNameError,
        "old",
    ),
    (
        "a Lance column that is not there",
        lambda: translate(f"lance://{the.lance}/old#w", "lance://db/new"),
        UnknownNameError,
        "'w'",
    ),
    (
        "a Lance table onto itself",
        lambda: translate(f"lance://{the.lance}/old", f"lance://{the.lance}/old", force=True),
        FileError,
        "source itself",
    ),
    ("a Lance table over another", lambda: translate(output=f"lance://{the.lance}/old"), FileError, "force"),
    (
        "a Lance table without rows",
        lambda: translate(f"lance://{the.lance}/empty", "lance://db/new"),
        DataError,
        "no rows",
    ),
    ("a Lance table far away", lambda: translate("lance://s3://bucket/old", "lance://db/new"), FileError, "s3://"),
    ("a FAISS index without a name", lambda: translate("faiss://"), FileError, "faiss://FILE"),
    (
        "a FAISS index that is not there",
        lambda: translate("faiss://old.index", "faiss://new.index"),
        FileError,
        "old.index",
    ),
    (
        "a FAISS index that is none",
        lambda: translate(f"faiss://{the.letter}", "faiss://new.index"),
        StoreError,
        "letter.txt",
    ),
    (
        "a FAISS index without vectors",
        lambda: translate(f"faiss://{the.empty_index}", "faiss://new.index"),
        DataError,
        "no vectors",
    ),
    (
        "a FAISS index of rounded vectors",
        lambda: translate(f"faiss://{the.rounded_index}", "faiss://new.index"),
        StoreError,
        "IndexScalarQuantizer",
    ),
    (
        "a FAISS index with a row of NaN",
        lambda: translate(f"faiss://{the.broken_index}", "faiss://new.index"),
        DataError,
        "row 3",
    ),
    ("a FAISS index into a file", lambda: translate(f"faiss://{the.faiss_index}"), FileError, ".npy"),
    ("a file into a FAISS index", lambda: translate(output="faiss://new.index"), FileError, "FAISS"),
    (
        "a FAISS index onto itself",
        lambda: translate(f"faiss://{the.faiss_index}", f"faiss://{the.faiss_index}"),
        FileError,
        "source itself",
    ),
    ("an index wrapped the wrong way", lambda: wrap(the.translator), ShapeError, "4 numbers"),
    (
        "an index wrapped by directions",
        lambda: wrap(back(method="relative-projection")),
        DataError,
        "relative-projection",
    ),
    ("an index wrapped into other lengths", lambda: wrap(back(7.0)), DataError, "length 7"),
    (
        "a Lance table of a server",
        lambda: translate("lance://me:hunter2@host/db/docs", "new.npy"),
        FileError,
        "me:***@host",
    ),
    (
        "a FAISS index of a server",
        lambda: translate("faiss://me:hunter2@host/flat.index", "faiss://new.index"),
        FileError,
        "me:***@host",
    ),
    (
        "a PostgreSQL address without a table",
        lambda: translate("postgresql://me:hunter2@host/db", "postgresql:?table=new"),
        FileError,
        "?table=",
    ),
    (
        "a PostgreSQL address with a #",
        lambda: translate("postgresql://me:hunter2@host/db?table=t#v", "postgresql:?table=new"),
        FileError,
        "?column=",
    ),
    (
        "a PostgreSQL address that cannot be read",
        lambda: translate("postgresql://me:hunter2@[host/db?table=t", "out.npy"),
        FileError,
        "percent-encode",
    ),
    (
        "a PostgreSQL server that is not there",
        lambda: translate("postgresql://me:hunter2@127.0.0.1:1/db?table=t", "postgresql:?table=new"),
        StoreError,
        "127.0.0.1",
    ),
    ("a store of an unknown kind", lambda: translate("milvus://host/table"), FileError, "milvus"),
    ("a store without its address", lambda: translate("some_folder"), FileError, "some_folder"),
)
def test_a_store_that_cannot_be_translated_is_refused(misuse):
    misuse.check()


def wrap(translator: Any) -> Any:
    return translate(f"faiss://{the.faiss_index}", "faiss://new.index", translator, wrap=True)
