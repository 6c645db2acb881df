"""Misuses of DATA: names of nothing, files that are something else, samples that a network does not take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.misuses.table import misuses, public, the
from tests.test_storage import TOO_LONG

from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError

X = np.arange(7 * 6, dtype=np.float32).reshape(7, 2, 3)
WIDE = X.astype(np.float64)
Y = np.array([0, 1, 2, 0, 1, 2, 0])
TAKES = torch.zeros(1, 2, 3)


@pytest.fixture(autouse=True)
def no_data_sets(monkeypatch):
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


class Words:
    """A tokenizer that counts letters."""

    pad_token = "."
    model_max_length = 4

    def __call__(self, texts: list[str], **options: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[len(text)] for text in texts])}


class NoPadding(Words):
    pad_token = eos_token = None


class NoTokens(Words):
    def __call__(self, texts: list[str], **options: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.zeros(len(texts), 0, dtype=torch.int64)}


def read(name: Any, content: Any = None, **options: Any) -> list[Any]:
    """All batches of a file, or of what has that name."""
    return list(public.open_data(name if content is None else the.file(name, content), **options))


def equation(name: str, **numbers: float) -> object:
    return public.write_data(name, "a.npz", count=2, test_count=0, points=8, numbers=numbers)


def read_text(content: str | bytes = "a", **options: Any) -> list[Any]:
    return read("x.txt", content, **{"tokenizer": Words(), **options})


def read_lines(content: str, **options: Any) -> list[Any]:
    return read("x.jsonl", content, **{"tokenizer": Words(), **options})


def read_images(**files: Any) -> list[Any]:
    folder = the.files({name.replace("__", "/").replace("_", "."): content for name, content in files.items()})
    return list(public.open_data(folder))


def image(width: int = 4) -> bytes:
    import io

    from PIL import Image

    memory = io.BytesIO()
    Image.new("RGB", (width, 3)).save(memory, "PNG")
    return memory.getvalue()


@misuses(
    ("data that are not there", lambda: read("x.npy"), FileError, "x.npy"),
    ("data without a name", lambda: read(""), FileError, "digits"),
    ("data of an impossible name", lambda: read("a\0b"), FileError, "digits"),
    ("data of a name that is too long", lambda: read(TOO_LONG), FileError, "too long"),
    ("nothing for data", lambda: read(None), TypeError, "NoneType"),
    ("data in another format", lambda: read("x.docx", "1"), FileError, "x.docx"),
    ("an empty file", lambda: read("x.npy", b""), FileError, "empty"),
    ("a damaged array", lambda: read("x.npy", b"\x93NUMPYxx"), FileError, "x.npy"),
    ("a text for an array", lambda: read("x.npy", "hello"), FileError, "x.npy"),
    ("a damaged archive", lambda: read("x.npz", b"PK\x03\x04xx"), FileError, "x.npz"),
    ("a text for an archive", lambda: read("x.npz", "hello"), FileError, "x.npz"),
    ("a damaged table", lambda: read("x.parquet", b"PAR1xxxxxxPAR1"), FileError, "x.parquet"),
    ("a text for a table", lambda: read("x.parquet", "hello"), FileError, "x.parquet"),
    ("a pickled array", lambda: read("x.npy", np.array([[{}]])), DataError, "run code"),
    ("pickled labels", lambda: read("x.npz", {"x": X, "y": np.array([{}] * 7)}), DataError, "'y'"),
    ("pickled inputs", lambda: read("x.npz", {"x": np.array([[{}]] * 7), "y": Y}), DataError, "'x'"),
    ("an archive with other keys", lambda: read("x.npz", {"images": X, "labels": Y}), UnknownNameError, "images"),
    ("fewer labels than samples", lambda: read("x.npz", {"x": X, "y": Y[:5]}), ShapeError, "5 labels"),
    ("labels that are dates", lambda: read("x.npz", {"x": X, "y": Y.astype("M8[s]")}), DataError, "datetime64"),
    ("labels that are NaN", lambda: read("x.npz", {"x": X, "y": np.full(7, math.nan)}), DataError, "labels"),
    ("an array without samples", lambda: read("x.npy", X[:0]), DataError, "no rows"),
    ("an array with NaN", lambda: read("x.npy", X * math.nan), DataError, "NaN"),
    ("an array with infinity", lambda: read("x.npy", np.where(X == 7, math.inf, X)), DataError, "sample 1"),
    ("a part that digits have not", lambda: read("digits", split="valid"), UnknownNameError, "train"),
    ("a part of what has none", lambda: read("x.npy", X, split="test"), DataError, "'test'"),
    ("batches of none", lambda: read("digits", batch_size=0), DataError, "batch_size"),
    ("batches of a true number", lambda: read("digits", batch_size=True), DataError, "True"),
    ("batches in words", lambda: read("digits", batch_size="8"), DataError, "'8'"),
    ("a limit of none", lambda: read("digits", limit=0), DataError, "limit"),
    ("a seed in words", lambda: read("digits", shuffle=True, seed="x"), DataError, "seed"),
    ("a deviation of zero", lambda: read("digits", std=0.0), DataError, "0.0"),
    ("an array beyond float32", lambda: read("x.npy", np.where(X == 7, 1e300, WIDE)), DataError, "is 1e+300 in"),
    ("labels beyond float32", lambda: read("x.npz", {"x": X, "y": np.full(7, 1e300)}), DataError, "float32 ends at"),
    (
        "fields beyond float32",
        lambda: read("x.npz", {"x": X, "y": WIDE + 1e300}),
        DataError,
        "or a number beyond float32",
    ),
    ("a csv file beyond float32", lambda: read("x.csv", "a,y\n1,2\n1e300,2\n"), DataError, "Row 1 (line 3)"),
    ("a csv file with 1e300", lambda: read("x.csv", "a,y\n1,2\n1e300,2\n"), DataError, "has 1e+300, where float32"),
    ("csv labels of 1e300", lambda: read("x.csv", "a,y\n1,2.5\n1,1e300\n"), DataError, "is 1e+300, and float32"),
    ("a mean of NaN", lambda: read("digits", mean=math.nan), DataError, "nan"),
    ("more means than channels", lambda: read("digits", mean=[0.1, 0.2]), ShapeError, "(8, 8)"),
    ("means of tokens", lambda: read("x.npy", X.astype(np.int64), mean=1.0), DataError, "tokens"),
    ("tokens of images", lambda: read("digits", tokens_as_labels=True), DataError, "tokens_as_labels"),
    ("numbers for tokens", lambda: read("digits", like=torch.zeros(1, 8, dtype=torch.int64)), DataError, "float32"),
    ("one sample for two inputs", lambda: read("digits", like={"a": TAKES, "b": TAKES}), DataError, "a, b"),
    ("one sample for two arguments", lambda: read("digits", like=(TAKES, TAKES)), DataError, "2 inputs"),
    *(
        (
            f"samples of {stored} for a network of {wanted}",
            lambda stored=stored, wanted=wanted: read("x.npy", np.zeros((2, *stored)), like=torch.zeros(1, *wanted)),
            ShapeError,
            str(wanted),
        )
        for stored, wanted in [
            ((8, 8), (65,)),
            ((4, 6), (6, 4)),
            ((3, 4, 5), (5, 4, 3)),
            ((3, 8, 8), (1, 8, 8)),
            ((12,), (13,)),
            ((2, 3), (3,)),
        ]
    ),
    ("text without a tokenizer", lambda: read_text(tokenizer=None), DataError, "--tokenizer"),
    ("a number for a tokenizer", lambda: read_text(tokenizer=3), DataError, "int"),
    ("a folder without a tokenizer", lambda: read_text(tokenizer="nowhere"), FileError, "nowhere"),
    ("a tokenizer that cannot pad", lambda: read_text(tokenizer=NoPadding()), DataError, "pad_token"),
    ("a tokenizer that makes no tokens", lambda: read_text(tokenizer=NoTokens()), DataError, "no tokens"),
    ("texts cut to no tokens", lambda: read_text(max_length=0), DataError, "max_length"),
    ("a text of nothing", lambda: read_text("\n \n"), DataError, "x.txt"),
    ("a text of bytes", lambda: read_text(b"\xff\xfe\x00"), FileError, "UTF-8"),
    ("text for a network of numbers", lambda: read_text(like=TAKES), DataError, "numbers"),
    ("half a line of JSON", lambda: read_lines('{"text": "a"}\n{'), FileError, "Line 2"),
    ("JSON with other keys", lambda: read_lines('{"question": "a"}'), DataError, "--column"),
    ("a list for a line of JSON", lambda: read_lines("[1]"), DataError, "list"),
    ("JSON without lines", lambda: read_lines("\n"), DataError, "x.jsonl"),
    ("JSON with some labels", lambda: read_lines('{"text": "a", "label": 1}\n{"text": "b"}'), DataError, "1 of the 2"),
    (
        "JSON with labels of two kinds",
        lambda: read_lines('{"text": "a", "label": 1}\n{"text": "b", "label": "c"}'),
        DataError,
        "int, str",
    ),
    (
        "JSON with an infinite label",
        lambda: read_lines('{"text": "a", "label": 1.5}\n{"text": "b", "label": Infinity}'),
        DataError,
        "Label 1",
    ),
    ("a column that is not there", lambda: read("x.parquet", {"a": [[1.0]]}, column="b"), UnknownNameError, "'b'"),
    ("numbers beside labels", lambda: read("x.parquet", {"a": [1.0], "label": [1]}), DataError, "--column"),
    ("a row without text", lambda: read("x.parquet", {"text": ["a", None]}, tokenizer=Words()), DataError, "Row 1"),
    ("a row without a label", lambda: read("x.parquet", {"x": [[1.0], [2.0]], "label": [1, None]}), DataError, "Row 1"),
    ("a folder without images", lambda: read(the.someones_folder), DataError, "someones"),
    ("a damaged image", lambda: read_images(**{"1_png": b"x"}), FileError, "1.png"),
    (
        "images beside folders of images",
        lambda: read_images(**{"1_png": image(), "a__1_png": image()}),
        DataError,
        "loose",
    ),
    ("images of two sizes", lambda: read_images(**{"1_png": image(), "2_png": image(9)}), ShapeError, "2.png"),
    ("the parts of what is not there", lambda: public.splits_of("nowhere"), FileError, "nowhere"),
    ("an idx file that is not there", lambda: public.read_idx(the.folder / "b"), FileError, "b"),
    ("an idx file that is an archive", lambda: public.read_idx(the.file("a", b"PK\x03\x04")), FileError, "idx"),
    (
        "an idx file that is cut off",
        lambda: public.read_idx(the.file("a", b"\0\0\x08\x01\0\0\0\x05ab")),
        FileError,
        "cut short",
    ),
    ("a csv file without labels", lambda: read("x.csv", "a,b\n1,2\n"), DataError, "label_column="),
    ("a csv file with two columns of labels", lambda: read("x.csv", "y,label\n1,2\n"), DataError, "several"),
    (
        "a column of labels that is not there",
        lambda: read("x.csv", "a,b\n1,2\n", label_column="c"),
        UnknownNameError,
        "'c'",
    ),
    ("a csv file with NaN", lambda: read("x.csv", "a,y\n1,2\nnan,2\n"), DataError, "Row 1 (line 3)"),
    ("a csv file with words", lambda: read("x.csv", "a,y\n1,2\ntwo,2\n"), DataError, "'two'"),
    ("a csv file with short rows", lambda: read("x.csv", "a,b,y\n1,2,3\n1,2\n"), DataError, "2 cells"),
    ("series of several lengths", lambda: read("x.tsv", "1\t2\t3\n1\t2\n"), DataError, "Row 1"),
    ("series with NaN", lambda: read("x.tsv", "1\t2\t3\n1\tNaN\t3\n"), DataError, "Row 1"),
    ("a text for a file of PDEBench", lambda: read("x.hdf5", "hello"), FileError, "x.hdf5"),
    ("a text for a file of MATLAB", lambda: read("x.mat", "hello"), FileError, "x.mat"),
    ("a pickle", lambda: read("x.pkl", b"\x80\x04N."), DataError, "run code"),
    ("a pickle without an ending", lambda: read("train", b"\x80\x04N."), DataError, "run code"),
    (
        "labels of several numbers with NaN",
        lambda: read("x.npz", {"x": X, "y": np.full((7, 2), math.nan)}),
        DataError,
        "sample 0",
    ),
    (
        "a part that an archive has not",
        lambda: read("x.npz", {"x": X, "x_test": X}, split="valid"),
        UnknownNameError,
        "test",
    ),
    ("all of a text", lambda: public.read_pairs(the.file("x.txt", "a"), tokenizer=Words()), DataError, "x.txt"),
    ("data of no generator", lambda: public.write_data("burger", "a.npz"), UnknownNameError, "burgers"),
    ("data in a folder's place", lambda: public.write_data("burgers", the.folder), FileError, ".npz"),
    (
        "data with a foreign option",
        lambda: public.write_data("burgers", "a.npz", classes=2),
        DataError,
        "merged-labels",
    ),
    ("an equation that never ends", lambda: equation("burgers", time=1e9), DataError, "steps until time 1e+09"),
    ("an equation that overflows", lambda: equation("reaction-diffusion", growth=1e6), DataError, "growth 1e+06"),
    ("numbers nearer to usual ones", lambda: equation("reaction-diffusion", growth=1e6), DataError, "growth 1, time 1"),
    ("fields that turn too often", lambda: equation("advection", speed=1e300), DataError, "go round the interval"),
    ("a source of infinity", lambda: equation("darcy", source=1e300), DataError, "not finite with source 1e+300"),
    ("a gap in nothing", lambda: public.write_data("rotated-patches", "a.npz"), DataError, "source="),
    (
        "a gap in what is not there",
        lambda: public.write_data("rotated-patches", "a.npz", source="x.npy"),
        FileError,
        "x.npy",
    ),
    (
        "more classes than labels",
        lambda: public.write_data("merged-labels", "a.npz", source="digits", classes=11),
        DataError,
        "11",
    ),
    ("labels that are not there", lambda: public.read_labels(the.folder / "none.tsv"), FileError, "none.tsv"),
    ("labels in other bytes", lambda: public.read_labels(the.file("l.tsv", b"\xff\xfe\x00")), FileError, "UTF-8"),
    (
        "a line of labels with five words",
        lambda: public.read_labels(the.file("l.tsv", "0 1\n1 2 3 4 5\n")),
        DataError,
        "Line 2",
    ),
    ("labels of an unknown id", lambda: public.read_labels(the.file("l.tsv", "0\t1\n1\td9\n")), DataError, "'d9'"),
    (
        "labels without a document",
        lambda: public.read_labels(the.file("l.jsonl", '{"query": 1}\n')),
        DataError,
        "Line 1",
    ),
    ("a relevance in words", lambda: public.read_labels(the.file("l.tsv", "0 1 1\n1 2 much\n")), DataError, "'much'"),
    (
        "labels that name nothing right",
        lambda: public.read_labels(the.file("l.tsv", "0\t1\t0\n")),
        DataError,
        "document",
    ),
    (
        "ids that are given twice",
        lambda: public.read_labels(the.file("l.tsv", "0\t1\n"), query_ids=["a", "a"]),
        DataError,
        "query_ids",
    ),
)
def test_what_is_wrong_with_data_is_named(misuse):
    misuse.check()
