"""Every verdict, from numbers that allow it; and none from numbers that do not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from interbasin.evaluate.bootstrap import Bootstrap
from interbasin.jobs.translate.audit.measures import Choice
from interbasin.jobs.translate.audit.verdict import ADVICE, judge

QUERIES = 400


def found(share: float, seed: int = 0) -> np.ndarray:
    """Whether each query found its document: so many of them did. The same seed, the same hard queries."""
    order = np.random.default_rng(seed).permutation(QUERIES)
    return (order < share * QUERIES).astype(float)


def verdict(labelled=True, bound=False, margin=0.05, **shares):
    return judge(
        {name: one if isinstance(one, Choice) else choice(one) for name, one in shares.items()},
        Bootstrap(QUERIES, draws=300),
        labelled=labelled,
        bound=bound,
        k=10,
        depth=100,
        margin=margin,
    )


def choice(one: float | np.ndarray, best: float | None = None) -> Choice:
    numbers = one if isinstance(one, np.ndarray) else found(one)
    return Choice("ridge", numbers.mean() if best is None else best, numbers)


@pytest.mark.parametrize(
    ("advice", "begins", "shares"),
    [
        ("re-embed", "Do not translate", {"keep": 0.4, "translate": 0.3, "reembed": 0.5}),
        ("keep", "Do not translate", {"keep": 0.4, "translate": 0.3, "reembed": 0.35}),
        ("keep", "Do not translate", {"keep": 0.4, "translate": 0.3, "reembed": 0.4}),
        ("translate", "Translating is as good as re-embedding", {"keep": 0.4, "translate": 0.5, "reembed": 0.5}),
        ("optional", "Translating is as good as re-embedding", {"keep": 0.5, "translate": 0.5, "reembed": 0.5}),
        ("translate first", "Translate now, and re-embed", {"keep": 0.3, "translate": 0.4, "reembed": 0.5}),
        ("re-embed", "Do not count on translating", {"keep": 0.4, "translate": 0.4, "reembed": 0.5}),
        ("keep", "Keep the old model", {"keep": 0.4, "translate": found(0.4, 5), "reembed": 0.405}),
        ("translate", "Translating beats the old model", {"keep": 0.3, "translate": 0.5}),
        ("keep", "Do not translate", {"keep": 0.5, "translate": 0.4}),
        ("undecided", "These queries do not tell", {"keep": 0.5, "translate": found(0.5, 5)}),
    ],
)
def test_what_labels_allow_to_say(advice, begins, shares):
    said = verdict(**shares)
    assert said.advice == advice and said.text.startswith(begins) and advice in ADVICE


def test_a_difference_that_lies_within_the_noise_decides_nothing():
    # Each finds about half, each other ones: the means differ, and could as well not.
    said = verdict(keep=found(0.46, 1), translate=found(0.5, 2), reembed=found(0.54, 3))
    assert said.advice == "undecided" and said.text.startswith("These queries do not tell")
    gap = said.differences["translate - keep"]
    assert gap.value == pytest.approx(0.04) and gap.low < 0 < gap.high
    better = verdict(keep=found(0.3, 1), translate=found(0.5, 2), reembed=found(0.53, 3))
    assert better.advice == "translate" and better.text.startswith("Translating beats the old model")


def test_a_bound_from_above_proves_no_gain():
    said = verdict(bound=True, keep=0.4, translate=0.3, reembed=0.5)
    assert said.advice == "keep" and "Re-embedding can pay, which a pool cannot prove." in said.text
    assert "re-embedding everything at most 0.500" in said.text
    assert verdict(bound=True, keep=0.4, translate=0.3, reembed=0.4).text.count("no better on these queries even") == 1
    assert verdict(bound=True, keep=0.3, translate=0.4, reembed=0.5).advice == "translate"
    assert verdict(bound=True, keep=0.4, translate=0.4, reembed=0.5).advice == "undecided"
    # Being as good as the bound is being as good as what lies below it.
    assert verdict(bound=True, keep=0.3, translate=0.5, reembed=0.5).advice == "translate"


def test_that_re_embedding_pays_is_said_only_where_it_is_shown():
    said = verdict(keep=found(0.5, 1), translate=found(0.3, 1), reembed=found(0.53, 2))
    assert said.advice == "keep" and said.text.endswith("That re-embedding pays is not shown.")


def test_a_gain_that_is_shown_is_never_called_none():
    # Found in an audit with 80 labels per query, where recall at 10 could not exceed 0.125: every interval of the gain
    # lay above zero, and the verdict was that re-embedding is no better.
    tiny = {"keep": found(0.0875) / 8, "translate": found(0.04) / 8, "reembed": found(0.145) / 8}
    said = verdict(**tiny)
    assert said.advice == "re-embed" and "no better" not in said.text
    # A gain within the margin is no reason to re-embed, and is told as it is.
    small = verdict(keep=0.5, translate=0.3, reembed=0.515, margin=0.1)
    assert small.advice == "keep" and "no better" not in small.text and small.differences["reembed - keep"].low > 0
    assert "Re-embedding brings 0.015 [0.0" in small.text and "within the margin of 0.052" in small.text
    none = verdict(keep=0.5, translate=0.3, reembed=found(0.49, 0)).text
    assert "The new model is no better on these queries even re-embedded." in none


def test_the_margin_is_a_share_of_what_the_best_way_finds():
    shares = {"keep": 0.2, "translate": 0.48, "reembed": 0.5}
    large = verdict(**shares, margin=0.1)
    assert large.advice == "translate" and large.margin == pytest.approx(0.05)
    # The same numbers, a twentieth of them: the same verdict, and the same one for twenty times a difference.
    small = verdict(**{way: found(share) / 20 for way, share in shares.items()}, margin=0.1)
    assert small.advice == "translate" and small.margin == pytest.approx(0.0025)
    shares = {"keep": found(0.2) / 20, "translate": found(0.3) / 20, "reembed": found(0.5) / 20}
    assert verdict(**shares).advice == "translate first"


def test_a_gain_of_re_embedding_that_is_shown_is_told_where_translating_is_optional():
    said = verdict(keep=found(0.5), translate=found(0.51), reembed=found(0.52), margin=0.1)
    assert said.advice == "translate"
    noisy = found(0.52)
    noisy[[0, 1, 2]] = 1 - noisy[[0, 1, 2]]
    noisy[np.flatnonzero(found(0.5))[:8]] = 0
    said = verdict(keep=found(0.5), translate=noisy, reembed=found(0.52), margin=0.2)
    assert said.advice == "optional" and said.differences["reembed - keep"].low > 0
    assert "only of re-embedding it is shown that it beats the old model, by 0.020 [0.0" in said.text
    assert "neither is shown" not in said.text


def test_other_ways_are_told_beside():
    shares = {"keep": 0.4, "translate": 0.3, "reembed": 0.5, "adapt": 0.35, "rerank": 0.45}
    said = verdict(**shares, keep_rerank=0.44).text
    assert "Mapping new queries into the old index finds more than translating it: 0.350" in said
    assert "Embedding only the first 100 of each query's translated search anew brings 0.450" in said
    assert verdict(**shares | {"rerank": 0.5}).text.endswith(", as good as re-embedding everything.")


@pytest.mark.parametrize("share", [0.45, 0.48])
def test_behind_the_old_search_nothing_needs_translating_so_it_is_named_where_it_is_no_worse(share):
    said = verdict(keep=0.4, translate=0.3, reembed=0.5, rerank=0.45, keep_rerank=share).text
    assert f"each query's old search anew brings {share:.3f}" in said and "translated search" not in said
    assert said.endswith(", without translating anything.")


def test_what_is_less_than_keeping_is_not_praised():
    said = verdict(keep=0.5, translate=0.3, reembed=0.35, rerank=0.34, keep_rerank=0.36)
    assert said.advice == "keep" and "as good as re-embedding everything" not in said.text
    assert said.text.endswith(", which is no more than keeping the old model.")
    # No less than keeping, but what it is as good as is less.
    said = verdict(keep=0.5, translate=0.3, reembed=0.35, rerank=0.5).text
    assert "brings 0.500" in said and "as good as" not in said


def test_embedding_the_top_is_bounded_by_a_pool_too():
    said = verdict(bound=True, keep=0.4, translate=0.3, reembed=0.5, rerank=0.45, keep_rerank=0.42).text
    assert "of each query's translated search anew brings at most 0.450" in said
    said = verdict(bound=True, labelled=False, keep=0.4, translate=0.3, reembed=1.0, adapt=0.5).text
    assert "than translating it: at most 0.500" in said


def test_a_figure_that_differs_from_the_best_of_the_table_says_why():
    told = "(the method chosen on other queries; the best in the table is ridge with 0.625)"
    said = verdict(keep=0.4, translate=choice(0.6, best=0.625), reembed=0.7).text
    assert "translated vectors find 0.600 [0.5" in said and f"] by recall at 10 {told}, the old model" in said
    said = verdict(labelled=False, keep=0.4, translate=choice(0.6, best=0.625), reembed=1.0).text
    assert "translated vectors bring 0.600" in said and told in said
    said = verdict(keep=0.4, translate=0.6, reembed=0.7, rerank=choice(0.6, best=0.625)).text
    assert "search anew brings 0.600" in said and told in said
    assert "translated vectors (ridge) find 0.600" in said
    assert "chosen on other queries" not in verdict(keep=0.4, translate=choice(0.6, best=0.6001), reembed=0.7).text


def test_undecided_tells_how_many_queries_would_tell():
    said = verdict(keep=found(0.46, 1), translate=found(0.5, 2))
    gap = said.differences["translate - keep"]
    count = QUERIES * (max(gap.high - gap.value, gap.value - gap.low) / 0.04) ** 2
    asked = int(re.search(r"about ([\d,]+) would tell a difference of 0.040", said.text)[1].replace(",", ""))
    assert count <= asked <= 1.1 * count and len(str(asked).rstrip("0")) <= 2
    # A difference that does not matter needs not be told: the margin takes its place.
    same = verdict(keep=found(0.5, 1), translate=found(0.5, 2)).text
    assert "would tell a difference of 0.025" in same
    assert (
        "would tell a difference" in verdict(keep=found(0.46, 1), translate=found(0.5, 2), reembed=found(0.54, 3)).text
    )
    assert verdict(margin=0.0, keep=found(0.5, 1), translate=found(0.5, 2)).text.endswith("Give more of them.")


def test_more_queries_are_not_asked_for_where_nothing_is_at_stake():
    said = verdict(keep=0.5, translate=0.5)
    assert said.advice == "undecided" and said.text.startswith("Translating changes nothing that matters")


@pytest.mark.parametrize(
    ("advice", "share", "bound"),
    [("translate", 0.97, False), ("undecided", 0.97, True), ("undecided", 0.7, False), ("not alike", 0.3, True)],
)
def test_what_can_be_said_without_labels(advice, share, bound):
    said = verdict(labelled=False, bound=bound, keep=0.2, translate=share, reembed=1.0)
    assert said.advice == advice and "Without labels nothing tells" in said.text and advice in ADVICE
    assert ("at most" in said.text) == bound
