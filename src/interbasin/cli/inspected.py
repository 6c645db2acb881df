"""What ``interbasin inspect`` saw: as JSON, and as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interbasin.cli.output import number, print_table
from interbasin.cli.wirings import Fixed, Line, fixed, fold, share_moved, tensors_at
from interbasin.text import plural

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from interbasin.models import LoadedModel
    from interbasin.wiring import Wiring

MEANING = "largest relative change of the outputs under random exact maps"
# Random maps add rounding, and no more: beyond this, in the precision of the check, something else was changed.
LARGEST_CHANGE = {"float64": 1e-8, "float32": 1e-4}
LISTED = 5  # names of unused tensors that people are shown without --all


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
    def can_move(self) -> bool:
        """Whether there is a space that some map can move; without one the check puts nothing to the test."""
        return any(not space.is_fixed for space in self.wiring.spaces.values())

    @property
    def is_suspicious(self) -> bool:
        """Whether the check's figure is larger than rounding makes it."""
        return self.change is not None and not self.change <= LARGEST_CHANGE.get(self.check_dtype or "", float("inf"))

    def summary(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        from interbasin.wiring.axes.notation import line

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
            "check": _finite(self.change) if self.can_move else None,
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
        print_table(console, ("", ""), self._facts(), words=(0, 1))
        self._show_spaces(console)
        _show_fixed(console, fixed(self.wiring, self.sizes), self.everything)
        if self.wiring.unknown:
            console.print("Operators without a rule, which fix all that they touch:")
            rows = [(name, str(count)) for name, count in self.wiring.unknown.items()]
            print_table(console, ("operator", "times"), rows, words=(0,))
        if self.wiring.unused:
            names = self.wiring.unused if self.everything else self.wiring.unused[:LISTED]
            more = len(self.wiring.unused) - len(names)
            console.print(
                f"{plural(len(self.wiring.unused), 'tensor')} that the call did not touch: {', '.join(names)}"
                + (f" and {more} more (--all)." if more else "."),
                soft_wrap=True,
            )
        if self.tensors:
            console.print("Every tensor: what it writes <- what it reads.\n")
            console.print(str(self.wiring), soft_wrap=True)

    def _facts(self) -> list[tuple[str, str]]:
        model, wiring = self.loaded.model, self.wiring
        moving = [space for space in wiring.spaces.values() if not space.is_fixed]
        if self.change is None:
            check = "not made (--no-check)"
        elif not moving:
            check = "says nothing, for nothing can move"
        else:
            check = f"{number(self.change)}  ({MEANING}, in {self.check_dtype})"
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
        print_table(console, list(columns), [[cell(one) for cell in columns.values()] for one in lines], words)
        console.print(
            "Tensors: how many write, read and scale the space. Share: of all parameters, those in these tensors.\n",
            style="dim",
        )


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
    print_table(console, ("why", "axes", "parameters", "lowers coverage", "where"), rows, words=(0, 4))


def _dtype(model: nn.Module) -> str:
    return " and ".join(dict.fromkeys(dtype_name(one.dtype) for one in model.parameters())) or "no dtype"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as people write it: ``float32``."""
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
