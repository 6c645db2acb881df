"""ROUGE-L: its laws, and the longest common subsequence against trying all of them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interbasin.errors import DataError
from interbasin.evaluate import rouge_l
from interbasin.evaluate.rouge import common_length

WORDS = st.lists(st.sampled_from("abc"), max_size=7)


def try_all(a, b):
    """The longest choice of places in ``a`` that reads as a choice of places in ``b``."""
    inside = {
        tuple(b[place] for place in places) for n in range(len(b) + 1) for places in combinations(range(len(b)), n)
    }
    return max(
        n
        for n in range(len(a) + 1)
        for places in combinations(range(len(a)), n)
        if tuple(a[i] for i in places) in inside
    )


@given(WORDS, WORDS)
def test_the_longest_common_sequence_is_the_longest_of_all_choices(a, b):
    assert common_length(a, b) == try_all(a, b)


@given(WORDS, WORDS)
def test_it_is_the_harmonic_mean_of_precision_and_recall_and_symmetric(a, b):
    found = rouge_l(" ".join(a), " ".join(b))
    assert 0 <= found <= 1 and found == rouge_l(" ".join(b), " ".join(a))
    common = try_all(a, b)
    if common:
        precision, recall = common / len(a), common / len(b)
        assert found == pytest.approx(2 * precision * recall / (precision + recall))
    assert (found == 1) == (a == b)


@given(WORDS)
def test_the_same_words_score_one_and_texts_without_a_common_word_zero(words):
    assert rouge_l(" ".join(words), " ".join(words)) == 1
    other = " ".join(word + "x" for word in words)
    assert rouge_l(" ".join(words), other) == (0 if words else 1)
    assert rouge_l(" ".join(words), "") == (0 if words else 1)


def test_case_and_marks_do_not_count_and_order_does():
    assert rouge_l("Zwei Männer, im Freien.", "zwei männer im freien") == 1
    assert rouge_l("dog the", "the dog") == 0.5
    # The example of the paper: "police killed the gunman" and two texts, one with the words in order.
    assert rouge_l("police kill the gunman", "police killed the gunman") == 0.75
    assert rouge_l("the gunman kill police", "police killed the gunman") == 0.5


@pytest.mark.parametrize("text, reference", [(["a", "b"], "a b"), ("a", None), (b"a", "a")])
def test_what_is_no_string_is_refused(text, reference):
    with pytest.raises(
        DataError, match=r"rouge_l compares two strings, found a (list|NoneType|bytes) as (text|reference)"
    ):
        rouge_l(text, reference)
