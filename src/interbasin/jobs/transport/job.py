"""``transport``: the fine-tune of one network for another, without training, with an account and a verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.distributed import world_size
from interbasin.activations.pairing import MaskOf
from interbasin.batches import BATCH_SIZE, WithoutLabels, reporter_of, require_reiterable
from interbasin.checks import require_finite
from interbasin.correspondence import Correspondence
from interbasin.errors import DataError
from interbasin.evaluate.performance import Loss
from interbasin.jobs.transport.bases import Depth, Heads, Outputs, relate
from interbasin.jobs.transport.choice import (
    Candidate,
    Referee,
    alphas_for,
    choose,
    leave_as_it_is,
    try_method,
)
from interbasin.jobs.transport.comparison.measure import compare_methods, rows_to_compare
from interbasin.jobs.transport.figures import (
    collect_metrics,
    effect_at_full_rank,
    gather_evidence,
    labelled_metrics,
    measure_spaces,
    note_better,
    note_few,
    note_large,
    note_largest_alpha,
    note_repeats,
    note_unmatched,
    note_unobserved,
    note_wider,
    own_answers,
    trial_model_of,
)
from interbasin.jobs.transport.front import measure_front, require_answers, weights_of_front
from interbasin.jobs.transport.held_out import COMPARED_ON, Part, Steady, count_repeats
from interbasin.jobs.transport.journal import Journal, holding_state
from interbasin.jobs.transport.judge import Judge, relative_gain
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.networks import require_numbers
from interbasin.jobs.transport.result import ComparedRow, FrontRow, Transport
from interbasin.jobs.transport.task import Options, Task
from interbasin.jobs.transport.theseus.rules import Unobserved
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.answers import refuse_other_answers
from interbasin.jobs.transport.updates.fine_tunes import read_fine_tune, weights_of_merge
from interbasin.jobs.transport.updates.ties import can_be_stored, copy_untied, names_apart, with_zeros
from interbasin.jobs.transport.verdict import judge
from interbasin.outcome import Stopwatch
from interbasin.text import list_names
from interbasin.wiring.trace.copying import leaving_buffers, remember_buffers

AUTO = "auto"


@holding_state
@leaving_buffers
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
    front: bool | Sequence[float] | None = None,
    centered: bool = True,
    tokens: str | Tokens | None = "interpolate2d",
    mask: MaskOf = None,
    unobserved: Unobserved = "complete",
    heads: Heads = "auto",
    depth: Depth = "auto",
    correspondence: Correspondence | Mapping[str, Any] | None = None,
    merge: str = "task-arithmetic",
    merge_weights: Sequence[float] | None = None,
    density: float | None = None,
    as_lora: int | None = None,
    compare: bool | Sequence[str] = False,
    seed: int = 0,
    state: str | os.PathLike[str] | None = None,
    progress: Callable[[str], object] | bool | None = None,
) -> Transport:
    """Give ``target`` the fine-tune of ``source``, without training.

    A quarter of the inputs is held out while methods are compared and alpha is chosen; what was chosen is then fitted
    again on all of them. No network that is given changes.

    Args:
        source: The base model A that was fine-tuned.
        tuned: Its fine-tune: the same network with other weights, a ``peft.PeftModel``, an adapter's folder, or a
            mapping of names to updates. Several fine-tunes of the base, in a list, are merged and transported as one.
        target: The base model B.
        data: Inputs of the task, without labels or with (labels are not looked at): batches, or a tensor.
        alpha: How much of the update: a number; ``"auto"``, by held-out inputs; None is ``"auto"`` for
            ``method="auto"`` and 1 for a method that was named.
        method: ``"theseus"`` carries the update through isometries [rinaldi:26] and keeps the rank of a LoRA;
            ``"regression"`` fits the target's layers to what the tuned source does; ``"direct"`` copies it;
            ``"auto"`` takes the one that explains most of the tuned source's effect on held-out inputs.
        variant: Of the method: for theseus ``"spaces"``, ``"modules"`` (the paper's own), or ``"weights"``: maps from
            the weights of the two bases alone, so that data only judge. For a regression ``"tuned"``: layers aim at
            the tuned source's activations; ``"shift"``: at the target's own and what fine-tuning changed in the
            source's, which forgets less where vision transformers keep ``generic`` inputs.
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
        front: Also measure what is learned and what is forgotten over several weights of ``generic``: a regression
            for each, and beside them the tuned source, the target and what was chosen. True, or the weights.
        centered: Look at activations about their means.
        tokens: Where the networks cut inputs into different numbers of tokens; see `record`.
        mask: Which tokens count; see `record`.
        unobserved: Directions that the data do not show: ``"complete"`` (norms are kept) or ``"drop"``.
        heads: ``"matched"``: a map for each head; ``"free"``: maps mix the heads of a layer; ``"auto"``: matched where
            every layer has as many heads in both networks.
        depth: How blocks are paired where the networks are not equally deep: ``"cka"``, along the monotone path of
            largest CKA; ``"even"``; ``"interpolate"``, the paper's way to a deeper target: new blocks between the
            source's own, in base and tuned network alike (not for the regression); ``"auto"``: ``"cka"``.
        correspondence: Your own, or names of the source's tensors -> those of the target.
        merge: How several fine-tunes are merged: ``"task-arithmetic"``, the weighted sum, or ``"ties"`` [yadav:23].
        merge_weights: One for each of them; 1 by default.
        density: For ``"ties"``: the share of every update that is kept, in each tensor by itself; 0.5 by default.
        as_lora: Give the update as factors of this rank, which PEFT loads.
        compare: Also try the baselines and controls; True for all that these data allow, or a list of names.
        seed: Of all that is drawn at random.
        state: A folder to keep what was recorded, which layers were fitted and which rows compared in: a run that was
            killed goes on from there, to the same result. One process at a time has it. It is yours to remove.
        progress: Called with a line of text as the work goes on; True for lines on stderr.

    Raises:
        WiringError: if a network cannot be traced, or the two have nothing in common.
        DataError, ShapeError: if the data are empty, hold NaN or do not fit, or the tuned model is not of the base.
        UnknownNameError: for a name that does not exist.
        FileError: if the state holds other things, or another process has it.

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
        front=list(front) if isinstance(front, list | tuple) else front,
        merge=merge,
        merge_weights=weights_of_merge(merge_weights),
        density=density,
        as_lora=as_lora,
        seed=seed,
    )
    _refuse_without_effect(generic, generic_target, generic_weight, validate, loss)
    alpha = request["alpha"]
    if world_size() > 1:
        raise DataError(
            f"{world_size()} processes would each judge by inputs of their own, and could choose differently; record "
            "in all of them with prepare_transport, which sums what they see, save that in one, and call its "
            "apply(tuned) there; or call transport in one process, before torch.distributed is initialised."
        )
    front_weights = weights_of_front(front, generic, generic_target)
    journal = None if state is None else Journal.at(state)
    for name, value in (("data", data), ("generic", generic), ("validate", validate)):
        require_reiterable(value, f"Transport with {name}=")
    data, generic = Steady(data, "data"), None if generic is None else Steady(generic, "generic inputs")
    if validate is not None:
        validate = Steady(validate, "labelled data to validate on", COMPARED_ON, labelled=True, batch_size=BATCH_SIZE)
    compare = [compare] if isinstance(compare, str) else compare
    rows_to_compare([] if compare is False or compare is None else compare)
    report = reporter_of(progress)
    watch = Stopwatch()
    with watch("read"):
        require_numbers(source, "source")
        require_numbers(target, "target")
        if as_lora is not None and not kinds_of(target):
            raise DataError(
                f"as_lora={as_lora} asks for the factors of a LoRA, and the target ({type(target).__name__}) has no "
                "layer inside it that can hold one: PEFT puts them beside linear layers, embeddings and convolutions; "
                "leave out as_lora=."
            )
        update = read_fine_tune(tuned, source, merge=merge, weights=merge_weights, density=density)
        given_target, apart = target, names_apart(update, source)
        if apart:  # names of one tensor were trained apart: in the target, too, they are tensors of their own then
            source, target = copy_untied(source, apart), copy_untied(target)
        tuned_model = update.added_to(source).eval()
        for batches in (data, generic, validate):
            for _ in () if batches is None else batches:  # looked at before anything is made of them
                pass
        not_compared = refuse_other_answers(tuned, source, WithoutLabels(data).first())
        restore = remember_buffers(target)
    with watch("wire"):
        report("tracing both networks")
        bases = relate(source, target, data, heads=heads, depth=depth, outputs=outputs, correspondence=correspondence)
        update = bases.lengthen(update)
        repeats = note_repeats(*count_repeats(data))
        if front_weights:
            require_answers(bases)
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
    whole = Task(bases, update, tuned_model, data, generic, readout, options, report, journal=journal)
    fitted_on, held = Part(data, held=False), Part(data, held=True)
    generic_part = None if generic is None else Part(generic, held=False)
    trial = replace(whole, data=fitted_on, generic=generic_part)
    notes = [*update.notes, *not_compared, *bases.notes, *note_unmatched(bases)]

    # Which method and how much of it, by inputs that nothing is fitted on.
    with watch("choose"):
        keeping = None
        if generic is not None and generic_target == "keep" and bases.shares_outputs:
            keeping = own_answers(trial, generic)
        referee = Referee(Judge(trial, held), validate, loss, keeping)
        candidates: list[Candidate] = []  # none where there is nothing to transport
        if update.does_nothing:
            best = leave_as_it_is(trial, referee, "direct" if method == AUTO else method)
        elif method == AUTO:
            best, candidates, left_out = choose(trial, referee, alpha)
            notes += left_out
        else:
            chosen = METHODS[method]
            alphas = alphas_for(chosen, alpha, validate is not None and alpha is None)
            best = try_method(trial, referee, chosen.name, chosen.variant(variant), alphas, chosen.function)
            candidates = [best]

    # The same on all inputs.
    with watch("fit"):
        final = METHODS[best.method].function(whole, best.variant) if candidates else best.transported
        notes += final.notes
        delta = final.update if best.alpha == 1 else final.update.scaled(best.alpha)
    if as_lora is not None:
        delta = delta.truncated(as_lora, target)[0]
    with watch("add"):
        restore()
        model = delta.added_to(target)
        restore = remember_buffers(model)
        if apart:
            delta = with_zeros(delta, given_target)
            notes += _note_untied(model, names_apart(delta, given_target), WithoutLabels(data).first())

    with watch("measure"):
        trial_model = trial_model_of(best, trial, as_lora)
        effect = relative_gain(referee.judge.before, referee.judge.losses(trial_model), seed)
        spaces = measure_spaces(trial, held, best) if candidates else ()
        metrics = collect_metrics(whole, final, delta, best, effect, spaces)
        if as_lora is not None and candidates:
            full = effect_at_full_rank(best, trial, referee).value
            metrics["effect_explained_full_rank"] = full
            notes.append(f"Rank {as_lora} explains {effect.value:.0%} of the effect, the whole update {full:.0%}.")
        evidence = gather_evidence(trial.as_given, held, generic, trial_model, best, effect, validate, loss, update)
        metrics |= labelled_metrics(validate, loss, readout, {"": model, "_base": target, "_source": tuned_model})
        notes += note_largest_alpha(best.sweep, best.alpha) + note_large(metrics["norm_ratio"])
        notes += note_wider(update, delta, best.method)
        for name in ("kept", "source_apart"):
            interval = getattr(evidence, name)
            if interval is not None:
                metrics["forgotten" if name == "kept" else "forgotten_source"] = interval.value
        changed = {"answers_changed": evidence.changed, "answers_changed_source": evidence.changed_by_source}
        metrics |= {name: share for name, share in changed.items() if share is not None}
    notes += note_unobserved(metrics, spaces) + note_few(len(referee.judge.before)) + repeats
    points: tuple[FrontRow, ...] = ()
    if front_weights and candidates:
        with watch("front"):
            how = f"generic weight {generic_weight:g}" if best.method == "regression" else f"alpha {best.alpha:g}"
            chosen_point = f"chosen: {best.method}, {how}", trial_model
            points = measure_front(trial, referee, front_weights, candidates, chosen_point, generic, validate, loss)
    compared: tuple[ComparedRow, ...] = ()
    if compare:
        with watch("compare"):
            others = None if generic is None else Part(generic, held=True)
            compared = compare_methods(trial, referee, compare, validate, loss, others)
            notes += note_better(compared, effect, metrics.get("forgotten"))
    restore()
    return Transport(
        delta=delta,
        model=model,
        target=given_target,
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
        front=points,
        unit=evidence.unit,
        metrics=metrics,
        notes=tuple(dict.fromkeys(notes)),
        timings=watch.timings,
        request={**request, "method": best.method, "variant": best.variant, "alpha": best.alpha, "asked": method},
    )


# ---------------------------------------------------------------------- what was asked


def _check_request(**request: Any) -> dict[str, Any]:
    """The request, refused before long work if it cannot be."""
    if request["method"] != AUTO:
        METHODS[request["method"]].variant(request["variant"])
    elif request["variant"] is not None:
        raise DataError(f"variant={request['variant']!r} belongs to a method; name the method as well.")
    alpha = request["alpha"]
    if alpha is not None and alpha != AUTO:
        if isinstance(alpha, str):
            raise DataError(f"alpha is a number or 'auto', found {alpha!r}.")
        request["alpha"] = require_finite("alpha", alpha, least=-100, most=100)
    Options(
        request["centered"],
        "none" if request["scale"] is None else request["scale"],
        request["unobserved"],
        generic_target=request["generic_target"],
        generic_weight=request["generic_weight"],
        rank=request["as_lora"],
        seed=request["seed"],
    ).check()
    if request["scale"] == "rms" and request["method"] not in (AUTO, "theseus"):
        raise DataError(f"scale='rms' is for the maps of theseus, and the method is {request['method']}; leave it out.")
    return request


def _refuse_without_effect(generic: Any, target: str, weight: float, validate: Any, loss: Any) -> None:
    """Refuse options of data that were not given: they would change nothing, and whoever gave them thinks they do."""
    usual = Options()
    options = {"generic_target": (target, usual.generic_target), "generic_weight": (weight, usual.generic_weight)}
    for name, (value, default) in options.items():
        if generic is None and value != default:
            raise DataError(f"{name}={value!r} is about generic inputs, and there are none; give generic= as well.")
    if validate is None and loss is not None:
        raise DataError("loss= is for the labelled data of validate=, and there are none; give both, or neither.")


def _note_untied(model: nn.Module, names: Sequence[str], inputs: Any) -> list[str]:
    """What becomes of names of one tensor that have updates of their own, in the target as well."""
    if not names:
        return []
    note = f"{list_names(names)} of the target was tied to another tensor, and is one of its own in the new network."
    if can_be_stored(model, inputs):
        return [note]
    return [f"{note} The configuration cannot say so: load the update with PEFT instead of storing the network."]
