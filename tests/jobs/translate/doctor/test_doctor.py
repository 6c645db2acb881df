"""The check-up finds what was planted, by its row, and finds nothing where nothing is."""

from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pytest
import torch

import interbasin.jobs.translate.doctor.findings as findings
from interbasin.jobs.translate.doctor import doctor
from interbasin.jobs.translate.doctor.mixture import MixtureDetector
from interbasin.outcome import Outcome
from interbasin.vectors import open_vectors


def healthy(rows: int = 600, width: int = 24, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed)
    return (draws.normal(size=(rows, width)) @ draws.normal(size=(width, width))).astype(np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def found(vectors, **options) -> dict:
    return {one.kind: one for one in doctor(vectors, **options).findings}


def test_nothing_is_found_where_nothing_is_wrong():
    for rows in (healthy(), unit(healthy()), healthy().astype(np.float16), healthy(3)):
        result = doctor(rows)
        assert result.findings == () and result.healthy


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_rows_of_any_size_are_looked_at(scale):
    rows = np.random.default_rng(0).normal(size=(3000, 24))
    small, large = doctor(rows.astype(np.float32)), doctor((scale * rows).astype(np.float32))
    assert large.findings == small.findings == ()
    assert large.metrics["norm_mean"] == pytest.approx(scale * small.metrics["norm_mean"], rel=1e-5)


def test_the_basics_are_said():
    rows = healthy()
    lengths = np.linalg.norm(rows, axis=1)
    said = f"600 rows of 24 numbers, float32, of lengths from {lengths.min():.4g} to {lengths.max():.4g}"
    assert str(doctor(rows)) == f"{said}: nothing was found." and doctor(rows).basics == said
    assert doctor(unit(rows)).basics == "600 rows of 24 numbers, float32, all of length 1"
    assert doctor(7 * unit(rows)).basics.endswith("float32, all of length 7")
    assert doctor(rows.astype(np.float16)).basics.startswith("600 rows of 24 numbers, float16, of")
    assert doctor(np.zeros((4, 3))).basics == "4 rows of 3 numbers, float64"


@pytest.mark.parametrize("batch", [7, 100, 1000])
def test_rows_are_named_whatever_the_batches(batch):
    rows = healthy()
    rows[[7, 301]] = 0
    rows[8, 3], rows[400, 0] = np.nan, np.inf
    rows[500], rows[501] = rows[20], rows[20]
    result = doctor(rows, rows_per_batch=batch)
    kinds = {one.kind: one.rows for one in result.findings}
    assert kinds == {"not finite": (8, 400), "zero": (7, 301), "duplicate": (500, 501)}
    assert result.metrics["zero"] == 2 and result.metrics["not_finite"] == 2 and result.metrics["duplicates"] == 2
    assert not result.healthy
    texts = {one.kind: one.text for one in result.findings}
    assert texts["not finite"].startswith("2 rows (8, 400) hold NaN or infinity; embed again")
    assert texts["zero"].startswith("2 rows (7, 301) are all zeros")
    assert texts["duplicate"] == "2 rows (500, 501) are exact copies of earlier ones."
    assert "error: 2 rows (8, 400)" in str(result)


def test_of_many_rows_the_first_are_named():
    rows = healthy()
    rows[10:40] = 0
    assert found(rows)["zero"].text.startswith("30 rows (10, 11, 12, 13, 14 ...) are all zeros")


def test_more_duplicates_than_are_remembered_are_estimated(monkeypatch):
    monkeypatch.setattr(findings, "MOST_HASHES", 500)
    rows = np.concatenate([healthy(4000), healthy(4000)[:2000]])
    one = found(rows, rows_per_batch=500)["duplicate"]
    assert 1000 < one.count < 4000 and one.text.startswith("about ")


def test_mixed_norms_and_outliers():
    rows = healthy()
    rows[:200] = unit(rows[:200])
    assert found(rows)["norms"].text.startswith("Norms are mixed: 33% of the rows have length 1 and the others from")
    rows = healthy()
    rows[77] *= 1000
    one = found(rows)["norms"]
    assert one.rows == (77,) and "the longest, row 77, has" in one.text


def test_dimensions_that_never_change():
    rows = healthy()
    rows[:, 3], rows[:, 9] = 0, 2.5
    one = found(rows)["dimensions"]
    assert one.count == 2 and one.rows == (3, 9)
    assert one.text == "2 dimensions (3, 9) never change, 1 of them always zero: they carry nothing."
    rows = healthy()
    rows[:, 5] = 1
    assert "1 dimension (5) never changes" in found(rows)["dimensions"].text


@pytest.mark.parametrize("width", [24, 384])
def test_vectors_that_were_rounded_to_eight_bits_are_recognised(width):
    rows = unit(healthy(300, width))
    scale = np.abs(rows).max(1, keepdims=True) / 127
    for step in (scale, scale.max()):  # a scale a row, and one for all
        levels = np.round(rows / step)
        assert found((levels * step).astype(np.float32))["storage"].text.count("rounded to int8 and scaled back") == 1
        assert "The numbers are int8: quantised vectors" in found(levels.astype(np.int8))["storage"].text
        again = found((levels * step).astype(np.float32))
        assert set(again) == {"storage"}  # and what rounding does to lengths is not taken for two kinds of them
        assert doctor((levels * step).astype(np.float32)).lengths.startswith("all of length 1")
    assert "storage" not in found(rows)


def test_rounded_vectors_of_which_only_some_are_normalised_are_still_found():
    rows = healthy(300, 384)
    rows[:100] = unit(rows[:100])
    step = np.abs(rows).max(1, keepdims=True) / 127
    assert "Norms are mixed: 33%" in found((np.round(rows / step) * step).astype(np.float32))["norms"].text


def test_whole_numbers_are_not_called_quantised():
    rows = np.arange(3000, dtype=np.int64).reshape(100, 30) % 977 + 1
    text = found(rows)["storage"].text
    assert text.startswith("The numbers are int64: whole numbers, which encoders do not give") and "quant" not in text
    assert "quantised" in found(rows.astype(np.uint8) | 1)["storage"].text


def test_the_worst_comes_first_and_what_is_only_possible_last():
    rows = two_subjects()
    rows[:, 3] = 2.5
    rows[9], rows[12] = 0, rows[11]
    kinds = [(one.kind, one.severity) for one in doctor(rows).findings]
    assert [one for one, _ in kinds] == ["zero", "dimensions", "duplicate", "two parts"]
    assert [one for _, one in kinds] == ["error", "warning", "remark", "remark"]


def two_subjects() -> np.ndarray:
    draws = np.random.default_rng(3)
    # One side cares for directions that the other hardly has, but for some that they share.
    one, other = np.full(48, 0.3), np.full(48, 0.3)
    one[:12], other[8:20] = 2, 2
    return np.concatenate([draws.normal(size=(3000, 48)) * one, draws.normal(size=(3000, 48)) * other])


def test_other_storage_is_recognised():
    rows = unit(healthy(300, 64))
    assert "every number is one of float16" in found(rows.astype(np.float16).astype(np.float32))["storage"].text
    half = torch.from_numpy(rows).bfloat16()
    assert "every number is one of bfloat16" in found(half.float().numpy())["storage"].text
    assert "storage" not in found(rows.astype(np.float16))
    assert "only two different numbers: binary codes" in found(np.sign(rows))["storage"].text
    assert "The numbers are uint8" in found(np.packbits(rows > 0, axis=1))["storage"].text


def test_cut_vectors_are_recognised():
    rows = unit(healthy(400, 128))
    cut = rows.copy()
    cut[:, 64:] = 0
    assert found(cut)["padded"].text.startswith("Only the first 64 of 128 dimensions are used, the rest is zero")
    some = rows.copy()
    some[100:150, 64:] = 0
    assert found(some)["padded"].text.startswith("50 rows end early in zeros and others do not")
    assert "may be unit vectors cut to their first dimensions (Matryoshka)" in found(rows[:, :64])["truncated"].text
    assert not {"truncated", "padded"} & set(found(rows)) and "truncated" not in found(healthy(400, 64))


# ---------------------------------------------------------------------- two models in one table


def model(rows: int, seed: int, width: int = 48) -> np.ndarray:
    """What a model makes of texts: a few directions matter more than others, and they are its own."""
    draws = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(seed // 1000).normal(size=(width, width)))[0]
    return (draws.normal(size=(rows, width)) * np.linspace(2, 0.3, width)) @ turn


def by_subject(rows: int, seed: int) -> np.ndarray:
    """One model's vectors in the order of four subjects, each with a place and with directions it cares for more."""
    draws = np.random.default_rng(seed)
    parts = []
    for _ in range(4):
        weights = draws.uniform(0.6, 1.4, 48)
        subject = draws.normal(size=(rows // 4, 48)) * weights * np.linspace(2, 0.3, 48) + draws.normal(size=48)
        parts.append(subject)
    return np.concatenate(parts) @ np.linalg.qr(np.random.default_rng(seed).normal(size=(48, 48)))[0]


@pytest.mark.parametrize("cut", [1200, 3000, 5000])
def test_a_table_that_changed_its_model_is_recognised(cut):
    rows = np.concatenate([model(cut, 1000), model(6000 - cut, 2000)])
    one = found(rows, rows_per_batch=700)["two models"]
    assert one.severity == "error" and one.text.startswith("Two models share the table: rows ")
    smaller = (0, cut) if cut <= 3000 else (cut, 6000)
    first = one.rows[0]
    assert min(abs(first - smaller[0]), abs(first - cut)) <= 256


def test_a_second_model_in_the_middle_is_found_where_it_stands():
    rows = model(8000, 1000)
    rows[3072:5120] = model(2048, 2000)
    (one,) = doctor(rows).findings
    assert one.count == 2048 and "rows 3,072 to 5,119, or about so," in one.text


def test_two_models_throughout_are_found_where_they_lie_apart():
    draws = np.random.default_rng(0)
    one, other = model(6000, 1000) + draws.normal(size=48) * 2, model(6000, 2000) + draws.normal(size=48) * 2
    mixed = np.where(draws.random((6000, 1)) < 0.5, one, other)
    finding = found(mixed)["two parts"]
    assert finding.text.startswith("The rows fall into two clusters, which may be two subjects or two models: about ")
    assert "of the rows, here and there, vary along other directions" in finding.text


@pytest.mark.slow
def test_subjects_are_not_taken_for_models():
    """The rate of false alarms: none in forty tables that are sorted by subject, and in forty that are not."""
    alarms = {"sorted": 0, "shuffled": 0}
    for seed in range(40):
        rows = by_subject(4800, seed)
        shuffled = np.random.default_rng(seed).permutation(rows)
        for name, table in (("sorted", rows), ("shuffled", shuffled)):
            detector = MixtureDetector(48)
            detector.update(table, np.arange(len(table)))
            result = detector.find(len(table))
            alarms[name] += result is not None and result.sure
    assert alarms == {"sorted": 0, "shuffled": 0}


def test_what_may_be_subjects_is_only_a_remark():
    rows = two_subjects()
    finding = found(rows)["two parts"]
    assert finding.severity == "remark"
    assert finding.text.startswith("The rows fall into two parts, which may be two subjects or two models: rows ")
    assert doctor(rows).healthy


@pytest.mark.local_data("text", "models/potion-128")
def test_real_texts_of_two_kinds_are_not_taken_for_two_models(local_data):
    pytest.importorskip("tokenizers")
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    folder = local_data / "models" / "potion-128"
    words, vectors = Tokenizer.from_file(str(folder / "tokenizer.json")), load_file(folder / "model.safetensors")
    words.no_padding()
    with zipfile.ZipFile(local_data / "text" / "trec-qc.zip") as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("train.txt")]
        questions = archive.read(name).decode("latin-1").splitlines()
    with gzip.open(local_data / "text" / "train.en.gz", "rt", encoding="utf-8") as file:
        texts = [line.strip() for line, _ in zip(file, range(5000), strict=False)]
    texts += [question.split(" ", 1)[1] for question in questions]
    rows = np.stack([vectors["embeddings"][one.ids].astype(np.float32).mean(0) for one in words.encode_batch(texts)])
    assert not any(one.kind == "two models" and one.severity == "error" for one in doctor(rows).findings)
    turned = rows.copy()
    turned[5000:] = rows[5000:] @ np.linalg.qr(np.random.default_rng(0).normal(size=(128, 128)))[0]
    assert [one.severity for one in doctor(turned).findings if one.kind == "two models"] == ["error"]


# ---------------------------------------------------------------------- what it takes and gives


def test_files_batches_and_tensors_are_welcome(tmp_path):
    rows = healthy()
    rows[7] = 0
    np.save(tmp_path / "v.npy", rows)
    np.save(tmp_path / "q.npy", (100 * unit(rows + 1e-9)).astype(np.int8))
    seen = []
    for vectors in (
        open_vectors(tmp_path / "v.npy"),
        np.load(tmp_path / "v.npy", mmap_mode="r"),
        torch.from_numpy(rows),
        iter([rows[:100], rows[100:]]),
        rows.tolist(),
    ):
        assert doctor(vectors, progress=seen.append).findings[0].rows == (7,)
    assert seen[-1] == 600
    assert "The numbers are int8" in found(open_vectors(tmp_path / "q.npy"))["storage"].text


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table():
    import tracemalloc

    def batches(count):
        draws = np.random.default_rng(0)
        for _ in range(count):
            yield draws.normal(size=(2000, 32)).astype(np.float32)

    peaks = []
    for count in (5, 25):
        tracemalloc.start()
        doctor(batches(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 8e6  # 10 MB of rows more; a hash for each is kept


def test_the_folder_holds_the_findings(tmp_path):
    rows = healthy()
    rows[7] = 0
    result = doctor(rows)
    outcome = result.save(tmp_path / "out")
    again = Outcome.load(tmp_path / "out")
    assert again.job == "translate doctor" and again.metrics == result.metrics
    assert again.table("findings")["rows"] == ["7"] and outcome.notes == (result.findings[0].text,)
    doctor(healthy()).save(tmp_path / "clean")
    assert Outcome.load(tmp_path / "clean").artefacts == ()


def test_a_table_of_bad_rows_alone_is_told_too():
    assert [one.kind for one in doctor(np.zeros((4, 3))).findings] == ["zero"]
    assert [one.kind for one in doctor(np.full((4, 3), np.nan)).findings] == ["not finite"]
