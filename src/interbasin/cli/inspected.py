"""What ``interbasin inspect`` finds, as JSON or as tables. It imports torch, so the command imports it late."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from interbasin.cli.output import number, print_facts, print_table
from interbasin.models import LoadedModel
from interbasin.text import list_names, plural
from interbasin.wiring import Wiring
from interbasin.wiring.axes.notation import line
from interbasin.wiring.summary import SpaceGroup, fixed_axes, group_layers, parameter_sizes, share_moved, tensors_at

MEANING = "largest relative change of the outputs under random exact maps"
# Random maps add rounding, and no more: beyond this, in the precision of the check, something else was changed.
LARGEST_CHANGE = {"float64": 1e-8, "float32": 1e-4}
LISTED = 5  # names of unused tensors that people are shown without --all


@dataclass(frozen=True)
class Check:
    """The change of the outputs under random maps of all spaces and, if asked, of each; and the precision of both."""

    change: float
    changes: Mapping[str, float] | None
    dtype: str

    @property
    def is_suspicious(self) -> bool:
        """Whether the change is larger than rounding makes it."""
        return not self.change <= LARGEST_CHANGE.get(self.dtype, float("inf"))


def check_wiring(loaded: LoadedModel, wiring: Wiring, *, seed: int, each: bool) -> Check:
    """Check a wiring; in float32 where the network is in a half type, whose own rounding would drown the figure."""
    model, batch = loaded.model, loaded.require_inputs()
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    dtype = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    if dtypes & {torch.float16, torch.bfloat16}:
        model, dtype = copy.deepcopy(model).float(), torch.float32
        batch = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, batch
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the network's own code warns of is no news about its wiring
        change = wiring.check(model, batch, seed=seed)
        return Check(change, wiring.check(model, batch, seed=seed, each=True) if each else None, _name(dtype))


@dataclass(frozen=True)
class Inspection:
    """A network, its wiring and the check, to be printed as JSON or as tables."""

    loaded: LoadedModel
    wiring: Wiring
    check: Check | None
    tensors: bool
    everything: bool
    output: Path | None

    @property
    def sizes(self) -> dict[str, int]:
        return parameter_sizes(self.wiring, self.loaded.model)

    @property
    def moving(self) -> int:
        """How many spaces some map can move; where there are none the check tests nothing."""
        return sum(not space.is_fixed for space in self.wiring.spaces.values())

    @property
    def dtypes(self) -> str:
        names = dict.fromkeys(_name(parameter.dtype) for parameter in self.loaded.model.parameters())
        return " and ".join(names) or "no dtype"

    def summary(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        loaded, wiring, check, document = self.loaded, self.wiring, self.check, self.wiring.to_json()
        summary: dict[str, Any] = {
            "model": {
                "name": loaded.text,
                "class": type(loaded.model).__name__,
                "family": loaded.family,
                "dtype": self.dtypes,
                "inputs": _describe_batch(loaded.require_inputs()),
                "weights": None if loaded.checkpoint is None else str(loaded.checkpoint.path),
            },
            "parameters": sum(self.sizes.values()),
            "share_moved": share_moved(wiring, self.sizes),
            "coverage": wiring.coverage,
            "check": _finite(check.change) if check is not None and self.moving else None,
            "check_dtype": None if check is None else check.dtype,
        }
        if check is not None and check.changes is not None:
            summary["checks"] = {name: _finite(value) for name, value in check.changes.items()}
        summary |= {
            "spaces": document["spaces"],
            "fixed": [reason.to_json() for reason in fixed_axes(wiring, self.sizes)],
            "unknown_operators": document["unknown"],
            "unused_tensors": document["unused"],
            "tied_tensors": document["tied"],
        }
        if self.tensors:
            summary["tensors"] = {name: line(tensor.axes) for name, tensor in wiring.tensors.items()}
        return summary if self.output is None else {**summary, "output": str(self.output)}

    def show(self, console: Console) -> None:
        """Print the same for people: what it is, its spaces, what is fixed, and what is missing."""
        print_facts(console, self._facts())
        self._show_spaces(console)
        self._show_fixed(console)
        if self.wiring.unknown:
            console.print("Operators without a rule, which fix all that they touch:")
            print_table(console, ("operator", "times"), [(name, str(n)) for name, n in self.wiring.unknown.items()])
        if unused := self.wiring.unused:
            names = list_names(unused, len(unused) if self.everything else LISTED)
            more = " (--all)" if len(unused) > LISTED and not self.everything else ""
            sentence = f"{plural(len(unused), 'tensor')} that the call did not touch: {names}{more}."
            console.print(sentence, soft_wrap=True)
        if self.tensors:
            console.print("Every tensor: what it writes <- what it reads.\n")
            for text in str(self.wiring).split("\n"):
                console.print(text, soft_wrap=True)

    def remarks(self) -> Iterator[str]:
        """What a reader should know beside it."""
        if self.check is not None and self.check.is_suspicious:
            yield (
                f"Warning: the check's figure, {number(self.check.change)}, is more than {self.check.dtype} rounds: "
                "maps that should change nothing changed the outputs. This is a bug worth reporting, with the "
                "network's code; --each tells which space it is."
            )
        if self.loaded.was_training:
            yield "The factory returned the network in training mode; it is shown in evaluation mode."
        if self.wiring.unknown:
            yield "An operator is taught by one small function: see 'Add an operator' in CONTRIBUTING.md, or report it."
        if self.loaded.unused:
            count = plural(len(self.loaded.unused), "tensor")
            yield f"This network has no use for {count} of the weights (--no-strict)."

    def _facts(self) -> list[tuple[str, str]]:
        model, wiring, check = self.loaded.model, self.wiring, "not made (--no-check)"
        if self.check is not None and not self.moving:
            check = "says nothing, for nothing can move"
        elif self.check is not None:
            check = f"{number(self.check.change)}  ({MEANING}, in {self.check.dtype})"
        facts = [
            ("model", f"{type(model).__name__}, {sum(self.sizes.values()):,} parameters in {self.dtypes}"),
            ("inputs", _describe_batch(self.loaded.require_inputs())),
            ("spaces", f"{len(wiring.spaces)}, of which {self.moving} can move"),
            ("coverage", f"{wiring.coverage:.1%}  (of the axes that could move, those that can, by parameters)"),
            ("moved", f"{share_moved(wiring, self.sizes):.1%}  (of the parameters lie along an axis that can move)"),
            ("check", check),
        ]
        return [*facts, *([("written to", str(self.output))] if self.output is not None else [])]

    def _show_spaces(self, console: Console) -> None:
        spaces, sizes = self.wiring.spaces.values(), self.sizes
        groups = [SpaceGroup(space.name, (space,)) for space in spaces]
        if not self.everything:
            modules = {name for name, _ in self.loaded.model.named_modules()}
            groups = group_layers([space for space in spaces if not space.is_fixed], modules)
        total, changes = max(sum(sizes.values()), 1), None if self.check is None else self.check.changes
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
        if changes is not None:
            columns["check"] = lambda group: (
                "-" if group.first.is_fixed else f"{max(changes[space.name] for space in group.spaces):.1e}"
            )
        if self.everything:
            columns["because"] = lambda group: str(group.first.because or "")
        words = [place for place, column in enumerate(columns) if column in ("space", "group", "because")]
        print_table(console, list(columns), [[cell(group) for cell in columns.values()] for group in groups], words)
        legend = (
            "Tensors: how many write, read and scale the space. Share: of all parameters, those in these tensors.\n"
        )
        console.print(legend, style="dim")

    def _show_fixed(self, console: Console) -> None:
        rows = [
            (
                reason.why,
                str(len(reason.axes)),
                f"{reason.parameters:,}",
                "yes" if reason.lowers_coverage else "no",
                reason.axes[0] + (", ..." if len(reason.axes) > 1 else ""),
            )
            for reason in fixed_axes(self.wiring, self.sizes)
            # Axes of one entry are many, and nobody expects them to move.
            if self.everything or reason.why != "it is one entry long"
        ]
        if rows:
            console.print("What does not move, by reason:")
            print_table(console, ("why", "axes", "parameters", "lowers coverage", "where"), rows, words=(0, 4))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe_batch(batch: Any) -> str:
    """The shapes of a batch, by name where they have names."""
    if isinstance(batch, Mapping):
        return ", ".join(f"{name} {_describe_batch(part)}" for name, part in batch.items())
    if isinstance(batch, tuple | list):
        return ", ".join(map(_describe_batch, batch))
    return " x ".join(map(str, batch.shape)) if hasattr(batch, "shape") else str(batch)


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
