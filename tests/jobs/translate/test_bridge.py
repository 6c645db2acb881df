"""A bridge is its translation, without this package; thresholds follow their scores."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from interbasin.errors import ShapeError, UnknownNameError
from interbasin.jobs.translate import Translator, match_threshold, recalibrate, thresholds
from interbasin.jobs.translate.bridge import LOADER, bridge
from interbasin.jobs.translate.thresholds import VectorScores, draw_rows
from interbasin.outcome import Outcome

METHODS = [
    {"method": "ridge"},
    {"method": "affine"},
    {"method": "cca"},
    {"method": "procrustes", "standardise": True},
    {"method": "relative-projection"},
    {"method": "relative-projection", "variant": "pruned", "completion": None},
    {"method": "relative-projection", "lengths": True},
    {"method": "relative"},
]


def pairs(normalised: bool = False, mean: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(200, 10)) * np.linspace(0.5, 2, 10) + mean
    y = np.tanh(x @ draws.normal(size=(10, 7))) + 1
    if normalised:
        x, y = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (x, y))
    return x, y


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("options", METHODS, ids=lambda one: "-".join(map(str, one.values())))
def test_arrays_and_graph_do_what_the_translator_does(options, normalised, tmp_path):
    x, y = pairs(normalised)
    translator = Translator(**options).fit(x, y)
    outcome = bridge(translator).save(tmp_path / "out", check=x)
    wanted = translator.transform(x)
    wanted_at_mean = translator.transform(x.mean(0, keepdims=True))
    namespace: dict = {}
    exec(LOADER, namespace)
    found = namespace["load_bridge"](tmp_path / "out" / "bridge.npz")
    assert np.allclose(found(x), wanted, rtol=1e-10, atol=1e-12)
    assert np.allclose(found(x.mean(0, keepdims=True)), wanted_at_mean)
    assert found(x[0]).shape == wanted[0].shape
    assert outcome.metrics["onnx_difference"] <= 1e-5
    assert bridge(translator).save(tmp_path / "probed").metrics["onnx_difference"] <= 1e-5
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "bridge.onnx", providers=["CPUExecutionProvider"])
    (graph,) = session.run(None, {"x": x.astype(np.float32)})
    assert np.abs(graph - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert session.run(None, {"x": x[:1].astype(np.float32)})[0].shape == (1, wanted.shape[1])


def test_the_loader_needs_nothing_but_numpy_and_is_short(tmp_path):
    x, y = pairs()
    translator = Translator(method="ridge").fit(x, y)
    bridge(translator).save(tmp_path / "out", onnx=False)
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np; from load_bridge import load_bridge; f = load_bridge('bridge.npz');"
        "np.save(sys.argv[2], f(np.load(sys.argv[1])));"
        "print([one for one in ('torch', 'sklearn', 'interbasin') if one in sys.modules])"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    done = subprocess.run(arguments, cwd=tmp_path / "out", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert np.allclose(np.load(tmp_path / "y.npy"), translator.transform(x))
    assert len([line for line in LOADER.splitlines() if line.strip()]) <= 16


def test_a_large_mean_costs_no_digits(tmp_path):
    x, y = pairs(mean=5e4)
    outcome = bridge(Translator(method="ridge").fit(x, y)).save(tmp_path / "out", check=x[:50])
    assert outcome.metrics["onnx_difference"] < 1e-5


def test_the_folder_says_what_it_is(tmp_path):
    x, y = pairs()
    translator = Translator(method="ridge").fit(x, y, card={"source_model": "new", "target_model": "old"})
    scores = recalibrate(np.linspace(0, 1, 40), np.linspace(0, 1, 40) ** 2)
    threshold = match_threshold(np.linspace(0, 1, 40), np.linspace(0, 1, 40) ** 2, 0.5)
    outcome = bridge(translator, scores=scores, threshold=threshold).save(tmp_path / "out", notes=["A remark."])
    document = json.loads((tmp_path / "out" / "bridge.json").read_text())
    assert document["card"] == {"source_model": "new", "target_model": "old"}
    assert list(document)[-2:] == ["threshold", "scores"]
    assert document["threshold"]["new"] == pytest.approx(0.25, abs=1e-3)
    assert document["threshold"]["unchanged"]["passing"] < document["threshold"]["passing"] == 20
    assert outcome.metrics["threshold_unchanged_agreement"] < outcome.metrics["threshold_agreement"] == 1
    assert outcome.notes == ("A remark.",)
    assert outcome.metrics["threshold_new"] == document["threshold"]["new"] and outcome.job == "translate bridge"
    assert set(outcome.written()) == {"bridge.npz", "load_bridge.py", "bridge.onnx", "scores.csv", "bridge.json"}
    Outcome.load(tmp_path / "out").verify()


def test_scores_on_a_new_scale_are_recovered():
    draws = np.random.default_rng(0)
    old = draws.uniform(-0.2, 0.9, 3000)

    def truth(score):
        return 0.3 + 0.5 * np.maximum(score, 0) ** 2

    found = recalibrate(old, truth(old) + draws.normal(0, 0.02, 3000))
    assert abs(found(0.6) - truth(0.6)) < 0.02 and found.rank_correlation > 0.9 and found.pairs == 3000
    assert np.all(np.diff(found(np.linspace(-1, 1, 50))) >= 0)
    assert found(5.0) == found(old.max())  # level beyond what was seen


def noisy_scores(queries: int = 100, documents: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    old = draws.normal(0, 0.15, (queries, documents))
    return old, 0.2 + 0.7 * old + draws.normal(0, 0.05, old.shape)


def test_a_threshold_goes_on_passing_as_many_pairs():
    old, new = noisy_scores()
    found = match_threshold(old, new, 0.35)
    passed = int((old >= 0.35).sum())
    assert found.passing == found.matched.passing == passed == int((new >= found.new).sum())
    assert found.matched.precision == pytest.approx(found.matched.recall)
    assert found.matched.agreement == np.mean((old >= 0.35) == (new >= found.new))
    assert found.unchanged.passing == int((new >= 0.35).sum()) and found.unchanged.threshold == 0.35
    # What is expected where the old score is the threshold lies nearer to the mean, and lets far more pass.
    expected = recalibrate(old.ravel(), new.ravel())(0.35)
    assert (new >= expected).sum() > 1.15 * passed
    assert found.matched.agreement > np.mean((old >= 0.35) == (new >= expected))


def test_decisions_are_counted_by_hand():
    old, new = np.array([0.1, 0.2, 0.6, 0.7, 0.8]), np.array([0.1, 0.5, 0.3, 0.6, 0.9])
    found = match_threshold(old, new, 0.6)
    assert found.new == pytest.approx(0.4) and found.matched.passing == 3 and found.matched.agreement == 0.6
    assert found.matched.precision == found.matched.recall == pytest.approx(2 / 3)
    assert (found.unchanged.passing, found.unchanged.agreement, found.unchanged.precision) == (2, 0.8, 1.0)
    assert found.notes()[0].startswith("3 of 5 pairs reach the old threshold, too few on one side of it")
    nothing = match_threshold(old, new - 1, 0.6)
    assert nothing.unchanged.precision is None and "threshold_unchanged_precision" not in nothing.metrics()


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_a_threshold_follows_from_vectors_of_all_pairs(metric):
    draws = np.random.default_rng(0)
    documents, queries = draws.normal(size=(300, 12)), draws.normal(size=(40, 12))
    near, _ = VectorScores(queries, documents, queries, documents, metric).draw()
    threshold = float(np.quantile(near, 0.7))
    found = VectorScores(queries, documents, 2 * queries, 2 * documents, metric).match_threshold(threshold)
    assert found.pairs == 40 * 300 and found.matched.agreement == 1 and found.passing == found.matched.passing
    scale = {"cosine": 1, "dot": 4, "l2": 2}[metric]
    assert found.new == pytest.approx(scale * threshold, rel=0.02)
    with pytest.raises(ShapeError, match="39 new"):
        VectorScores(queries, documents, queries[:-1], documents, metric)
    with pytest.raises(ShapeError, match="11"):
        VectorScores(queries, documents, queries, documents[:, 1:], metric).match_threshold(threshold)
    with pytest.raises(UnknownNameError, match=metric):
        VectorScores(queries, documents, queries, documents, metric="taxi")


def test_too_many_pairs_are_drawn_at_random(monkeypatch):
    monkeypatch.setattr(thresholds, "MOST_PAIRS", 2000)
    monkeypatch.setattr(thresholds, "MOST_DOCUMENTS", 100)
    assert [len(one) for one in draw_rows(10, 90)] == [10, 90]
    queries, documents = draw_rows(15, 5000, seed=1)
    assert len(queries) == 15 and len(documents) == 100 and documents.max() > 1000
    assert not np.array_equal(documents, draw_rows(15, 5000, seed=2)[1])
    queries, documents = draw_rows(1000, 5000)
    assert len(queries) * len(documents) <= 2000 and queries.max() > 200 and np.all(np.diff(queries) > 0)
    assert [len(one) for one in draw_rows(1000, 4)] == [500, 4]


def test_scores_follow_from_vectors():
    draws = np.random.default_rng(0)
    turn = np.linalg.qr(draws.normal(size=(12, 12)))[0]
    documents, queries = draws.normal(size=(300, 12)), draws.normal(size=(40, 12))
    old, new = VectorScores(queries, documents, queries @ turn, documents @ turn).draw()
    found = recalibrate(old, new)
    assert np.allclose(old, new) and found(0.3) == pytest.approx(0.3, abs=0.01) and len(old) == 40 * 40
    old, new = VectorScores(queries, documents, 2 * queries, 2 * documents, "l2").draw()
    by_distance = recalibrate(old, new)
    assert by_distance(float(np.median(old))) == pytest.approx(2 * np.median(old), rel=0.01)
    with pytest.raises(ShapeError, match="There are 40 old and 39 new queries, 300 old and 300 new documents"):
        VectorScores(queries, documents, queries[:-1], documents)
