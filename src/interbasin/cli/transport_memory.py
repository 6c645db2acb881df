"""``interbasin transport --memory``: networks that are larger than memory, whose weights stay in their files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from interbasin.cli.options import size
from interbasin.cli.output import Terminal, foreign_code, number, print_facts, print_table
from interbasin.cli.transported import MEANINGS, in_seconds, name_results, show_notes, show_shares

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.jobs.transport.theseus.on_disk import Written
    from interbasin.outcome import Outcome

# Options that belong to what is judged, or to other methods than theseus.
NOT_FOR_DISK = (
    *("validate", "generic", "generic_target", "generic_weight", "front", "front_weights", "readout", "as_lora"),
    *("compare", "then_train", "train_data", "rate"),
)


@dataclass(frozen=True)
class MemoryOptions:
    """Networks that are larger than memory."""

    memory: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="For networks larger than memory: by theseus, with weights left in their files and at most so much of "
            "statistics and maps held at once (8GB, 500MB). Nothing is judged.",
        ),
    ] = None

    def __post_init__(self) -> None:
        self.bytes()

    def bytes(self) -> int | None:
        """How much memory statistics and maps may take, or None: networks are loaded as usual."""
        return size(self.memory, "--memory", "8GB")


def refuse_with_memory(terminal: Terminal, options: MemoryOptions) -> None:
    """Refuse options that have no part in a transport on disk, in one sentence that says what to leave out."""
    if options.memory is None:
        return
    request = terminal.request
    odd = [terminal.options[name] for name in NOT_FOR_DISK if name in terminal.given]
    if request["method"] not in ("auto", "theseus"):
        odd.insert(0, f"--method {request['method']}")
    if request["variant"] not in (None, "spaces"):
        odd.insert(0, f"--variant {request['variant']}")
    if request["alpha"] == "auto":
        odd.insert(0, "--alpha auto")
    if odd:
        from interbasin.text import list_names

        raise typer.BadParameter(
            f"carries the update by theseus and judges nothing, so that {list_names(odd, most=len(odd))} cannot be had "
            f"with it; leave {'that' if len(odd) == 1 else 'these'} out, or --memory.",
            param_hint="--memory",
        )


def move_on_disk(
    terminal: Terminal, arguments: tuple[Any, ...], target: str, *, memory: int, dry_run: bool, **options: Any
) -> None:
    """Transport on disk, with what it takes printed first, and print what it left.

    Args:
        terminal: Where to.
        arguments: What `transport_on_disk` takes: the networks, the data and the folder.
        target: The MODEL that gets the update.
        memory: Bytes.
        dry_run: Whether only what it takes is asked for.
        **options: Of `transport_on_disk`.
    """
    from interbasin.jobs.transport import transport_on_disk

    request = {name: value for name, value in terminal.request.items() if name != "dry_run"}
    with _report_stages(terminal) as report, foreign_code():
        written = transport_on_disk(
            *arguments, memory=memory, dry_run=dry_run, request=request, progress=None if dry_run else report, **options
        )
    estimate = {
        "passes": len(written.stages.passes),
        "memory": written.stages.memory,
        "seconds": written.stages.seconds,
    }
    if written.outcome is None:
        plan = {"job": "transport", "dry_run": True, **estimate, "notes": list(written.notes)}
        terminal.result(plan, lambda console: _show_plan(console, terminal, written))
        return
    output = Path(arguments[-1])
    networks = {"model": bool(options["model"])}
    usable = name_results(output, target, low_rank=written.is_low_rank, networks=networks)
    more = {"output": str(output), "verdict": None, "estimate": estimate, "use": usable}
    outcome = written.outcome
    terminal.result(
        {**outcome.summary(), **more}, lambda console: _show(console, terminal, written, outcome, output, usable)
    )


@contextlib.contextmanager
def _report_stages(terminal: Terminal) -> Iterator[Callable[[str], None]]:
    """What takes the lines of a transport on disk: the first, which says what it takes, stays; the others pass."""
    with contextlib.ExitStack() as stack:
        shown = [stack.enter_context(terminal.status("Tracing both networks"))]

        def report(text: str) -> None:
            if len(shown) == 1:
                stack.close()
                terminal.remark(text)
                shown.append(stack.enter_context(terminal.status(text)))
            else:
                shown[-1](text)

        yield report


def _show_plan(console: Console, terminal: Terminal, written: Written) -> None:
    stages = written.stages
    facts = [
        ("passes over the data", str(len(stages.passes))),
        ("time", f"about {in_seconds(stages.seconds)}"),
        ("memory", f"about {stages.memory / 1e6:,.0f} MB, beside the activations of a batch"),
    ]
    print_facts(console, facts)
    show_notes(console, terminal, written.notes)
    console.print("Nothing was written (--dry-run).")


def _show(
    console: Console,
    terminal: Terminal,
    written: Written,
    outcome: Outcome,
    output: Path,
    usable: Mapping[str, str],
) -> None:
    console.print(f"theseus (spaces), alpha {outcome.metrics['alpha']:g}")
    show_shares(console, written.moved)
    figures = [
        (name, number(outcome.metrics[name]), meaning) for name, meaning in MEANINGS.items() if name in outcome.metrics
    ]
    print_table(console, ("figure", "value", "meaning"), figures, words=(0, 2))
    console.print(f"written to {output}: {', '.join(outcome.written())}", soft_wrap=True)
    if "model" in usable:
        console.print(f"use the new network as the MODEL {usable['model']}", soft_wrap=True)
    show_notes(console, terminal, written.notes)
