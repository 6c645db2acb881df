"""Folders that the library datasets saves, written here by hand in its layout; and columns of labels in tables."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.datasets.test_opening import Words
from tests.test_storage import refused

from interbasin.datasets import open_data, read_pairs, splits_of
from interbasin.datasets.tables import stack_lists
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError
from interbasin.vectors.files.parquet_writer import decode, encode


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


def save(folder: str, *pieces: dict, features: dict | None = None, **state: object) -> None:
    """A folder as datasets leaves it: tables in Arrow's stream format, and two files of JSON."""
    Path(folder).mkdir(parents=True)
    files = []
    for number, columns in enumerate(pieces):
        table = pa.table(columns)
        files.append({"filename": f"data-{number:05d}-of-{len(pieces):05d}.arrow"})
        with pa.OSFile(f"{folder}/{files[-1]['filename']}", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    Path(folder, "state.json").write_text(json.dumps({"_data_files": files, "_split": None, **state}))
    Path(folder, "dataset_info.json").write_text(json.dumps({"features": features or {}}))


def test_a_folder_has_inputs_labels_and_the_names_of_classes():
    names = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    save("d", {"x": [[1.0, 2.0]], "label": [1]}, {"x": [[3.0, 4.0], [5.0, 6.0]], "label": [0, 1]}, features=names)
    inputs, labels, classes = read_pairs("d")
    assert inputs.tolist() == [[1, 2], [3, 4], [5, 6]] and labels.tolist() == [1, 0, 1] and classes == ("cat", "dog")
    assert splits_of("d") == ()


def test_lists_of_lists_are_fields_and_labels_may_be_lists_too():
    fields = np.arange(24.0).reshape(2, 3, 4)
    save("d", {"field": fields.tolist(), "label": [[1, 0], [0, 1]], "id": ["a", "b"]})
    inputs, labels, _ = read_pairs("d")
    assert np.array_equal(inputs, fields) and labels.tolist() == [[1, 0], [0, 1]]
    save("e", {"field": fields.tolist(), "later": (2 * fields).tolist()})
    inputs, labels, _ = read_pairs("e", column="field", label_column="later")
    assert np.array_equal(labels, 2 * inputs)


def test_a_folder_of_parts_has_splits_and_training_comes_first():
    for split, label in (("test", 2), ("train", 0), ("validation", 1)):
        save(f"d/{split}", {"x": [[0.0]], "label": [label]})
    Path("d/dataset_dict.json").write_text('{"splits": ["test", "train", "validation"]}')
    assert splits_of("d") == ("train", "test", "valid")
    assert [read_pairs("d", split=split)[1].tolist() for split in (None, "test", "valid")] == [[0], [2], [1]]


def test_a_folder_may_hold_text():
    save("d", {"text": ["a bb", "c"], "label": ["no", "yes"]})
    batches = open_data("d", tokenizer=Words())
    ((inputs, labels),) = batches
    assert inputs["input_ids"].tolist() == [[1, 2], [1, 0]] and labels.tolist() == [0, 1]
    refused(lambda: read_pairs("d", tokenizer=Words()), DataError, ("d", "text"))


def test_a_tensor_of_fixed_shape_is_a_field():
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0)), 6)
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float64(), (2, 3)), storage)
    assert stack_lists(pa.chunked_array([tensors]), "here").shape == (2, 6)  # Arrow stores it flat


@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        ({"a": [[1.0]], "b": [[1.0]]}, {}, DataError, ("a, b", "--column")),
        ({"a": [1.0], "label": [1]}, {}, DataError, ("--column",)),
        ({"a": ["x"]}, {"column": "a", "tokenizer": None}, DataError, ("text",)),
        ({"a": [["x"]]}, {}, DataError, ("list<item: string>",)),
        ({"a": [[1.0]]}, {"column": "b"}, UnknownNameError, ("'b'",)),
        ({"a": [[1.0]]}, {"label_column": "b"}, UnknownNameError, ("'b'",)),
        ({"a": [[1.0], [1.0, 2.0]]}, {}, ShapeError, ("row 1", "2")),
        ({"a": [[[1.0], [2.0]], [[1.0], [2.0, 3.0]]]}, {}, ShapeError, ("row 1",)),
        ({"a": [[1.0], None]}, {}, DataError, ("row 1", "null")),
        ({"a": [[1.0], [None]]}, {}, DataError, ("row 1", "null")),
        ({"a": [[1.0], [float("nan")]]}, {}, DataError, ("NaN", "d, sample 1")),
        ({"a": [[1.0], [2.0]], "label": [1, None]}, {}, DataError, ("Row 1",)),
        ({"a": [[1.0], [2.0]], "label": [0, -1]}, {}, DataError, ("Row 1", "-1")),
    ],
)
def test_what_is_wrong_with_a_folder_is_named_with_its_row(columns, options, error, words):
    save("d", columns, features={"label": {"names": ["no", "yes"]}})
    refused(lambda: read_pairs("d", **options), error, words)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("state.json", "{", ("state.json",)),
        ("state.json", "[]", ("state.json", "list")),
        ("state.json", "{}", ("state.json", "no files")),
        ("state.json", '{"_data_files": [{"filename": "../x"}]}', ("state.json", "no files")),
        ("state.json", '{"_data_files": [{"filename": "gone.arrow"}]}', ("gone.arrow",)),
        ("data-00000-of-00001.arrow", "hello", ("data-00000-of-00001.arrow",)),
        ("dataset_info.json", "{", ("dataset_info.json",)),
    ],
)
def test_a_damaged_folder_is_named(file, content, words):
    save("d", {"a": [[1.0]]})
    Path("d", file).write_text(content)
    refused(lambda: read_pairs("d"), FileError, words)


def test_a_folder_with_a_choice_of_rows_is_refused():
    save("d", {"a": [[1.0]]}, _indices_files=[{"filename": "indices.arrow"}])
    refused(lambda: read_pairs("d"), DataError, ("flatten_indices",))


def test_parquet_has_labels_where_they_are_said_to_be():
    pyarrow.parquet.write_table(pa.table({"x": [[1.0], [2.0]], "answer": [0.5, 1.5], "label": [0, 1]}), "t.parquet")
    assert read_pairs("t.parquet", label_column="answer")[1].tolist() == [0.5, 1.5]
    assert read_pairs("t.parquet", label_column="none")[1] is None
    refused(lambda: read_pairs("t.parquet", label_column="question"), UnknownNameError, ("question",))
    assert read_pairs("t.parquet", column="x", label_column="question", labels_needed=False)[1].tolist() == [0, 1]


@pytest.mark.parametrize("inputs", ["x", "text"])
def test_a_parquet_file_whose_columns_differ_in_length_is_refused(inputs):
    columns = {"x": [[0.5], [1.5], [2.5]], "text": ["a", "b", "c"], "label": [0, 1, 0]}
    pa.parquet.write_table(
        pa.table({inputs: columns[inputs], "label": columns["label"]}), "t.parquet", row_group_size=2
    )
    content = Path("t.parquet").read_bytes()
    (length,) = struct.unpack("<I", content[-8:-4])
    footer = decode(content, len(content) - 8 - length)[0]
    first, second = (group[1][1][1] for group in footer[4][1][1])
    first[-1] = second[-1]  # the labels of the second row group, which has one row
    written = encode(footer)
    Path("t.parquet").write_bytes(content[: -8 - length] + written + struct.pack("<I", len(written)) + b"PAR1")
    refused(
        lambda: open_data("t.parquet", tokenizer=Words(), column=inputs),
        FileError,
        ("t.parquet could not be read", "3 samples and 2 labels"),
    )
