"""What every command shares: results on stdout, progress and remarks on stderr, errors in one sentence."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from interbasin.errors import InterbasinError
from interbasin.text import printable, redact

if TYPE_CHECKING:
    from rich.console import Console

    from interbasin.outcome import Outcome

ERROR, BUG, INTERRUPTED = 1, 70, 130
FLAGS = ("json", "quiet", "debug")
NAME = 12  # characters of a first column of names that are never given up for figures
LONGEST = 300  # characters of a word that messages repeat in full; longer paths are rare


class Commands(TyperGroup):
    """The group of all commands: turns our errors into one sentence on stderr and exit code 1."""

    def make_context(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return super().make_context(*arguments, **keywords)
        except KeyboardInterrupt as error:  # which typer would answer without a word
            raise _report_interrupt(error) from error
        except BrokenPipeError:  # which typer answers, without a word
            raise
        except OSError as error:  # help, and nowhere to show it
            _say(f"Error: {shorten(_explain(error, {})[0])}")
            raise typer.Exit(ERROR) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt as error:
            raise _report_interrupt(error) from error
        except (Exception, SystemExit) as error:
            # The reader of our output went away, as `head` does; rich leaves by SystemExit then.
            if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
                sys.stdout = None  # Python would complain once more when it flushes
                raise typer.Exit(ERROR) from error
            # Typer's usage errors carry an exit code of their own and a message that names the option.
            if hasattr(error, "exit_code"):
                if isinstance(getattr(error, "message", None), str):
                    error.message = printable(redact(error.message), keep="\n")  # type: ignore[union-attr]
                raise
            flags = ctx.obj or {}
            if flags.get("debug"):
                raise
            sentence, code = _explain(error, flags.get("options", {}))
            message = shorten(redact(sentence))
            if flags.get("json"):
                with contextlib.suppress(OSError):  # stdout may be what went wrong
                    print(json.dumps({"error": type(error).__name__, "message": message}))
            _say(f"Error: {message}")
            raise typer.Exit(code) from error


def _explain(error: BaseException, options: Mapping[str, str]) -> tuple[str, int]:
    """What went wrong, in one sentence, and the exit code."""
    if isinstance(error, InterbasinError):
        return in_options(str(error), options), ERROR
    if isinstance(error, SystemExit):  # nothing of ours leaves this way
        return f"the network's own code left the program, as sys.exit({error.code!r}) does; mend it.", ERROR
    if isinstance(error, OSError | MemoryError):
        reason = getattr(error, "strerror", None) or str(error) or "out of memory"
        return f"the system refused ({reason}); is there room, and leave, for what was asked?", ERROR
    bug = "This is a bug in interbasin; run again with --debug and report what it shows."
    return f"an unexpected {type(error).__name__} ({error}). {bug}", BUG


def options_of(command: Any) -> dict[str, str]:
    """The options of a command: name -> how it is written."""
    return {option.name: option.opts[-1] for option in command.params if option.opts[-1].startswith("--")}


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message of the library in the words of a command: what is ``name=`` in Python is ``--name`` there.

    Example:
        >>> in_options("pass data=, or reach='exact'; give more (sweeps=).", {"data": "--data", "reach": "--reach"})
        'pass --data, or --reach exact; give more (sweeps=).'
        >>> in_options("tokenizer= (--tokenizer) and a folder", {"tokenizer": "--tokenizer"})
        '--tokenizer and a folder'
        >>> in_options('use task="dense", or force=True.', {"task": "--task", "force": "--force"})
        'use --task dense, or --force.'
    """
    if "fold" in options:
        text = text.replace("stay_in_class=False", options["fold"])

    def spell(argument: re.Match[str]) -> str:
        option = options.get(argument["name"])
        if option is None:
            return argument[0]
        value = argument["word"] or argument["quoted"] or argument["number"]
        beside = re.fullmatch(r" (?:or|\() ?(.*?)\)?", argument["beside"] or "")
        return beside[1] if beside else f"{option} {value}" if value else option

    pattern = (
        r"\b(?P<name>[a-z_]+)=(?:'(?P<word>[^']*)'|\"(?P<quoted>[^\"]*)\"|(?P<number>[\d.]*\d)|True\b|(?=[\s,;.)]|$))"
        r"(?P<beside> (?:or --[a-z-]+|\(--[^)]*\)))?"
    )
    return re.sub(pattern, spell, text)


def _report_interrupt(error: KeyboardInterrupt) -> typer.Exit:
    """One line; a command that keeps what it did says so in the interrupt that it hands on."""
    _say(f"Interrupted; {shorten(str(error)) or 'nothing half-written was left behind.'}")
    return typer.Exit(INTERRUPTED)


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # where stderr is full, the exit code still tells
        print(sentence, file=sys.stderr)


def shorten(text: str) -> str:
    """Text for one line of a terminal: names without end are cut in the middle, what cannot be printed is escaped.

    Example:
        >>> shorten("no file " + "a" * 500 + "!")[:20], len(shorten("a" * 500)), shorten("a\\nb")
        ('no file aaaaaaaaaaaa', 123, 'a\\\\nb')
    """
    return re.sub(rf"\S{{{LONGEST},}}", lambda word: f"{word[0][:80]}...{word[0][-40:]}", printable(text))


def foreign_code() -> contextlib.AbstractContextManager[Any]:
    """Around code that is not ours, such as a network's: what it prints goes to stderr, for stdout holds the result."""
    return contextlib.redirect_stdout(sys.stderr)


@dataclass(frozen=True)
class Terminal:
    """Where a command writes: its result to stdout, progress and remarks to stderr."""

    json: bool  # the result is printed as JSON
    quiet: bool  # no progress bars and no remarks
    request: Mapping[str, Any] = field(default_factory=dict)  # what was asked, by the names of the parameters
    given: frozenset[str] = frozenset()  # the parameters that stand on the command line; others have their defaults
    options: Mapping[str, str] = field(default_factory=dict)  # the options of the command: name -> how it is written

    @classmethod
    def of(cls, ctx: typer.Context, behind: Mapping[str, bool]) -> Terminal:
        """The terminal that the flags ask for; a flag counts before the command's name as well as behind it."""
        flags = ctx.ensure_object(dict)
        for name in FLAGS:
            flags[name] = bool(flags.get(name)) or behind[name]
        flags["options"] = options_of(ctx.command)
        # Whether an earlier outcome may be replaced is no part of what made this one.
        request = {name: value for name, value in ctx.params.items() if name not in ("ctx", "force", *FLAGS)}
        sources = {name: ctx.get_parameter_source(name) for name in request}
        named = frozenset(name for name, source in sources.items() if source and source.name == "COMMANDLINE")
        return cls(flags["json"], flags["quiet"], request, named, flags["options"])

    def result(self, summary: Mapping[str, Any], show: Callable[[Console], None], remarks: Iterable[str] = ()) -> None:
        """Print the result: ``summary`` as JSON, or what ``show`` draws for people; then the remarks."""
        if self.json:
            print(json.dumps(summary, indent=2, allow_nan=False))
        elif (console := _console(stderr=False)).is_terminal:
            show(console)
        else:
            # Tables are filled up with blanks, which are noise in a file or a pipe.
            with console.capture() as captured:
                show(console)
            print("\n".join(line.rstrip() for line in captured.get().split("\n")), end="")
        for text in remarks:
            self.remark(text)

    def outcome(self, outcome: Outcome, output: Path, show: Callable[[Console], None], **more: Any) -> None:
        """Print what a job left in a folder, and more; its notes are the remarks."""
        self.result({**outcome.summary(), "output": str(output), **more}, show, outcome.notes)

    def require_free(self, output: Path | None, *, force: bool) -> None:
        """Refuse a folder that holds anything but an outcome to be replaced, before long work begins."""
        from interbasin.outcome import refuse_outcome_in_the_way

        if output is not None:
            refuse_outcome_in_the_way(output, force=force)

    def inputs(self, *names: str) -> dict[str, Any]:
        """Those of the parameters that were given: the files and networks that an outcome names by their hashes."""
        return {name: value for name in names if (value := self.request[name]) is not None}

    def remark(self, text: str) -> None:
        """A line for people, beside the result."""
        if not self.quiet:
            console = _console(stderr=True)
            console.print(in_options(text, self.options), style="dim", soft_wrap=not console.is_terminal)

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[..., None]]:
        """A progress bar on stderr; yields a function that takes how much is done, and what stands beside it."""
        if self.quiet:
            yield lambda done, words=what: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from interbasin.cli.console import description_column

        columns = description_column(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        console = _console(stderr=True)
        # In a file or a pipe a bar is noise.
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(printable(what), total=total)
            yield lambda done, words=what: bar.update(task, completed=done, description=printable(words))

    @contextlib.contextmanager
    def trainings(self, what: str) -> Iterator[tuple[Callable[[str], None], Callable[[int, int | None, float], None]]]:
        """A bar on stderr for one training after the other.

        Yields a function that takes words for what is going on, and one that takes a step, the number of all steps of
        its training and the loss.
        """
        console = _console(stderr=True)
        if self.quiet or not console.is_terminal:
            yield lambda words: None, lambda step, steps, loss: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        words, last = what, 0
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)

            def tell(text: str) -> None:
                nonlocal words, last, task
                words, last = text, 0
                bar.remove_task(task)  # how long the next one is, is not known yet
                task = bar.add_task(text, total=None)

            def show_step(step: int, steps: int | None, loss: float) -> None:
                nonlocal last
                if step <= last or not last:  # another training: its time is counted from here
                    bar.reset(task, total=steps, completed=step - 1)
                last = step
                bar.update(task, completed=step, description=f"{words}: loss {loss:.4g}")

            yield tell, show_step

    @contextlib.contextmanager
    def progress_of_rows(self, what: str, kept: str | None) -> Iterator[Callable[[int, int], None]]:
        """A progress bar; yields a function that takes how many rows are done, and of how many.

        ``kept`` says where rows are kept when the command is interrupted, and is None where they are not.
        """
        bar, state = None, (0, 0)

        def report(done: int, rows: int) -> None:
            nonlocal bar, state
            state = done, rows
            if bar is None:  # how many rows there are is not known before the first report
                bar = stack.enter_context(self.progress(what, rows))
            bar(done)

        with contextlib.ExitStack() as stack:
            try:
                yield report
            except KeyboardInterrupt as error:
                if kept is None or str(error):  # which says already what is there
                    raise
                # Before the first report an earlier run may have left rows, and the last ones are not reported yet.
                rows = f"{state[0]:,} of {state[1]:,} rows" if state[0] else "rows that were done, if any,"
                raise KeyboardInterrupt(f"{rows} are kept{kept}: run the same command to go on.") from error

    @contextlib.contextmanager
    def status(self, what: str) -> Iterator[Callable[[str], None]]:
        """A line on stderr that says what is going on, for work whose length is not known; yields what changes it."""
        console = _console(stderr=True)
        if self.quiet or not console.is_terminal:
            yield lambda text: None
            return
        from interbasin.cli.console import plain

        with console.status(plain(what)) as shown:
            yield lambda text: shown.update(plain(text))


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Sequence[int] = (0,),
    *,
    whole_figures: bool = False,
) -> None:
    """Print a table in which nothing is cut off: long names are broken on a screen, and whole in a file or a pipe.

    The columns at the positions ``words`` hold words, the others numbers. With ``whole_figures`` no column but a first
    one of words is broken, on a screen of 80 columns either, and that one not below `NAME` characters.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns), collapse_padding=whole_figures)
    for position, title in enumerate(columns):
        whole = (position > 0 or 0 not in words) if whole_figures else title in ("space", "tensors", "share", "check")
        grid.add_column(
            title,
            justify="left" if position in words else "right",
            no_wrap=whole,
            min_width=NAME if whole_figures and position == 0 and position in words else None,
            overflow="ellipsis" if whole_figures else "fold",
        )
    is_broken = console.is_terminal and not whole_figures
    for row in (tuple(map(printable, row)) for row in rows):
        cells = [_break_name(cell, max(3 * console.width // 10, 20)) if is_broken else cell for cell in row]
        grid.add_row(*map(Text, cells))  # as text: a path may hold brackets, which rich would take for markup
    if not console.is_terminal:
        grid.width = Measurement.get(console, console.options.update(width=10_000), grid).maximum
    console.print(grid, crop=False)


def print_facts(console: Console, facts: Sequence[tuple[str, str]]) -> None:
    """Print names and what is known of each, without a heading."""
    print_table(console, ("", ""), facts, words=(0, 1))


def _break_name(cell: str, width: int) -> str:
    """A name on several lines, each no longer than ``width`` if its parts are not; words are left to the table.

    Example:
        >>> _break_name("encoder.layers.{0..2}.self_attn.qkv", 22).splitlines()
        ['encoder.layers.{0..2}.', 'self_attn.qkv']
    """
    if " " in cell:
        return cell
    lines = [""]
    for part in re.split(r"(?<=\.)(?![^{]*\})", cell):  # behind dots, but not those inside braces
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def print_metrics(
    console: Console, metrics: Mapping[str, float], meanings: Mapping[str, str], columns: Mapping[str, str]
) -> None:
    """Print what two networks are measured by: metrics with their meanings, then a table of spaces.

    ``columns`` are those of the second: title -> measure, for metrics ``measure.space``; empty ones are left out.
    """
    rows = [(name, number(metrics[name]), meaning) for name, meaning in meanings.items() if name in metrics]
    print_table(console, ("figure", "value", "meaning"), rows, words=(0, 2))
    relative = "alignment_error_relative."
    spaces = [name.removeprefix(relative) for name in metrics if name.startswith(relative)]
    shown = {title: key for title, key in columns.items() if any(f"{key}.{space}" in metrics for space in spaces)}
    if spaces:
        cells = [[space, *(number(metrics.get(f"{key}.{space}")) for key in shown.values())] for space in spaces]
        print_table(console, ("space", *shown), cells)


def number(value: float | None) -> str:
    """A number for people: four significant digits; what is not known is a dash."""
    return "-" if value is None or value != value else f"{value:.4g}"


def _console(*, stderr: bool) -> Console:
    from interbasin.cli.console import PlainConsole

    return PlainConsole(stderr=stderr)
