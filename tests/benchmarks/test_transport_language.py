"""The benchmark of transport between language models: its texts, and the quick form, which needs no data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def texts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import transport_texts

    return transport_texts


def test_headlines_leave_out_empty_words_and_marks(texts):
    assert texts.headline("A man in an orange hat starring at something.") == "man orange hat starring"
    assert texts.headline("Of the") == ""


def test_a_subject_is_taken_out_once_and_only_where_there_is_one(texts):
    captions = ["A man runs.", "A man and a dog.", "Two trees.", "The dog, asleep.", "A man sits."]
    assert texts._take_out_subjects(captions, 1) == [("a [MASK] runs.", 0), ("the [MASK] asleep.", 4)]


def test_pieces_come_back_as_texts_and_padding_is_masked(texts, tmp_path):
    made = texts.make_texts(60, 40)
    pieces = texts.train_pieces(made.lines, 150, 14, tmp_path / "pieces.json")
    captions = made.captions["A"][:5]
    answers = pieces.answers(captions)
    assert pieces.texts(answers["labels"]) == captions
    # What stands before each piece is the piece before it, and the first stands behind the start.
    assert torch.equal(
        answers["decoder_input_ids"][:, 1:-1],
        answers["labels"][:, :-2].masked_fill(answers["labels"][:, :-2] == texts.END, 0),
    )
    padded = pieces.padded(captions)
    assert torch.equal(padded["attention_mask"] == 0, padded["input_ids"] == texts.PAD)
    packed = pieces.packed(captions)
    assert packed.shape[1] == 14 and not (packed == texts.PAD).any()
    again = texts.train_pieces(iter(()), 150, 14, tmp_path / "pieces.json")
    assert torch.equal(again.packed(captions), packed)


def test_the_two_sides_learn_from_other_texts_than_the_test_asks_for(texts):
    made = texts.make_texts(300, 100)
    assert made.captions["A"] != made.captions["B"] != made.test_captions
    assert {label for _, label in made.labelled("questions", None)} == set(range(len(texts.CLASSES)))


@pytest.mark.slow
def test_the_quick_form_runs_without_data_and_is_not_run_twice(tmp_path):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for path in BENCHMARKS.glob("*.py"):
        shutil.copy(path, folder)
    environment = {name: value for name, value in os.environ.items() if name != "INTERBASIN_DATA"}
    environment["PYTHONPATH"] = str(ROOT / "src")

    def run() -> str:
        words = [sys.executable, str(folder / "transport_language.py"), "--quick"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ran = re.compile(r"quick: \d+ in [\d.]+ minutes")
    assert ran.search(run())
    found = json.loads((folder / "results" / "transport_language-quick.json").read_text("utf-8"))
    assert found["missing"] == {"quick": 0}
    figures = {
        "quick-encoder": ("probe", "reused"),
        "quick-decoder": ("loss", "original_loss"),
        "quick-writer": ("rouge",),
    }
    for line in found["lines"]:
        assert all(name in line for name in figures[line["pair"]]), line
    losses = {line["row"]: line["loss"][0] for line in found["lines"] if line["pair"] == "quick-decoder"}
    assert losses["regression"] < losses["theseus-matched"] < losses["none"]
    assert not ran.search(run())
