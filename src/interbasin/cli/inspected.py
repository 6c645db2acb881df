"""What ``interbasin inspect`` shows: JSON, or tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interbasin.cli.output import number, print_facts, print_table
from interbasin.text import plural

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from interbasin.models import LoadedModel
    from interbasin.wiring import Wiring
    from interbasin.wiring.summary import FixedAxes, SpaceGroup

MEANING = "largest relative change of the outputs under random exact maps"
# Random maps add rounding, and no more: beyond this, in the precision of the check, something else was changed.
LARGEST_CHANGE = {"float64": 1e-8, "float32": 1e-4}
LISTED = 5  # names of unused tensors that people are shown without --all


@dataclass(frozen=True)
class Seen:
    """A network, its wiring and the check, to be printed as JSON or as tables."""

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
        from interbasin.wiring.summary import parameter_sizes

        return parameter_sizes(self.wiring, self.loaded.model)

    @property
    def parameters(self) -> int:
        return sum(self.sizes.values())

    @property
    def can_move(self) -> bool:
        """Whether some map can move a space; without one the check tests nothing."""
        return any(not space.is_fixed for space in self.wiring.spaces.values())

    @property
    def is_suspicious(self) -> bool:
        """Whether the check's figure is larger than rounding makes it."""
        return self.change is not None and not self.change <= LARGEST_CHANGE.get(self.check_dtype or "", float("inf"))

    def summary(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        from interbasin.wiring.axes.notation import line
        from interbasin.wiring.summary import fixed_axes, share_moved

        loaded, wiring = self.loaded, self.wiring
        summary: dict[str, Any] = {
            "model": {
                "name": loaded.text,
                "class": type(loaded.model).__name__,
                "family": loaded.family,
                "dtype": _dtype(loaded.model),
                "inputs": _describe_batch(loaded.require_inputs()),
                "weights": None if loaded.checkpoint is None else str(loaded.checkpoint.path),
            },
            "parameters": self.parameters,
            "share_moved": share_moved(wiring, self.sizes),
            "coverage": wiring.coverage,
            "check": _finite(self.change) if self.can_move else None,
            "check_dtype": self.check_dtype,
        }
        if self.checks is not None:
            summary["checks"] = {name: _finite(value) for name, value in self.checks.items()}
        document = wiring.to_json()
        summary |= {
            "spaces": document["spaces"],
            "fixed": [reason.to_json() for reason in fixed_axes(wiring, self.sizes)],
            "unknown_operators": document["unknown"],
            "unused_tensors": document["unused"],
            "tied_tensors": document["tied"],
        }
        if self.tensors:
            summary["tensors"] = {name: line(tensor.axes) for name, tensor in wiring.tensors.items()}
        if self.output is not None:
            summary["output"] = str(self.output)
        return summary

    def show(self, console: Console) -> None:
        """Print the same for people: what it is, its spaces, what is fixed, and what is missing."""
        from interbasin.wiring.summary import fixed_axes

        print_facts(console, self._facts())
        self._show_spaces(console)
        _show_fixed(console, fixed_axes(self.wiring, self.sizes), self.everything)
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
        from interbasin.wiring.summary import share_moved

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
            ("inputs", _describe_batch(self.loaded.require_inputs())),
            ("spaces", f"{len(wiring.spaces)}, of which {len(moving)} can move"),
            ("coverage", f"{wiring.coverage:.1%}  (of the axes that could move, those that can, by parameters)"),
            ("moved", f"{share_moved(wiring, self.sizes):.1%}  (of the parameters lie along an axis that can move)"),
            ("check", check),
        ]
        return [*facts, *([("written to", str(self.output))] if self.output is not None else [])]

    def _show_spaces(self, console: Console) -> None:
        from interbasin.wiring.summary import SpaceGroup, group_layers, tensors_at

        spaces = list(self.wiring.spaces.values())
        if self.everything:
            groups = [SpaceGroup(space.name, (space,)) for space in spaces]
        else:
            modules = {name for name, _ in self.loaded.model.named_modules()}
            groups = group_layers([space for space in spaces if not space.is_fixed], modules)
        sizes, total, checks = self.sizes, max(self.parameters, 1), self.checks
        columns: dict[str, Callable[[SpaceGroup], str]] = {
            "space": lambda group: group.name,
            "count": lambda group: str(len(group.spaces)),
            "width": lambda group: str(group.first.width),
            "group": lambda group: group.first.describe(),
            "tensors": lambda group: "/".join(
                str(len(tensors_at(places))) for places in (group.first.writes, group.first.reads, group.first.scales)
            ),
            "share": lambda group: f"{sum(sizes.get(name, 0) for name in group.tensors) / total:.1%}",
        }
        if all(len(group.spaces) == 1 for group in groups):
            del columns["count"]
        if checks is not None:
            columns["check"] = lambda group: (
                "-" if group.first.is_fixed else f"{max(checks[space.name] for space in group.spaces):.1e}"
            )
        if self.everything:
            columns["because"] = lambda group: str(group.first.because or "")
        words = [place for place, column in enumerate(columns) if column in ("space", "group", "because")]
        print_table(console, list(columns), [[cell(group) for cell in columns.values()] for group in groups], words)
        console.print(
            "Tensors: how many write, read and scale the space. Share: of all parameters, those in these tensors.\n",
            style="dim",
        )


def _show_fixed(console: Console, reasons: Sequence[FixedAxes], everything: bool) -> None:
    # Axes of one entry are many, and nobody expects them to move.
    shown = [reason for reason in reasons if everything or reason.why != "it is one entry long"]
    if not shown:
        return
    console.print("What does not move, by reason:")
    rows = [
        (
            reason.why,
            str(len(reason.axes)),
            f"{reason.parameters:,}",
            "yes" if reason.lowers_coverage else "no",
            reason.axes[0] + (", ..." if len(reason.axes) > 1 else ""),
        )
        for reason in shown
    ]
    print_table(console, ("why", "axes", "parameters", "lowers coverage", "where"), rows, words=(0, 4))


def _dtype(model: nn.Module) -> str:
    return " and ".join(dict.fromkeys(dtype_name(parameter.dtype) for parameter in model.parameters())) or "no dtype"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as people write it: ``float32``."""
    return str(dtype).removeprefix("torch.")


def _describe_batch(batch: Any) -> str:
    """The shapes of a batch, by name where they have names."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {_describe_batch(part)}" for name, part in batch.items())
    if isinstance(batch, tuple | list):
        return ", ".join(map(_describe_batch, batch))
    return " x ".join(map(str, batch.shape)) if hasattr(batch, "shape") else str(batch)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None
