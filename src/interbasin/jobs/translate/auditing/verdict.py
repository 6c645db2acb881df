"""What to do, in words, as far as intervals allow to say it. It can be "don't"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from interbasin.evaluate.retrieval import Bootstrap, Interval
from interbasin.jobs.translate.auditing.figures import Numbers

__all__ = ["ADVICE", "Verdict", "judged"]

ADVICE = {
    "translate": "translated vectors are as good as re-embedding everything, or better than what there is",
    "translate first": "translated vectors are better than what there is, and re-embedding better still",
    "optional": "translated vectors are as good as re-embedding, and neither is shown to beat the old ones",
    "re-embed": "do not translate: only re-embedding beats what there is",
    "keep": "do not translate: the old model finds more, and re-embedding is not shown to pay",
    "undecided": "these queries do not tell",
}
FEWEST = 30  # queries; of fewer, draws are all alike and intervals too narrow
ALIKE, APART = 0.9, 0.5  # shares of the new model's own first k that make translated vectors alike to it, or not


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
    values: Mapping[str, Numbers],
    bootstrap: Bootstrap | None,
    *,
    labelled: bool,
    bound: bool,
    k: int,
    depth: int,
    margin: float,
    method: str,
) -> Verdict:
    """The verdict.

    Args:
        values: By way (keep, translate, adapt, rerank, keep_rerank, reembed), a number a query.
        bootstrap: Over these queries; None if there is nothing to measure by.
        labelled: Whether the numbers are recall by labels; else they are overlap with what the new model finds.
        bound: Whether re-embedding was measured on a pool: what it finds is then at most so much.
        k, depth: How many are looked at, and how many embedded anew.
        margin: What counts as nothing.
        method: The method of the translated vectors.
    """
    if bootstrap is None:
        return Verdict(
            "undecided",
            "There is nothing to judge by: neither labels nor vectors of the new model. Embed the documents of the "
            "pool with the new model, or say which documents are right for which query.",
            {},
        )
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
    advice, text = judge(_Evidence(means, gaps, bound, k, depth, margin, method))
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
    bound: bool
    k: int
    depth: int
    margin: float
    method: str

    def gap(self, a: str, b: str) -> Interval | None:
        return self.gaps.get((a, b))

    def asides(self) -> str:
        """What else is worth knowing."""
        said = []
        adapt, better = self.gap("adapt", "translate"), self.gap("keep_rerank", "rerank")
        if adapt is not None and adapt.low > 0:
            said.append(
                f"Mapping new queries into the old index finds more than translating it ({self.means['adapt']})."
            )
        first, search = ("keep_rerank", "old") if better is not None and better.low > 0 else ("rerank", "translated")
        lacking = self.gap("reembed", first)
        if lacking is not None:
            as_good = ", as good as re-embedding everything" if lacking.high <= self.margin and not self.bound else ""
            said.append(
                f"Embedding only the first {self.depth} of each query's {search} search anew brings "
                f"{self.means[first]}{as_good}."
            )
        return "".join(f" {one}" for one in said)


def _by_labels(found: _Evidence) -> tuple[str, str]:
    keep, translate, reembed = (found.means.get(name) for name in ("keep", "translate", "reembed"))
    ours, lacking, gain = (
        found.gap("translate", "keep"),
        found.gap("reembed", "translate"),
        found.gap("reembed", "keep"),
    )
    assert keep is not None and translate is not None and ours is not None
    what = f"recall at {found.k}"
    seen = f"translated vectors ({found.method}) find {translate} by {what}, the old model {keep}"
    most = "at most " if found.bound else ""
    if lacking is None or gain is None or reembed is None:
        if ours.low > 0:
            text = f"Translating beats the old model: {seen}. What re-embedding would add is not known."
            return "translate", text + found.asides()
        if ours.high < 0:
            text = f"Do not translate: {seen}. What re-embedding would bring is not known."
            return "keep", text + found.asides()
        return "undecided", f"These queries do not tell: {seen}. Give more of them." + found.asides()
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
    return "undecided", f"These queries do not tell: {seen}, {brings}. Give more of them." + found.asides()


def _by_overlap(found: _Evidence) -> tuple[str, str]:
    translate = found.means["translate"]
    most = "at most " if found.bound else ""
    head = f"of the new model's own first {found.k}, translated vectors ({found.method}) bring {most}{translate}"
    unknown = "Without labels nothing tells whether the old model finds what is right more often."
    if translate.high < APART:
        return "re-embed", (
            f"Do not take translated vectors for the new model's: {head}. {unknown} To have what the new model finds, "
            "re-embed." + found.asides()
        )
    if translate.low >= ALIKE and not found.bound:
        return "translate", f"Translating is nearly as good as re-embedding: {head}. {unknown}" + found.asides()
    return "undecided", f"{head[0].upper()}{head[1:]}, which alone decides nothing. {unknown}" + found.asides()
