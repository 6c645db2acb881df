"""Small networks as programs: a list of steps, each of which makes values from values that were made before it.

A program is drawn step by step with one function, ``choose(n)``, that gives a number below ``n``: hypothesis, or a
random generator. What a step is lies in `random_networks`; here is how steps are put together, run, filled and made
smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

Choose = Callable[[int], int]
Kinds = dict[str, tuple[str, tuple[int, ...]]]  # of a weight: what it is, and its shape
Reference = tuple[int, int]  # step, and which of its results; step -1 is the input

LARGEST = 3000  # entries of a value
RANKS = 6


@dataclass(frozen=True)
class Step:
    """One step: what is done, to which values, how, and with which weights. ``scale`` keeps values of order one."""

    name: str
    of: tuple[Reference, ...]
    how: tuple[Any, ...] = ()
    weights: tuple[str, ...] = ()
    scale: float = 1.0

    def __repr__(self) -> str:
        operands = ", ".join(f"v{step}.{place}" for step, place in self.of)
        extra = "".join(f", {one}" for one in (*self.how, *self.weights))
        return f"{self.name}({operands}{extra})" + ("" if self.scale == 1 else f" * {self.scale}")


Run = Callable[..., "Tensor | Sequence[Tensor]"]
Plan = Callable[["Draft"], "Step | None"]
STEPS: dict[str, tuple[Plan, Run]] = {}


class Program(nn.Module):
    """A network that runs its steps. Its weights are named after the step that first asked for them."""

    def __init__(self, steps: Sequence[Step], kinds: Kinds, example: tuple[Tensor, Tensor], seed: int = 0) -> None:
        super().__init__()
        self.steps = list(steps)
        self.kinds = {name: kinds[name] for name in dict.fromkeys(name for step in steps for name in step.weights)}
        self.example = example
        for name, (kind, shape) in self.kinds.items():
            if kind in ("mean", "variance"):
                self.register_buffer(name, torch.ones(shape, dtype=torch.float64))
            else:
                self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=torch.float64)))
        self.fill(seed)
        self.eval()

    def fill(self, seed: int) -> Program:
        """Generic weights: nothing zero, nothing constant."""
        for name, (kind, shape) in self.kinds.items():
            generator = torch.Generator().manual_seed(hash_of(name, seed))
            with torch.no_grad():
                getattr(self, name).copy_(generic(kind, shape, generator))
        return self

    def again(self, seed: int) -> Program:
        """The same network with other weights."""
        return Program(self.steps, self.kinds, self.example, seed)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        values: list[Sequence[Tensor]] = []
        for step in self.steps:
            values.append(self.taken(step, values, x, tokens))
        return values[-1][0]

    def taken(self, step: Step, values: Sequence[Sequence[Tensor]], x: Tensor, tokens: Tensor) -> Sequence[Tensor]:
        """The results of one step."""
        operands = [(x, tokens)[place] if at < 0 else values[at][place] for at, place in step.of]
        found = STEPS[step.name][1](*operands, *(getattr(self, name) for name in step.weights), *step.how)
        results = [found] if isinstance(found, Tensor) else list(found)
        return results if step.scale == 1 else [one * step.scale for one in results]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}{list(shape)}" for name, (_, shape) in self.kinds.items())
        return "\n".join([f"weights {shapes}", *(f"v{place} = {step}" for place, step in enumerate(self.steps))])


def hash_of(name: str, seed: int) -> int:
    return (sum(ord(letter) * 31**place for place, letter in enumerate(name)) * 1009 + seed * 7919) % 2**31


def generic(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "variance":
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    if kind == "gain":
        return (0.7 + 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64)) * torch.sign(noise)
    return noise if kind in ("vector", "mean") else noise / max(1, torch.Size(shape[1:]).numel()) ** 0.5


class Draft:
    """A program while it is being drawn: what there is by now, and the ways to choose among it."""

    def __init__(self, choose: Choose, x: Tensor, tokens: Tensor) -> None:
        self.choose = choose
        self.x, self.tokens = x, tokens
        self.steps: list[Step] = []
        self.values: list[Sequence[Tensor]] = []
        self.kinds: Kinds = {}

    def flag(self) -> bool:
        return self.choose(2) == 1

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.choose(len(options))]

    def made(self) -> Iterator[tuple[Reference, Tensor]]:
        """All values by now, the latest first: choosing a small number builds a deep network."""
        for step in reversed(range(len(self.values))):
            for place, value in enumerate(self.values[step]):
                yield (step, place), value
        yield (-1, 0), self.x

    def value(self, fits: Callable[[Tensor], bool] = lambda _: True) -> tuple[Reference, Tensor] | None:
        options = [found for found in self.made() if fits(found[1])]
        return self.pick(options[:8]) if options else None

    def weight(self, shape: Sequence[int], kind: str = "matrix") -> str:
        """A weight of that shape: a new one, or now and then one that is used elsewhere."""
        shape = tuple(shape)
        known = [name for name, found in self.kinds.items() if found == (kind, shape)]
        if known and self.choose(4) == 3:
            return str(self.pick(known))
        name = f"{kind}{len(self.kinds)}"
        self.kinds[name] = (kind, shape)
        return name

    def add(self, step: Step, *, last: bool = False) -> bool:
        """Take a step if its values are of a fit size (the last in any case), scaled so that they are of order one."""
        program = Program([step], self.kinds, (self.x, self.tokens))
        with torch.no_grad():
            found = program.taken(step, self.values, self.x, self.tokens)
        size = max(float(one.square().mean().sqrt()) if one.numel() else 0.0 for one in found)
        fits = all(0 < one.numel() <= LARGEST and one.ndim <= RANKS for one in found) and 1e-6 < size < 1e6
        if not fits and not last:
            return False
        if fits and not 0.25 < size < 4:
            step = replace(step, scale=2.0 ** -round(torch.tensor(size).log2().item()))
            found = [one * step.scale for one in found]
        self.steps.append(step)
        self.values.append(found)
        return True


def smaller(program: Program) -> Iterator[Program]:
    """The program without one of its steps, for every step that another value can stand in for."""
    x, tokens = program.example
    values: list[Sequence[Tensor]] = []
    with torch.no_grad():
        for step in program.steps:
            values.append(program.taken(step, values, x, tokens))
    for gone in reversed(range(len(program.steps) - 1)):
        stands: dict[Reference, Reference] = {}
        for place, value in enumerate(values[gone]):
            earlier = [(-1, 0)] if x.shape == value.shape else []
            earlier += [(at, k) for at in range(gone) for k, one in enumerate(values[at]) if one.shape == value.shape]
            if earlier:
                stands[gone, place] = earlier[-1]
        used = {one for step in program.steps for one in step.of if one[0] == gone}
        if used <= set(stands):
            kept = [step for place, step in enumerate(program.steps) if place != gone]
            yield Program([_moved(step, gone, stands) for step in kept], program.kinds, program.example)


def _moved(step: Step, gone: int, stands: dict[Reference, Reference]) -> Step:
    of = (stands.get(one, one) for one in step.of)
    return replace(step, of=tuple((at - 1, place) if at > gone else (at, place) for at, place in of))
