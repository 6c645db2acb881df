"""Maps of documents and of queries in one folder, and their figures on pairs that were held out."""

from __future__ import annotations

import numpy as np
import pytest

from interbasin.jobs.translate import Translator, evaluate_translation, fit_translation
from interbasin.outcome import Outcome


@pytest.fixture(scope="module")
def pairs():
    draws = np.random.default_rng(0)
    x = draws.normal(size=(400, 12))
    return x, x @ draws.normal(size=(12, 9)) + 0.3 * draws.normal(size=(400, 9)) + 2


def test_what_is_told_is_of_pairs_that_were_not_seen(pairs):
    draws = np.random.default_rng(1)
    noise = draws.normal(size=(60, 50)), draws.normal(size=(60, 5))
    told = fit_translation(Translator(method="affine"), *noise)
    assert told.metrics["cosine"] < 0.4 < Translator(method="affine").fit(*noise).score(*noise)
    found = fit_translation(Translator(method="ridge"), *pairs)
    assert found.metrics["cosine"] > 0.95 and found.metrics["pairs"] == 400 and found.metrics["pairs_held_out"] == 80
    whole = Translator(method="ridge").fit(*pairs)
    assert np.allclose(found.documents.transform(pairs[0]), whole.transform(pairs[0]))  # then all were used


def test_queries_get_a_map_of_their_own(pairs, tmp_path):
    x, y = pairs
    found = fit_translation(Translator(method="ridge"), x, y, queries=(x, -y), card={"metric": "cosine"})
    outcome = found.save(tmp_path / "map", request={"extra": 1})
    documents, queries = Translator.load(tmp_path / "map"), Translator.load(tmp_path / "map" / "queries")
    assert np.allclose(documents.transform(x), found.documents.transform(x))
    assert np.corrcoef(queries.transform(x).ravel(), documents.transform(x).ravel())[0, 1] < -0.5
    assert documents.card_.role == "documents" and queries.card_.role == "queries" and queries.card_.metric == "cosine"
    assert "queries_cosine" in outcome.metrics and outcome.job == "translate fit"
    Outcome.load(tmp_path / "map").verify()


def test_auto_keeps_its_choice_and_the_losers(pairs, tmp_path):
    found = fit_translation(Translator(method="auto"), *pairs)
    outcome = found.save(tmp_path / "map")
    methods = outcome.table("methods")
    assert methods["method"][0] == found.documents.chosen_ and methods["score"] == sorted(
        methods["score"], reverse=True
    )
    chosen = Translator(**found.documents.chosen_params()).fit(*pairs)
    assert chosen.method != "auto" and np.allclose(chosen.transform(pairs[0]), found.documents.transform(pairs[0]))
    assert Translator(method="ridge").fit(*pairs).chosen_params()["method"] == "ridge"


def test_few_pairs_and_lost_lengths_are_warned_of(pairs):
    x, y = pairs
    few = fit_translation(Translator(method="ridge"), x[:6], y[:6])
    assert any("The pairs show 5 of 9 directions" in one and one.endswith("Give more pairs.") for one in few.notes)
    assert "cosine" not in few.metrics
    flat = np.concatenate([x[:, :3], x[:, :3]], 1)
    narrow = fit_translation(Translator(method="ridge"), flat, y, queries=(flat, y))
    assert narrow.notes[0].endswith("One of the two spaces has no more.")
    assert narrow.notes[1].startswith("Queries: The pairs show 3 of 6")
    lost = fit_translation(Translator(method="relative-projection"), x, y, card={"metric": "dot"})
    assert any(
        "compared by dot, for which lengths count, and relative-projection does not" in one for one in lost.notes
    )


def test_rows_that_are_no_pairs_are_warned_of(pairs):
    x, y = pairs
    mixed = fit_translation(Translator(method="procrustes"), x, np.random.default_rng(0).permutation(y))
    (warning,) = mixed.notes
    assert warning.startswith("The pairs do not look like pairs") and "in the same order?" in warning
    assert fit_translation(Translator(method="procrustes"), x, y).notes == ()


def test_what_cannot_be_measured_is_warned_of(pairs):
    x, y = pairs
    few = fit_translation(Translator(method="procrustes"), x[:30], y[:30])
    assert any(one.startswith("Of 30 pairs none can be spared") for one in few.notes)
    cosines = fit_translation(Translator(method="relative"), x, y)
    assert "for a RelativeDecoder" in cosines.notes[0] and "cosine" not in cosines.metrics


def test_the_seconds_of_an_outcome_are_those_of_the_whole_job(pairs, tmp_path):
    fitted = fit_translation(Translator(method="ridge"), *pairs)
    outcome = fitted.save(tmp_path / "map")
    assert 0 < fitted.timings["fit"] == outcome.timings["fit"] <= outcome.seconds
    held = evaluate_translation(fitted.documents, *pairs)
    assert 0 < held.timings["evaluate"] <= held.save(tmp_path / "held").seconds


def test_the_figures_of_pairs(pairs, tmp_path):
    x, y = pairs
    translator = Translator(method="ridge").fit(x[:300], y[:300])
    found = evaluate_translation(translator, x[300:], y[300:], draws=100)
    assert found.metrics["cosine"] == pytest.approx(translator.score(x[300:], y[300:]))
    assert 0.9 < found.metrics["recall_1"] <= found.metrics["recall_10"] <= 1 and found.metrics["error"] < 0.1
    assert found.metrics["cosine_low"] < found.metrics["cosine"] < found.metrics["cosine_high"]
    assert not found.untranslated
    same = evaluate_translation(Translator(method="ridge").fit(y, -y), y, -y, draws=50)
    assert same.metrics["cosine"] > 0.99 > 0 > same.metrics["cosine_untranslated"]
    outcome = same.save(tmp_path / "out")
    assert outcome.written() == ["figures.svg"] and outcome.metrics == same.metrics


def test_cosines_with_anchors_are_not_compared_with_the_target(pairs):
    x, y = pairs
    assert "cosine" not in fit_translation(Translator(method="relative"), x, y).metrics
