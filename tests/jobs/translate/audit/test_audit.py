"""Audits of small worlds in which the right answer is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.jobs.translate.audit.worlds import world

import interbasin as ib
from interbasin.errors import DataError, FitError, ShapeError
from interbasin.evaluate.retrieval import Labels, nearest, overlap, recall
from interbasin.jobs.translate.audit import audit, job, pool_rows
from interbasin.jobs.translate.audit.measures import LESS_THAN
from interbasin.outcome import Outcome

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def apart():
    return world("apart")


@pytest.fixture(scope="module")
def audited(apart):
    return audit(**apart.arguments(curve=True, query_texts=["some words"] * 125 + ["one"] * 125))


def test_it_is_public():
    assert ib.audit is audit


@pytest.mark.parametrize(
    ("kind", "advice", "begins"),
    [
        ("turned", "optional", "Translating is as good as re-embedding everything"),
        ("better queries", "translate", "Translating is as good as re-embedding everything"),
        ("between", "translate first", "Translate now, and re-embed when you can"),
        ("apart", "re-embed", "Do not translate"),
        ("worse", "keep", "Do not translate"),
    ],
)
def test_the_verdict_is_right_where_the_answer_is_known(kind, advice, begins):
    found = audit(**world(kind).arguments())
    assert (found.verdict.advice, found.verdict.text[: len(begins)]) == (advice, begins)


def test_the_table_has_every_way_for_every_method(audited):
    keys = [(way.way, way.method) for way in audited.table]
    both = ("ridge", "procrustes")
    assert keys == [
        ("keep", ""),
        *(("translate", one) for one in both),
        *(("adapt", one) for one in both),
        *(("rerank", one) for one in both),
        ("keep_rerank", ""),
        ("reembed", ""),
    ]
    assert all(set(way.figures) == {"recall", "reciprocal_rank", "ndcg", "overlap"} for way in audited.table)
    assert all(one.low <= one.value <= one.high for way in audited.table for one in way.figures.values())


def test_the_figures_are_those_of_plain_searches(apart, audited):
    labels = Labels.of(apart.labels, 250, 700)
    kept, anew = nearest(apart.old_queries, apart.old, 10), nearest(apart.new_queries, apart.new, 10)
    assert audited.metrics["recall.keep"] == pytest.approx(recall(kept.rows, labels, 10).mean())
    assert audited.metrics["recall.reembed"] == pytest.approx(recall(anew.rows, labels, 10).mean())
    assert audited.metrics["overlap.keep"] == pytest.approx(overlap(kept.rows, anew.rows, 10).mean())
    back = ib.Translator(method="ridge").fit(apart.new[apart.pairs], apart.old[apart.pairs])
    adapted = nearest(back.transform(apart.new_queries), apart.old, 10)
    assert audited.metrics["recall.adapt.ridge"] == pytest.approx(recall(adapted.rows, labels, 10).mean())
    assert audited.metrics["overlap.reembed"] == 1.0
    assert audited.metrics["queries"] == 250 and audited.metrics["documents"] == 700


def test_documents_among_the_pairs_are_not_judged_by_what_was_fitted_on_them():
    # Noise as far as the new model goes: a map that has seen a document knows its new vector by heart, and no other's.
    draws = np.random.default_rng(0)
    old, new = draws.normal(size=(400, 300)), draws.normal(size=(400, 20))
    rows = np.arange(300)
    queries = draws.normal(size=(100, 300)), new[:100]
    given = {"queries": queries, "labels": np.arange(100), "methods": ["affine"], "curve": False, "new_documents": new}
    honest = audit((old[rows], new[rows]), documents=old, **given)
    assert honest.metrics["recall.translate.affine"] < 0.1
    # In another precision they are not found, and the map is judged by its own pairs: what pair_rows= is for.
    fooled = audit((old[rows].astype(np.float32), new[rows]), documents=old, **given)
    assert fooled.metrics["recall.translate.affine"] > 0.9
    assert any("none was found among them" in one for one in fooled.notes)
    told = audit((old[rows].astype(np.float32), new[rows]), documents=old, pair_rows=rows, **given)
    assert told.metrics["recall.translate.affine"] < 0.1


def test_slices_show_the_worst_first(audited):
    names = [one.name for one in audited.slices]
    assert {"short queries (up to 1 word)", "queries far from every pair"} <= set(names)
    # Documents among the pairs have new vectors already: what their translation loses is nobody's loss.
    assert "right document not among the pairs" in names and "right document among the pairs" not in names
    losses = [one.loss.value for one in audited.slices]
    assert losses == sorted(losses, reverse=True)
    assert {"keep", "translate", "reembed"} <= set(audited.slices[0].figures)


def test_slices_say_what_a_loss_is_counted_from(apart, audited, tmp_path):
    assert {one.less_than for one in audited.slices} == {"less than re-embedding"}
    alone = audit(**apart.arguments(new_documents=None))
    assert {one.less_than for one in alone.slices} == {"less than the old model"}
    for found, words, first in ((audited, "less than re-embedding", "reembed"), (alone, LESS_THAN["keep"], "keep")):
        table = found.save(tmp_path / first).table("slices")
        assert table[words] == [one.loss.value for one in found.slices] and f"{words}, high" in table
        assert table[words] == pytest.approx(
            [a - b for a, b in zip(table[first], table["translate"], strict=True)], abs=1e-9
        )


def test_queries_and_documents_of_unusual_norm_are_shown_apart():
    one = world("turned")
    one.new_queries[:20] *= 9
    one.old[one.labels[30:60]] *= 7
    found = {part.name: part.queries for part in audit(**one.arguments(metric="dot")).slices}
    assert found["queries of unusual norm (new model)"] >= 20
    assert 30 <= found["right document of unusual norm"] < 60


def test_the_curve_tells_how_many_pairs_are_enough(audited):
    easy = audit(**world("turned", pairs=600, documents=900).arguments(curve=[20, 300, 5000], margin=0.02))
    assert easy.curve.pairs == (20, 300, 600) and easy.curve.enough == 300 and not easy.curve.rising
    assert easy.metrics["pairs_enough"] == 300
    assert (
        easy.curve.values[0].value
        < easy.curve.values[-1].value
        == pytest.approx(easy.metrics[f"recall.translate.{easy.curve.method}"])
    )
    rising = audit(**world("turned", pairs=30).arguments(curve=[10]))
    assert rising.curve.rising and rising.curve.enough is None and "pairs_enough" not in rising.metrics
    assert any("more pairs would make a better translation" in one for one in rising.notes)
    assert audited.curve.pairs == (100, 200)


def test_a_pool_gives_upper_bounds():
    apart = world("apart", documents=3000, queries=60)
    whole = audit(**apart.arguments(depth=20))
    asked = []

    def embed(rows):
        asked.extend(rows.tolist())
        return torch.from_numpy(apart.new[rows])

    pooled = audit(**apart.arguments(depth=20, new_documents=None, embed=embed))
    assert asked == pooled.pool.tolist() and len(asked) == pooled.metrics["pool"] < 2500
    assert set(apart.labels.tolist()) <= set(asked)
    for name, value in whole.metrics.items():
        if name.startswith(("overlap.", "recall.", "reciprocal_rank.")):
            assert pooled.metrics[name] >= value - 1e-9, name
    for way in ("keep", "translate.ridge", "adapt.ridge"):  # need no new vectors
        assert pooled.metrics[f"recall.{way}"] == whole.metrics[f"recall.{way}"]
    assert 0 < pooled.metrics["pool_overlap"] < 1
    (said,) = [one for one in pooled.notes if "upper bound" in one]
    assert "a pool of" in said and "the old one brought too" in said
    assert "at most" in pooled.verdict.text and pooled.verdict.advice == "keep"
    assert "a pool cannot prove" in pooled.verdict.text


def test_a_pool_can_be_embedded_in_between(apart):
    given = apart.arguments(depth=20, new_documents=None)
    rows = pool_rows(**{key: one for key, one in given.items() if key not in ("new_documents", "draws", "curve")})
    first = audit(**given)
    assert np.array_equal(rows, first.pool)
    assert any("new model's vectors of documents beyond the pairs" in one for one in first.notes)
    assert any(f"embed the {len(rows):,} documents of the pool" in one for one in first.notes)
    shuffled = np.random.default_rng(0).permutation(rows)
    second = audit(**given | {"pool": (shuffled, apart.new[shuffled])})
    assert second.metrics == audit(**given | {"embed": lambda rows: apart.new[rows]}).metrics
    with pytest.raises(DataError, match=rf"The pool lacks 1 document of the {len(rows)} .* \({rows[-1]}\); embed them"):
        audit(**given | {"pool": (rows[:-1], apart.new[rows[:-1]])})
    with pytest.raises(DataError, match=r"The pool lacks 7 documents .* and 2 more\); embed them too") as lacking:
        audit(**given | {"pool": (rows[7:], apart.new[rows[7:]])})
    assert lacking.value.missing.tolist() == rows[:7].tolist() and str(rows[5]) not in str(lacking.value).split("(")[1]
    with pytest.raises(ShapeError, match="A pool is the numbers of documents, and a row of 32 numbers for each"):
        audit(**given | {"pool": (rows, apart.new[rows[:-1]])})
    with pytest.raises(ShapeError, match=r"rows of 32 numbers, and gave \(3, 32\)"):
        audit(**given | {"embed": lambda rows: apart.new[:3]})


def test_without_labels_the_measure_is_what_the_new_model_finds(apart):
    alike = audit(**world("turned").arguments(labels=None))
    assert alike.verdict.advice == "translate" and "Without labels nothing tells" in alike.verdict.text
    unlike = audit(**apart.arguments(labels=None))
    assert unlike.verdict.advice == "not alike" and unlike.verdict.text.startswith("Do not take translated vectors")
    assert set(unlike.table[0].figures) == {"overlap"}
    # A bound from above proves no likeness.
    one = world("turned")
    bound = audit(**one.arguments(labels=None, new_documents=None, embed=lambda rows: one.new[rows]))
    assert bound.verdict.advice == "undecided" and "which alone decides nothing" in bound.verdict.text


def test_without_anything_to_judge_by_it_says_so(apart):
    found = audit(**apart.arguments(labels=None, new_documents=None))
    assert found.verdict.advice == "undecided" and "There is nothing to judge by" in found.verdict.text
    assert len(found.pool) and not found.table[0].figures and "way" in str(found)


def test_labels_alone_decide_between_old_and_translated(apart):
    found = audit(**apart.arguments(new_documents=None))
    assert found.verdict.advice == "keep" and "would bring is not known" in found.verdict.text
    better = audit(**world("better queries").arguments(new_documents=None))
    assert better.verdict.advice == "translate" and "would add is not known" in better.verdict.text
    same = audit(**world("turned").arguments(new_documents=None))
    assert same.verdict.advice == "undecided" and "changes nothing that matters" in same.verdict.text


def test_few_queries_decide_nothing():
    found = audit(**world("apart", queries=29).arguments())
    assert found.verdict.advice == "undecided" and found.verdict.text.startswith("29 queries are too few to decide by")
    assert any("With 29 queries the intervals are wide" in said for said in found.notes)


def test_queries_without_labels_are_left_out(apart):
    found = audit(**apart.arguments(labels={place: int(apart.labels[place]) for place in range(120)}))
    assert found.metrics["queries"] == 120
    assert any("120 of 250 queries have labels" in one for one in found.notes)


def test_queries_can_have_a_map_of_their_own(apart):
    draws = np.random.default_rng(1)
    rows = draws.choice(700, 200)
    found = audit(**apart.arguments(query_pairs=(apart.old[rows], apart.new[rows])))
    plain = audit(**apart.arguments())
    assert found.metrics["recall.adapt.ridge"] != plain.metrics["recall.adapt.ridge"]
    assert found.metrics["recall.translate.ridge"] == plain.metrics["recall.translate.ridge"]


def test_the_index_may_be_mapped_into_memory_and_in_half_precision(apart, tmp_path):
    np.save(tmp_path / "old.npy", apart.old.astype(np.float16))
    np.save(tmp_path / "new.npy", apart.new)
    mapped = {
        "documents": np.load(tmp_path / "old.npy", mmap_mode="r"),
        "new_documents": np.load(tmp_path / "new.npy", mmap_mode="r"),
        "pairs": (apart.old[apart.pairs].astype(np.float16), apart.new[apart.pairs]),
    }
    found = audit(**apart.arguments(**mapped))
    assert found.metrics["recall.keep"] == pytest.approx(audit(**apart.arguments()).metrics["recall.keep"], abs=0.02)


def test_translators_of_your_own_and_tensors_are_welcome(apart):
    mine = {"mine": ib.Translator(method="ridge", strength=0.1)}
    given = apart.arguments(methods=mine)
    given["pairs"] = tuple(torch.from_numpy(one) for one in given["pairs"])
    given["documents"] = torch.from_numpy(apart.old)
    assert "recall.translate.mine" in audit(**given).metrics


def test_the_same_seed_gives_the_same_figures(apart):
    assert audit(**apart.arguments(seed=3)).metrics == audit(**apart.arguments(seed=3)).metrics


def test_scores_that_depend_on_norms_are_warned_of():
    one = world("turned")
    found = audit(**one.arguments(metric="dot", methods=["relative-projection", "ridge"]))
    assert any("depend on norms, which these methods do not carry: relative-projection" in said for said in found.notes)


@pytest.mark.parametrize("among", [True, False], ids=["documents", "others"])
@pytest.mark.parametrize("method", ["ridge", "procrustes", "relative-projection"])
def test_pairs_whose_rows_are_in_another_order_are_doubted(apart, among, method):
    def doubted(new_pairs):
        changes = {} if among else {"documents": apart.old[~np.isin(np.arange(700), apart.pairs)]}
        changes |= {"labels": None, "new_documents": None, "methods": [method]}
        found = audit(**apart.arguments(pairs=(apart.old[apart.pairs], new_pairs), **changes))
        return [one for one in found.notes if one.startswith("The pairs do not look like pairs: of 50 pairs that")]

    pairs = apart.new[apart.pairs]
    assert doubted(pairs) == []
    for wrong in (np.random.default_rng(0).permutation(pairs), np.roll(pairs, 1, axis=0)):
        (said,) = doubted(wrong)
        assert "(chance finds 1)" in said and said.endswith("are rows in the same order?")


def test_too_few_pairs_are_not_doubted():
    few = world("apart", pairs=40)
    given = few.arguments(pairs=(few.old[few.pairs], np.roll(few.new[few.pairs], 1, axis=0)))
    assert not any("do not look like pairs" in one for one in audit(**given).notes)


def test_rows_of_zeros_are_told(apart):
    old = apart.old.copy()
    old[[3, 5]] = 0
    assert any("2 documents of the index are all zeros" in one for one in audit(**apart.arguments(documents=old)).notes)


def test_a_method_that_cannot_be_fitted_is_left_out_and_said(apart, monkeypatch):
    broken = ib.Translator(method="procrustes")
    methods = {"ridge": ib.Translator(method="ridge"), "broken": broken}
    monkeypatch.setattr(job, "CrossFitted", _only_ridge(job.CrossFitted))
    found = audit(**apart.arguments(methods=methods))
    assert "The method broken was left out: too few." in found.notes
    assert ("translate", "broken") not in [(way.way, way.method) for way in found.table]
    with pytest.raises(FitError, match=r"No method can be fitted on these pairs\. The method broken was left out"):
        audit(**apart.arguments(methods={"broken": broken}))


def _only_ridge(unseen):
    def made(method, *rest):
        if method.method != "ridge":
            raise FitError("too few.")
        return unseen(method, *rest)

    return made


def test_progress_goes_from_nothing_to_all(apart):
    shares = []
    audit(**apart.arguments(curve=[50], progress=shares.append))
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) >= 3


def test_the_folder_holds_all_of_it(audited, tmp_path):
    outcome = audited.save(tmp_path / "out", inputs={})
    outcome.verify()
    again = Outcome.load(tmp_path / "out")
    assert again.job == "translate audit" and again.metrics == audited.metrics and again.seed == 0
    assert set(outcome.written()) >= {
        "verdict.txt",
        "pool.txt",
        "ways.csv",
        "differences.csv",
        "slices.csv",
        "curve.csv",
        "recall.svg",
        "pairs.svg",
    }
    ways = again.table("ways")
    assert ways["recall"] == [way.figures["recall"].value for way in audited.table]
    assert again.table("curve")["pairs"] == [100.0, 200.0]
    assert (tmp_path / "out" / "verdict.txt").read_text().startswith("re-embed\n\nDo not translate")
    assert [int(row) for row in (tmp_path / "out" / "pool.txt").read_text().split()] == audited.pool.tolist()
    written = json.dumps(again.summary(), allow_nan=False)
    # Counts are written as counts.
    assert '"documents": 700,' in written and '"pairs": 200,' in written and '"queries": 250,' in written
    assert (tmp_path / "out" / "curve.csv").read_text().splitlines()[1].startswith("100,")
    cells = [line.rsplit(",", 10) for line in (tmp_path / "out" / "slices.csv").read_text().splitlines()[1:]]
    assert any("125" in line for line in cells) and not any("125.0" in line for line in cells)


def test_plots_show_intervals_the_old_model_and_the_best_methods(audited, tmp_path):
    audited.save(tmp_path / "few")
    drawn = (tmp_path / "few" / "recall.svg").read_text()
    assert drawn.count('class="ib-whisker"') == 3 * 9 and drawn.count('class="ib-baseline"') == 1
    assert "translate documents, procrustes" in drawn and "upper bound" not in drawn
    pairs = (tmp_path / "few" / "pairs.svg").read_text()
    assert pairs.count('class="ib-band"') == 1 and "lower end" not in pairs and ">100</text>" in pairs

    one = world("between", queries=60)
    methods = ["ridge", "procrustes", "procrustes, standardised", "affine"]
    given = one.arguments(methods=methods, new_documents=None, embed=lambda rows: one.new[rows])
    found = audit(**given)
    found.save(tmp_path / "many")
    assert [way.way for way in found.best] == ["keep", "translate", "adapt", "rerank", "keep_rerank", "reembed"]
    assert found.best[1].figures["recall"].value == max(
        way.figures["recall"].value for way in found.table if way.way == "translate"
    )
    drawn = (tmp_path / "many" / "overlap.svg").read_text()
    assert drawn.count('class="ib-whisker"') == 3 * 6 and "best method of each way; upper bound<" in drawn
    assert "re-embedding: upper bound<" in (tmp_path / "many" / "recall.svg").read_text() and "…" not in drawn


def test_it_prints_as_a_table_with_its_verdict(audited):
    shown = str(audited).splitlines()
    assert shown[0].split("  ")[0] == "way" and "recall at 10" in shown[0]
    assert shown[-1] == audited.verdict.text
    assert str(audited.verdict).startswith("re-embed: Do not translate")


def test_rows_of_pairs_that_cannot_be_are_named(apart):
    pairs = len(apart.pairs)
    for rows, said in (
        ([], "found shape"),
        (list(range(pairs - 1)), "found shape"),
        ([0] * pairs, "found 0 more than once"),
        ([*range(pairs - 1), 10**6], "numbers from 0 to 1000000"),
    ):
        with pytest.raises(DataError, match=said):
            audit(**apart.arguments(pair_rows=rows))
