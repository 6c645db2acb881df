"""Is a symmetry that was planted found again?

Network b is network a carried through random exact elements, one a space: permutations, in heads invertible maps and
rotations, in folded residual streams orthogonal maps. Weight matching sees both networks and nothing else. It has
recovered b if the aligned a is within 1e-3 of b (relative, all parameters as one vector) and the network half-way
between the two computes b's function to 1e-4 on random inputs. Under noise nothing can reach b: there, recovered means
that the distance left is at most 1 % more than the noise itself.

The usual algorithm (`reference/usual_weight_matching.py`) runs beside it. It knows only permutations of whole axes; in
transformers it is given an easier task: only such permutations are planted for it. Times are processor time.

    python benchmarks/planted.py --quick    5 seeds a case: about two minutes; writes results/planted-quick.json
    python benchmarks/planted.py            100 seeds, 30 where no number was asked; writes results/planted.json
    python benchmarks/planted.py --resume    the cases that are not in the results yet
    python benchmarks/planted.py --only "ResNet-18"    those cases again, merged into the full results
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import shapes
from interbasin.jobs.rebasin.job import free_spaces
from interbasin.jobs.rebasin.methods import METHODS
from interbasin.jobs.rebasin.task import Task
from interbasin.jobs.rebasin.weights import cut
from interbasin.maps import Permutation
from interbasin.paths import interpolate
from interbasin.wiring import Alignment, Wiring, carry, wire
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.folding import fold_norms
from reference.usual_weight_matching import Pair, weight_matching

SEED = 0
SEEDS, SEEDS_WITHOUT_BAR, QUICK_SEEDS = 100, 30, 5
STEPS = {"MLP 3x512": 150, "GPT-2": 80, "Llama": 150}
TRAINED_NETWORKS, FOLDED_NETWORKS = 2, 15
DISTANCE, FUNCTION, ABOVE_NOISE = 1e-3, 1e-4, 1.01
USUAL = "a public report for the usual algorithm on a residual network: 10 of 100"


trained = functools.cache(shapes.trained)


@dataclass(frozen=True)
class Case:
    """A shape, what was done to it, and how many of a hundred are asked."""

    shape: str
    bar: int | None = None
    folded: bool = False
    trained: bool = False
    noise: float = 0.0
    usual: bool = False

    @property
    def key(self) -> str:
        words = [self.shape]
        words += ["trained"] if self.trained else []
        words += ["folded"] if self.folded else []
        words += [f"{self.noise:.0%} noise"] if self.noise else []
        return ", ".join(words)

    @property
    def method(self) -> str:
        return "procrustes-weights" if self.folded else "permutation-weights"

    def network(self, seed: int) -> tuple[nn.Module, float | None]:
        """A network, and its loss if it was trained."""
        if self.trained:
            network, loss = trained(self.shape, seed, STEPS[self.shape])
        else:
            network, loss = shapes.SHAPES[self.shape].random(seed), None
        return (fold_norms(network, self.inputs()) if self.folded else network), loss

    def networks(self, seeds: int) -> int:
        """How many different networks: where they take long to make, several elements are planted in each."""
        return min(seeds, TRAINED_NETWORKS if self.trained else FOLDED_NETWORKS if self.folded else seeds)

    def inputs(self) -> Any:
        return shapes.SHAPES[self.shape].inputs()


CASES = (
    Case("MLP 3x512", 95, usual=True),
    Case("GPT-2", 95, usual=True),
    Case("Llama", 95, usual=True),
    Case("ResNet-18", 90, usual=True),
    Case("GPT-2", folded=True),
    Case("Llama", folded=True),
    Case("MLP 3x512", trained=True, usual=True),
    Case("GPT-2", trained=True, usual=True),
    Case("Llama", trained=True, usual=True),
    Case("GPT-2", trained=True, folded=True),
    Case("Llama", trained=True, folded=True),
    Case("MLP 3x512", noise=0.1, usual=True),
    Case("GPT-2", noise=0.1),
    Case("Llama", noise=0.1),
    Case("ResNet-18", noise=0.1, usual=True),
    Case("Llama", folded=True, noise=0.1),
    Case("MLP 3x512", trained=True, noise=0.1),
    Case("Llama", trained=True, noise=0.1),
)


# ---------------------------------------------------------------------- one seed


def vector(network: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in network.parameters()]).double()


def relative(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other))


def add_noise(network: nn.Module, share: float, seed: int) -> None:
    """To every parameter, normal noise of a share of its tensor's own size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in network.parameters():
            drawn = torch.randn(tensor.shape, generator=generator)
            tensor.add_(share * tensor.square().mean().sqrt() * drawn)


def judged(aligned: nn.Module, target: nn.Module, clean: nn.Module, inputs: Any) -> dict[str, float]:
    found = {"distance": relative(vector(aligned), vector(target))}
    if clean is not target:
        noise = torch.linalg.vector_norm(vector(target) - vector(clean))
        found["ratio"] = float(torch.linalg.vector_norm(vector(aligned) - vector(target)) / noise)
        found["recovered"] = float(found["ratio"] <= ABOVE_NOISE)
        return found
    middle = interpolate(aligned, target, 0.5)
    found["function"] = relative(shapes.output(middle, inputs), shapes.output(target, inputs))
    found["recovered"] = float(found["distance"] < DISTANCE and found["function"] < FUNCTION)
    return found


def ours(case: Case, network: nn.Module, wiring: Wiring, seed: int) -> dict[str, float]:
    clean = carry(network, wiring.sample(seed=seed))
    target = clean
    if case.noise:
        target = carry(network, wiring.sample(seed=seed))
        add_noise(target, case.noise, seed)
    started = time.process_time()
    method = METHODS[case.method]
    free = free_spaces(wiring, turns=bool(method.traits))
    match = method.function(Task(network, target, wiring, free, seed=seed), method.variants[0])
    seconds = time.process_time() - started
    aligned = carry(network, Alignment(wiring, match.maps))
    return {"seconds": seconds, "sweeps": len(match.path) - 2, **judged(aligned, target, clean, case.inputs())}


def whole_axes(wiring: Wiring) -> list[str]:
    """The spaces that the usual algorithm can express: permutations, of axes that no head divides."""
    divided = {outer for space in wiring.spaces.values() for outer in space.within}
    return [
        name
        for name, space in wiring.spaces.items()
        if space.group in (Group.PERMUTATION, Group.SIGNED) and not space.within and name not in divided
    ]


def usual(case: Case, network: nn.Module, wiring: Wiring, seed: int) -> dict[str, float]:
    names = whole_axes(wiring)
    generator = torch.Generator().manual_seed(seed)
    sizes = {name: wiring.spaces[name].size for name in names}
    planted = {name: Permutation(torch.randperm(size, generator=generator)) for name, size in sizes.items()}
    clean = carry(network, Alignment(wiring, planted))
    target = clean
    if case.noise:
        target = carry(network, Alignment(wiring, planted))
        add_noise(target, case.noise, seed)
    started = time.process_time()
    pieces = cut(wiring, network, target, set(names))
    pairs = [Pair(piece.source, piece.target, [dim.space for dim in piece.dims]) for piece in pieces]
    found, sweeps = weight_matching(pairs, sizes, seed)
    seconds = time.process_time() - started
    aligned = carry(network, Alignment(wiring, {name: Permutation(index) for name, index in found.items()}))
    return {"seconds": seconds, "sweeps": sweeps, **judged(aligned, target, clean, case.inputs())}


# ---------------------------------------------------------------------- a case


def measure(case: Case, seeds: int) -> dict[str, Any]:
    made = functools.lru_cache(maxsize=case.networks(seeds) if case.trained or case.folded else 1)(case.network)
    count = case.networks(seeds)
    network, _ = made(0)
    wiring = wire(network, case.inputs())
    record: dict[str, Any] = {
        "key": case.key,
        "method": case.method,
        "parameters": sum(tensor.numel() for tensor in network.parameters()),
        "groups": sorted({str(space.group) for space in wiring.spaces.values() if not space.is_fixed}),
        "networks": count,
        "bar": case.bar,
    }
    runs, plain = [], []
    losses = []
    for seed in range(seeds):
        network, loss = made(seed % count)
        if loss is not None and len(losses) < count:
            losses.append(loss)
        runs.append(ours(case, network, wiring, seed))
        if case.usual:
            plain.append(usual(case, network, wiring, seed))
    record["ours"] = summed(runs)
    record["usual"] = summed(plain) if plain else None
    if losses:
        record["losses"] = losses
    if case.bar is not None:
        record["met"] = 100 * record["ours"]["recovered"] >= case.bar * seeds
    return record


def summed(runs: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {"seeds": len(runs), "recovered": int(sum(run["recovered"] for run in runs))}
    found["failed_seeds"] = [seed for seed, run in enumerate(runs) if not run["recovered"]][:20]
    for name in ("seconds", "sweeps", "distance", "function", "ratio"):
        if name in runs[0]:
            values = [run[name] for run in runs]
            found[name] = {"median": statistics.median(values), "largest": max(values)}
    return found


# ---------------------------------------------------------------------- the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seeds a case; writes planted-quick.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains this; others keep their results")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run stopped")
    parser.add_argument("--seeds", type=int, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    path = arguments.json or frame.RESULTS / ("planted-quick.json" if arguments.quick else "planted.json")
    found: dict[str, dict[str, Any]] = {}
    if (arguments.only or arguments.resume) and path.exists():
        found = {record["key"]: record for record in json.loads(path.read_text("utf-8"))["cases"]}
    environment = frame.environment(seed=SEED, threads=arguments.threads)
    for case in CASES:
        if (arguments.only and arguments.only not in case.key) or (arguments.resume and case.key in found):
            continue
        found[case.key] = {
            "date": environment["date"],
            **measure(case, min(seeds, SEEDS_WITHOUT_BAR) if case.bar is None else seeds),
        }
        gc.collect()
        records = [found[one.key] for one in CASES if one.key in found]
        frame.save(path, {"question": "planted", "environment": environment, "cases": records})
        print(line(found[case.key]), file=sys.stderr, flush=True)
    report([found[one.key] for one in CASES if one.key in found])


def line(record: dict[str, Any]) -> str:
    return "  ".join(cells(record))


def cells(record: dict[str, Any]) -> tuple[str, ...]:
    mine, plain = record["ours"], record["usual"]
    bar = "-" if record["bar"] is None else f"{record['bar']} {'met' if record['met'] else 'NOT met'}"
    left = mine["ratio"] if "ratio" in mine else mine["distance"]
    return (
        record["key"],
        f"{mine['recovered']} of {mine['seeds']}",
        bar,
        f"{left['median']:.2g}",
        f"{left['largest']:.2g}",
        f"{mine['function']['largest']:.1e}" if "function" in mine else "-",
        f"{mine['seconds']['median']:.2f}",
        f"{plain['recovered']} of {plain['seeds']}" if plain else "-",
        f"{plain['seconds']['median']:.2f}" if plain else "-",
    )


def report(records: list[dict[str, Any]]) -> None:
    columns = ("network", "recovered", "bar", "left, median", "most", "function", "s", "usual", "usual s")
    frame.show("Planted symmetries found again", columns, [cells(record) for record in records])
    print(f"Left: relative distance; under noise, the distance over the noise. For comparison, {USUAL}.")


if __name__ == "__main__":
    main()
