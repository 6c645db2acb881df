"""FAISS indexes rebuilt in another space, or wrapped."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from tests.vectors.stores.translators import Normed, Plain, translated, vectors

from interbasin.errors import DataError, FileError, ShapeError, StoreError
from interbasin.jobs.translate import Translator
from interbasin.jobs.translate.apply import translate_vectors

ROWS, TRANSLATOR = 400, Plain(6, 9)
X = vectors(ROWS, 6)
IDS = np.random.default_rng(2).permutation(10**6)[:ROWS]
KINDS = ["Flat", "IVF8,Flat", "HNSW12,Flat", "IDMap,Flat", "IDMap,IVF8,Flat", "IDMap2,HNSW12,Flat"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    faiss.omp_set_num_threads(1)


def written(kind: str, metric: int = faiss.METRIC_L2, *, with_ids: bool = False, x: np.ndarray = X) -> faiss.Index:
    index = faiss.index_factory(x.shape[1], kind, metric)
    if hasattr(index, "cp"):
        index.cp.min_points_per_centroid = 1
    index.train(x)
    index.add_with_ids(x, IDS) if with_ids or kind.startswith("ID") else index.add(x)
    faiss.write_index(index, "old.index")
    return faiss.read_index("old.index")


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
@pytest.mark.parametrize("batch", [60, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_indexes_are_rebuilt_with_their_ids(kind, batch, metric):
    with_ids = kind.startswith(("ID", "IVF"))
    old = written(kind, metric, with_ids=with_ids)
    before = Path("old.index").read_bytes()
    done = translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index", rows_per_batch=batch)
    assert done.rows == ROWS and Path("old.index").read_bytes() == before
    new = faiss.read_index("new.index")
    assert (type(new), new.d, new.ntotal, new.metric_type) == (type(old), 9, ROWS, metric)
    inner = faiss.downcast_index(new.index) if kind.startswith("ID") else new
    if "IVF" in kind:
        inner.nprobe = 8
    if "HNSW" in kind:
        inner.hnsw.efSearch = ROWS
    y = translated(TRANSLATOR, X)
    exact = faiss.IndexFlat(9, metric)
    exact.add(y)
    ids = IDS if with_ids else np.arange(ROWS)
    expected = ids[exact.search(y[:50], 1)[1]]
    assert (new.search(y[:50], 1)[1] == expected).mean() > (0.9 if "HNSW" in kind else 0.999)


def test_settings_are_kept():
    index = faiss.IndexHNSWFlat(6, 24)
    index.hnsw.efConstruction, index.hnsw.efSearch = 77, 55
    index.add(X)
    faiss.write_index(index, "old.index")
    translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    new = faiss.read_index("new.index")
    assert (new.hnsw.efConstruction, new.hnsw.efSearch, new.hnsw.nb_neighbors(1)) == (77, 55, 24)
    index = written("IVF8,Flat")
    index.nprobe = 5
    faiss.write_index(index, "old.index")
    done = translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index", force=True)
    new = faiss.read_index("new.index")
    assert (new.nprobe, new.nlist) == (5, 8)
    assert done.notes == ("The 8 cells were trained anew on 400 translated vectors; check nprobe.",)


@pytest.mark.parametrize("kind", ["Flat", "HNSW16", "IVF8,Flat", "IDMap,Flat", "IDMap2,HNSW16"])
def test_the_parameter_of_a_metric_is_kept(kind):
    def parts(index: faiss.Index) -> list[faiss.Index]:
        index = faiss.downcast_index(index)
        inner = [getattr(index, name) for name in ("index", "storage", "quantizer") if hasattr(index, name)]
        return [index, *(one for part in inner for one in parts(part))]

    index = faiss.index_factory(6, kind, faiss.METRIC_Lp)
    for part in parts(index):
        part.metric_arg = 3.0
    index.train(X)
    index.add_with_ids(X, IDS) if kind.startswith("ID") else index.add(X)
    faiss.write_index(index, "old.index")
    old = faiss.read_index("old.index")
    translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    new = faiss.read_index("new.index")
    assert [part.metric_arg for part in parts(new)] == [part.metric_arg for part in parts(old)]
    assert new.metric_type == faiss.METRIC_Lp
    y = translated(TRANSLATOR, X)
    expected = (np.abs(y[:1] - y) ** 3).sum(axis=1)
    found, _ = new.search(y[:1], 3)
    np.testing.assert_allclose(found[0], np.sort(expected)[:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_what_finds_the_cells_is_kept(metric):
    old = written("IVF8_HNSW12,Flat", metric)
    quantizer = faiss.downcast_index(old.quantizer)
    quantizer.hnsw.efSearch = 33
    faiss.write_index(old, "old.index")
    done = translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    assert len(done.notes) == 1
    new = faiss.read_index("new.index")
    found = faiss.downcast_index(new.quantizer)
    assert isinstance(found, faiss.IndexHNSWFlat) and found.ntotal == 8
    assert (found.hnsw.efSearch, found.hnsw.nb_neighbors(1)) == (33, 12)
    new.nprobe = 8
    y = translated(TRANSLATOR, X)
    exact = faiss.IndexFlat(9, metric)
    exact.add(y)
    assert (new.search(y[:50], 1)[1] == exact.search(y[:50], 1)[1]).mean() > 0.9


def test_another_way_of_finding_the_cells_is_remarked():
    written("IVF8(SQ8),Flat")
    done = translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    assert done.notes[-1] == (
        "The cells were found by an IndexScalarQuantizer and are now by an IndexFlat, which is exact and may be slower."
    )


@pytest.mark.parametrize(
    "kind, name",
    [
        ("PQ2x4", "IndexPQ"),
        ("IVF8,PQ2x4", "IndexIVFPQ"),
        ("SQ8", "IndexScalarQuantizer"),
        ("IVF8,SQ8", "IndexIVFScalarQuantizer"),
        ("LSH", "IndexLSH"),
        ("PCA4,Flat", "IndexPreTransform"),
        ("HNSW8_SQ8", "IndexHNSWSQ"),
        ("IVF8,FlatDedup", "IndexIVFFlatDedup"),
        ("IDMap,SQ8", "IndexScalarQuantizer"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_by_name_and_can_be_wrapped(kind, name):
    index = written(kind)
    with pytest.raises(StoreError, match=rf"faiss://old.index is an {name}, which cannot be rebuilt.*--wrap"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    assert not Path("new.index").exists()
    back = Plain(9, 6)
    done = translate_vectors(back, "faiss://old.index", "faiss://new.index", wrap=True)
    assert "No row was touched" in done.notes[0]
    new, queries = faiss.read_index("new.index"), vectors(20, 9, seed=4)
    assert new.d == 9
    assert (new.search(queries, 3)[1] == index.search(back.transform(queries), 3)[1]).mean() > 0.95


def test_an_offset_is_wrapped_too():
    class Shifted(Plain):
        def transform(self, x):
            return super().transform(x) + np.arange(6, dtype=x.dtype)

    index, back, queries = written("Flat"), Shifted(9, 6), vectors(20, 9, seed=4)
    translate_vectors(back, "faiss://old.index", "faiss://new.index", wrap=True)
    found = faiss.read_index("new.index").search(queries, 3)
    np.testing.assert_array_equal(found[1], index.search(back.transform(queries), 3)[1])


def test_wrapping_needs_the_other_direction_and_one_affine_map():
    written("Flat")
    with pytest.raises(
        ShapeError, match=r"from the new space .* 6 numbers; this one gives 9. It seems to go the other way"
    ):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index", wrap=True)
    with pytest.raises(DataError, match=r"not one affine map \(it scales rows by their lengths"):
        translate_vectors(Normed(9, 6), "faiss://old.index", "faiss://new.index", wrap=True)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2])
@pytest.mark.parametrize("options", [{"method": "ridge"}, {"method": "affine"}, {"method": "procrustes"}])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_wrapped_index_answers_as_translated_queries_do(options, metric, normalised):
    new_vectors = vectors(ROWS, 9, seed=5) + 0.3
    old_vectors = np.tanh(new_vectors @ vectors(9, 6, seed=6)).astype(np.float32) + np.float32(0.2)
    old_vectors = unit(old_vectors) if normalised else old_vectors
    index = written("IVF8,Flat", metric, x=old_vectors)
    back = Translator(**options).fit(new_vectors, old_vectors)
    translate_vectors(back, "faiss://old.index", "faiss://new.index", wrap=True)
    queries = 3 * vectors(50, 9, seed=7) + np.float32(0.3)
    scores, found = faiss.read_index("new.index").search(queries, 5)
    wanted_scores, wanted = index.search(back.transform(queries).astype(np.float32), 5)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(scores, wanted_scores, rtol=1e-4, atol=1e-5)


def test_directions_and_other_lengths_cannot_be_wrapped():
    new_vectors = vectors(ROWS, 9, seed=5)
    written("Flat", x=unit(X))
    back = Translator(method="relative-projection").fit(new_vectors, unit(X))
    with pytest.raises(DataError, match=r"This translator \(relative-projection\) looks at the direction of every row"):
        translate_vectors(back, "faiss://old.index", "faiss://new.index", wrap=True)
    back = Translator(method="ridge").fit(new_vectors, 7 * unit(X))
    with pytest.raises(DataError, match="all have length 7, and FAISS can only scale to length 1"):
        translate_vectors(back, "faiss://old.index", "faiss://new.index", wrap=True)


def test_lost_lengths_are_told():
    written("Flat", faiss.METRIC_INNER_PRODUCT)
    done = translate_vectors(Plain(6, 9, carries_norms=False), "faiss://old.index", "faiss://new.index")
    assert "is compared by inner product, for which the lengths of vectors count" in done.notes[0]


def test_an_output_that_exists_is_not_overwritten_unasked():
    written("Flat")
    Path("new.index").write_text("mine")
    with pytest.raises(FileError, match=r"new.index exists already and nothing is overwritten unasked"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    with pytest.raises(FileError, match="is the source itself"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://old.index")


def test_what_appears_during_a_run_is_not_overwritten():
    faiss.write_index(written("Flat"), "old.index")

    def appears(done: int, rows: int) -> None:
        Path("new.index").write_text("precious")

    with pytest.raises(FileError, match="exists already and nothing is overwritten unasked"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index", progress=appears)
    assert Path("new.index").read_text() == "precious"
    translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index", progress=appears, force=True)


def test_a_bad_row_of_a_later_batch_does_not_say_that_something_is_kept():
    x = X.copy()
    x[-1] = np.nan
    faiss.write_index(written("Flat", x=x), "old.index")
    with pytest.raises(DataError, match=r"holds NaN or infinity.*--bad-rows keep\)\.$"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index", rows_per_batch=7)


def test_an_index_goes_only_into_an_index():
    written("Flat")
    with pytest.raises(
        FileError, match=r"What is in a FAISS index cannot be written to a .npy file; give another faiss"
    ):
        translate_vectors(TRANSLATOR, "faiss://old.index", "new.npy")
    np.save("old.npy", X)
    with pytest.raises(FileError, match=r"What is in a .npy file cannot be written to a FAISS index; give a .npy"):
        translate_vectors(TRANSLATOR, "old.npy", "faiss://new.index")


def test_a_disk_that_is_full_when_the_index_is_closed_leaves_nothing():
    """What is left in a buffer is written last of all: FAISS's own writer says that it failed, and goes on."""
    faiss.write_index(written("Flat"), "old.index")
    size = os.path.getsize("old.index")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(FileError, match=r"Could not write .*new.index: File too large; is there room"):
            translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir()) == ["old.index"]


# ---------------------------------------------------------------------- damage


def changed(kind: str, change: Callable[[faiss.Index], object]) -> None:
    """An index that contradicts itself, as a damaged file does."""
    index = written(kind)
    change(index)
    faiss.write_index(index, "old.index")


def with_fewer_ids(index: faiss.Index) -> None:
    faiss.copy_array_to_vector(IDS[:-1].astype(np.int64), index.id_map)


def with_another_place(index: faiss.Index) -> None:
    inner = faiss.downcast_index(index.index)
    cell = next(cell for cell in range(inner.nlist) if inner.invlists.list_size(cell))
    faiss.rev_swig_ptr(inner.invlists.get_ids(cell), 1)[0] = ROWS


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("IDMap,Flat", with_fewer_ids, "promises 400 vectors, and has 399 ids for 400"),
        ("IDMap,Flat", lambda index: setattr(index, "metric_type", 0), "differ in metric or width"),
        ("IVF8,Flat", lambda index: setattr(index, "ntotal", 399), "promises 399 vectors in 8 cells, and has 400 in 8"),
        ("IDMap,IVF8,Flat", with_another_place, "its cells name vectors that are not there"),
        ("Flat", lambda index: setattr(index, "ntotal", 399), "promises 399 vectors of 6 numbers, and has 9600 bytes"),
        ("HNSW12,Flat", lambda index: setattr(index, "ntotal", 399), "promises 399 vectors of 6 numbers, and has 9600"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(kind, change, words):
    changed(kind, change)
    with pytest.raises(StoreError, match=f"old.index (is damaged: .*{words}|could not be read as a FAISS index)"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    assert not Path("new.index").exists()


def test_an_index_that_promises_gigabytes_is_refused_before_memory_is_taken():
    written("Flat")
    content = bytearray(Path("old.index").read_bytes())
    place = content.index(X.tobytes()) - 8
    content[place : place + 8] = (2**33).to_bytes(8, "little")  # numbers: 32 GB
    Path("old.index").write_bytes(content)
    with pytest.raises(StoreError, match="could not be read as a FAISS index"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
    assert faiss.get_deserialization_vector_byte_limit() > 2**34


@pytest.mark.parametrize("factor", [1e19, 1e30])
def test_vectors_too_long_to_be_compared_do_not_end_the_process(factor, starter, tmp_path):
    written("IVF8,Flat")
    program = """
import sys
from tests.vectors.stores.translators import Plain
from interbasin.jobs.translate.apply import translate_vectors
class Far(Plain):
    def transform(self, x):
        return super().transform(x) * float(sys.argv[1])
translate_vectors(Far(6, 9), "faiss://old.index", "faiss://new.index")
"""
    done = starter.run(program, tmp_path, factor)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "DataError: Translated, row 0 (counted from 0) of faiss://old.index is too" in last
    assert not Path("new.index").exists()


def test_cells_that_miss_a_vector_are_refused():
    x = X.copy()
    x[7] = np.nan  # which FAISS counts, and puts nowhere
    index = faiss.index_factory(6, "IVF8,Flat")
    index.train(X)
    index.add(x)
    faiss.write_index(index, "old.index")
    with pytest.raises(StoreError, match="promises 400 vectors in 8 cells, and has 399 in 8"):
        translate_vectors(TRANSLATOR, "faiss://old.index", "faiss://new.index")
