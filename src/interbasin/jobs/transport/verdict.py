"""What to do with an update, in one sentence, as far as intervals on held-out inputs allow. It can be "do not"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from interbasin.evaluate.bootstrap import Interval

Choice = Literal["copy", "transport", "train", "stay", "do-not"]
ADVICE: dict[Choice, str] = {
    "copy": "Copy it",
    "transport": "Transport it",
    "train": "Transport it, then train from there",
    "stay": "Stay with the tuned source",
    "do-not": "Do not transport it",
}
ENOUGH = 0.5  # of tuned A's effect, or of what it gains by labels; with less, the target is a start for training
AKIN = 0.2  # of what two networks could have in common beyond their inputs; see `kinship`
NOTHING_NEW = 0.02  # nats between the target and the tuned source on generic inputs


@dataclass(frozen=True)
class Verdict:
    """What to do, why, and the figures behind it.

    Attributes:
        choice: ``"copy"``, ``"transport"``, ``"train"``, ``"stay"`` or ``"do-not"``.
        reason: A clause.
        figures: The intervals that it rests on, by name.
    """

    choice: Choice
    reason: str
    figures: Mapping[str, Interval] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{ADVICE[self.choice]}: {self.reason}."


def _percent(interval: Interval) -> str:
    if not math.isfinite(interval.value):
        return "nothing that is finite"
    return f"{100 * interval.value:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made from.

    Attributes:
        method, alpha: What was chosen.
        effect: The share of tuned A's effect that it reproduces on held-out inputs.
        shares_outputs: Whether that is of answers, or of activations in the last space.
        kinship: Where outputs are not shared, how much the base networks have in common beyond the inputs.
        worth: By labels, how much better tuned A is than its base (a share of the base's loss); None without labels.
        gain: By labels, how much of the target's loss is gone; None without labels. Half of ``worth`` is enough.
        unit: What the next two are measured in: nats, or squares of outputs.
        kept: Of the target's own answers on generic inputs, how far the new ones are from them (nats, or squares);
            None without generic inputs.
        source_apart: How far tuned A's answers are from the target's there.
        changed, changed_by_source: The share of the target's answers to generic inputs that are others in the new
            network, and in tuned A; None without logits.
        beyond_base: How much nearer to tuned A's answers the new network's are than those of A before tuning: the share
            of that distance which is gone. Negative where the fine-tune is lost in what else sets the networks apart.
        source_beyond_constant, target_beyond_constant: By labels, whether tuned A, and the new network, are shown to do
            better than one answer to all inputs would; None without labels that are classes.
        has_generic: Whether generic inputs were given, so that what is forgotten can be known.
        does_nothing: Whether the update is zero.
    """

    method: str
    alpha: float
    effect: Interval
    shares_outputs: bool = True
    kinship: Interval | None = None
    worth: Interval | None = None
    gain: Interval | None = None
    unit: str = "nats"
    kept: Interval | None = None
    source_apart: Interval | None = None
    changed: float | None = None
    changed_by_source: float | None = None
    beyond_base: Interval | None = None
    source_beyond_constant: bool | None = None
    target_beyond_constant: bool | None = None
    has_generic: bool = True
    does_nothing: bool = False


def judge(evidence: Evidence) -> Verdict:
    """The verdict."""
    effect = evidence.effect
    figures = {"effect_explained": effect}
    for name in ("kinship", "worth", "gain", "kept", "source_apart", "beyond_base"):
        if (interval := getattr(evidence, name)) is not None:
            figures[name] = interval
    what = "the tuned source's effect" if evidence.shares_outputs else "the tuned source's effect in the last space"
    if evidence.does_nothing:
        return Verdict("do-not", "the update is zero: it does nothing", figures)
    if evidence.worth is not None and evidence.worth.low <= 0:
        return Verdict(
            "do-not",
            "with the labels given, the tuned source is not shown to be better than its base (its loss is lower by "
            f"{_percent(evidence.worth)})",
            figures,
        )
    if evidence.source_beyond_constant is False:
        return Verdict(
            "do-not",
            "with the labels given, the tuned source is not shown to be better than one answer to all inputs, the "
            "shares of the labels",
            figures,
        )
    if evidence.kinship is not None and evidence.kinship.low < AKIN:
        return Verdict(
            "do-not",
            "the two base networks have hardly more in common than the same inputs give to any two "
            f"({_percent(evidence.kinship)} of what they could; the bar is {100 * AKIN:.0f} %)",
            figures,
        )
    if evidence.gain is not None and evidence.gain.low <= 0:
        return Verdict(
            "do-not",
            f"with the labels given, the target's loss is lower by {_percent(evidence.gain)}, which may be nothing",
            figures,
        )
    if evidence.alpha == 0 or (evidence.gain is None and effect.low <= 0):
        return Verdict(
            "do-not", f"on held-out inputs it explains {_percent(effect)} of {what}, which may be nothing", figures
        )
    # A regression takes over what the tuned source answers, its base included: the fine-tune may be none of it.
    beyond = evidence.beyond_base
    if evidence.method == "regression" and evidence.gain is None and beyond is not None and beyond.high <= 0:
        return Verdict(
            "do-not",
            "the new network's answers are no nearer to the tuned source's than those of its base are, so what came "
            "across is the source as it was before, and the fine-tune is not shown to be in it",
            figures,
        )
    if evidence.source_apart is not None and evidence.source_apart.high < NOTHING_NEW:
        return Verdict(
            "stay",
            "on the generic inputs the target answers as the tuned source does "
            f"({evidence.source_apart:.3f} {evidence.unit} apart), so it brings nothing new",
            figures,
        )
    keeps = ""
    if evidence.changed is not None:
        keeps = f", and changes {evidence.changed:.0%} of its answers to the generic inputs"
        if evidence.changed_by_source is not None:
            keeps += f" ({evidence.changed_by_source:.0%} are others in the tuned source)"
    elif evidence.kept is not None:
        keeps = f", and its answers to the generic inputs are {evidence.kept:.3f} {evidence.unit} from what they were"
    if not evidence.has_generic and evidence.shares_outputs:
        keeps = "; what else it could do was not measured, for there are no generic inputs"
    how = f"{evidence.method}, alpha {evidence.alpha:g}" if evidence.method != "regression" else evidence.method
    reason = f"{how}, reproduces {_percent(effect)} of {what} on held-out inputs{keeps}"
    is_enough = effect.value >= ENOUGH
    if evidence.gain is not None:
        reason = f"{how}, lowers the target's loss on the labels given by {_percent(evidence.gain)}"
        if evidence.worth is not None:
            reason += f", where fine-tuning lowered the source's by {_percent(evidence.worth)}"
        if effect.value < 0:
            whose = "answers" if evidence.shares_outputs else "activations in the last space"
            reason += (
                f", though on held-out inputs its {whose} move away from the tuned source's ({_percent(effect)} of "
            )
            reason += "its effect explained)"
        reason += keeps
        if evidence.target_beyond_constant is False:
            reason += "; yet it is not shown to be better than one answer to all inputs"
            return Verdict("train", reason, figures)
        is_enough = evidence.gain.value >= ENOUGH * (1.0 if evidence.worth is None else evidence.worth.value)
    if not is_enough:
        return Verdict("train", reason, figures)
    return Verdict("copy" if evidence.method == "direct" else "transport", reason, figures)
