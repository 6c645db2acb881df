"""Which case it is, in one sentence, from paired intervals on held-out samples: does pre-training help here at all?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from interbasin.evaluate.bootstrap import Interval
from interbasin.jobs.adapt.validation import MethodRun, difference

Choice = Literal["transfer", "align", "scratch", "simple-model", "too-few"]
FEWEST = 30  # held-out samples, below which nothing is said
TOO_WIDE = 0.5  # of the error itself: an interval wider than that on both sides tells nothing
ADVICE: dict[Choice, str] = {
    "transfer": "Transfer helps",
    "align": "Aligning helps",
    "scratch": "From scratch is as good",
    "simple-model": "Do not use a network",
    "too-few": "Too few samples to tell",
}


@dataclass(frozen=True)
class Verdict:
    """Which case it is, why, and the figures behind it.

    Attributes:
        choice: ``"transfer"``, ``"align"``, ``"scratch"``, ``"simple-model"`` or ``"too-few"``.
        reason: A clause.
        figures: Paired differences of the error per sample, with their 95 % intervals, by what is compared.
        methods: The method that stands for each group: the one with the lowest error there.
    """

    choice: Choice
    reason: str
    figures: Mapping[str, Interval] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """The case in a few words."""
        gain = self.figures.get("scratch_minus_pretrained")
        is_worse = self.choice == "scratch" and gain is not None and gain.high < 0
        return "From scratch is better" if is_worse else ADVICE[self.choice]

    def __str__(self) -> str:
        return f"{self.advice}: {self.reason}."


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with one error per sample."""

    method: str
    group: str
    scores: Tensor

    @property
    def error(self) -> float:
        """The mean error per sample."""
        return float(self.scores.double().mean())


def judge_runs(
    runs: Sequence[MethodRun], seed: int = 0, *, constant: Tensor | None = None, compared_by: str = ""
) -> Verdict:
    """The verdict of methods on held-out samples.

    Args:
        runs: The methods.
        seed: Of the intervals.
        constant: Errors per sample of one answer to all inputs, which no input was needed for.
        compared_by: What errors are, where the metric is no mean of them.
    """
    candidates = [Candidate(run.method, run.group, run.chosen.scores) for run in runs]
    verdict = judge(candidates, seed)
    if constant is not None and candidates:
        best = min(candidates, key=lambda each: each.error)
        gain = difference(constant, best.scores, seed)
        verdict = replace(verdict, figures={**verdict.figures, "constant_minus_best": gain})
        if gain.low <= 0:
            error = float(constant.double().mean())
            reason = f"{verdict.reason}; no method is shown to be better than one answer to all inputs ({error:.3g})"
            verdict = replace(verdict, reason=reason)
    return replace(verdict, reason=f"{verdict.reason}; errors here are {compared_by}") if compared_by else verdict


def judge(candidates: Sequence[Candidate], seed: int = 0) -> Verdict:
    """The verdict of methods by their errors per sample, over the same samples in the same order."""
    best = {
        group: min((each for each in candidates if each.group == group), key=lambda each: each.error)
        for group in ("simple", "scratch", "transfer", "align")
        if any(each.group == group for each in candidates)
    }
    names = {group: each.method for group, each in best.items()}
    pretrained = min(
        (best[group] for group in ("transfer", "align") if group in best), key=lambda each: each.error, default=None
    )
    if pretrained is None:
        return Verdict("too-few", "no method that uses the source was run", {}, names)
    count = len(pretrained.scores)
    figures: dict[str, Interval] = {}
    network = min(
        (best[group] for group in ("scratch", "transfer", "align") if group in best), key=lambda each: each.error
    )
    if "simple" in best:
        figures["simple_minus_network"] = difference(best["simple"].scores, network.scores, seed)
    if "scratch" in best:
        figures["scratch_minus_pretrained"] = difference(best["scratch"].scores, pretrained.scores, seed)
    if "align" in best and "transfer" in best:
        figures["plain_minus_aligned"] = difference(best["transfer"].scores, best["align"].scores, seed)
    least = min(each.error for each in best.values())
    if count < FEWEST or (figures and all(_tells_nothing(interval, least) for interval in figures.values())):
        return Verdict(
            "too-few",
            f"with {count} held-out samples, errors between {least:.3g} and "
            f"{max(each.error for each in best.values()):.3g} cannot be told apart",
            figures,
            names,
        )
    by_simple = figures.get("simple_minus_network")
    if by_simple is not None and by_simple.low <= 0:
        return Verdict(
            "simple-model",
            f"{names['simple']} on the raw input has an error of {best['simple'].error:.3g}, and the best network "
            f"({network.method}) {network.error:.3g}, which is {_how_good(by_simple)} ({by_simple:.3g} apart)",
            figures,
            names,
        )
    by_scratch = figures.get("scratch_minus_pretrained")
    if by_scratch is not None and by_scratch.low <= 0:
        return Verdict(
            "scratch",
            f"{names['scratch']} has an error of {best['scratch'].error:.3g}, and {pretrained.method} with the "
            f"pre-trained body {pretrained.error:.3g}, which is {_how_good(by_scratch)} ({by_scratch:.3g} apart)",
            figures,
            names,
        )
    by_aligning = figures.get("plain_minus_aligned")
    gain = f"{by_scratch:.3g}" if by_scratch is not None else "an amount that was not measured"
    if by_aligning is not None and by_aligning.low > 0:
        return Verdict(
            "align",
            f"{best['align'].method} has an error of {best['align'].error:.3g}, {by_aligning:.3g} below "
            f"{best['transfer'].method}, which does not align",
            figures,
            names,
        )
    return Verdict(
        "transfer",
        f"{pretrained.method} has an error of {pretrained.error:.3g}, {gain} below {names.get('scratch', 'scratch')}",
        figures,
        names,
    )


def _how_good(interval: Interval) -> str:
    return "worse" if interval.high < 0 else "not shown to be better"


def _tells_nothing(interval: Interval, error: float) -> bool:
    """Whether zero lies well inside an interval that is wide beside the error."""
    return interval.low < -TOO_WIDE * error and interval.high > TOO_WIDE * error
