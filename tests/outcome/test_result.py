"""What every job returns is saved in one way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from interbasin.errors import FileError
from interbasin.outcome import Draft, Outcome, Result, Stopwatch


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Counted(Result):
    job = "count"
    headline = ("total", "absent")
    words: tuple[str, ...]

    def write(self, draft: Draft, *, title: str = "words") -> None:
        draft.text(f"{title}.txt", " ".join(self.words))


def counted() -> Counted:
    watch = Stopwatch()
    with watch("count"), watch("count"):
        pass
    request = {"seed": 3, "deep": True}
    return Counted(
        words=("a", "b"), metrics={"total": 2.0}, notes=("Few words.",), timings=watch.timings, request=request
    )


def test_a_saved_result_is_an_outcome_with_all_it_knows(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("a b", "utf-8")
    written = counted().save(tmp_path / "out", inputs={"data": data}, request={"deep": None, "seed": 4, "extra": 1})
    outcome = Outcome.load(tmp_path / "out")
    assert outcome.job == "count" and outcome.metrics == {"total": 2.0} and outcome.seed == 4
    # What the caller says counts, except None: the result knows what the default became.
    assert outcome.request == {"seed": 4, "deep": True, "extra": 1}
    assert outcome.notes == ("Few words.",) and set(outcome.timings) >= {"count"}
    assert outcome.path("words.txt").read_text("utf-8") == "a b" and outcome.inputs["data"].bytes == 3
    assert written.folder == outcome.folder


def test_options_of_a_job_reach_what_it_writes(tmp_path):
    counted().save(tmp_path / "out", title="text")
    assert (tmp_path / "out" / "text.txt").exists()


def test_nothing_is_replaced_unasked(tmp_path):
    counted().save(tmp_path / "out")
    with pytest.raises(FileError, match="exists already"):
        counted().save(tmp_path / "out")
    counted().save(tmp_path / "out", force=True)


def test_the_representation_shows_the_headline():
    assert repr(counted()) == "Counted(total=2, 1 note)"


def test_a_stopwatch_adds_up_and_counts_what_failed():
    watch = Stopwatch()
    with pytest.raises(ValueError), watch("fit"):
        raise ValueError
    assert watch.timings["fit"] >= 0


def test_notes_of_an_older_outcome_are_read(tmp_path):
    counted().save(tmp_path / "out")
    document = tmp_path / "out" / "outcome.json"
    document.write_text(document.read_text("utf-8").replace('"notes":', '"warnings":'), "utf-8")
    assert Outcome.load(tmp_path / "out").notes == ("Few words.",)
