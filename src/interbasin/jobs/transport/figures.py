"""The figures of a transport, its evidence for the verdict, and the notes that the figures call for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Interval
from interbasin.evaluate.performance import Loss, beside_constant, losses_of_inputs, performance
from interbasin.jobs.transport.bases import Bases, Pair
from interbasin.jobs.transport.choice import FEW_HELD_OUT, Candidate, ReadOut, Referee
from interbasin.jobs.transport.held_out import Part
from interbasin.jobs.transport.judge import Judge, relative_gain
from interbasin.jobs.transport.kinship import kinship
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.result import ComparedRow, SpaceRow
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.theseus.maps import observe
from interbasin.jobs.transport.theseus.rules import SpaceMap
from interbasin.jobs.transport.updates.update import Update
from interbasin.jobs.transport.verdict import Evidence
from interbasin.maps import Orthogonal
from interbasin.statistics.similarity import explained_variance, mean_cosine
from interbasin.text import list_names, plural

LARGE = 100.0  # times the norm of the source's update, above which a note says so


def trial_model_of(best: Candidate, trial: Task, rank: int | None) -> nn.Module:
    """The target with what was fitted without the held-out inputs."""
    update = best.transported.update
    if rank is not None:
        update = update.truncated(rank, trial.bases.target)[0]
    return update.added_to(trial.bases.target, best.alpha)


def effect_at_full_rank(best: Candidate, trial: Task, referee: Referee) -> Interval:
    """What the update would explain if its rank were not limited."""
    update = best.transported.update
    if trial.options.rank is not None and best.method == "regression":
        free = replace(trial, options=replace(trial.options, rank=None))
        update = METHODS[best.method].function(free, best.variant).update
    model = update.added_to(trial.bases.target, best.alpha)
    return relative_gain(referee.judge.before, referee.judge.losses(model), trial.options.seed)


def measure_spaces(trial: Task, held: Any, best: Candidate) -> tuple[SpaceRow, ...]:
    """What was seen in each pair of spaces, and how near the isometries bring activations on held-out inputs."""
    maps: Mapping[Pair, SpaceMap] = best.transported.maps
    if best.variant != "weights":
        maps = trial.maps(scale=True if best.method == "regression" else None)  # those that it has fitted already
    # What an isometry makes of a space has the space's own energy; of a narrower map only Gram matrices tell.
    narrows = any(b.width < a.width for a, b in map(trial.bases.spaces, trial.needed_maps.plain))
    last = list(dict.fromkeys(places[-1] for places in trial.needed_maps.plain.values()))
    options = trial.options
    held_moments = observe(
        trial.bases,
        held,
        last,
        tokens=options.tokens,
        mask=options.mask,
        grams=narrows or options.unobserved == "drop",
    )
    rows = []
    for pair, places in trial.needed_maps.plain.items():
        if pair not in maps:
            continue
        moments, space_map = held_moments[places[-1]], maps[pair]
        source, target = trial.bases.spaces(pair)
        padding = Orthogonal(torch.eye(target.width, source.width, dtype=torch.float64))
        with contextlib.suppress(DataError):  # of one held-out input, or of a space that never varies, nothing is said
            cosines = mean_cosine(moments, padding), mean_cosine(moments, space_map.unscaled_map)
            explained = explained_variance(moments, space_map.unscaled_map)
            rows.append(
                SpaceRow(*pair, (source.width, target.width), space_map.rank, space_map.full, *cosines, explained)
            )
    return tuple(rows)


def collect_metrics(
    task: Task,
    final: Transported,
    delta: Update,
    best: Candidate,
    effect: Interval,
    spaces: Sequence[SpaceRow],
) -> dict[str, float]:
    shares = {status: math.fsum(row.share for row in final.moved if row.status == status) for status in _STATUSES}
    before = task.update.norm()
    metrics = {
        "share_moved": shares["moved"] + shares["kept"],
        "share_skipped": shares["skipped"],
        "share_unobserved": math.fsum(row.share * row.unobserved for row in final.moved),
        "norm_ratio": delta.norm() / before if before else 0.0,
        "alpha": best.alpha,
        "effect_explained": effect.value,
        "effect_explained_low": effect.low,
        "effect_explained_high": effect.high,
    }
    if spaces:
        metrics["cosine_before"] = float(np.mean([row.cosine_before for row in spaces]))
        metrics["cosine_after"] = float(np.mean([row.cosine_after for row in spaces]))
    return metrics


_STATUSES = ("moved", "kept", "skipped")


def gather_evidence(
    trial: Task,
    held: Any,
    generic: Any,
    model: nn.Module,
    best: Candidate,
    effect: Interval,
    validate: Any,
    loss: Loss | None,
    update: Update,
) -> Evidence:
    akin = None if trial.bases.shares_outputs else kinship(trial, held)
    kept = apart = None
    if generic is not None and trial.bases.shares_outputs:
        kept, apart = distance_from_target(trial, generic, model), distance_from_target(trial, generic, trial.tuned)
    beyond = None
    if trial.bases.shares_outputs:
        judge = Judge(trial, held)
        beyond = relative_gain(judge.losses(trial.bases.source), judge.losses(model), trial.options.seed)
    changed: Mapping[str, float] = {}
    if generic is not None and trial.bases.shares_outputs:
        changed = count_changed_answers(trial, generic, {"": model, "_source": trial.tuned})
    worth = gain = None
    beyond_constant: tuple[bool | None, ...] = (None, None)
    if validate is not None:
        networks = [trial.bases.source, trial.tuned, trial.bases.target, model]
        if loss is None and trial.readout is not None:
            networks = [ReadOut(network, trial.readout) for network in networks]
        losses = [losses_of_inputs(network, validate, loss).cpu().numpy() for network in networks]
        seed = trial.options.seed
        worth, gain = relative_gain(losses[0], losses[1], seed), relative_gain(losses[2], losses[3], seed)
        if loss is None:
            beyond_constant = tuple(_is_beyond_constant(network, validate, seed) for network in networks[1::2])
    return Evidence(
        method=best.method,
        alpha=best.alpha,
        unit=Judge(trial, held).unit,
        effect=effect,
        shares_outputs=trial.bases.shares_outputs,
        kinship=akin,
        worth=worth,
        gain=gain,
        kept=kept,
        source_apart=apart,
        changed=changed.get("answers_changed"),
        changed_by_source=changed.get("answers_changed_source"),
        beyond_base=beyond,
        source_beyond_constant=beyond_constant[0],
        target_beyond_constant=beyond_constant[1],
        has_generic=generic is not None,
        does_nothing=update.does_nothing,
    )


def _is_beyond_constant(network: nn.Module, validate: Any, seed: int) -> bool | None:
    """Whether a network is shown to do better, by loss or by labels met, than one answer to all inputs would.

    A base that is sure of wrong answers makes any flat answer look like progress. One of the two is enough: a network
    that is right and too sure of it may have a large loss.
    """
    scores = beside_constant(network, validate)
    if scores is None:
        return None
    by_loss = relative_gain(scores.constant_losses.numpy(), scores.losses.numpy(), seed)
    missed = (1 - scores.constant_met).numpy(), (1 - scores.met).numpy()
    return by_loss.low > 0 or relative_gain(*missed, seed).low > 0


def distance_from_target(trial: Task, generic: Any, model: nn.Module) -> Interval:
    """How far a network's answers to held-out generic inputs are from those of the target as it was."""
    judge = own_answers(trial, generic)
    _ = judge.before  # says so if the target's own answers are no numbers
    losses = judge.losses(model)
    if not np.isfinite(losses).all():
        return Interval(math.inf, math.inf, math.inf)
    draws = np.random.default_rng(trial.options.seed).integers(len(losses), size=(1000, len(losses)))
    low, high = np.percentile(losses[draws].mean(1), (2.5, 97.5))
    return Interval(float(losses.mean()), float(low), float(high))


def count_changed_answers(trial: Task, generic: Any, networks: Mapping[str, nn.Module]) -> dict[str, float]:
    """Of the target's answers to held-out generic inputs, the share that networks give otherwise; {} without logits."""
    judge = own_answers(trial, generic)
    shares = {f"answers_changed{suffix}": judge.changed_answers(network) for suffix, network in networks.items()}
    return {name: share for name, share in shares.items() if share is not None}


def own_answers(trial: Task, generic: Any) -> Judge:
    """Compares networks with the target as it was, on held-out generic inputs."""
    return Judge(trial.against_target(), Part(generic, held=True))


def labelled_metrics(
    validate: Any, loss: Loss | None, readout: Callable[[Any], Tensor] | None, networks: Mapping[str, nn.Module]
) -> dict[str, float]:
    """Loss and accuracy of networks on labelled data."""
    if validate is None:
        return {}
    metrics = {}
    for suffix, network in networks.items():
        answers = performance(
            network if readout is None else ReadOut(network, readout), validate, None if readout else loss
        )
        # A loss of the caller's own is one of outputs as they are; accuracy is one of logits.
        measured = answers if loss is None or readout is None else performance(network, validate, loss)
        metrics[f"loss{suffix}"] = measured.loss
        if answers.accuracy is not None:
            metrics[f"accuracy{suffix}"] = answers.accuracy
    return metrics


# ---------------------------------------------------------------------- notes


def note_large(ratio: float) -> list[str]:
    if ratio < LARGE:
        return []
    return [
        f"The update is {ratio:.3g} times as large as the source's: layers that inputs hardly vary in were fitted "
        "closely. Low precision may not hold it, and other inputs may be answered badly; give more inputs, or generic "
        "ones."
    ]


def note_wider(fine_tune: Update, delta: Update, method: str) -> list[str]:
    """That a regression changes more than the LoRA did that came in."""
    if method != "regression" or not fine_tune.is_low_rank:
        return []
    came = f"The fine-tune is a LoRA of rank {fine_tune.rank} on {plural(len(fine_tune.factors), 'tensor')}"
    keeps = "method='theseus' keeps the rank, and changes their counterparts alone."
    if not delta.is_low_rank:
        return [f"{came}; the update is dense, of {plural(len(delta), 'tensor')}: as_lora= gives a LoRA, and {keeps}"]
    return [
        f"{came}, and this adapter one of rank {delta.rank} on {len(delta.factors)}, for a regression fits every layer "
        f"that it can; {keeps}"
    ]


def note_few(held: int) -> list[str]:
    if held >= FEW_HELD_OUT:
        return []
    return [f"Only {plural(held, 'input')} could be held out to judge by: intervals from so few say little; give more."]


def note_repeats(held: int, repeats: int, different: int) -> list[str]:
    notes = []
    if repeats:
        notes.append(
            f"{repeats:,} of {plural(held, 'held-out input')} also stand among those that were fitted on, and say "
            "nothing about new inputs; give data without repeats."
        )
    if different < held:
        notes.append(
            f"Of {plural(held, 'held-out input')} only {different:,} are different ones, so that intervals are "
            "narrower than they should be; give data without repeats."
        )
    return notes


def note_largest_alpha(sweep: Sequence[tuple[float, float]], alpha: float) -> list[str]:
    """That the best alpha is the last that was tried, so that a larger one may be better still."""
    if len(sweep) < 2 or alpha < max(tried for tried, _ in sweep):
        return []
    return [f"Alpha {alpha:g} is the largest that is tried, and it scored best: try larger ones with alpha= by hand."]


def note_better(compared: Sequence[ComparedRow], effect: Interval, forgotten: float | None) -> list[str]:
    """What did better than the chosen method, by intervals, and forgot no more."""
    limit = math.inf if forgotten is None else forgotten
    rows = [row for row in compared if row.low > effect.high and row.method != "tuned-source"]
    better = [row for row in rows if row.forgotten is None or row.forgotten <= limit]
    if not better:
        return []
    best = max(better, key=lambda row: row.effect)
    kept = "" if best.forgotten is None else f", and forgets {best.forgotten:.3g} where that forgets {limit:.3g}"
    needs = f" It needs {list_names(best.needs)}." if best.needs else ""
    return [
        f"Of what was compared, {best.method} explains more: {best.effect:.0%} where the chosen method explains "
        f"{effect.value:.0%}{kept}, in {best.seconds:.0f} s.{needs}"
    ]


def note_unobserved(metrics: Mapping[str, float], spaces: Sequence[SpaceRow]) -> list[str]:
    # Behind a norm one direction, the mean, is never seen: that is no alarm.
    few = [row for row in spaces if row.full - row.seen > 1]
    if not few or metrics["share_unobserved"] < 1e-3:
        return []
    worst = min(few, key=lambda row: row.seen / row.full)
    return [
        f"In {plural(len(few), 'space')} some directions were never observed (in {worst.source!r} "
        f"{worst.full - worst.seen} of {worst.full}): {metrics['share_unobserved']:.2g} of the update's squared norm "
        "lies there, and goes to arbitrary directions; give more inputs, or unobserved='drop'."
    ]


def note_unmatched(bases: Bases) -> list[str]:
    """Which tensors of the target have no counterpart in the source, and get nothing."""
    wiring = bases.wirings[1]
    names = [
        entry.name
        for entry in bases.correspondence.unmatched_target
        if entry.kind == "tensor" and entry.name not in wiring.unused and entry.name not in wiring.constants
    ]
    if not names:
        return []
    return [
        f"There is no counterpart in the source for {list_names(dict.fromkeys(names))} of the target: {len(names)} of "
        f"{plural(len(wiring.tensors), 'tensor')} stay as they were."
    ]
