"""Tables in text: csv files, and the time series of the UCR archive."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.test_storage import refused

from interbasin.datasets import open_data, read_pairs, splits_of
from interbasin.errors import DataError, FileError, UnknownNameError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


def csv(text: str, name: str = "t.csv") -> str:
    Path(name).write_text(text, "utf-8")
    return name


@pytest.mark.parametrize("name", ["label", "y", "Target", "class"])
def test_a_column_of_one_of_four_names_is_the_label(name):
    inputs, labels, classes = read_pairs(csv(f"a,{name},b\n1,0,2\n3,1,4.5\n"))
    assert inputs.tolist() == [[1, 2], [3, 4.5]] and inputs.dtype is torch.float32
    assert labels.tolist() == [0, 1] and labels.dtype is torch.int64 and classes == ()


def test_labels_of_a_csv_file_may_be_names_or_numbers():
    assert read_pairs(csv("a,label\n1,dog\n2,cat\n"))[1:][1] == ("cat", "dog")
    labels = read_pairs(csv("a,label\n1,0.5\n2,1\n"))[1]
    assert labels.tolist() == [0.5, 1] and labels.dtype is torch.float32


def test_without_names_columns_are_called_by_their_numbers():
    plain = csv("1,2,0\n3,4,1\n")
    inputs, labels, _ = read_pairs(plain, label_column="2")
    assert inputs.tolist() == [[1, 2], [3, 4]] and labels.tolist() == [0, 1]
    inputs, labels, _ = read_pairs(plain, label_column="none")
    assert inputs.shape == (2, 3) and labels is None


def test_a_table_may_lack_labels_that_are_not_needed():
    assert read_pairs(csv("a,b\n1,2\n"), labels_needed=False)[1] is None
    assert read_pairs(csv("a,b\n1,2\n"), labels_needed=False, label_column="c")[0].shape == (1, 2)
    inputs, labels, _ = read_pairs(csv("a,y\n1,2\n"), labels_needed=False, label_column="c")
    assert inputs.tolist() == [[1]] and labels.tolist() == [2]
    refused(lambda: read_pairs(csv("y,label\n1,2\n"), labels_needed=False), DataError, ("several",))


def test_a_csv_file_may_be_gzipped():
    Path("t.csv.gz").write_bytes(gzip.compress(b"a,b,y\n1,2,0\n3,4,1\n"))
    assert open_data("t.csv.gz").count == 2


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 3, st.integers(-5, 5)), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text("a,b,c,label\n" + "".join(f"{','.join(map(repr, row))}\n" for row in rows), "utf-8")
    inputs, labels, _ = read_pairs(path)
    assert inputs.tolist() == [list(row[:3]) for row in rows] and labels.tolist() == [row[3] for row in rows]


def test_whole_numbers_may_become_others_late_in_a_long_file():
    rows = "".join(f"{number},0\n" for number in range(200_000))
    assert read_pairs(csv(f"a,y\n{rows}0.5,1\n"))[0][-1].tolist() == [0.5]


@pytest.mark.parametrize(
    ("text", "options", "error", "words"),
    [
        ("a,b\n1,2\n", {}, DataError, ("t.csv", "label", "--label-column", "'none'")),
        ("1,2\n", {}, DataError, ("columns 0, 1",)),
        ("label,y\n1,2\n", {}, DataError, ("several",)),
        ("a,b\n1,2\n", {"label_column": "c"}, UnknownNameError, ("'c'",)),
        ("a,a,y\n1,2,3\n", {}, DataError, ("'a'",)),
        ("a,b,y\n1,2,0\n1,nan,0\n", {}, DataError, ("t.csv", "Row 1", "line 3", "'b'")),
        ("a,b,y\n1,,0\n", {}, DataError, ("Row 0", "'b'")),
        ("a,b,y\n1,2,0\ninf,2,0\n", {}, DataError, ("Row 1", "'a'")),
        ("a,b,y\n1,2,0\n1,2,\n", {}, DataError, ("Row 1", "no label")),
        ("a,b,y\n1,2,0\n1,2,1e400\n", {}, DataError, ("t.csv", "the label 1e400", "no finite number")),
        (f"a,b,y\n1,2,0\n1,2,{'7' * 5000}\n", {}, DataError, ("the label 7777", "no finite number")),
        ("a,b,y\n1,2,0\n1,two,0\n", {}, DataError, ("Row 1", "'two'")),
        ("a,b,y\n1,2,0\n1,2\n", {}, DataError, ("Row 1", "2 cells", "3")),
        ("a,b,y\n", {}, DataError, ("no samples",)),
        ("\n\n", {}, DataError, ("no samples",)),
        ("y\n1\n", {}, DataError, ("numbers beside",)),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named_with_its_row(text, options, error, words):
    refused(lambda: read_pairs(csv(text), **options), error, words)


def test_a_csv_file_that_is_no_text_is_named():
    Path("t.csv").write_bytes(b"a,y\n\xff\xfe,1\n")
    refused(lambda: read_pairs("t.csv"), FileError, ("t.csv", "UTF-8"))
    Path("t.csv.gz").write_bytes(gzip.compress(b"a,y\n" + b"1,2\n" * 99)[:-9])
    refused(lambda: read_pairs("t.csv.gz"), FileError, ("t.csv.gz",))


# ---------------------------------------------------------------------- time series


def write_series(folder: str = ".", ending: str = ".tsv") -> None:
    Path(folder).mkdir(exist_ok=True)
    for part, text in (("TRAIN", "3\t0.5\t1\t2\n-1\t1\t1\t1\n"), ("TEST", "1\t1\t2\t3\n")):
        content = text.encode()
        Path(folder, f"Heart_{part}{ending}").write_bytes(gzip.compress(content) if ending.endswith("gz") else content)


@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz"])
def test_the_two_files_of_a_set_are_its_parts_and_share_their_classes(ending):
    write_series(ending=ending)
    train = f"Heart_TRAIN{ending}"
    assert splits_of(train) == ("train", "test")
    inputs, labels, classes = read_pairs(train)
    assert inputs.tolist() == [[[0.5, 1, 2]], [[1, 1, 1]]] and labels.tolist() == [2, 0] and classes == ("-1", "1", "3")
    inputs, labels, classes = read_pairs(train, split="test")
    assert inputs.shape == (1, 1, 3) and labels.tolist() == [1] and classes == ("-1", "1", "3")
    alone = read_pairs(f"Heart_TEST{ending}")
    assert alone[1].tolist() == [1] and splits_of(f"Heart_TEST{ending}") == ()


def test_a_folder_of_the_archive_has_the_same_parts():
    write_series("Heart")
    assert splits_of("Heart") == ("train", "test") and read_pairs("Heart", split="test")[1].tolist() == [1]


def test_a_file_of_series_may_stand_alone_and_have_labels_with_a_point():
    Path("s.tsv").write_text("2.0000e+00\t1\t2\n1.0000e+00\t3\t4\n", "utf-8")
    inputs, labels, classes = read_pairs("s.tsv")
    assert (
        inputs.shape == (2, 1, 2) and labels.tolist() == [1, 0] and classes == ("1", "2") and splits_of("s.tsv") == ()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\t2\t3\n2\t4\tNaN\n", ("s.tsv", "Row 1", "line 2")),
        ("1\t2\t3\n2\t4\n", ("Row 1", "2 cells")),
        ("label\ta\n1\t2\n", ("Row 0", "'a'")),
        ("1\n2\n", ("one column",)),
    ],
)
def test_what_is_wrong_with_series_is_named_with_its_row(text, words):
    Path("s.tsv").write_text(text, "utf-8")
    refused(lambda: read_pairs("s.tsv"), DataError, words)


@pytest.mark.local_data("ecg")
def test_the_real_series_are_read(local_data):
    train, test = (read_pairs(local_data / "ecg" / "ECG200_TRAIN.tsv.gz", split=split) for split in ("train", "test"))
    assert train[0].shape == test[0].shape == (100, 1, 96) and train[2] == test[2] == ("-1", "1")
    assert train[1].bincount().tolist() == [31, 69] and test[1].bincount().tolist() == [36, 64]
    # As is known of this set, the nearest neighbour is right for 88 of 100.
    nearest = torch.cdist(test[0].flatten(1), train[0].flatten(1)).argmin(1)
    assert int((train[1][nearest] == test[1]).sum()) == 88
    assert np.isfinite(read_pairs(local_data / "ecg" / "ECG5000_TEST.tsv.gz")[0].numpy()).all()


def test_empty_lines_are_no_rows_wherever_they_stand():
    rows = "1,2,0\n\n3,4,1\n\n\n5,6,0\n"
    Path("d.csv").write_text("\n\na,b,label\n" + rows)
    (inputs, labels), *_ = open_data("d.csv")
    assert inputs.tolist() == [[1, 2], [3, 4], [5, 6]] and labels.tolist() == [0, 1, 0]
    Path("bad.csv").write_text("\n\na,b,label\n" + rows.replace("6", "six"))
    with pytest.raises(DataError, match=r"Row 2 \(line 9\)"):
        open_data("bad.csv")
    Path("nan.csv").write_text("a,b,label\n" + rows.replace("6", "nan"))
    with pytest.raises(DataError, match=r"Row 2 \(line 7\)"):
        open_data("nan.csv")


def test_labels_beyond_what_tensors_hold_are_refused():
    Path("d.csv").write_text(f"a,label\n1,0\n2,{10**20}\n")
    with pytest.raises(DataError, match=r"Label 1 of d.csv is 1000.*64 bits"):
        open_data("d.csv")
    np.savez("d.npz", x=np.ones((3, 2)), y=np.array([0, 1, 2**63], dtype=np.uint64))
    with pytest.raises(DataError, match=r"9223372036854775808.*63 bits"):
        open_data("d.npz")
