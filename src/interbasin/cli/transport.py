"""``interbasin transport``: the fine-tune of one network, for another."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from interbasin.cli.options import (
    DATA,
    MODEL,
    DataReader,
    Force,
    InputOptions,
    NetworkOptions,
    Seed,
    command,
    model_in,
    output_option,
)
from interbasin.cli.output import Terminal, foreign_code, in_options, number, print_facts, print_table
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.transport import Moved, Plan, Transport
    from interbasin.jobs.transport.result import ComparedRow
    from interbasin.outcome import Outcome

MEANINGS = {
    "effect_explained": "of what fine-tuning changed in SOURCE, on held-out inputs; 1 is all of it",
    "norm_ratio": "of the update for TARGET and that of SOURCE",
    "share_unobserved": "of the update, along directions that the data do not show",
    "cosine_before": "of the two networks' activations, mean over spaces",
    "cosine_after": "the same through the maps",
    "forgotten": "how far TARGET's answers to --generic moved",
    "forgotten_source": "how far TUNED's answers are from TARGET's there",
    "loss": "of the new network on --validate",
    "loss_base": "of TARGET",
    "loss_source": "of TUNED",
    "accuracy": "of the new network on --validate",
    "accuracy_base": "of TARGET",
    "accuracy_source": "of TUNED",
}
LOGITS = "logits"


@command
def transport(
    terminal: Terminal,
    *,
    source: Annotated[str, Argument(metavar="SOURCE", help=f"The base that was fine-tuned: {MODEL}.")],
    tuned: Annotated[
        str,
        Argument(
            metavar="TUNED",
            help="Its fine-tune: a folder of a LoRA of PEFT, a MODEL, a file of its weights, or what an earlier "
            "transport left.",
        ),
    ],
    target: Annotated[str, Argument(metavar="TARGET", help="The base that gets it: a MODEL, of other widths or not.")],
    data: Annotated[str, Option(help=f"Inputs of the task; labels are not looked at: {DATA}.")],
    output: Annotated[Path | None, output_option("Folder for the update, the account and the verdict.")] = None,
    method: Annotated[
        str, Option(help="One of those above; auto takes the one that explains most on held-out inputs.")
    ] = "auto",
    variant: Annotated[str | None, Option(help="Variant of the method, as listed above; by default its first.")] = None,
    scale: Annotated[
        str | None,
        Option(
            help="theseus: none, or rms, each map times the ratio of the activations' sizes. By default rms with auto, "
            "else none."
        ),
    ] = None,
    alpha: Annotated[
        str | None,
        Option(
            help="How much of the update: a number, or auto, by held-out inputs. By default auto with auto, else 1."
        ),
    ] = None,
    validate: Annotated[
        str | None, Option(help="Labelled DATA to choose by instead, and to see what the fine-tune is worth.")
    ] = None,
    generic: Annotated[
        str | None, Option(help="DATA of the kind TARGET was trained on: a regression keeps its answers there.")
    ] = None,
    generic_target: Annotated[
        str, Option(help="What --generic aims at: keep, TARGET's own activations, or tuned, those of TUNED.")
    ] = "keep",
    generic_weight: Annotated[
        float | None, Option(help="Weight of --generic, all together, relative to --data; more of it keeps more.")
    ] = None,
    outputs: Annotated[
        str,
        Option(help="Whether an output means the same in both networks: shared, own, or auto: shared if of one shape."),
    ] = "auto",
    readout: Annotated[
        str | None,
        Option(
            help="Outputs -> logits: package.module:function, or logits, if outputs are logits as they are. Without, "
            "outputs named logits are, and others are compared by squares."
        ),
    ] = None,
    heads: Annotated[
        str, Option(help="matched: a map for each head; free: maps mix them; auto: matched where numbers are equal.")
    ] = "auto",
    depth: Annotated[str, Option(help="How blocks are paired where depths differ: cka, even or auto.")] = "auto",
    tokens: Annotated[
        str, Option(help="Where numbers of tokens differ: interpolate2d, interpolate or mean.")
    ] = "interpolate2d",
    centered: Annotated[bool, Option("--centered/--uncentered", help="Look at activations about their means.")] = True,
    unobserved: Annotated[
        str, Option(help="Directions that the data do not show: complete (norms are kept) or drop.")
    ] = "complete",
    as_lora: Annotated[int | None, Option(min=1, help="Write a LoRA of this rank, whatever the method gives.")] = None,
    model: Annotated[
        bool, Option("--model", help="Also write TARGET with the update, with its configuration and tokenizer.")
    ] = False,
    compare: Annotated[bool, Option("--compare", help="Also try the baselines and controls, in one table.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show what would move, what the data show and what it costs; write nothing.")
    ] = False,
    limit: Annotated[int, Option(min=1, help="At most so many samples of each DATA, drawn with --seed.")] = 2000,
    input_options: InputOptions,
    network_options: NetworkOptions,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Give TARGET the fine-tune of SOURCE, without training, labels or gradients.

    Methods, with their variants and their papers (docs/references.bib):

    {methods of transport}

    A quarter of the inputs is held out, to choose by and to judge by. The last line is a verdict: copy, transport,
    train (a start for training), stay (with TUNED) or do-not, each with its reason; it is no error if it is do-not.
    Where DATA come in parts, train is taken.

    OUTPUT holds adapter, which PEFT loads, if the update is of low rank, else update.safetensors; verdict.txt, tables
    of all that was moved and seen (.csv), plots (.svg) and outcome.json; with --model also model.

    Examples:
      interbasin transport old old-lora new --data task.jsonl -o moved
      interbasin transport old old-lora new --data task.jsonl --dry-run
      interbasin transport old old-tuned new --data task.jsonl --generic web.txt --as-lora 16 -o moved
      interbasin transport my.nets:small@a my.nets:small@tuned my.nets:wide@b --data task.npz --readout logits -o moved
    """
    from interbasin.jobs.transport import METHODS, plan_transport
    from interbasin.jobs.transport import transport as move

    if output is None and not dry_run:
        raise typer.BadParameter("says where results go; give it, or --dry-run.", param_hint="-o")
    if method != "auto":
        METHODS[method].variant(variant)
    amount = _amount(alpha)
    if not dry_run:
        terminal.require_free(output, force=force)
    with terminal.status("Loading") as tell, foreign_code():
        loaded, other = (network_options.load(name, seed=seed) for name in (source, target))
        logits = None if readout is None else _readout(readout)
        batches = {
            name: None if text is None else _read(text, limit, input_options, source, target, loaded.inputs, seed)
            for name, text in (("data", data), ("validate", validate), ("generic", generic))
        }
        fine_tune = _fine_tune(tuned, network_options, seed)
        shared: dict[str, Any] = {
            "method": method,
            "variant": variant,
            "outputs": outputs,
            "generic": batches["generic"],
            "centered": centered,
            "tokens": tokens,
            "unobserved": unobserved,
            "heads": heads,
            "depth": depth,
            "seed": seed,
            "progress": tell,
        }
        weight: dict[str, Any] = {} if generic_weight is None else {"generic_weight": generic_weight}
        if dry_run:
            plan = plan_transport(loaded.model, fine_tune, other.model, batches["data"], **shared)
        else:
            result = move(
                loaded.model,
                fine_tune,
                other.model,
                batches["data"],
                alpha=amount,
                scale=scale,
                readout=logits,
                validate=batches["validate"],
                generic_target=generic_target,
                as_lora=as_lora,
                compare=compare,
                **weight,
                **shared,
            )
    if dry_run:
        terminal.result(_summary_of(plan), lambda console: _show_plan(console, terminal, plan))
        return
    assert output is not None
    known = {*result.request, "dry_run"}
    outcome = result.save(
        output,
        model=model,
        like=other.checkpoint,
        base=os.path.abspath(target) if os.path.exists(target) else target,
        inputs=terminal.inputs("source", "tuned", "target", "data", "validate", "generic"),
        request={name: value for name, value in terminal.request.items() if name not in known},
        force=force,
    )
    usable = _usable(output, target, result, model)
    verdict = {**asdict(result.verdict), "text": str(result.verdict)}
    more = {
        "output": str(output),
        "verdict": verdict,
        "candidates": {name: dict(row) for name, row in result.candidates.items()},
        "compared": [_without_nan(asdict(row)) for row in result.compared],
        "use": usable,
    }
    # Notes stand before the verdict, which comes last.
    terminal.result(
        {**outcome.summary(), **more}, lambda console: _show(console, terminal, outcome, result, output, usable)
    )


# ---------------------------------------------------------------------- what was given


def _amount(alpha: str | None) -> float | str | None:
    if alpha is None or alpha == "auto":
        return alpha
    try:
        return float(alpha)
    except ValueError as error:
        raise typer.BadParameter(f"takes a number, or auto, and got {alpha!r}.", param_hint="--alpha") from error


def _readout(name: str) -> Any:
    from interbasin.models.from_factory import import_function

    return (lambda found: found) if name == LOGITS else import_function(name, "readout")


def _fine_tune(tuned: str, network_options: NetworkOptions, seed: int) -> Any:
    """The fine-tune: a path, which is read tensor by tensor, or a network that has to be built."""
    if os.path.exists(os.path.expanduser(tuned)) and not network_options.trust_remote_code:
        return tuned
    return tuned if _is_adapter(tuned) else network_options.load(tuned, seed=seed).model


def _is_adapter(tuned: str) -> bool:
    """Whether TUNED is a LoRA: PEFT's folder, or that of a transport that left one."""
    return any(os.path.exists(os.path.join(tuned, place, "adapter_config.json")) for place in (".", "adapter"))


def _read(text: str, limit: int, input_options: InputOptions, source: str, target: str, like: Any, seed: int) -> Any:
    """Batches of one DATA, which both networks can take."""
    from interbasin.datasets.texts import TextSamples, require_same_tokens

    folders = [folder for folder in (_tokenizer(source), _tokenizer(target)) if folder is not None]
    first = source if _tokenizer(source) is not None or not folders else target
    reader: DataReader = input_options.open(text, model=first, like=like, seed=seed)
    batches = reader.read(reader.part_if_any("train"), limit)
    if isinstance(batches.samples, TextSamples):
        require_same_tokens(folders)
    return batches


def _tokenizer(model: str) -> str | None:
    """The folder of a network of transformers, if it holds a tokenizer."""
    from interbasin.models import parse_model
    from interbasin.models.from_transformers import snapshot

    name = parse_model(model)
    if name.kind not in ("folder", "hub"):
        return None
    folder = name.name if name.kind == "folder" else str(snapshot(name.name))
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
    return folder if any(os.path.exists(os.path.join(folder, file)) for file in files) else None


# ---------------------------------------------------------------------- what is shown


def _usable(output: Path, target: str, result: Transport, model: bool) -> dict[str, str]:
    """What to go on with: name -> path or MODEL."""
    usable = {"update": str(output / ("adapter" if result.delta.is_low_rank else "update.safetensors"))}
    if model and (name := model_in(target, str(output / "model"))):
        usable["model"] = name
    return usable


def _show(
    console: Console,
    terminal: Terminal,
    outcome: Outcome,
    result: Transport,
    output: Path,
    usable: Mapping[str, str],
) -> None:
    console.print(f"{result.method} ({result.variant}), alpha {result.metrics['alpha']:g}")
    tried = [
        (name, number(row["effect_explained"]), _interval(row["low"], row["high"]), f"{row['alpha']:g}")
        for name, row in result.candidates.items()
    ]
    print_table(console, ("method", "explains", "interval", "alpha"), tried)
    if result.compared:
        _show_compared(console, result.compared)
    _show_shares(console, result.moved)
    figures = [
        (name, number(outcome.metrics[name]), meaning) for name, meaning in MEANINGS.items() if name in outcome.metrics
    ]
    print_table(console, ("figure", "value", "meaning"), figures, words=(0, 2))
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
    if "model" in usable:
        console.print(f"use the new network as the MODEL {usable['model']}", soft_wrap=True)
    notes = list(outcome.notes)
    if _is_adapter(terminal.request["tuned"]) and not result.delta.is_low_rank:
        notes.append("The update is dense: --as-lora RANK gives a LoRA, and --method theseus keeps the rank of TUNED.")
    _show_notes(console, terminal, notes)
    console.print(str(result.verdict), soft_wrap=True)


def _show_compared(console: Console, compared: Sequence[ComparedRow]) -> None:
    """The baselines and controls; what could not be tried is listed below, with its reason."""
    beside = [name for name in ("accuracy", "forgotten") if any(getattr(row, name) is not None for row in compared)]
    rows = [
        (
            *(row.method, " ".join(row.needs) or "-", number(row.effect), _interval(row.low, row.high)),
            *(number(getattr(row, name)) for name in beside),
        )
        for row in compared
        if math.isfinite(row.effect)
    ]
    print_table(console, ("compared", "needs", "explains", "interval", *beside), rows, words=(0, 1))
    for row in compared:
        if not math.isfinite(row.effect):
            console.print(f"{row.method} could not be tried: {row.note}", style="dim", soft_wrap=True)


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON, in which what could not be measured is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _show_plan(console: Console, terminal: Terminal, plan: Plan) -> None:
    rows = [
        (row.source, row.target or "-", row.status, f"{row.share:.1%}", f"{row.unobserved:.1%}", row.reason)
        for row in plan.moved
    ]
    print_table(console, ("tensor", "goes to", "", "share", "unseen", "why"), rows, words=(0, 1, 2, 5))
    _show_shares(console, plan.moved)
    spaces = [
        (row.source, row.target, f"{row.widths[0]} -> {row.widths[1]}", f"{row.seen} of {row.full}")
        for row in plan.spaces
    ]
    print_table(console, ("space", "in TARGET", "widths", "directions seen"), spaces, words=(0, 1))
    facts = [
        ("outputs", "shared" if plan.shares_outputs else "each network has its own"),
        ("heads", plan.heads),
        *((f"time, {name}", f"about {_seconds(value)}") for name, value in plan.seconds.items()),
        ("memory", f"about {plan.memory / 1e6:,.0f} MB, beside the activations of a batch"),
    ]
    print_facts(console, facts)
    _show_notes(console, terminal, plan.notes)
    console.print("Nothing was written (--dry-run).")


def _summary_of(plan: Plan) -> dict[str, Any]:
    shares = {f"share_{status}": plan.share(status) for status in ("moved", "kept", "skipped")}
    return {"job": "transport", "dry_run": True, **asdict(plan), **shares}


def _show_shares(console: Console, moved: Sequence[Moved]) -> None:
    """How much was moved, kept and skipped, and for what reasons."""
    groups: dict[tuple[str, str], list[Moved]] = {}
    for row in moved:
        groups.setdefault((row.status, row.reason if row.status == "skipped" else ""), []).append(row)
    rows = [
        (status, plural(len(members), "tensor"), f"{sum(row.share for row in members):.1%}", _why(reason, members))
        for (status, reason), members in sorted(groups.items(), key=lambda item: _ORDER.index(item[0][0]))
    ]
    print_table(console, ("update", "tensors", "share", ""), rows, words=(0, 3))


_ORDER = ("moved", "kept", "skipped")


def _why(reason: str, members: Sequence[Moved]) -> str:
    from interbasin.text import list_names

    return f"{list_names(row.source for row in members)}: {reason}" if reason else ""


def _show_notes(console: Console, terminal: Terminal, notes: Sequence[str]) -> None:
    if not terminal.quiet:
        for note in notes:
            console.print(in_options(note, terminal.options), style="dim", soft_wrap=True)


def _interval(low: float, high: float) -> str:
    return f"[{low:.3f}, {high:.3f}]"


def _seconds(value: float) -> str:
    return f"{value:.1g} s" if value < 10 else f"{value:,.0f} s" if value < 600 else f"{value / 60:,.0f} min"
