"""DATA strings: every format gives the same batches at every pass, and what is wrong with a file is named."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.test_storage import refused

from interbasin import data
from interbasin.datasets import open_data, splits_of
from interbasin.datasets.arrays import read_idx
from interbasin.datasets.base import shaping_like
from interbasin.datasets.texts import longest
from interbasin.errors import DataError, FileError
from interbasin.extras import import_extra


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTERBASIN_DATA", raising=False)


X = np.arange(7 * 6, dtype=np.float32).reshape(7, 2, 3)
Y = np.array([0, 1, 2, 0, 1, 2, 0])


def inputs_of(batches) -> torch.Tensor:
    return torch.cat([batch[0] if batches.labelled else batch for batch in batches])


def labels_of(batches) -> list:
    return torch.cat([labels for _, labels in batches]).tolist()


# ---------------------------------------------------------------------- digits


@pytest.mark.parametrize(("split", "count"), [(None, 1437), ("train", 1437), ("test", 360)])
def test_the_digits_come_in_two_parts(split, count):
    found = open_data("digits", split=split, batch_size=100)
    digits = data.load_digits()
    assert found.count == count and len(found) == -(-count // 100) and found.classes == tuple("0123456789")
    images = digits.test_images if split == "test" else digits.train_images
    assert torch.equal(inputs_of(found), images)
    assert splits_of("digits") == ("train", "test")


def test_every_pass_is_the_same_also_in_another_order():
    found = open_data("digits", shuffle=True, seed=3, limit=100, batch_size=32)
    assert [len(labels) for _, labels in found] == [32, 32, 32, 4] and len(found) == 4
    first, again = list(found), list(found)
    assert all(
        torch.equal(a, b) for one, other in zip(first, again, strict=True) for a, b in zip(one, other, strict=True)
    )
    other = open_data("digits", shuffle=True, seed=4, limit=100)
    assert labels_of(other) != labels_of(found)
    assert torch.equal(inputs_of(open_data("digits", shuffle=True, seed=3, limit=100)), inputs_of(found))
    plain = list(found.without_labels())
    assert isinstance(plain[0], torch.Tensor) and torch.equal(plain[0], first[0][0])


# ---------------------------------------------------------------------- arrays


def test_arrays_keep_their_shape_and_their_labels():
    np.savez("d.npz", x=X, y=Y)
    np.savez_compressed("c.npz", x=X, y=Y)
    np.savez("only.npz", images=X)
    np.save("d.npy", X)
    np.save("f.npy", np.asfortranarray(X))
    for name in ("d.npz", "c.npz"):
        found = open_data(name, batch_size=3)
        assert torch.equal(inputs_of(found), torch.tensor(X)) and labels_of(found) == Y.tolist()
    for name in ("d.npy", "f.npy", "only.npz"):
        found = open_data(name, batch_size=3)
        assert not found.labelled and torch.equal(inputs_of(found), torch.tensor(X))
    shuffled = open_data("d.npy", shuffle=True, seed=1)
    assert sorted(inputs_of(shuffled)[:, 0, 0].tolist()) == X[:, 0, 0].tolist()


@given(
    rows=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    limit=st.none() | st.integers(1, 40),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**31),
    compressed=st.booleans(),
)
def test_batches_hold_every_sample_once_with_its_own_label(
    tmp_path_factory, rows, batch_size, limit, shuffle, seed, compressed
):
    path = tmp_path_factory.mktemp("law") / "d.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=np.arange(rows * 2.0).reshape(rows, 2), y=np.arange(rows))
    found = open_data(path, batch_size=batch_size, limit=limit, shuffle=shuffle, seed=seed)
    count = min(rows, limit or rows)
    assert found.count == count and len(list(found)) == len(found)
    numbers = labels_of(found)
    assert len(set(numbers)) == count and (shuffle or numbers == list(range(count)))
    assert inputs_of(found)[:, 0].tolist() == [2.0 * number for number in numbers]


def test_eight_bit_images_are_scaled_and_normalised():
    images = np.array([[[[0, 255]], [[255, 0]], [[51, 51]]]], dtype=np.uint8)  # one image, three channels, 1 x 2
    np.save("i.npy", images)
    assert inputs_of(open_data("i.npy")).flatten().tolist() == pytest.approx([0, 1, 1, 0, 0.2, 0.2])
    assert inputs_of(open_data("i.npy", scale=False)).flatten().tolist() == [0, 255, 255, 0, 51, 51]
    assert inputs_of(open_data("i.npy", mean=0.5, std=0.5)).flatten().tolist() == pytest.approx(
        [-1, 1, 1, -1, -0.6, -0.6]
    )
    each = inputs_of(open_data("i.npy", mean=[0.0, 1.0, 0.2], std=[1.0, 2.0, 1.0]))
    assert each.flatten().tolist() == pytest.approx([0, 1, 0, -0.5, 0, 0])


def test_whole_numbers_are_tokens_if_the_network_takes_tokens():
    np.save("t.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
    assert inputs_of(open_data("t.npy")).dtype is torch.int64
    tokens = open_data("t.npy", like={"input_ids": torch.zeros(1, 9, dtype=torch.int64), "use_cache": False})
    assert next(iter(tokens))["use_cache"] is False and next(iter(tokens))["input_ids"].tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    labelled = open_data("t.npy", tokens_as_labels=True)
    inputs, labels = next(iter(labelled))
    assert torch.equal(inputs, labels)
    assert inputs_of(open_data("t.npy", like=torch.zeros(1, 3, dtype=torch.float64))).dtype is torch.float64


def test_labels_are_classes_numbers_or_names():
    np.savez("names.npz", x=X, y=np.array(["b", "a", "c", "b", "a", "c", "b"]))
    found = open_data("names.npz")
    assert labels_of(found) == [1, 0, 2, 1, 0, 2, 1] and found.classes == ("a", "b", "c")
    np.savez("numbers.npz", x=X, y=np.linspace(0, 1, 7))
    assert next(iter(open_data("numbers.npz")))[1].dtype is torch.float32
    np.savez("columns.npz", x=X, y=Y[:, None], z=X)
    assert labels_of(open_data("columns.npz")) == Y.tolist()
    np.savez("many.npz", x=X, y=np.stack([Y, Y], axis=1))
    assert next(iter(open_data("many.npz")))[1].shape == (7, 2)


# ---------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ((8, 8), (64,)),
        ((8, 8), (1, 8, 8)),
        ((1, 8, 8), (8, 8)),
        ((64,), (1, 8, 8)),
        ((64,), (8, 8)),
        ((4, 5, 3), (3, 4, 5)),
        ((3, 4, 5), (60,)),
        ((3, 32, 32), (3, 28, 28)),
        ((7, 12), (9, 12)),
        ((), (1,)),
    ],
)
def test_samples_are_brought_into_the_shape_of_the_network_where_one_way_is_plain(stored, wanted):
    values = np.arange(2 * int(np.prod(stored)), dtype=np.float32).reshape(2, *stored)
    found = shaping_like(torch.zeros(1, *wanted))(values, "here")
    if found.numel() == np.prod(wanted) * 2:
        assert found.shape == (2, *wanted)
        expected = np.moveaxis(values, -1, 1) if stored == (4, 5, 3) else values
        assert np.array_equal(found.numpy().ravel(), expected.ravel())
    else:
        assert found.shape == (2, *stored)  # another size of the same kind


def test_inputs_have_the_form_that_the_network_is_called_with():
    np.save("x.npy", X)
    (batch,) = open_data("x.npy", like=(torch.zeros(1, 2, 3),))
    assert isinstance(batch, tuple) and batch[0].shape == (7, 2, 3)
    (batch,) = open_data("x.npy", like={"pixel_values": torch.zeros(1, 6, dtype=torch.float16), "flag": True})
    assert batch["pixel_values"].dtype is torch.float16 and batch["flag"] is True


# ---------------------------------------------------------------------- text


class Words:
    """A tokenizer that counts letters, with the calls and the attributes of one of transformers."""

    pad_token = "."
    model_max_length = 4

    def __call__(self, texts, *, padding, truncation, max_length, return_tensors):
        assert padding and truncation and return_tensors == "pt"
        rows = [[len(word) for word in text.split()][:max_length] for text in texts]
        longest_row = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest_row - len(row)) for row in rows], dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "note": "no tensor"}


def test_texts_are_tokenized_a_batch_at_a_time():
    Path("t.txt").write_text("a bb ccc\n\n  dddd \na a a a a a\n", "utf-8")
    found = open_data("t.txt", tokenizer=Words(), batch_size=2)
    batches = list(found)
    assert found.count == 3 and not found.labelled
    assert batches[0]["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batches[0]["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batches[1]["input_ids"].tolist() == [[1, 1, 1, 1]]  # cut at the tokenizer's limit
    assert next(iter(open_data("t.txt", tokenizer=Words(), max_length=2)))["input_ids"].shape == (3, 2)


def test_the_tokens_of_a_text_can_be_its_labels():
    Path("t.txt").write_text("a bb\nccc dddd\n", "utf-8")
    for asked in (True, None):
        ((inputs, labels),) = open_data("t.txt", tokenizer=Words(), tokens_as_labels=asked)
        assert torch.equal(inputs["input_ids"], labels)
    Path("l.jsonl").write_text('{"text": "a bb", "label": 3}', "utf-8")
    assert labels_of(open_data("l.jsonl", tokenizer=Words(), tokens_as_labels=None)) == [3]
    example = torch.zeros(1, 5, dtype=torch.int64)
    (alone,) = open_data("t.txt", tokenizer=Words(), like=example)  # a network of someone's own
    assert alone.tolist() == [[1, 2], [3, 4]]
    (alone,) = open_data("t.txt", tokenizer=Words(), like=(example,))
    assert isinstance(alone, tuple) and alone[0].tolist() == [[1, 2], [3, 4]]


def test_marks_that_may_stand_inside_a_text_do_not_end_its_line():
    texts = ["a\u2028b", "c\x85d", "e\u2029"]
    Path("t.jsonl").write_text("\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts), "utf-8")
    assert open_data("t.jsonl", tokenizer=Words()).count == 3


def test_jsonl_has_texts_and_labels():
    rows = [{"text": "a bb", "label": "good"}, {"text": "c", "label": "bad"}]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n", "utf-8")
    found = open_data("t.jsonl", tokenizer=Words())
    ((inputs, labels),) = found
    assert inputs["input_ids"].tolist() == [[1, 2], [1, 0]] and labels.tolist() == [1, 0]
    assert found.classes == ("bad", "good")
    Path("q.jsonl").write_text('{"question": "a b c"}\n', "utf-8")
    assert next(iter(open_data("q.jsonl", tokenizer=Words(), column="question")))["input_ids"].shape == (1, 3)


def test_a_tokenizer_of_transformers_is_loaded_from_a_folder(tmp_path):
    transformers = import_extra("transformers", "A tokenizer", "hf")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "<end>": 1, "a": 2, "b": 3}, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    made.save_pretrained(tmp_path / "model")
    Path("t.txt").write_text("a b\nb\n", "utf-8")
    (batch,) = open_data("t.txt", tokenizer=tmp_path / "model")
    assert batch["input_ids"].tolist() == [[2, 3], [3, 1]]  # the token that ends a text pads it
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]


def test_texts_are_cut_at_the_limit_that_is_known():
    class Unlimited:
        model_max_length = int(1e30)

    assert (longest(Words(), None), longest(Words(), 3), longest(Unlimited(), None)) == (4, 3, 512)
    refused(lambda: longest(Words(), 0), DataError, ("at least 1", "0"))


# ---------------------------------------------------------------------- tables


def write_parquet(name: str, **columns: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), name)


def test_parquet_has_vectors_or_text_and_labels():
    write_parquet("v.parquet", x=[[1.0, 2.0], [3.0, 4.0]], label=["b", "a"])
    found = open_data("v.parquet")
    assert inputs_of(found).tolist() == [[1, 2], [3, 4]] and labels_of(found) == [1, 0] and found.classes == ("a", "b")
    write_parquet("n.parquet", a=[1.0, 2.0], b=[3.0, 4.0])
    assert inputs_of(open_data("n.parquet")).tolist() == [[1, 3], [2, 4]]
    write_parquet("t.parquet", text=["a b", "c"], label=[1, 0])
    ((inputs, labels),) = open_data("t.parquet", tokenizer=Words())
    assert inputs["input_ids"].shape == (2, 2) and labels.tolist() == [1, 0]
    write_parquet("q.parquet", question=["a b", "c"], other=["x", "y"])
    assert open_data("q.parquet", column="question", tokenizer=Words()).count == 2


# ---------------------------------------------------------------------- images


def write_image(path: Path, colour: object, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new(mode, size, colour).save(path)


def test_subfolders_of_images_are_classes():
    write_image(Path("i/dog/1.png"), (255, 0, 0))
    write_image(Path("i/cat/1.png"), (0, 255, 0))
    write_image(Path("i/cat/2.png"), (0, 0, 255))
    Path("i/notes").mkdir()
    Path("i/cat/readme.md").write_text("no image", "utf-8")
    found = open_data("i")
    assert found.classes == ("cat", "dog") and labels_of(found) == [0, 0, 1]
    images = inputs_of(found)
    assert images.shape == (3, 3, 3, 4) and images[:, :, 0, 0].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_images_are_resized_and_turned_grey_as_the_network_takes_them():
    write_image(Path("i/1.png"), (255, 255, 255))
    write_image(Path("i/2.jpg"), 0, (5, 5), "L")
    for shape in [(1, 8, 8), (3, 8, 6), (8, 6)]:
        (batch,) = open_data("i", like=torch.zeros(1, *shape))
        assert batch.shape == (2, *shape) and batch[0].min() == 1 and batch[1].max() == 0
    Path("i/2.jpg").unlink()
    (batch,) = open_data("i", like=torch.zeros(1, 12))
    assert batch.tolist() == [[1.0] * 12]
    (batch,) = open_data("i", like=torch.zeros(1, 36))
    assert batch.shape == (1, 36)


def test_a_folder_of_images_may_have_parts():
    write_image(Path("i/train/a/1.png"), 0)
    write_image(Path("i/test/a/1.png"), 0)
    write_image(Path("i/test/a/2.png"), 0)
    assert splits_of("i") == ("train", "test")
    assert [open_data("i", split=split).count for split in (None, "train", "test")] == [1, 1, 2]


# ---------------------------------------------------------------------- idx


def idx(array: np.ndarray, code: int) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.tobytes()


def write_mnist(folder: str) -> None:
    Path(folder).mkdir()
    for prefix, count in (("train", 5), ("t10k", 3)):
        images = np.arange(count * 4, dtype=np.uint8).reshape(count, 2, 2)
        Path(folder, f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images, 8)))
        Path(folder, f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8), 8))


def test_idx_files_come_in_two_parts():
    write_mnist("mnist")
    assert splits_of("mnist") == ("train", "test")
    found = open_data("mnist", split="test", like=torch.zeros(1, 4))
    assert labels_of(found) == [0, 1, 2] and inputs_of(found)[1].tolist() == pytest.approx(
        [one / 255 for one in (4, 5, 6, 7)]
    )
    assert open_data("mnist").count == 5


def test_a_name_is_looked_for_among_the_data_sets(tmp_path, monkeypatch):
    (tmp_path / "sets").mkdir()
    write_mnist("sets/mnist")
    monkeypatch.setenv("INTERBASIN_DATA", str(tmp_path / "sets"))
    assert open_data("mnist").count == 5 and splits_of("mnist") == ("train", "test")


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_idx_files_of_every_type_are_read(code, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    Path("a").write_bytes(idx(array, code))
    assert np.array_equal(read_idx(Path("a")), array) and read_idx(Path("a")).dtype.isnative


@pytest.mark.local_data("mnist")
def test_the_real_mnist_is_read(local_data):
    found = open_data(local_data / "mnist", split="test", batch_size=1000, like=torch.zeros(1, 784))
    assert found.count == 10_000 and labels_of(found)[:5] == [7, 2, 1, 0, 4]
    assert float(inputs_of(found).mean()) == pytest.approx(0.1325, abs=1e-3)


# ---------------------------------------------------------------------- what is wrong is named


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0\0\x08\x01\0\0\0\x05ab", ("cut short", "5 bytes", "2 follow")),
        (b"\0\0\x08\x03\0\0", ("cut short", "header")),
        (b"PK\x03\x04", ("not an idx file",)),
        (b"", ("not an idx file",)),
        (b"\x1f\x8bxx", ("could not be read",)),
        (gzip.compress(idx(np.zeros(9, dtype=np.uint8), 8), mtime=0)[:-4], ("could not be read",)),
        (gzip.compress(idx(np.zeros(9, dtype=np.uint8), 8), mtime=0)[:-8] + bytes(8), ("could not be read", "CRC")),
        (b"\0\0\x08\x02" + b"\x7f\xff\xff\xff" * 2 + b"ab", ("cut short", "4611686014132420609 bytes", "2 follow")),
        (gzip.compress(b"\0\0\x08\x02" + b"\x7f\xff\xff\xff" * 2 + b"ab"), ("no data are that much alike",)),
        (b"\0\0\x08\x50" + b"\0\0\0\x01" * 80 + b"a", ("could not be read", "64")),
    ],
    ids=[
        *("short data", "short header", "zip", "empty", "short gzip", "cut gzip", "wrong checksum"),
        *("more than a machine has", "packed more than a machine has", "80 axes"),
    ],
)
def test_a_damaged_idx_file_is_named(content, words):
    Path("a").write_bytes(content)
    refused(lambda: read_idx(Path("a")), FileError, ("a", *words))
    refused(lambda: read_idx(Path("b")), FileError, ("no such file",))


def test_an_idx_file_without_samples_is_an_empty_array():
    Path("a").write_bytes(idx(np.zeros((0, 3), dtype=np.uint8), 8))
    assert read_idx(Path("a")).shape == (0, 3)


def test_a_reason_that_announces_a_list_is_told_without_the_announcement(tmp_path, monkeypatch):
    class AutoTokenizer:
        @staticmethod
        def from_pretrained(*arguments, **options):
            raise ValueError(
                "Couldn't instantiate the backend tokenizer from one of: \n(1) a file of its own, \n(2) ..."
            )

    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=AutoTokenizer))
    (tmp_path / "x.txt").write_text("a")
    message = refused(lambda: open_data(str(tmp_path / "x.txt"), tokenizer="folder"), FileError)
    assert "(Couldn't instantiate the backend tokenizer); give" in message
