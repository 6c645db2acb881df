"""``transport``: the fine-tune of one network for another, without training, with an account and a verdict."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.batches import require_reiterable
from interbasin.checks import require_choice, require_finite, require_flag, require_whole
from interbasin.correspondence import Correspondence
from interbasin.errors import DataError
from interbasin.evaluate.bootstrap import Interval
from interbasin.evaluate.performance import Loss, losses_of_inputs, performance
from interbasin.jobs.transport.bases import Depth, Heads, Outputs, relate
from interbasin.jobs.transport.choosing import (
    FEW_HELD_OUT,
    Candidate,
    ReadOut,
    Referee,
    alphas_for,
    choose,
    try_method,
)
from interbasin.jobs.transport.comparing import compare_methods, rows_to_compare
from interbasin.jobs.transport.judging import Judge, Part, Steady, kinship, relative_gain
from interbasin.jobs.transport.maps import observe
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.result import ComparedRow, SpaceRow, Transport
from interbasin.jobs.transport.rules import Unobserved
from interbasin.jobs.transport.task import Options, Task, Transported
from interbasin.jobs.transport.update import Update
from interbasin.jobs.transport.verdict import Evidence, judge
from interbasin.maps import Orthogonal
from interbasin.outcome import Stopwatch
from interbasin.randomness import generator_of
from interbasin.statistics.similarity import explained_variance, mean_cosine
from interbasin.text import plural

AUTO = "auto"
SCALES = ("none", "rms")
GENERIC_TARGETS = ("keep", "tuned")
LARGE = 100.0  # times the norm of the source's update, above which a note says so


def transport(
    source: nn.Module,
    tuned: Any,
    target: nn.Module,
    data: Any,
    *,
    alpha: float | str | None = None,
    method: str = AUTO,
    variant: str | None = None,
    scale: str | None = None,
    outputs: Outputs = "auto",
    readout: Callable[[Any], Tensor] | None = None,
    validate: Any = None,
    loss: Loss | None = None,
    generic: Any = None,
    generic_target: str = "keep",
    generic_weight: float = 0.5,
    centered: bool = True,
    tokens: str | Tokens | None = "interpolate2d",
    mask: MaskOf = None,
    unobserved: Unobserved = "complete",
    heads: Heads = "auto",
    depth: Depth = "auto",
    correspondence: Correspondence | Mapping[str, Any] | None = None,
    as_lora: int | None = None,
    compare: bool | Sequence[str] = False,
    seed: int = 0,
    progress: Callable[[str], object] | bool | None = None,
) -> Transport:
    """Give ``target`` the fine-tune of ``source``, without training.

    A quarter of the inputs is held out while methods are compared and alpha is chosen; what was chosen is then fitted
    again on all of them. No network that is given changes.

    Args:
        source: The base model A that was fine-tuned.
        tuned: Its fine-tune: a network of the same tensors, a ``peft.PeftModel``, an adapter's folder, or a mapping of
            names to updates. A list of several is summed (task arithmetic) and transported as one.
        target: The base model B.
        data: Inputs of the task, without labels or with (labels are not looked at): batches, or a tensor.
        alpha: How much of the update: a number; ``"auto"``, by held-out inputs; None is ``"auto"`` for
            ``method="auto"`` and 1 for a method that was named.
        method: ``"theseus"`` carries the update through isometries [rinaldi:26] and keeps the rank of a LoRA;
            ``"regression"`` fits the target's layers to what the tuned source does; ``"direct"`` copies it;
            ``"auto"`` takes the one that explains most of the tuned source's effect on held-out inputs.
        variant: Of the method: for theseus ``"spaces"`` or ``"modules"`` (the paper's own).
        scale: For theseus: ``"none"``, or ``"rms"``, each map times the ratio of the activations' sizes. None:
            ``"rms"`` for ``method="auto"``, which judges by the effect, else ``"none"``.
        outputs: Whether an output means the same in both networks: ``"shared"``, ``"own"``, or ``"auto"``, which takes
            equal shapes as shared.
        readout: Outputs -> logits, for the divergence from the tuned source; squared distances are taken without it.
        validate: Labelled data, pairs (inputs, labels), to choose by instead, and to tell whether the fine-tune is
            worth anything. Never test data.
        loss: Of outputs and labels, for ``validate``; by default cross-entropy of the logits.
        generic: Inputs of the kind that the target was trained on. A regression keeps the target's own answers there,
            and how far they move counts where methods and alpha are chosen.
        generic_target: ``"keep"``, or ``"tuned"``: generic inputs aim at the tuned source too.
        generic_weight: Their weight, all together, relative to the task's inputs.
        centered: Look at activations about their means.
        tokens: Where the networks cut inputs into different numbers of tokens; see `record`.
        mask: Which tokens count; see `record`.
        unobserved: Directions that the data do not show: ``"complete"`` (norms are kept) or ``"drop"``.
        heads: ``"matched"``: a map for each head; ``"free"``: maps mix the heads of a layer; ``"auto"``: matched where
            every layer has as many heads in both networks.
        depth: How blocks are paired where the networks are not equally deep: ``"cka"``, ``"even"`` or ``"auto"``.
        correspondence: Your own, or names of the source's tensors -> those of the target.
        as_lora: Give the update as factors of this rank, which PEFT loads.
        compare: Also try the baselines and controls; True for all that these data allow, or a list of names.
        seed: Of all that is drawn at random.
        progress: Called with a line of text as the work goes on; True for lines on stderr.

    Raises:
        WiringError: if a network cannot be traced, or the two have nothing in common.
        DataError, ShapeError: if the data are empty, hold NaN or do not fit, or the tuned model is not of the base.
        UnknownNameError: for a name that does not exist.

    Example:
        >>> import torch
        >>> from interbasin import carry, wire
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> other = carry(net, wire(net, inputs).sample(seed=1))
        >>> update = {"2.weight": torch.ones(2, 8)}
        >>> result = transport(net, update, other, inputs, method="theseus")
        >>> result.metrics["effect_explained"] > 0.999
        True
    """
    request = _check_request(
        alpha=alpha,
        method=method,
        variant=variant,
        scale=scale,
        outputs=outputs,
        generic_target=generic_target,
        generic_weight=generic_weight,
        centered=centered,
        unobserved=unobserved,
        heads=heads,
        depth=depth,
        as_lora=as_lora,
        seed=seed,
    )
    alpha = request["alpha"]
    for name, value in (("data", data), ("generic", generic), ("validate", validate)):
        require_reiterable(value, f"Transport with {name}=")
    data, generic = Steady(data, "data"), None if generic is None else Steady(generic, "generic inputs")
    compare = [compare] if isinstance(compare, str) else compare
    if compare:
        rows_to_compare(compare)
    report = _reporter(progress)
    watch = Stopwatch()
    with watch("read"):
        update = _read(tuned, source)
        tuned_model = update.added_to(source).eval()
    with watch("wire"):
        report("tracing both networks")
        bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
    rms = scale == "rms" or (scale is None and method == AUTO)
    options = Options(
        centered,
        "rms" if rms else "none",
        unobserved,
        tokens,
        mask,
        generic_target,
        generic_weight,
        as_lora,
        seed,
    )
    whole = Task(bases, update, tuned_model, data, generic, readout, options, report)
    fitted_on, held = Part(data, held=False), Part(data, held=True)
    generic_part = None if generic is None else Part(generic, held=False)
    trial = replace(whole, data=fitted_on, generic=generic_part)
    notes = list(update.notes)

    # Which method and how much of it, by inputs that nothing is fitted on.
    with watch("choose"):
        keeping = None
        if generic is not None and generic_target == "keep" and bases.shares_outputs:
            keeping = _own_answers(trial, generic)
        referee = Referee(Judge(trial, held), validate, loss, keeping)
        if method == AUTO:
            best, candidates, left_out = choose(trial, referee, alpha)
            notes += left_out
        else:
            chosen = METHODS[method]
            alphas = alphas_for(chosen, alpha, validate is not None and alpha is None)
            best = try_method(trial, referee, chosen.name, chosen.variant(variant), alphas, chosen.function)
            candidates = [best]

    # The same on all inputs.
    with watch("fit"):
        final = METHODS[best.method].function(whole, best.variant)
        notes += final.notes
        delta = final.update if best.alpha == 1 else final.update.scaled(best.alpha)
    if as_lora is not None:
        delta = delta.truncated(as_lora, target)[0]
    with watch("add"):
        model = delta.added_to(target)

    with watch("measure"):
        trial_model = _trial_model(best, trial, as_lora)
        effect = relative_gain(referee.judge.before, referee.judge.losses(trial_model), seed)
        spaces = _measure_spaces(trial, held, best.method)
        metrics = _metrics(whole, final, delta, best, effect, spaces)
        if as_lora is not None:
            full = _whole_effect(best, trial, referee).value
            metrics["effect_explained_full_rank"] = full
            notes.append(f"Rank {as_lora} explains {effect.value:.0%} of the effect, the whole update {full:.0%}.")
        evidence = _gather(trial, held, generic, trial_model, best, effect, validate, loss, update)
        metrics |= _labelled(validate, loss, readout, {"": model, "_base": target, "_source": tuned_model})
        notes += _note_large(metrics["norm_ratio"])
        for name in ("kept", "source_apart"):
            interval = getattr(evidence, name)
            if interval is not None:
                metrics["forgotten" if name == "kept" else "forgotten_source"] = interval.value
    notes += _note_unobserved(metrics, spaces) + _note_few(len(referee.judge.before))
    compared: tuple[ComparedRow, ...] = ()
    if compare:
        with watch("compare"):
            others = None if generic is None else Part(generic, held=True)
            compared = compare_methods(trial, referee, compare, validate, loss, others)
    return Transport(
        delta=delta,
        model=model,
        target=target,
        moved=final.moved,
        verdict=judge(evidence),
        method=best.method,
        variant=best.variant,
        spaces=spaces,
        candidates={
            each.method: {
                "effect_explained": each.effect.value,
                "low": each.effect.low,
                "high": each.effect.high,
                "alpha": each.alpha,
                "score": each.score,
            }
            for each in candidates
        },
        sweep=best.sweep,
        compared=compared,
        metrics=metrics,
        notes=tuple(dict.fromkeys(notes)),
        timings=watch.timings,
        request={**request, "method": best.method, "variant": best.variant, "alpha": best.alpha, "asked": method},
    )


# ---------------------------------------------------------------------- what was asked


def _reporter(progress: Any) -> Callable[[str], object]:
    if progress is True:
        return lambda text: print(text, file=sys.stderr)
    if progress is not None and progress is not False and not callable(progress):
        raise DataError(f"progress is a function of a line of text, or True, found {type(progress).__name__}.")
    return progress or (lambda text: None)


def _check_request(**request: Any) -> dict[str, Any]:
    """The request, refused before long work if it cannot be."""
    generator_of(request["seed"])
    if request["method"] != AUTO:
        METHODS[request["method"]].variant(request["variant"])
    elif request["variant"] is not None:
        raise DataError(f"variant={request['variant']!r} belongs to a method; name the method as well.")
    alpha = request["alpha"]
    if alpha is not None and alpha != AUTO:
        if isinstance(alpha, str):
            raise DataError(f"alpha is a number or 'auto', found {alpha!r}.")
        request["alpha"] = require_finite("alpha", alpha, least=-100, most=100)
    if request["scale"] is not None:
        require_choice("scale", request["scale"], SCALES)
    require_choice("generic_target", request["generic_target"], GENERIC_TARGETS)
    require_choice("unobserved", request["unobserved"], get_args(Unobserved))
    require_finite("generic_weight", request["generic_weight"], above=0)
    require_flag("centered", request["centered"])
    if request["as_lora"] is not None:
        require_whole("as_lora", request["as_lora"], least=1)
    return request


def _read(tuned: Any, source: nn.Module) -> Update:
    if isinstance(tuned, list | tuple):
        return Update.combined([Update.of(each, source) for each in tuned])
    return Update.of(tuned, source)


# ---------------------------------------------------------------------- figures


def _trial_model(best: Candidate, trial: Task, rank: int | None) -> nn.Module:
    """The target with what was fitted without the held-out inputs."""
    update = best.transported.update
    if rank is not None:
        update = update.truncated(rank, trial.bases.target)[0]
    return update.added_to(trial.bases.target, best.alpha)


def _whole_effect(best: Candidate, trial: Task, referee: Referee) -> Interval:
    """What the update would explain if its rank were not limited."""
    update = best.transported.update
    if trial.options.rank is not None and best.method == "regression":
        free = replace(trial, options=replace(trial.options, rank=None))
        update = METHODS[best.method].function(free, best.variant).update
    model = update.added_to(trial.bases.target, best.alpha)
    return relative_gain(referee.judge.before, referee.judge.losses(model), trial.options.seed)


def _measure_spaces(trial: Task, held: Any, method: str) -> tuple[SpaceRow, ...]:
    """What was seen in each pair of spaces, and how near the isometries bring activations on held-out inputs."""
    maps = trial.maps(scale=True if method == "regression" else None)  # those that the method has fitted already
    # What an isometry makes of a space has the space's own energy; of a narrower map only Gram matrices tell.
    narrows = any(b.width < a.width for a, b in map(trial.bases.spaces, trial.sought.plain))
    last = list(dict.fromkeys(places[-1] for places in trial.sought.plain.values()))
    options = trial.options
    seen = observe(
        trial.bases,
        held,
        last,
        tokens=options.tokens,
        mask=options.mask,
        grams=narrows or options.unobserved == "drop",
    )
    rows = []
    for pair, places in trial.sought.plain.items():
        moments, found = seen[places[-1]], maps[pair]
        source, target = trial.bases.spaces(pair)
        padding = Orthogonal(torch.eye(target.width, source.width, dtype=torch.float64))
        with contextlib.suppress(DataError):  # of one held-out input, or of a space that never varies, nothing is said
            cosines = mean_cosine(moments, padding), mean_cosine(moments, found.unscaled)
            explained = explained_variance(moments, found.unscaled)
            rows.append(SpaceRow(*pair, (source.width, target.width), found.rank, found.full, *cosines, explained))
    return tuple(rows)


def _metrics(
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


def _gather(
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
        kept, apart = _apart(trial, generic, model), _apart(trial, generic, trial.tuned)
    worth = gain = None
    if validate is not None:
        networks = [trial.bases.source, trial.tuned, trial.bases.target, model]
        if loss is None and trial.readout is not None:
            networks = [ReadOut(network, trial.readout) for network in networks]
        losses = [losses_of_inputs(network, validate, loss).cpu().numpy() for network in networks]
        seed = trial.options.seed
        worth, gain = relative_gain(losses[0], losses[1], seed), relative_gain(losses[2], losses[3], seed)
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
        does_nothing=update.does_nothing,
    )


def _apart(trial: Task, generic: Any, model: nn.Module) -> Interval:
    """How far a network's answers to held-out generic inputs are from those of the target as it was."""
    judge = _own_answers(trial, generic)
    _ = judge.before  # says so if the target's own answers are no numbers
    losses = judge.losses(model)
    if not np.isfinite(losses).all():
        return Interval(math.inf, math.inf, math.inf)
    draws = np.random.default_rng(trial.options.seed).integers(len(losses), size=(1000, len(losses)))
    low, high = np.percentile(losses[draws].mean(1), (2.5, 97.5))
    return Interval(float(losses.mean()), float(low), float(high))


def _own_answers(trial: Task, generic: Any) -> Judge:
    """Compares networks with the target as it was, on held-out generic inputs."""
    return Judge(trial.against_target(), Part(generic, held=True))


def _labelled(
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


def _note_large(ratio: float) -> list[str]:
    if ratio < LARGE:
        return []
    return [
        f"The update is {ratio:.3g} times as large as the source's: layers that inputs hardly vary in were fitted "
        "closely. Low precision may not hold it, and other inputs may be answered badly; give more inputs, or generic "
        "ones."
    ]


def _note_few(held: int) -> list[str]:
    if held >= FEW_HELD_OUT:
        return []
    return [f"Only {plural(held, 'input')} could be held out to judge by: intervals from so few say little; give more."]


def _note_unobserved(metrics: Mapping[str, float], spaces: Sequence[SpaceRow]) -> list[str]:
    # Behind a norm one direction, the mean, is never seen: that is no alarm.
    few = [row for row in spaces if row.full - row.seen > 1]
    if not few or metrics["share_unobserved"] < 1e-3:
        return []
    worst = min(few, key=lambda row: row.seen / row.full)
    return [
        f"In {plural(len(few), 'space')} some directions were never observed (in {worst.source!r} "
        f"{worst.full - worst.seen} of {worst.full}): {metrics['share_unobserved']:.0%} of the update's squared norm "
        "lies there, and goes to arbitrary directions; give more inputs, or unobserved='drop'."
    ]
