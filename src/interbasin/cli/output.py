"""What every command shares: results on stdout, progress and remarks on stderr, errors in one sentence."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from interbasin.errors import InterbasinError
from interbasin.text import redact

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars and no remarks.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")]

ERROR, BUG, INTERRUPTED = 1, 70, 130
LONGEST = 300  # characters of a word that messages repeat in full; longer paths are rare


class Commands(TyperGroup):
    """The group of all commands: turns our errors into one sentence on stderr and exit code 1."""

    def make_context(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return super().make_context(*arguments, **keywords)
        except KeyboardInterrupt as error:  # which typer would answer without a word
            raise _interrupted(error) from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InterbasinError as error:
            if wants(ctx, "debug"):
                raise
            _complain(ctx, error, in_options(str(error), self._options(ctx)))
            raise typer.Exit(ERROR) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # which is how rich tells it
                sys.stdout = None
                raise typer.Exit(ERROR) from error
            # Nothing of ours leaves this way: it is code of the network's, which would go without a word.
            if wants(ctx, "debug"):
                raise
            _complain(
                ctx, error, f"the network's own code left the program, as sys.exit({error.code!r}) does; mend it."
            )
            raise typer.Exit(ERROR) from error
        except KeyboardInterrupt as error:
            raise _interrupted(error) from error
        except BrokenPipeError as error:
            # The reader of our output went away, as `head` does. Python would complain once more when it flushes.
            sys.stdout = None
            raise typer.Exit(ERROR) from error
        except (typer.Exit, typer.Abort):
            raise
        except (OSError, MemoryError) as error:
            if wants(ctx, "debug"):
                raise
            reason = getattr(error, "strerror", None) or str(error) or "out of memory"
            _complain(ctx, error, f"the system refused ({reason}); is there room, and leave, for what was asked?")
            raise typer.Exit(ERROR) from error
        except Exception as error:
            # Typer's usage errors carry an exit code of their own and a message that names the option.
            if hasattr(error, "exit_code"):
                if isinstance(getattr(error, "message", None), str):
                    error.message = redact(error.message)  # type: ignore[attr-defined]
                raise
            if wants(ctx, "debug"):
                raise
            _complain(
                ctx,
                error,
                f"an unexpected {type(error).__name__} ({error}). This is a bug in interbasin; run again with --debug "
                "and report what it shows.",
            )
            raise typer.Exit(BUG) from error

    def _options(self, ctx: Any) -> Mapping[str, str]:
        """Of the command that runs: name -> how it is written."""
        told = (ctx.obj or {}).get("options")  # by the command itself, which may stand below a group
        if told:
            return dict(told)
        command = self.commands.get(ctx.invoked_subcommand or "")
        return {} if command is None else options_of(command)


def options_of(command: Any) -> dict[str, str]:
    """The options of a command: name -> how it is written."""
    return {one.name: one.opts[-1] for one in command.params if one.opts[-1].startswith("--")}


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message of the library in the words of a command: what is ``name=`` in Python is ``--name`` there.

    Example:
        >>> in_options("pass data=, or reach='exact'; give more (sweeps=).", {"data": "--data", "reach": "--reach"})
        'pass --data, or --reach exact; give more (sweeps=).'
        >>> in_options("tokenizer= (--tokenizer) and a folder", {"tokenizer": "--tokenizer"})
        '--tokenizer and a folder'
    """
    if "fold" in options:
        text = text.replace("stay_in_class=False", options["fold"])

    def written(found: re.Match[str]) -> str:
        option = options.get(found["name"])
        if option is None:
            return found[0]
        value = found["word"] or found["number"]
        beside = re.fullmatch(r" (?:or|\() ?(.*?)\)?", found["beside"] or "")
        return beside[1] if beside else f"{option} {value}" if value else option

    pattern = (
        r"\b(?P<name>[a-z_]+)=(?:'(?P<word>[^']*)'|(?P<number>[\d.]*\d)|(?=[\s,;.)]|$))"
        r"(?P<beside> (?:or --[a-z-]+|\(--[^)]*\)))?"
    )
    return re.sub(pattern, written, text)


def _interrupted(error: KeyboardInterrupt) -> typer.Exit:
    """One line; a command that keeps what it did says so in the interrupt that it hands on."""
    print(f"Interrupted; {str(error) or 'nothing half-written was left behind.'}", file=sys.stderr)
    return typer.Exit(INTERRUPTED)


def _complain(ctx: Any, error: BaseException, message: str) -> None:
    """Say what went wrong, in one line; where JSON was asked for, there too."""
    said = shortened(redact(message))
    if wants(ctx, "json"):
        print(json.dumps({"error": type(error).__name__, "message": said}))
    print(f"Error: {said}", file=sys.stderr)


def shortened(text: str) -> str:
    """Text for one line of a terminal: names without end are cut in the middle, what cannot be printed is escaped.

    Example:
        >>> shortened("no file " + "a" * 500 + "!")[:20], len(shortened("a" * 500)), shortened("a\\nb")
        ('no file aaaaaaaaaaaa', 123, 'a\\\\nb')
    """
    plain = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return re.sub(rf"\S{{{LONGEST},}}", lambda found: f"{found[0][:80]}...{found[0][-40:]}", plain)


@contextlib.contextmanager
def foreign_code() -> Iterator[None]:
    """Around code that is not ours, such as a network's: what it prints goes to stderr, for stdout holds the result."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def wants(ctx: Any, flag: str) -> bool:
    """Whether a flag was given, before the command or behind it."""
    flags = (ctx.obj or {}) if ctx is not None else {}
    return bool(flags.get(flag))


@dataclass(frozen=True)
class Output:
    """Where a command's words go."""

    json: bool
    quiet: bool
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, ctx: typer.Context, *, json: bool, quiet: bool, debug: bool) -> Output:
        """The output that the flags ask for; a flag counts before the command's name as well as behind it."""
        flags = ctx.ensure_object(dict)
        for name, given in (("json", json), ("quiet", quiet), ("debug", debug)):
            flags[name] = bool(flags.get(name)) or given
        options = flags["options"] = options_of(ctx.command)
        return cls(json=flags["json"], quiet=flags["quiet"], options=options)

    def result(self, summary: Mapping[str, Any], show: Callable[[Console], None]) -> None:
        """Print the result: ``summary`` as JSON, or what ``show`` draws for people."""
        if self.json:
            print(json.dumps(summary, indent=2, allow_nan=False))
            return
        console = _console(stderr=False)
        if console.is_terminal:
            show(console)
            return
        # Tables are filled up with blanks, which are noise in a file or a pipe.
        with console.capture() as captured:
            show(console)
        print("\n".join(line.rstrip() for line in captured.get().split("\n")), end="")

    def remark(self, text: str) -> None:
        """A line for people, beside the result."""
        if not self.quiet:
            console = _console(stderr=True)
            console.print(in_options(text, self.options), style="dim", soft_wrap=not console.is_terminal)

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar on stderr; yields a function that takes how much is done."""
        if self.quiet:
            yield lambda done: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        console = _console(stderr=True)
        # In a file or a pipe a bar is noise.
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    @contextlib.contextmanager
    def status(self, what: str) -> Iterator[Callable[[str], None]]:
        """A line on stderr that says what is going on, for work whose length is not known; yields what changes it."""
        console = _console(stderr=True)
        if self.quiet or not console.is_terminal:
            yield lambda text: None
            return
        with console.status(what) as shown:
            yield lambda text: shown.update(text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> Any:
    """A table for people. The columns at the positions ``words`` hold words, the others numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for position, column in enumerate(columns):
        made.add_column(column, justify="left" if position in words else "right")
    for row in rows:
        # As text: a path may hold brackets, which rich would take for markup.
        made.add_row(*(Text(cell) for cell in row))
    return made


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]) -> None:
    """Print a table in which nothing is cut off: long names are broken on a screen, and whole in a file or a pipe."""
    from rich.measure import Measurement

    if console.is_terminal:
        rows = [[_broken(cell, max(3 * console.width // 10, 20)) for cell in row] for row in rows]
    made = table(columns, rows, words=words)
    for column in made.columns:
        column.overflow = "fold"
        column.no_wrap = column.header in ("space", "tensors", "share", "check")
    if not console.is_terminal:
        made.width = Measurement.get(console, console.options.update(width=10_000), made).maximum
    console.print(made, crop=False)


def _broken(cell: str, width: int) -> str:
    """A name on several lines, each no longer than ``width`` if its parts are not; words are left to the table.

    Example:
        >>> _broken("encoder.layers.{0..2}.self_attn.qkv", 22).splitlines()
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


def number(value: float | None) -> str:
    """A number for people: four significant digits; what is not known is a dash."""
    return "-" if value is None or value != value else f"{value:.4g}"


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, highlight=False)
