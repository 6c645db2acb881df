"""What ``interbasin transport`` prints: tables for people, and what JSON holds beside the summary of the outcome."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interbasin.cli.options import model_in
from interbasin.cli.output import Terminal, in_options, number, print_facts, print_table
from interbasin.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.transport import Moved, Plan, Transport
    from interbasin.jobs.transport.result import ComparedRow, FrontRow
    from interbasin.outcome import Outcome

MEANINGS = {
    "effect_explained": "of the way from TARGET's answers to TUNED's, on held-out inputs; 1 is all of it",
    "norm_ratio": "of the update for TARGET and that of SOURCE",
    "share_unobserved": "of the update, along directions that the data do not show",
    "cosine_before": "of the two networks' activations, mean over spaces",
    "cosine_after": "the same through the maps",
    "forgotten": "how far TARGET's answers to --generic moved",
    "forgotten_source": "how far TUNED's answers are from TARGET's there",
    "answers_changed": "share of TARGET's answers to --generic that are others now",
    "answers_changed_source": "share of them that TUNED gives otherwise",
    "loss": "of the new network on --validate",
    "loss_base": "of TARGET",
    "loss_source": "of TUNED",
    "accuracy": "of the new network on --validate",
    "accuracy_base": "of TARGET",
    "accuracy_source": "of TUNED",
    "loss_warm": "of the new network on --validate, after --then-train",
    "loss_cold": "of TARGET, trained likewise",
    "accuracy_warm": "of the new network on --validate, after --then-train",
    "accuracy_cold": "of TARGET, trained likewise",
}


def is_adapter(tuned: str) -> bool:
    """Whether TUNED is a LoRA: PEFT's folder, or that of a transport that left one."""
    return any(os.path.exists(os.path.join(tuned, place, "adapter_config.json")) for place in (".", "adapter"))


def name_results(output: Path, target: str, *, low_rank: bool, networks: Mapping[str, bool]) -> dict[str, str]:
    """What to go on with: name -> path or MODEL. ``networks`` says which folders of them were written."""
    usable = {"update": str(output / ("adapter" if low_rank else "update.safetensors"))}
    for place, is_written in networks.items():
        if is_written and (name := model_in(target, str(output / place))):
            usable[place] = name
    return usable


def show_result(
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
        show_compared(console, result.compared)
    if result.front:
        _show_front(console, result.front)
    show_shares(console, result.moved)
    figures = [
        (name, number(outcome.metrics[name]), meaning) for name, meaning in MEANINGS.items() if name in outcome.metrics
    ]
    print_table(console, ("figure", "value", "meaning"), figures, words=(0, 2))
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
    if "model" in usable:
        console.print(f"use the new network as the MODEL {usable['model']}", soft_wrap=True)
    if result.trained is not None:
        console.print(str(result.trained), soft_wrap=True)
        if "trained" in usable:
            console.print(f"use the trained network as the MODEL {usable['trained']}", soft_wrap=True)
    notes = list(outcome.notes)
    is_merged = terminal.request["also"] or terminal.request["merge"] == "ties"
    if is_merged and is_adapter(terminal.request["tuned"]) and not result.delta.is_low_rank:
        notes.append("The update is dense: --as-lora RANK gives a LoRA.")
    show_notes(console, terminal, notes)
    console.print(str(result.verdict), soft_wrap=True)


def show_compared(console: Console, compared: Sequence[ComparedRow]) -> None:
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


def _show_front(console: Console, front: Sequence[FrontRow]) -> None:
    beside = [name for name in ("accuracy",) if any(getattr(row, name) is not None for row in front)]
    rows = [
        (
            *(row.point, "-" if row.generic_weight is None else f"{row.generic_weight:g}"),
            *(number(row.effect), _interval(row.low, row.high), number(row.forgotten)),
            *(number(getattr(row, name)) for name in beside),
        )
        for row in front
    ]
    print_table(console, ("front", "generic weight", "explains", "interval", "forgotten", *beside), rows)


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON, in which what could not be measured is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def show_plan(console: Console, terminal: Terminal, plan: Plan) -> None:
    rows = [
        (row.source, row.target or "-", row.status, f"{row.share:.1%}", f"{row.unobserved:.1%}", row.reason)
        for row in plan.moved
    ]
    print_table(console, ("tensor", "goes to", "", "share", "unseen", "why"), rows, words=(0, 1, 2, 5))
    show_shares(console, plan.moved)
    spaces = [
        (row.source, row.target, f"{row.widths[0]} -> {row.widths[1]}", f"{row.seen} of {row.full}")
        for row in plan.spaces
    ]
    print_table(console, ("space", "in TARGET", "widths", "directions seen"), spaces, words=(0, 1))
    facts = [
        ("outputs", "shared" if plan.shares_outputs else "each network has its own"),
        ("heads", plan.heads),
        *((f"time, {name}", f"about {in_seconds(value)}") for name, value in plan.seconds.items()),
        ("memory", f"about {plan.memory / 1e6:,.0f} MB, beside the activations of a batch"),
    ]
    print_facts(console, facts)
    show_notes(console, terminal, plan.notes)
    console.print("Nothing was written (--dry-run).")


def summarize_plan(plan: Plan) -> dict[str, Any]:
    shares = {f"share_{status}": plan.share(status) for status in ("moved", "kept", "skipped")}
    return {"job": "transport", "dry_run": True, **asdict(plan), **shares}


def show_shares(console: Console, moved: Sequence[Moved]) -> None:
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


def show_notes(console: Console, terminal: Terminal, notes: Sequence[str]) -> None:
    """The notes, in the words of the command, unless it is to be quiet."""
    if not terminal.quiet:
        for note in notes:
            console.print(in_options(note, terminal.options), style="dim", soft_wrap=True)


def _interval(low: float, high: float) -> str:
    return f"[{low:.3f}, {high:.3f}]"


def in_seconds(value: float) -> str:
    """A time for people."""
    return f"{value:.1g} s" if value < 10 else f"{value:,.0f} s" if value < 600 else f"{value / 60:,.0f} min"
