"""What to do, in words, as far as intervals allow to say it. It can be "don't"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from interbasin.evaluate.bootstrap import Bootstrap, Interval
from interbasin.jobs.translate.audit.measures import Choice

ADVICE = {
    "translate": "translated vectors are as good as re-embedding everything, or better than what there is",
    "translate first": "translated vectors are better than what there is, and re-embedding better still",
    "optional": "translated vectors are as good as re-embedding, and neither is shown to beat the old ones",
    "re-embed": "do not translate: only re-embedding beats what there is",
    "keep": "do not translate: the old model finds more, and re-embedding is not shown to pay",
    "not alike": "without labels: translated vectors find other documents than the new model does",
    "undecided": "these queries do not tell",
}
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
    """

    advice: str
    text: str
    differences: Mapping[str, Interval]

    def __str__(self) -> str:
        return f"{self.advice}: {self.text}"


def judged(
    choices: Mapping[str, Choice],
    bootstrap: Bootstrap | None,
    *,
    labelled: bool,
    bound: bool,
    k: int,
    depth: int,
    margin: float,
) -> Verdict:
    """The verdict.

    Args:
        choices: Per way (keep, translate, adapt, rerank, keep_rerank, reembed), best method and number per query.
        bootstrap: Over these queries; None if there is nothing to measure by.
        labelled: Whether the numbers are recall by labels; else they are overlap with what the new model finds.
        bound: Whether re-embedding was measured on a pool: what it finds is then at most so much.
        k, depth: How many are looked at, and how many embedded anew.
        margin: What counts as nothing.
    """
    if bootstrap is None:
        return Verdict(
            "undecided",
            "There is nothing to judge by: neither labels nor vectors of the new model. Embed the documents of the "
            "pool with the new model, or say which documents are right for which query.",
            {},
        )
    values = {name: one.numbers for name, one in choices.items()}
    names = list(values)
    means = dict(zip(names, bootstrap.intervals(np.stack([values[name] for name in names], 1)), strict=True))
    wanted = [(a, b) for a, b in _COMPARED if a in values and b in values]
    columns = [values[a] - values[b] for a, b in wanted]
    gaps = dict(zip(wanted, bootstrap.intervals(np.stack(columns, 1)), strict=True)) if wanted else {}
    differences = {f"{a} - {b}": one for (a, b), one in gaps.items()}
    if bootstrap.count < FEWEST:
        shown = ", ".join(f"{name} {one}" for name, one in means.items())
        few = f"{bootstrap.count} queries are too few to decide by; give {FEWEST} at least, better some hundreds"
        return Verdict("undecided", f"{few}: {shown}.", differences)
    judge = _by_labels if labelled else _by_overlap
    advice, text = judge(_Evidence(means, gaps, choices, labelled, bound, bootstrap.count, k, depth, margin))
    return Verdict(advice, text, differences)


_COMPARED = (
    ("translate", "keep"),
    ("reembed", "translate"),
    ("reembed", "keep"),
    ("adapt", "translate"),
    ("rerank", "keep"),
    ("reembed", "rerank"),
    ("keep_rerank", "rerank"),
    ("reembed", "keep_rerank"),
)


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

    def gap(self, a: str, b: str) -> Interval | None:
        return self.gaps.get((a, b))

    def told(self, way: str) -> str:
        """What a way finds, with the reason where its table says otherwise."""
        note = self.choices[way].note
        return f"{self.means[way]} ({note})" if note else f"{self.means[way]}"

    def translated(self, verb: str, measure: str) -> str:
        """What translated vectors find."""
        note, method = self.choices["translate"].note, self.choices["translate"].method
        found = f"{verb} {self.means['translate']}{measure}"
        return f"translated vectors {found} ({note})" if note else f"translated vectors ({method}) {found}"

    def asides(self) -> str:
        """What else is worth knowing."""
        said = []
        adapt = self.gap("adapt", "translate")
        if adapt is not None and adapt.low > 0:
            most = "at most " if self.bound and not self.labelled else ""
            said.append(
                f"Mapping new queries into the old index finds more than translating it: {most}{self.told('adapt')}."
            )
        said += self._embedding_the_top()
        return "".join(f" {one}" for one in said)

    def _embedding_the_top(self) -> list[str]:
        keep, behind, ahead = (self.means.get(name) for name in ("keep", "keep_rerank", "rerank"))
        # Behind the old search nothing needs to be translated: that is named where it is no worse.
        behind_is_best = behind is not None and (ahead is None or behind.value >= ahead.value)
        first = "keep_rerank" if behind_is_best else "rerank"
        lacking, gain = self.gap("reembed", first), self.gap("reembed", "keep")
        if lacking is None:
            return []
        less = self.labelled and keep is not None and self.means[first].value < keep.value
        if less:
            worth = ", which is no more than keeping the old model"
        elif lacking.high <= self.margin and not self.bound and (gain is None or gain.value >= 0):
            worth = ", as good as re-embedding everything"
        else:
            worth = ""
        if behind_is_best and not less:
            worth += ", without translating anything"
        most = "at most " if self.bound else ""
        search = "old" if behind_is_best else "translated"
        return [
            f"Embedding only the first {self.depth} of each query's {search} search anew brings {most}"
            f"{self.told(first)}{worth}."
        ]

    def more(self, gap: Interval) -> str:
        """How many queries it would take to tell a difference from nothing, if it is as large as it looks."""
        needed = max(abs(gap.value), self.margin)
        half = max(gap.high - gap.value, gap.value - gap.low)
        if needed < NEGLIGIBLE or half <= needed:
            return "Give more of them."
        count = _two_digits(self.queries * (half / needed) ** 2)
        return f"Give more of them: about {count:,} would tell a difference of {needed:.3f} from nothing."


def _two_digits(count: float) -> int:
    """A count, rounded up to two digits.

    Example:
        >>> _two_digits(1234.5), _two_digits(87.2), _two_digits(2000)
        (1300, 88, 2000)
    """
    step = int(10 ** max(0, math.floor(math.log10(count)) - 1))
    return math.ceil(count / step - 1e-9) * step


def _by_labels(found: _Evidence) -> tuple[str, str]:
    keep, translate, reembed = (found.means.get(name) for name in ("keep", "translate", "reembed"))
    ours, lacking, gain = (
        found.gap("translate", "keep"),
        found.gap("reembed", "translate"),
        found.gap("reembed", "keep"),
    )
    assert keep is not None and translate is not None and ours is not None
    what = f"recall at {found.k}"
    seen = f"{found.translated('find', f' by {what}')}, the old model {keep}"
    most = "at most " if found.bound else ""
    if lacking is None or gain is None or reembed is None:
        if ours.low > 0:
            text = f"Translating beats the old model: {seen}. What re-embedding would add is not known."
            return "translate", text + found.asides()
        if ours.high < 0:
            text = f"Do not translate: {seen}. What re-embedding would bring is not known."
            return "keep", text + found.asides()
        if max(abs(ours.low), abs(ours.high)) <= found.margin:
            text = f"Translating changes nothing that matters: {seen}. What re-embedding would bring is not known."
            return "undecided", text + found.asides()
        return "undecided", f"These queries do not tell: {seen}. {found.more(ours)}" + found.asides()
    brings = f"re-embedding everything {most}{reembed}"
    pays = gain.low > 0 and gain.high > found.margin and not found.bound
    if ours.high < 0:
        head = f"Do not translate: {seen}, {brings}."
        if pays:
            return "re-embed", f"{head} Keep the old model until everything is re-embedded." + found.asides()
        why = (
            "The new model is no better on these queries even re-embedded."
            if gain.high <= found.margin
            else "Re-embedding can pay, which a pool cannot prove."
            if found.bound and gain.low > 0
            else "That re-embedding pays is not shown."
        )
        return "keep", f"{head} {why}" + found.asides()
    if lacking.high <= found.margin:
        head = f"Translating is as good as re-embedding everything (at most {max(lacking.high, 0):.3f} less)"
        if ours.low > 0:
            return "translate", f"{head}: {seen}, {brings}." + found.asides()
        return "optional", (
            f"{head}, but neither is shown to beat the old model: {seen}, {brings}. Move only if you have another "
            "reason to; then translate." + found.asides()
        )
    if ours.low > 0:
        if lacking.low > 0 and not found.bound:
            return "translate first", (f"Translate now, and re-embed when you can: {seen}, {brings}." + found.asides())
        return "translate", f"Translating beats the old model: {seen}; {brings}." + found.asides()
    if gain.high <= found.margin:
        return "keep", (
            f"Keep the old model: {seen}, {brings}, which is better by {max(gain.high, 0):.3f} at most."
            + found.asides()
        )
    if pays and lacking.low > 0:
        return "re-embed", (
            f"Do not count on translating: {seen}, which is no gain that these queries show; {brings}." + found.asides()
        )
    return "undecided", f"These queries do not tell: {seen}, {brings}. {found.more(ours)}" + found.asides()


def _by_overlap(found: _Evidence) -> tuple[str, str]:
    translate = found.means["translate"]
    most = "at most " if found.bound else ""
    head = f"of the new model's own first {found.k}, {found.translated(f'bring {most}'.rstrip(), '')}"
    unknown = "Without labels nothing tells whether the old model finds what is right more often."
    if translate.high < APART:
        return "not alike", (
            f"Do not take translated vectors for the new model's: {head}. {unknown} To have what the new model finds, "
            "everything must be embedded anew; whether that pays, labels would tell." + found.asides()
        )
    if translate.low >= ALIKE and not found.bound:
        return "translate", f"Translating is nearly as good as re-embedding: {head}. {unknown}" + found.asides()
    return "undecided", f"{head[0].upper()}{head[1:]}, which alone decides nothing. {unknown}" + found.asides()
