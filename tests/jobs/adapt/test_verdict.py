"""The verdict from errors per sample, and the choice of a method."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from interbasin.jobs.adapt.job import _choose
from interbasin.jobs.adapt.task import Fold
from interbasin.jobs.adapt.validation import difference, standard_error
from interbasin.jobs.adapt.verdict import Candidate, judge, judge_runs

GROUPS = {"simple": "raw-linear", "scratch": "scratch", "transfer": "naive", "align": "recraft"}


def wrong(count: int, of: int = 200, first: int = 0) -> torch.Tensor:
    """So many samples of all are answered wrongly."""
    scores = torch.zeros(of, dtype=torch.float64)
    scores[first : first + count] = 1
    return scores


def candidates(of: int = 200, **errors: int) -> list[Candidate]:
    return [Candidate(GROUPS[group], group, wrong(count, of)) for group, count in errors.items()]


@pytest.mark.parametrize(
    ("errors", "choice", "words"),
    [
        ({"simple": 120, "scratch": 100, "transfer": 20, "align": 24}, "transfer", "Transfer helps: naive has an"),
        ({"simple": 120, "scratch": 100, "transfer": 60, "align": 10}, "align", "Aligning helps: recraft has an"),
        ({"simple": 120, "scratch": 21, "transfer": 20, "align": 24}, "scratch", "From scratch is as good: scratch"),
        ({"simple": 120, "scratch": 20, "transfer": 100, "align": 90}, "scratch", "From scratch is better: scratch"),
        ({"simple": 10, "scratch": 100, "transfer": 20, "align": 24}, "simple-model", "Do not use a network: raw-lin"),
        ({"simple": 10, "scratch": 100, "transfer": 80, "align": 84}, "simple-model", "(naive) 0.4, which is worse ("),
        ({"simple": 20, "scratch": 100, "transfer": 20, "align": 24}, "simple-model", "not shown to be better"),
        ({"simple": 120, "scratch": 100, "transfer": 20}, "transfer", "below scratch"),
        ({"simple": 120, "scratch": 100, "align": 20}, "transfer", "recraft has an error"),
        ({"simple": 120, "transfer": 20, "align": 24}, "transfer", "an amount that was not measured"),
        ({"simple": 0, "scratch": 0, "transfer": 0, "align": 0}, "simple-model", "error of 0,"),
    ],
)
def test_each_case_has_its_verdict(errors, choice, words):
    verdict = judge(candidates(**errors))
    assert verdict.choice == choice and words in str(verdict) and str(verdict).endswith(".")
    assert "\n" not in str(verdict) and ".." not in str(verdict) and "nan" not in str(verdict)
    assert verdict.methods == {group: GROUPS[group] for group in errors}


@pytest.mark.parametrize(("wrongly", "is_said"), [(150, False), (22, True), (10, True)])
def test_the_verdict_says_where_nothing_beats_one_answer_to_all_inputs(wrongly, is_said):
    runs = [
        SimpleNamespace(method=each.method, group=each.group, chosen=SimpleNamespace(scores=each.scores))
        for each in candidates(simple=120, scratch=100, transfer=20)
    ]
    verdict = judge_runs(runs, constant=wrong(wrongly))
    assert verdict.choice == "transfer"
    ending = f"; no method is shown to be better than one answer to all inputs ({wrongly / 200:.3g})."
    assert str(verdict).endswith(ending) == is_said
    assert verdict.figures["constant_minus_best"].value == pytest.approx((wrongly - 20) / 200)


def test_the_sentence_names_the_interval_that_it_rests_on():
    verdict = judge(candidates(simple=120, scratch=100, transfer=20, align=24))
    gain = verdict.figures["scratch_minus_pretrained"]
    assert gain.value == pytest.approx(0.4) and 0.3 < gain.low < 0.4 < gain.high < 0.5
    assert f"0.4 [{gain.low:.3g}, {gain.high:.3g}] below scratch" in str(verdict)
    assert set(verdict.figures) == {"simple_minus_network", "scratch_minus_pretrained", "plain_minus_aligned"}


def test_of_a_group_the_best_method_stands_for_it():
    both = [Candidate("nearest", "simple", wrong(90)), *candidates(simple=120, scratch=100, transfer=20)]
    assert judge(both).methods["simple"] == "nearest"


@pytest.mark.parametrize("count", [10, 29])
def test_few_held_out_samples_tell_nothing(count):
    verdict = judge(candidates(count, simple=count, scratch=count // 2, transfer=0, align=0))
    assert verdict.choice == "too-few" and f"with {count} held-out samples" in str(verdict)


def test_intervals_that_are_wide_on_both_sides_tell_nothing():
    # All methods are wrong equally often, each on other samples.
    scattered = [Candidate(name, group, wrong(8, 32, 8 * i)) for i, (group, name) in enumerate(GROUPS.items())]
    verdict = judge(scattered)
    assert verdict.choice == "too-few" and "cannot be told apart" in str(verdict)
    assert all(figure.low < 0 < figure.high for figure in verdict.figures.values())


def test_without_a_method_that_uses_the_source_there_is_no_verdict():
    verdict = judge(candidates(simple=5, scratch=5))
    assert verdict.choice == "too-few" and "no method that uses the source" in str(verdict)


def test_verdicts_on_noise_are_never_in_favour_of_the_source():
    """Errors by chance alone: all four groups are equally good, over many draws."""
    choices = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        noise = [
            Candidate(name, group, (torch.rand(100, generator=generator) < 0.5).double())
            for group, name in GROUPS.items()
        ]
        choices.append(judge(noise, seed).choice)
    assert sum(choice in ("transfer", "align") for choice in choices) <= 1, choices


# ---------------------------------------------------------------------- the choice


def run(method: str, *shares: float, size: int = 20) -> SimpleNamespace:
    """A run whose folds have these shares of wrong answers."""
    scores = torch.cat([wrong(round(share * size), size) for share in shares])
    return SimpleNamespace(method=method, chosen=SimpleNamespace(scores=scores))


FOLDS = tuple(Fold(torch.arange(0), torch.arange(20)) for _ in range(5))


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ({}, "naive"),
        ({"scratch": (0.5, 0.5, 0.5, 0.5, 0.5)}, "naive"),  # equally good
        ({"scratch": (0.2, 0.2, 0.2, 0.2, 0.2)}, "scratch"),  # better in each fold
        ({"scratch": (0.0, 0.9, 0.1, 0.9, 0.5)}, "naive"),  # better by .02, with a standard error of .2
        ({"scratch": (0.4, 0.4, 0.4, 0.4, 0.4), "recraft": (0.1, 0.1, 0.1, 0.1, 0.1)}, "recraft"),
        ({"scratch": (0.9, 0.9, 0.9, 0.9, 0.9)}, "naive"),
    ],
)
def test_naive_is_taken_unless_another_is_better_by_a_standard_error(others, taken):
    runs = [run(name, *shares) for name, shares in others.items()] + [run("naive", *[0.5] * 5)]
    assert _choose(runs, FOLDS).method == taken


def test_the_standard_error_is_that_of_paired_folds_or_of_the_samples_of_one():
    one, other = run("a", 0.5, 0.4, 0.3, 0.2, 0.1), run("b", 0.1, 0.1, 0.1, 0.1, 0.1)
    gain, error = standard_error(one.chosen, other.chosen, FOLDS)
    assert gain == pytest.approx(0.2) and error == pytest.approx(math.sqrt(0.025) / math.sqrt(5))
    gain, error = standard_error(one.chosen, other.chosen, FOLDS[:1])
    values = one.chosen.scores - other.chosen.scores
    assert gain == pytest.approx(0.2) and error == pytest.approx(float(values.std()) / 10)


def test_differences_are_paired():
    hard = (torch.arange(200) % 2).double()  # half of the samples are hard for both
    interval = difference(hard.clamp(min=0.1), hard.clamp(min=0.05))
    assert interval.value == pytest.approx(0.025) and interval.low > 0.02
