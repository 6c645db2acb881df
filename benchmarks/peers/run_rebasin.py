"""Weight matching by PyPI's `rebasin`, for benchmarks/weight_matching.py; runs in the environment of rebasin.txt.

    python run_rebasin.py PAIR SEED THREADS    PAIR: a file with (source, target, example inputs)

Prints what it took and what it reached as JSON. The source is permuted in place, by `rebasin()` itself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from interbasin.extras import declare_torchvision_operators  # isort: skip


def distance(one: torch.nn.Module, other: torch.nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return float(sum((a.detach().double() - b.detach().double()).square().sum() for a, b in pairs) ** 0.5)


def output(network: torch.nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        made = network(inputs)
    return made if isinstance(made, Tensor) else made.logits


def main() -> None:
    declare_torchvision_operators()  # rebasin imports torchvision, and so do the networks
    from rebasin import PermutationCoordinateDescent

    path, seed, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    source, target, inputs = torch.load(path, weights_only=False)
    before, said = distance(source, target), output(source, inputs)
    torch.manual_seed(seed)  # of the order in which it visits
    started = time.process_time()
    descent = PermutationCoordinateDescent(target, source, inputs)
    traced = time.process_time()
    descent.calculate_permutations()  # what rebasin() does, in its two halves
    matched = time.process_time()
    descent.apply_permutations()
    applied = time.process_time()
    found = {
        "before": before,
        "after": distance(source, target),
        "change": float((output(source, inputs) - said).norm() / said.norm()),
        "match": matched - traced,
        "whole": applied - started,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
