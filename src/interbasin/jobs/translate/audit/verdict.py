"""What to do, in words, as far as the intervals allow. It can be "don't"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.jobs.translate.audit.measures import Choice
from interbasin.jobs.translate.evaluate import intervals_of

ADVICE = {
    "translate": "translated vectors are as good as re-embedding everything, or better than what there is",
    "translate first": "translated vectors are better than what there is, and re-embedding better still",
    "optional": "translated vectors are as good as re-embedding, and are not shown to beat the old ones",
    "re-embed": "do not translate: only re-embedding beats what there is",
    "keep": "do not translate: the old model finds more, and re-embedding is not shown to pay",
    "not alike": "without labels: translated vectors find other documents than the new model does",
    "undecided": "these queries do not tell",
}
COMPARED = (
    ("translate", "keep"),
    ("reembed", "translate"),
    ("reembed", "keep"),
    ("adapt", "translate"),
    ("rerank", "keep"),
    ("reembed", "rerank"),
    ("keep_rerank", "rerank"),
    ("reembed", "keep_rerank"),
)
FEWEST = 30  # queries; of fewer, draws are all alike and intervals too narrow
ALIKE, APART = 0.9, 0.5  # shares of the new model's own first k that make translated vectors alike to it, or not
NEGLIGIBLE = 1e-3  # a difference that no number of queries is worth


@dataclass(frozen=True)
class Verdict:
    """What to do.

    Attributes:
        advice: One of `ADVICE`.
        text: Why, in a few sentences with the numbers.
        differences: The intervals that it rests on, by name (``translate - keep``).
        margin: The difference that was taken not to matter, in the units of the measure.
    """

    advice: str
    text: str
    differences: Mapping[str, Interval]
    margin: float = 0.0

    def __str__(self) -> str:
        return f"{self.advice}: {self.text}"


def judge(
    choices: Mapping[str, Choice],
    bootstrap: Bootstrap | None,
    *,
    labelled: bool,
    bound: bool,
    k: int,
    depth: int,
    margin: float,
) -> Verdict:
    """The verdict on the best method of each way, by a bootstrap over the queries; None if nothing can be measured.

    The numbers are recall if ``labelled``, else overlap with what the new model finds; ``bound`` says that re-embedding
    was measured on a pool, which gives an upper bound. ``margin`` is a share of what the best way finds: where all
    find little, a small difference is a large part of it.
    """
    if bootstrap is None:
        return Verdict(
            "undecided",
            "There is nothing to judge by: neither labels nor vectors of the new model. Embed the documents of the "
            "pool with the new model, or say which documents are right for which query.",
            {},
        )
    values = {way: choice.numbers for way, choice in choices.items()}
    means = intervals_of(bootstrap, values)
    pairs = {(a, b): values[a] - values[b] for a, b in COMPARED if a in values and b in values}
    gaps = intervals_of(bootstrap, pairs) if pairs else {}
    differences = {f"{a} - {b}": gap for (a, b), gap in gaps.items()}
    margin *= max(mean.value for mean in means.values())
    if bootstrap.count < FEWEST:
        shown = ", ".join(f"{way} {mean}" for way, mean in means.items())
        few = f"{bootstrap.count} queries are too few to decide by; give {FEWEST} at least, better some hundreds"
        return Verdict("undecided", f"{few}: {shown}.", differences, margin)
    evidence = _Evidence(means, gaps, choices, labelled, bound, bootstrap.count, k, depth, margin)
    advice, reason = _judge_by_labels(evidence) if labelled else _judge_by_overlap(evidence)
    return Verdict(advice, " ".join([reason, *evidence.asides()]), differences, margin)


@dataclass(frozen=True)
class _Evidence:
    means: Mapping[str, Interval]
    gaps: Mapping[tuple[str, str], Interval]
    choices: Mapping[str, Choice]
    labelled: bool
    bound: bool
    queries: int
    k: int
    depth: int
    margin: float

    @property
    def at_most(self) -> str:
        """What stands before a figure that a pool bounds."""
        return "at most " if self.bound else ""

    def describe(self, way: str) -> str:
        """What a way finds, with the reason where its table says otherwise."""
        note = self.choices[way].note
        return f"{self.means[way]} ({note})" if note else f"{self.means[way]}"

    def describe_translated(self, verb: str, measure: str) -> str:
        """What translated vectors find."""
        choice, figures = self.choices["translate"], f"{verb} {self.means['translate']}{measure}"
        if choice.note:
            return f"translated vectors {figures} ({choice.note})"
        return f"translated vectors ({choice.method}) {figures}"

    def asides(self) -> list[str]:
        """What else is worth knowing: of mapping queries, and of embedding only the top of a search anew."""
        sentences = []
        adapt = self.gaps.get(("adapt", "translate"))
        if adapt is not None and adapt.low > 0:
            most = "" if self.labelled else self.at_most
            sentences.append(
                f"Mapping new queries into the old index finds more than translating it: {most}"
                f"{self.describe('adapt')}."
            )
        keep, old_top, new_top = (self.means.get(way) for way in ("keep", "keep_rerank", "rerank"))
        # Behind the old search nothing needs to be translated: that is named where it is no worse.
        old_is_best = old_top is not None and (new_top is None or old_top.value >= new_top.value)
        way = "keep_rerank" if old_is_best else "rerank"
        lacking, gain = self.gaps.get(("reembed", way)), self.gaps.get(("reembed", "keep"))
        if lacking is None:
            return sentences
        worth = ""
        if self.labelled and keep is not None and self.means[way].value < keep.value:
            worth = ", which is no more than keeping the old model"
        else:
            if lacking.high <= self.margin and not self.bound and (gain is None or gain.value >= 0):
                worth = ", as good as re-embedding everything"
            if old_is_best:
                worth += ", without translating anything"
        sentences.append(
            f"Embedding only the first {self.depth} of each query's {'old' if old_is_best else 'translated'} search "
            f"anew brings {self.at_most}{self.describe(way)}{worth}."
        )
        return sentences

    def describe_small_gain(self, gain: Interval) -> str:
        """What re-embedding brings, where it is no more than the margin."""
        if gain.low > 0:
            return f"Re-embedding brings {self.at_most}{gain} more, which is within the margin of {self.margin:.3f}."
        most = f" (by {gain.high:.3f} at most)" if gain.high > 0 else ""
        return f"The new model is no better on these queries even re-embedded{most}."

    def ask_for_more(self, gap: Interval) -> str:
        """How many queries it would take to tell a difference from nothing, if it is as large as it looks."""
        needed = max(abs(gap.value), self.margin)
        half = max(gap.high - gap.value, gap.value - gap.low)
        if needed < NEGLIGIBLE or half <= needed:
            return "Give more of them."
        count = _round_up(self.queries * (half / needed) ** 2)
        return f"Give more of them: about {count:,} would tell a difference of {needed:.3f} from nothing."


def _round_up(count: float) -> int:
    """A count, rounded up to two digits.

    Example:
        >>> _round_up(1234.5), _round_up(87.2), _round_up(2000)
        (1300, 88, 2000)
    """
    step = int(10 ** max(0, math.floor(math.log10(count)) - 1))
    return math.ceil(count / step - 1e-9) * step


def _judge_by_labels(evidence: _Evidence) -> tuple[str, str]:
    """The advice, and the reason for it, by recall."""
    ours, margin, bound = evidence.gaps["translate", "keep"], evidence.margin, evidence.bound
    translated = evidence.describe_translated("find", f" by recall at {evidence.k}")
    figures = f"{translated}, the old model {evidence.means['keep']}"
    if "reembed" not in evidence.means:
        if ours.low > 0:
            return "translate", f"Translating beats the old model: {figures}. What re-embedding would add is not known."
        unknown = "What re-embedding would bring is not known."
        if ours.high < 0:
            return "keep", f"Do not translate: {figures}. {unknown}"
        if max(abs(ours.low), abs(ours.high)) <= margin:
            return "undecided", f"Translating changes nothing that matters: {figures}. {unknown}"
        return "undecided", f"These queries do not tell: {figures}. {evidence.ask_for_more(ours)}"
    lacking, gain = evidence.gaps["reembed", "translate"], evidence.gaps["reembed", "keep"]
    brings = f"re-embedding everything {evidence.at_most}{evidence.means['reembed']}"
    pays = gain.low > 0 and gain.high > margin and not bound
    if ours.high < 0:
        head = f"Do not translate: {figures}, {brings}."
        if pays:
            return "re-embed", f"{head} Keep the old model until everything is re-embedded."
        if gain.high <= margin:
            return "keep", f"{head} {evidence.describe_small_gain(gain)}"
        if bound and gain.low > 0:
            return "keep", f"{head} Re-embedding can pay, which a pool cannot prove."
        return "keep", f"{head} That re-embedding pays is not shown."
    if lacking.high <= margin:
        head = f"Translating is as good as re-embedding everything (at most {max(lacking.high, 0):.3f} less)"
        if ours.low > 0:
            return "translate", f"{head}: {figures}, {brings}."
        if gain.low > 0 and not bound:
            unproven = f"but only of re-embedding it is shown that it beats the old model, by {gain}"
        else:
            unproven = "but neither is shown to beat the old model"
        return "optional", (
            f"{head}, {unproven}: {figures}, {brings}. Move only if you have another reason to; then translate."
        )
    if ours.low > 0:
        if lacking.low > 0 and not bound:
            return "translate first", f"Translate now, and re-embed when you can: {figures}, {brings}."
        return "translate", f"Translating beats the old model: {figures}; {brings}."
    if gain.high <= margin:
        return "keep", f"Keep the old model: {figures}, {brings}, which is better by {max(gain.high, 0):.3f} at most."
    if pays and lacking.low > 0:
        return "re-embed", (
            f"Do not count on translating: {figures}, which is no gain that these queries show; {brings}."
        )
    return "undecided", f"These queries do not tell: {figures}, {brings}. {evidence.ask_for_more(ours)}"


def _judge_by_overlap(evidence: _Evidence) -> tuple[str, str]:
    """The advice, and the reason for it, by the overlap with what the new model finds."""
    translate = evidence.means["translate"]
    translated = evidence.describe_translated(f"bring {evidence.at_most}".rstrip(), "")
    head = f"of the new model's own first {evidence.k}, {translated}"
    unknown = "Without labels nothing tells whether the old model finds what is right more often."
    if translate.high < APART:
        return "not alike", (
            f"Do not take translated vectors for the new model's: {head}. {unknown} To have what the new model finds, "
            "everything must be embedded anew; whether that pays, labels would tell."
        )
    if translate.low >= ALIKE and not evidence.bound:
        return "translate", f"Translating is nearly as good as re-embedding: {head}. {unknown}"
    return "undecided", f"{head[0].upper()}{head[1:]}, which alone decides nothing. {unknown}"
