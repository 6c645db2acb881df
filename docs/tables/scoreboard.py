"""One line for every benchmark: what it asks, how many of its bars are met, and which are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tables.markdown import table

Bars = list[tuple[str, bool]]


def named_bars(results: dict[str, Any]) -> Bars:
    return [(name, bool(bar["met"])) for name, bar in results["bars"].items()]


def architectures(results: dict[str, Any]) -> Bars:
    return [(case["name"], not case["reasons"]) for case in results["architectures"]]


def planted_bars(results: dict[str, Any]) -> Bars:
    return [(case["key"], bool(case["met"])) for case in results["cases"] if case["bar"] is not None]


def verdicts(results: dict[str, Any]) -> Bars:
    return [(f"{bar['change']}: {bar['found']}", bool(bar["met"])) for bar in results["bars"]]


# Question -> what it asks, the page and heading that tell more, and its bars.
QUESTIONS: dict[str, tuple[str, str, Callable[[dict[str, Any]], Bars]]] = {
    "polar": (
        "Is the orthogonal factor as accurate as it says, and ever slower than the SVD?",
        "docs/benchmarks.md#is-the-orthogonal-factor-as-accurate-as-it-says-and-ever-slower-than-the-svd",
        named_bars,
    ),
    "wiring": (
        "Which architectures can be wired, and how much of them can move?",
        "docs/architectures.md",
        architectures,
    ),
    "planted": (
        "Is a planted symmetry found again?",
        "docs/benchmarks.md#is-a-planted-symmetry-found-again",
        planted_bars,
    ),
    "weight_matching": (
        "Does weight matching reach nearer than PyPI's rebasin?",
        "docs/benchmarks.md#does-weight-matching-reach-nearer-than-pypis-rebasin-and-how-does-it-grow-with-width",
        named_bars,
    ),
    "orthogonal_rebasin": (
        "Do orthogonal maps bring two MLPs into one basin?",
        "docs/benchmarks.md#do-orthogonal-maps-bring-two-mlps-into-one-basin-and-what-do-they-cost",
        named_bars,
    ),
    "merge": (
        "Does merging agree with mergekit, and is it faster and smaller?",
        "docs/benchmarks.md#does-merging-agree-with-mergekit-and-is-it-faster-and-smaller",
        named_bars,
    ),
    "stitching": (
        "Does the head of one network understand the encoder of another?",
        "docs/benchmarks-translate.md#does-the-head-of-one-network-understand-the-encoder-of-another",
        named_bars,
    ),
    "migration": (
        "Should an index be migrated, and does the audit know?",
        "docs/benchmarks-translate.md#should-an-index-be-migrated-and-does-the-audit-know",
        verdicts,
    ),
    "translate_speed": (
        "How fast is a store translated?",
        "docs/benchmarks-translate.md#how-fast-is-a-store-translated",
        named_bars,
    ),
    "transport_quality": (
        "What is a fine-tune worth that was moved to another network?",
        "docs/benchmarks-transport.md#what-is-a-fine-tune-worth-that-was-moved-to-another-network",
        named_bars,
    ),
    "transport_attention": (
        "And between vision transformers?",
        "docs/benchmarks-transport.md#and-between-vision-transformers",
        named_bars,
    ),
    "cross_modal": (
        "Does a pre-trained model help on a modality that it has never seen?",
        "docs/benchmarks-adapt.md#does-a-pre-trained-model-help-on-a-modality-that-it-has-never-seen",
        named_bars,
    ),
    "optimal_transport": (
        "Is exact transport as fast as Sinkhorn's?",
        "docs/benchmarks-adapt.md#is-exact-transport-as-fast-as-sinkhorns",
        named_bars,
    ),
}
MOST_NAMED = 4


def scoreboard(results: Mapping[str, dict[str, Any]]) -> str:
    """The table, of those questions that have results."""
    rows = []
    for question, (asked, where, bars_of) in QUESTIONS.items():
        if question not in results:
            continue
        bars = bars_of(results[question])
        missed = [name for name, met in bars if not met]
        shown = "; ".join(missed) if len(missed) <= MOST_NAMED else f"{len(missed)}, listed there with their reasons"
        rows.append((f"[{asked}]({where})", f"{len(bars) - len(missed)} of {len(bars)}", shown or "-"))
    return table(("question", "bars met", "not met"), rows, words=(0, 2))
