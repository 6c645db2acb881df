"""``interbasin inspect``: the spaces of a network, what can move in them, and what cannot and why."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interbasin.cli.output import Debug, Json, Output, Quiet, number, table
from interbasin.cli.wirings import Fixed, Line, fixed, fold, share_moved, tensors_at

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from interbasin.networks.models import LoadedModel
    from interbasin.networks.wiring import Wiring

__all__ = ["inspect"]

MEANING = "largest relative change of the outputs under random exact maps"
# Random maps add rounding, and no more: beyond this, in the precision of the check, something else was changed.
LARGEST_CHANGE = {"float64": 1e-8, "float32": 1e-4}
LISTED = 5  # names of unused tensors that people are shown without --all


def inspect(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder or hub id of transformers, a PEFT adapter folder, timm:NAME[@weights], or "
            "package.module:factory[@weights].",
        ),
    ],
    inputs: Annotated[
        Path | None,
        typer.Option(help="Example inputs: .npy, .npz, .pt or .safetensors; named arrays are keyword arguments."),
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="Shape of example inputs to draw, batch first: 1,3,224,224.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="MODEL that an adapter belongs to, if not the one it names.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that comes with a folder of transformers.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Refuse weights that the network has no use for.")
    ] = True,
    seed: Annotated[
        int, typer.Option(help="Of the check's maps, and of inputs and weights where none were given.")
    ] = 0,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Carry the network through random maps and compare its outputs.")
    ] = True,
    each: Annotated[bool, typer.Option("--each", help="Also check a space at a time.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="Also show what every tensor writes and reads.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List every space, fixed ones too, with the reason for its group.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to save the wiring to, for Wiring.load.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier wiring in OUTPUT.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show the spaces of MODEL: their widths, the maps that change nothing, and what is fixed and why.

    The network is traced on one batch of example inputs; no architecture is known by name. The check then carries it
    through random maps that should change nothing, and tells how much its outputs changed. Spaces that are alike in
    layers that repeat share a line, as blocks.{0..11}.mlp.fc1.

    Examples:

      interbasin inspect timm:resnet18

      interbasin inspect folder-of-transformers --each --json

      interbasin inspect my.networks:small@weights.safetensors --input-shape 1,3,32,32 --tensors -o wiring
    """
    words = Output.of(ctx, json=json, quiet=quiet, debug=debug)
    shape = _shape(input_shape)
    if each and not check:
        raise typer.BadParameter("asks for the check a space at a time, and --no-check for none.", param_hint="--each")
    from interbasin.networks.models import load_model
    from interbasin.networks.wiring import wire
    from interbasin.storage import refuse_what_is_in_the_way

    if output is not None:
        refuse_what_is_in_the_way(output, ("wiring",), force=force)
    clock = _Clock()
    with words.progress("Loading, wiring, checking", 3) as done:
        loaded = load_model(
            model,
            inputs=inputs,
            input_shape=shape,
            base=base,
            strict=strict,
            trust_remote_code=trust_remote_code,
            seed=seed,
        )
        batch = loaded.require_inputs()
        clock.took("load")
        done(1)
        wiring = wire(loaded.model, batch)
        clock.took("wire")
        done(2)
        change, checks, dtype = _checked(loaded, wiring, seed, each) if check else (None, None, None)
        if check:
            clock.took("check")
    if output is not None:
        wiring.save(output, force=force)
    seen = Seen(loaded, wiring, change, checks, dtype, tensors, everything, output)
    words.result({**seen.summary(), "seed": seed, "seconds": clock.seconds}, seen.show)
    _remark(words, seen, clock.seconds)


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"takes sizes with commas between them, as 1,3,224,224, and got {text!r}.", param_hint="--input-shape"
        ) from error


class _Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def took(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what], self.last = now - self.last, now


def _checked(loaded: LoadedModel, wiring: Wiring, seed: int, each: bool) -> tuple[float, dict[str, float] | None, str]:
    """The check's figure, the same a space at a time if asked, and the precision they were made in."""
    import warnings

    model, batch, dtype = _precise(loaded.model, loaded.require_inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the network's own code warns of is no news about its wiring
        change = wiring.check(model, batch, seed=seed)
        return change, wiring.check(model, batch, seed=seed, each=True) if each else None, dtype


def _precise(model: nn.Module, batch: Any) -> tuple[nn.Module, Any, str]:
    """A network and its inputs; in float32 if it is in a half type, whose own rounding would drown the figure."""
    import copy

    import torch

    dtypes = {one.dtype for one in model.parameters() if one.is_floating_point()}
    if not dtypes & {torch.float16, torch.bfloat16}:
        return model, batch, _name(max(dtypes, key=lambda one: -one.itemsize, default=torch.float32))
    cast = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda one: one.float() if one.is_floating_point() else one, batch
    )
    return copy.deepcopy(model).float(), cast, "float32"


# ---------------------------------------------------------------------- what was seen


@dataclass(frozen=True)
class Seen:
    """A network, its wiring and the check, to be told as JSON or as tables."""

    loaded: LoadedModel
    wiring: Wiring
    change: float | None
    checks: Mapping[str, float] | None
    check_dtype: str | None
    tensors: bool
    everything: bool
    output: Path | None

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each parameter holds; tied ones stand here once, under the name that the wiring uses."""
        tied, found = self.wiring.tied, {}
        for name, one in self.loaded.model.named_parameters():
            found[tied.get(name, name)] = one.numel()
        return found

    @property
    def parameters(self) -> int:
        return sum(self.sizes.values())

    @property
    def is_suspicious(self) -> bool:
        """Whether the check's figure is larger than rounding makes it."""
        return self.change is not None and not self.change <= LARGEST_CHANGE.get(self.check_dtype or "", float("inf"))

    def summary(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        from interbasin.networks.wiring.notation import line

        loaded, wiring = self.loaded, self.wiring
        found: dict[str, Any] = {
            "model": {
                "name": loaded.text,
                "class": type(loaded.model).__name__,
                "family": loaded.family,
                "dtype": _dtype(loaded.model),
                "inputs": _described(loaded.require_inputs()),
                "weights": None if loaded.checkpoint is None else str(loaded.checkpoint.path),
            },
            "parameters": self.parameters,
            "share_moved": share_moved(wiring, self.sizes),
            "coverage": wiring.coverage,
            "check": _finite(self.change),
            "check_dtype": self.check_dtype,
        }
        if self.checks is not None:
            found["checks"] = {name: _finite(value) for name, value in self.checks.items()}
        document = wiring.to_json()
        found |= {
            "spaces": document["spaces"],
            "fixed": [one.to_json() for one in fixed(wiring, self.sizes)],
            "unknown_operators": document["unknown"],
            "unused_tensors": document["unused"],
            "tied_tensors": document["tied"],
        }
        if self.tensors:
            found["tensors"] = {name: line(tensor.axes) for name, tensor in wiring.tensors.items()}
        if self.output is not None:
            found["output"] = str(self.output)
        return found

    def show(self, console: Console) -> None:
        """The same for people: what it is, its spaces, what is fixed, and what is missing."""
        _print(console, ("", ""), self._facts(), words=(0, 1))
        self._show_spaces(console)
        _show_fixed(console, fixed(self.wiring, self.sizes), self.everything)
        if self.wiring.unknown:
            console.print("Operators without a rule, which fix all that they touch:")
            rows = [(name, str(count)) for name, count in self.wiring.unknown.items()]
            _print(console, ("operator", "times"), rows, words=(0,))
        if self.wiring.unused:
            names = self.wiring.unused if self.everything else self.wiring.unused[:LISTED]
            more = len(self.wiring.unused) - len(names)
            console.print(
                f"{len(self.wiring.unused)} tensors that the call did not touch: {', '.join(names)}"
                + (f" and {more} more (--all)." if more else "."),
                soft_wrap=True,
            )
        if self.tensors:
            console.print("Every tensor: what it writes <- what it reads.\n")
            console.print(str(self.wiring), soft_wrap=True)

    def _facts(self) -> list[tuple[str, str]]:
        model, wiring = self.loaded.model, self.wiring
        moving = [space for space in wiring.spaces.values() if not space.is_fixed]
        check = (
            "not made (--no-check)"
            if self.change is None
            else f"{number(self.change)}  ({MEANING}, in {self.check_dtype})"
        )
        facts = [
            ("model", f"{type(model).__name__}, {self.parameters:,} parameters in {_dtype(model)}"),
            ("inputs", _described(self.loaded.require_inputs())),
            ("spaces", f"{len(wiring.spaces)}, of which {len(moving)} can move"),
            ("coverage", f"{wiring.coverage:.1%}  (of the axes that could move, those that can, by parameters)"),
            ("moved", f"{share_moved(wiring, self.sizes):.1%}  (of the parameters lie along an axis that can move)"),
            ("check", check),
        ]
        return [*facts, *([("written to", str(self.output))] if self.output is not None else [])]

    def _show_spaces(self, console: Console) -> None:
        spaces = list(self.wiring.spaces.values())
        if self.everything:
            lines = [Line(space.name, (space,)) for space in spaces]
        else:
            modules = {name for name, _ in self.loaded.model.named_modules()}
            lines = fold([space for space in spaces if not space.is_fixed], modules)
        sizes, total, checks = self.sizes, max(self.parameters, 1), self.checks
        columns: dict[str, Callable[[Line], str]] = {
            "space": lambda one: one.name,
            "count": lambda one: str(len(one.spaces)),
            "width": lambda one: str(one.first.width),
            "group": lambda one: one.first.describe(),
            "tensors": lambda one: "/".join(
                str(len(tensors_at(places))) for places in (one.first.writes, one.first.reads, one.first.scales)
            ),
            "share": lambda one: f"{sum(sizes.get(name, 0) for name in one.tensors) / total:.1%}",
        }
        if all(len(one.spaces) == 1 for one in lines):
            del columns["count"]
        if checks is not None:
            columns["check"] = lambda one: (
                "-" if one.first.is_fixed else f"{max(checks[each.name] for each in one.spaces):.1e}"
            )
        if self.everything:
            columns["because"] = lambda one: str(one.first.because or "")
        words = [place for place, column in enumerate(columns) if column in ("space", "group", "because")]
        _print(console, list(columns), [[cell(one) for cell in columns.values()] for one in lines], words)
        console.print(
            "Tensors: how many write, read and scale the space. Share: of all parameters, those in these tensors.\n",
            style="dim",
        )


def _remark(words: Output, seen: Seen, seconds: Mapping[str, float]) -> None:
    if seen.is_suspicious:
        words.remark(
            f"Warning: the check's figure, {number(seen.change)}, is more than {seen.check_dtype} rounds: maps that "
            "should change nothing changed the outputs. This is a bug worth reporting, with the network's code; --each "
            "tells which space it is."
        )
    if seen.wiring.unknown:
        words.remark(
            "An operator is taught by one small function: see 'Add an operator' in CONTRIBUTING.md, or report its name."
        )
    if seen.loaded.unused:
        words.remark(f"{len(seen.loaded.unused)} tensors of the weights have no use in this network (--no-strict).")
    words.remark("; ".join(f"{what} {taken:.1f} s" for what, taken in seconds.items()) + ".")


def _show_fixed(console: Console, reasons: Sequence[Fixed], everything: bool) -> None:
    # Axes of one entry are many, and nobody expects them to move.
    shown = [one for one in reasons if everything or one.why != "it is one entry long"]
    if not shown:
        return
    console.print("What does not move, by reason:")
    rows = [
        (
            one.why,
            str(len(one.axes)),
            f"{one.parameters:,}",
            "yes" if one.lowers_coverage else "no",
            one.axes[0] + (", ..." if len(one.axes) > 1 else ""),
        )
        for one in shown
    ]
    _print(console, ("why", "axes", "parameters", "lowers coverage", "where"), rows, words=(0, 4))


# ---------------------------------------------------------------------- words and numbers


def _print(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]) -> None:
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


def _dtype(model: nn.Module) -> str:
    return " and ".join(dict.fromkeys(_name(one.dtype) for one in model.parameters())) or "no dtype"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(batch: Any) -> str:
    """One batch in words: shapes, by name where they have names."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {_described(one)}" for name, one in batch.items())
    if isinstance(batch, tuple | list):
        return ", ".join(map(_described, batch))
    return " x ".join(map(str, batch.shape)) if hasattr(batch, "shape") else str(batch)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None
