"""What does feature alignment cost: the exact plan, or POT's log-domain Sinkhorn that is differentiated through?

A batch of 256 target features, 2,000 of the source, 768 numbers each: the distance and its gradient by the batch.

- ``exact``: `interbasin.evaluate.transfer.wasserstein`: the plan by a linear program, the gradient of the cost with the
  plan held fixed;
- ``sinkhorn``: the same with our blurred plan, held fixed likewise;
- ``pot``: ``ot.sinkhorn2`` with ``method="sinkhorn_log"`` on tensors, so that its iterations are differentiated, as the
  paper's code does. Its regularisation is the largest of a grid whose value is within one per cent of the exact one, so
  that both are equally accurate; its times depend on that.

    python benchmarks/cross_modal_cost.py            writes results/cross_modal_cost.json
    python benchmarks/cross_modal_cost.py --quick    fewer features
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
from interbasin.evaluate.transfer import wasserstein
from interbasin.extras import import_extra

SEED = 0
SIZES = {False: (256, 2000, 768), True: (32, 100, 16)}
REGULARISATIONS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)  # of the median cost, from blurred to sharp
WITHIN, ITERATIONS = 0.01, 2000
FASTER = 1.0


def draw_features(rows: int, others: int, width: int) -> tuple[Tensor, Tensor]:
    """Features in ten clusters, as those of a classifier are, and others whose clusters lie elsewhere."""
    generator = torch.Generator().manual_seed(SEED)

    def clusters(count: int) -> Tensor:
        centres = torch.randn(10, width, generator=generator)
        return centres[torch.arange(count) % 10] + 0.5 * torch.randn(count, width, generator=generator)

    return clusters(rows), clusters(others)


def with_gradient(distance: Any, features: Tensor) -> tuple[float, Tensor]:
    moved = features.clone().requires_grad_(True)
    value = distance(moved)
    (gradient,) = torch.autograd.grad(value, moved)
    return float(value.detach()), gradient


def by_pot(features: Tensor, others: Tensor, regularisation: float) -> Tensor:
    ot = import_extra("ot", "Sinkhorn by POT", "ot")
    cost = torch.cdist(features.double(), others.double())
    weights = [torch.full((len(rows),), 1 / len(rows), dtype=torch.float64) for rows in (features, others)]
    scale = regularisation * float(cost.detach().median())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge is seen in the value
        value: Tensor = ot.sinkhorn2(*weights, cost, scale, method="sinkhorn_log", numItermax=ITERATIONS, stopThr=1e-6)
    return value


def sharpest_needed(features: Tensor, others: Tensor, exact: float) -> tuple[float, float]:
    """The largest regularisation whose value is near the exact one, and how near; else the sharpest."""
    off = 1.0
    for regularisation in REGULARISATIONS:
        off = abs(float(by_pot(features, others, regularisation)) / exact - 1)
        if off <= WITHIN:
            return regularisation, off
    return REGULARISATIONS[-1], off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows, count, width = SIZES[arguments.quick]
    features, others = draw_features(rows, count, width)
    exact, gradient = with_gradient(lambda moved: wasserstein(moved, others), features)
    blurred, _ = with_gradient(lambda moved: wasserstein(moved, others, "sinkhorn"), features)
    regularisation, off = sharpest_needed(features, others, exact)
    theirs, their_gradient = with_gradient(lambda moved: by_pot(moved, others, regularisation), features)
    times = frame.compare(
        {
            "exact": lambda: with_gradient(lambda moved: wasserstein(moved, others), features),
            "sinkhorn": lambda: with_gradient(lambda moved: wasserstein(moved, others, "sinkhorn"), features),
            "pot": lambda: with_gradient(lambda moved: by_pot(moved, others, regularisation), features),
        },
        budget=5 if arguments.quick else 60,
        single_from=60,
    )
    faster = times.speed("exact", "pot")
    agreement = float(torch.nn.functional.cosine_similarity(gradient.flatten(), their_gradient.flatten(), 0))
    content = {
        "question": "cross_modal_cost",
        "environment": frame.environment(seed=SEED, threads=arguments.threads),
        "sizes": {"rows": rows, "others": count, "width": width},
        "values": {"exact": exact, "sinkhorn": blurred, "pot": theirs},
        "regularisation": regularisation,
        "value_off": off,
        "gradient_cosine": agreement,
        "times": times.record(),
        "faster_than_pot": faster,
        "bars": {
            "exact transport as fast as POT's differentiated log-Sinkhorn at the same accuracy": {
                "bar": f">= {FASTER:g}",
                "found": faster,
                "met": faster >= FASTER,
                "where": f"regularisation {regularisation:g} of the median cost, value off by {off:.2%}",
            }
        },
    }
    frame.save(frame.RESULTS / f"cross_modal_cost{'-quick' if arguments.quick else ''}.json", content)
    lines = [
        (name, f"{content['values'][name]:.4f}", f"{times.best(name):.3f}", f"{times.median(name):.3f}")
        for name in ("exact", "sinkhorn", "pot")
    ]
    frame.show(f"{rows} x {count} x {width}", ("", "value", "s, best", "s, median"), lines)
    print(f"exact is {faster:.2f} times as fast as pot; gradients have a cosine of {agreement:.4f}")


if __name__ == "__main__":
    main()
