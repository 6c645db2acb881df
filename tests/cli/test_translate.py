"""``interbasin translate`` fit, evaluate, audit, bridge and doctor: what people and programs are shown, and refused."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.cli.test_frame import failed, run
from tests.jobs.translate.audit.worlds import world

from interbasin.cli.translate import METHODS
from interbasin.cli.translate_audit import _show
from interbasin.jobs.translate import Translator
from interbasin.jobs.translate.audit import audit as find_out
from interbasin.jobs.translate.translator import ALL
from interbasin.outcome import Outcome


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = world("apart", documents=500, queries=120)
    arrays = {
        "pairs-old": one.old[one.pairs],
        "pairs-new": one.new[one.pairs],
        "old": one.old,
        "new": one.new,
        "q-old": one.old_queries,
        "q-new": one.new_queries,
    }
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.savez("pairs.npz", old=arrays["pairs-old"], new=arrays["pairs-new"])
    with open("qrels.tsv", "w") as file:
        file.writelines(f"{query}\t{document}\n" for query, document in enumerate(one.labels.tolist()))
    return one


def done(*words: str):
    found = run("translate", *words)
    assert found.exit_code == 0, found.stderr + found.stdout
    return found


AUDIT = ["audit", "pairs-old.npy", "pairs-new.npy", "--documents", "old.npy"]
AUDIT += ["--old-queries", "q-old.npy", "--new-queries", "q-new.npy", "--methods", "ridge;procrustes", "-o", "out"]


def test_the_methods_of_the_help_are_those_there_are():
    assert sorted(METHODS) == sorted(ALL)


def test_a_fit_is_shown_and_left_with_its_card():
    shown = done("fit", "pairs-old.npy", "pairs-new.npy", "--source-model", "a", "--target-model", "b", "-o", "map")
    assert "(chosen)" in shown.stdout and "32 <- 32" in shown.stdout and "did not see" in shown.stdout
    assert "One of the two spaces has no more." in shown.stderr
    assert Translator.load("map").card_.to_json() == {"source_model": "a", "target_model": "b"}
    outcome = Outcome.load("map")
    assert outcome.request["method"] == "auto" and set(outcome.inputs) == {"source", "target"}


def test_a_choice_is_shown_with_what_it_was_chosen_from():
    shown = " ".join(done("fit", "pairs-old.npy", "pairs-new.npy", "-o", "map").stdout.split())
    assert "chosen from" in shown and "procrustes, standardised 0." in shown and "lengths carried" in shown
    shown = done("fit", "pairs-old.npy", "pairs-new.npy", "-o", "cosine", "--method", "relative-projection").stdout
    assert "not carried: compare by cosine" in shown


def test_another_metric_can_be_measured_than_was_fitted_for():
    done("fit", "pairs-old.npy", "pairs-new.npy", "--method", "ridge", "--metric", "dot", "-o", "map")
    assert "recall_1" in done("evaluate", "map", "old.npy", "new.npy", "--metric", "cosine").stdout


def test_a_fit_for_programs_with_queries_and_columns():
    words = ["fit", "pairs.npz", "pairs.npz", "--column", "old", "--target-column", "new", "--method", "ridge"]
    found = json.loads(done(*words, "-o", "map", "--json", "--quiet").stdout)
    assert found["job"] == "translate fit" and found["metrics"]["pairs"] == 200 and found["output"] == "map"
    words = ["fit", "pairs-old.npy", "pairs-new.npy", "--queries", "q-old.npy", "q-new.npy", "--method", "ridge"]
    shown = done(*words, "-o", "both")
    assert "a map of their own, ridge; cosine" in shown.stdout
    assert Translator.load("both/queries").card_.role == "queries"


def test_a_fitted_map_can_be_applied_and_evaluated():
    done("fit", "pairs-old.npy", "pairs-new.npy", "--method", "ridge", "--source-model", "a", "-o", "map")
    done("apply", "map", "old.npy", "--model", "a", "-o", "translated.npy")
    assert np.load("translated.npy").shape == (500, 32)
    shown = done("evaluate", "map", "old.npy", "new.npy")
    assert "500 pairs" in shown.stdout and "recall_10" in shown.stdout and "as it is" in shown.stdout
    found = json.loads(done("evaluate", "map", "old.npy", "new.npy", "--json", "-o", "held").stdout)
    assert found["metrics"]["pairs"] == 500 and Outcome.load("held").job == "translate evaluate"
    assert "written to again" in done("evaluate", "map", "old.npy", "new.npy", "-o", "again").stdout
    assert json.loads(done("evaluate", "map", "old.npy", "new.npy", "--json").stdout)["output"] is None
    said = failed(run("translate", "evaluate", "map", "old.npy", "new.npy", "--source-model", "b"))
    assert "These pairs say that their source_model is 'b', and the translation was fitted for 'a'" in said


def test_an_audit_is_shown_with_its_verdict():
    shown = done(*AUDIT, "--new-documents", "new.npy", "--labels", "qrels.tsv", "--curve", "50,100")
    text = shown.stdout
    assert "500 documents, 120 queries, 200 pairs" in text and "RE-EMBED: Do not translate" in text
    for words in ("recall at 10", "share of the new model's own first 10", "less than re-embedding", "less than all"):
        assert words in text
    assert text.count("translate documents") == 1 and "--all or ways.csv show all methods" in text
    assert text.strip().splitlines()[-1].startswith("RE-EMBED: ")  # the last that is read
    assert "everything" not in Outcome.load("out").request
    # The interval of a loss decides, so it is shown.
    assert re.search(r"ridge: no fewer pairs are shown to bring what all 200 do \(at most 0\.0\d\d less\)", text)
    assert "1.000 is the ceiling." in text and re.search(r"Differences up to 0\.0\d\d are taken not to matter", text)
    assert re.search(r"\n +100 +0\.\d+ \[0\.\d+, 0\.\d+\] +-?0\.\d+ \[-?0\.\d+, 0\.\d+\]\n", text)
    outcome = Outcome.load("out")
    assert outcome.table("curve")["pairs"] == [50, 100, 200]
    assert set(outcome.inputs) == {"old", "new", "documents", "old_queries", "new_queries", "labels", "new_documents"}


def test_all_methods_and_measures_are_shown_where_they_are_asked_for():
    text = done(*AUDIT, "--new-documents", "new.npy", "--labels", "qrels.tsv", "--all").stdout
    assert text.count("translate documents") == 2 and "overlap with the new model's 10" in text and "nDCG" in text


@pytest.mark.parametrize("method", ["ridge", "procrustes, standardised"])
def test_an_audit_fits_a_screen_of_80_columns(files, method):
    audited = find_out(**files.arguments(methods=[method], curve=[50, 100], query_texts=["a b"] * 60 + ["c"] * 60))
    outcome = audited.save("shown")
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO(), legacy_windows=False)
    _show(console, audited, outcome, Path("shown"), everything=False)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for way in audited.best:
        assert f" {way.figures['recall']} " in text and (not way.method or f" {method} " in text)
    for one in audited.slices:
        assert f" {one.loss}" in text
    # The verdict is one paragraph, and the last.
    assert " ".join(text.split("\n\n")[-1].split()) == f"RE-EMBED: {audited.verdict.text}"


def test_an_audit_for_programs():
    found = json.loads(done(*AUDIT, "--new-documents", "new.npy", "--labels", "qrels.tsv", "--json").stdout)
    assert found["advice"] == "re-embed" and found["verdict"].startswith("Do not translate")
    assert found["metrics"]["recall.keep"] > found["metrics"]["recall.translate.best"]
    json.dumps(found, allow_nan=False)
    (named,) = {key for one in found["slices"] for key in one if key.startswith("less than")}
    assert named == "less than re-embedding" and {"keep", "translate", "reembed"} <= set(found["slices"][0])
    assert found["metrics"]["documents"] == 500 and isinstance(found["metrics"]["documents"], int)


def test_slices_without_new_vectors_are_compared_with_the_old_model():
    words = [*AUDIT, "--labels", "qrels.tsv", "--force"]
    text = done(*words).stdout
    assert "less than the old model" in text and "less than re-embedding" not in text
    found = json.loads(done(*words, "--json").stdout)
    assert "less than the old model" in found["slices"][0] and "reembed" not in found["slices"][0]


def test_a_pool_is_listed_embedded_and_given(files):
    first = done(*AUDIT, "--depth", "20")
    assert "There is nothing to judge by" in first.stdout and "documents of the pool" in first.stderr
    rows = np.loadtxt("out/pool.txt", dtype=int)
    np.save("pool.npy", files.new[rows])
    second = done(*AUDIT, "--depth", "20", "--pool", "out/pool.txt", "pool.npy", "--force")
    assert "at most" in second.stdout and "is an upper bound" in second.stderr
    np.save("rows.npy", rows)
    third = json.loads(done(*AUDIT, "--depth", "20", "--pool", "rows.npy", "pool.npy", "--force", "--json").stdout)
    assert third["request"]["new_vectors"] == "pool"


def test_what_a_pool_lacks_is_written_beside_the_output(files):
    done(*AUDIT, "--depth", "20")
    rows = np.loadtxt("out/pool.txt", dtype=int)
    np.save("rows.npy", rows[76:])
    np.save("pool.npy", files.new[rows[76:]])
    words = ("translate", *AUDIT[:-1], "second", "--depth", "20", "--pool", "rows.npy", "pool.npy")
    for name in ("second-missing.txt", "second-missing-2.txt"):
        said = failed(run(*words))
        assert "The pool lacks 76 documents" in said and f"({', '.join(map(str, rows[:5]))} and 71 more)" in said
        assert said.strip().endswith(f"Their numbers are in {name}.") and "pool_rows" not in said
        assert np.loadtxt(name, dtype=int).tolist() == rows[:76].tolist()


def test_labels_by_ids_and_queries_by_their_texts():
    with open("q.txt", "w") as file:
        file.writelines(f"q{place}\n" for place in range(120))
    with open("d.txt", "w") as file:
        file.writelines(f"d{place}\n" for place in range(500))
    with open("texts.txt", "w") as file:
        file.writelines("one\n" if place % 2 else "two words\n" for place in range(120))
    lines = [line.split() for line in Path("qrels.tsv").read_text().splitlines()]
    with open("named.tsv", "w") as file:
        file.writelines(f"q{query}\td{document}\t1\n" for query, document in lines)
    np.save("rows.npy", np.arange(200))
    more = ["--labels", "named.tsv", "--query-ids", "q.txt", "--document-ids", "d.txt", "--query-texts", "texts.txt"]
    shown = done(*AUDIT, *more, "--query-pairs", "q-old.npy", "q-new.npy", "--pair-rows", "rows.npy")
    assert "short queries (up to 1 word)" in shown.stdout and "KEEP: Do not translate" in shown.stdout


def test_a_bridge_is_built_and_a_threshold_carried_over():
    done("fit", "pairs-new.npy", "pairs-old.npy", "--method", "ridge", "-o", "back")
    assert "ONNX" in done("bridge", "back", "-o", "plain").stdout
    scores = [
        "--threshold",
        "0.5",
        "--old-queries",
        "q-old.npy",
        "--new-queries",
        "q-new.npy",
        "--documents",
        "old.npy",
    ]
    shown = done("bridge", "back", *scores, "--no-onnx", "-o", "bridge")
    assert "in place of 0.5" in shown.stdout and "decided as before, precision" in shown.stdout
    assert "at 0.5 still" in shown.stdout and "ONNX" not in shown.stdout
    found = json.loads(done("bridge", "back", *scores, "-o", "again", "--json").stdout)
    assert 0.5 < found["threshold"]["agreement"] <= 1 and found["metrics"]["threshold_old"] == 0.5
    assert found["threshold"]["passing"] == found["threshold"]["passing_before"] < found["threshold"]["pairs"] == 60_000
    assert found["threshold"]["unchanged"]["passing"] == found["metrics"]["threshold_unchanged_passing"]
    assert "drawn at random" not in shown.stderr
    done("fit", "pairs-old.npy", "pairs-new.npy", "--method", "ridge", "-o", "map")
    other = json.loads(done("bridge", "map", *scores, "--translates", "documents", "-o", "docs", "--json").stdout)
    assert other["metrics"]["threshold_new"] != found["metrics"]["threshold_new"]


def test_a_bridge_of_many_documents_draws_some(monkeypatch):
    from interbasin.jobs.translate import thresholds

    monkeypatch.setattr(thresholds, "MOST_DOCUMENTS", 200)
    done("fit", "pairs-new.npy", "pairs-old.npy", "--method", "ridge", "-o", "back")
    words = ["--threshold", "0.5", "--old-queries", "q-old.npy", "--new-queries", "q-new.npy", "--documents", "old.npy"]
    shown = done("bridge", "back", *words, "--no-onnx", "--seed", "3", "-o", "bridge")
    said = "Scores are of 120 of 120 queries and 200 of 500 documents, drawn at random (seed 3)."
    assert said in shown.stderr and said in Outcome.load("bridge").notes
    refused = failed(run("translate", "bridge", "back", *words, "--threshold", "2", "--no-onnx", "-o", "other"))
    assert "None of 24,000 pairs reach the old threshold of 2" in refused and "(--metric)" in refused
    np.save("q-new.npy", np.load("q-new.npy")[1:])
    refused = failed(run("translate", "bridge", "back", *words, "--no-onnx", "-o", "other"))
    assert "There are 120 old and 119 new queries" in refused


def test_a_doctor_finds_and_can_be_strict():
    assert "nothing was found" in done("doctor", "old.npy").stdout
    rows = np.load("old.npy")
    rows[7] = 0
    np.save("sick.npy", rows)
    shown = done("doctor", "sick.npy", "-o", "out")
    assert "1 row (7) is all zeros" in shown.stdout and Outcome.load("out").table("findings")["rows"] == ["7"]
    found = json.loads(done("doctor", "sick.npy", "--json").stdout)
    assert found["healthy"] is False and found["findings"][0]["rows"] == [7]
    assert run("translate", "doctor", "sick.npy", "--strict").exit_code == 1
    assert run("translate", "doctor", "old.npy", "--strict").exit_code == 0


def test_a_doctor_sees_stores_and_quantised_vectors():
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = np.load("old.npy")
    pq.write_table(pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 32)}), "v.parquet")
    assert "500 rows of 32 numbers" in done("doctor", "v.parquet", "--column", "v").stdout
    np.save("q.npy", (20 * rows).astype(np.int8))
    assert "The numbers are int8" in done("doctor", "q.npy").stdout


def test_nothing_is_overwritten_unasked():
    done("doctor", "old.npy", "-o", "out")
    for words in (AUDIT, ["fit", "pairs-old.npy", "pairs-new.npy", "-o", "out"], ["doctor", "old.npy", "-o", "out"]):
        assert "out" in failed(run("translate", *words))
