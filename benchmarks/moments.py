"""Does streaming the moments beat casting everything to float64 first, in time, memory and accuracy?

Ours: `PairedMoments.update` over batches of float32 rows. The reference is the published way: keep all rows, cast them
to float64, one product, one correction for the means. Both run in turn in one process on the same rows.

    python benchmarks/moments.py            widths to 2048, 100,000 rows: some minutes, 4 GB
    python benchmarks/moments.py --quick    a smaller set of the same, well under a minute
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import frame
from interbasin.statistics import PairedMoments

SEED = 0
BATCH_ROWS = 8192
BAR_RATIO = 1.8
BAR_CASE = (768, 1024, 100_000)
# Peak memory counts as flat if eight times the rows raise it by less than this.
BAR_GROWTH = 1.1
# The reference needs 16 bytes a number: more rows than these would not fit into an ordinary machine.
PUBLISHED_ROWS = 100_000


def rows(count: int, width: int, seed: int, mean: float = 0.0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).add_(mean)


def streamed(x: Tensor, y: Tensor, grams: bool = False) -> PairedMoments:
    moments = PairedMoments(grams=grams)
    for start in range(0, len(x), BATCH_ROWS):
        moments.update(x[start : start + BATCH_ROWS], y[start : start + BATCH_ROWS])
    return moments


def published(x: Tensor, y: Tensor, grams: bool = False) -> Tensor:
    """All rows in float64, then one product: C - n mu_y mu_x^T."""
    x, y = x.double(), y.double()
    if grams:
        for z in (x, y):
            torch.addmm(z.mT @ z, z.sum(0)[:, None], z.sum(0)[None], alpha=-1 / len(z))
    return torch.addmm(y.mT @ x, y.sum(0)[:, None], x.sum(0)[None], alpha=-1 / len(x))


def time_case(source: int, target: int, count: int, grams: bool, budget: float) -> dict[str, Any]:
    x, y = rows(count, source, SEED), rows(count, target, SEED + 1)
    times = frame.compare(
        {"ours": lambda: streamed(x, y, grams), "published": lambda: published(x, y, grams)}, budget=budget
    )
    found, wanted = streamed(x, y).cross(), published(x, y)
    return {
        "source": source,
        "target": target,
        "rows": count,
        "grams": grams,
        "ratio": times.speed("ours", "published"),
        "error": float(torch.linalg.matrix_norm(found - wanted) / torch.linalg.matrix_norm(wanted)),
        "times": times.record(),
    }


def memory_case(source: int, target: int, count: int) -> dict[str, Any]:
    """Peak memory when rows arrive from elsewhere, a batch at a time, and are gone afterwards.

    Each way has a process of its own: in this one, memory that earlier cases freed would be used again unseen.
    """
    measured: dict[str, int | None] = {"published_bytes": None}
    for way in ("ours", "published") if count <= PUBLISHED_ROWS else ("ours",):
        words = [sys.executable, __file__, "--measure", way, str(source), str(target), str(count)]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        measured[f"{way}_bytes"] = json.loads(printed)
    return {"source": source, "target": target, "rows": count, **measured}


def measure(way: str, source: int, target: int, count: int) -> int | None:
    # Rows arrive in the same two buffers again and again, as from a reader: what grows is the method's own.
    x, y = torch.empty(BATCH_ROWS, source), torch.empty(BATCH_ROWS, target)

    def arriving(count: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(SEED)
        for start in range(0, count, BATCH_ROWS):
            size = min(BATCH_ROWS, count - start)
            yield x[:size].normal_(generator=generator), y[:size].normal_(generator=generator)

    def all_at_once(count: int) -> None:
        batches = [(a.clone(), b.clone()) for a, b in arriving(count)]
        published(torch.cat([a for a, _ in batches]), torch.cat([b for _, b in batches]))

    def one_by_one(count: int) -> None:
        PairedMoments.of_batches(arriving(count), grams=False)

    run = one_by_one if way == "ours" else all_at_once
    run(64)  # libraries allocate their workspaces on the first call
    return frame.peak_memory(lambda: run(count))


def accuracy_case(mean: float) -> dict[str, Any]:
    """Centred cross-products of rows far from zero: ours, about an origin, and as plain float32 sums would be."""
    x, y = rows(20_000, 256, SEED, mean), rows(20_000, 256, SEED + 1, mean)
    y[:, :64] += x[:, :64] - mean
    a, b = x.double() - x.double().mean(0), y.double() - y.double().mean(0)
    exact = b.mT @ a
    plain = torch.zeros(256, 256, dtype=torch.float64)
    for start in range(0, len(x), BATCH_ROWS):
        plain += (y[start : start + BATCH_ROWS].mT @ x[start : start + BATCH_ROWS]).double()
    plain -= torch.outer(y.double().sum(0), x.double().sum(0)) / len(x)
    norm = torch.linalg.matrix_norm(exact)
    return {
        "mean": mean,
        "ours": float(torch.linalg.matrix_norm(streamed(x, y).cross() - exact) / norm),
        "without_origin": float(torch.linalg.matrix_norm(plain - exact) / norm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller set; writes moments-quick.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        way, *sizes = arguments.measure
        print(json.dumps(measure(way, *map(int, sizes))))
        return
    quick = arguments.quick
    path = arguments.json or frame.RESULTS / ("moments-quick.json" if quick else "moments.json")
    content: dict[str, Any] = {
        "question": "moments",
        "environment": frame.environment(seed=SEED, threads=arguments.threads),
        "time": [],
        "memory": [],
        "accuracy": [],
    }
    sizes = [(256, 384, 20_000)] if quick else []
    sizes += [BAR_CASE] if not quick else [(768, 1024, 20_000)]
    if not quick:
        sizes += [
            (64, 64, 100_000),
            (256, 256, 100_000),
            (1024, 1024, 100_000),
            (2048, 2048, 25_000),
            (768, 1024, 25_000),
        ]
    for source, target, count in sizes:
        for grams in (False, True):
            content["time"].append(time_case(source, target, count, grams, budget=3 if quick else 14))
            frame.save(path, content)
    for count in (65_536, 131_072, 262_144, 524_288) if quick else (50_000, 100_000, 200_000, 400_000):
        content["memory"].append(memory_case(*((256, 384) if quick else BAR_CASE[:2]), count))
        frame.save(path, content)
    content["accuracy"] = [accuracy_case(mean) for mean in (0.0, 10.0, 1000.0)]
    content["summary"] = summary(content, quick)
    frame.save(path, content)
    report(content)


def summary(content: dict[str, Any], quick: bool) -> dict[str, Any]:
    grown = [case["ours_bytes"] for case in content["memory"]]
    growth = None if None in grown else grown[-1] / grown[0]
    found: dict[str, Any] = {
        "memory_growth_over_8_times_the_rows": growth,
        "memory_is_flat": growth is not None and growth <= BAR_GROWTH,
    }
    if not quick:
        bar = next(c for c in content["time"] if (c["source"], c["target"], c["rows"]) == BAR_CASE and not c["grams"])
        found |= {"ratio_768_1024_100000": bar["ratio"], "ratio_bar_met": bar["ratio"] >= BAR_RATIO}
    return found


def report(content: dict[str, Any]) -> None:
    threads = content["environment"]["threads"]
    frame.show(
        f"Streaming float32 against casting to float64 first, {threads} thread(s)",
        ("source", "target", "rows", "grams", "ours s", "published s", "ratio", "difference"),
        [
            (
                str(c["source"]),
                str(c["target"]),
                f"{c['rows']:,}",
                "yes" if c["grams"] else "no",
                f"{c['times']['ours']['best']:.3f}",
                f"{c['times']['published']['best']:.3f}",
                f"{c['ratio']:.2f}",
                f"{c['error']:.1e}",
            )
            for c in content["time"]
        ],
    )
    frame.show(
        "Peak memory above the start, rows arriving in batches",
        ("rows", "ours MB", "published MB"),
        [(f"{c['rows']:,}", _megabytes(c["ours_bytes"]), _megabytes(c["published_bytes"])) for c in content["memory"]],
    )
    frame.show(
        "Relative error of the centred cross-product of float32 rows",
        ("mean of the rows", "ours", "float32 sums without an origin"),
        [(f"{c['mean']:g}", f"{c['ours']:.1e}", f"{c['without_origin']:.1e}") for c in content["accuracy"]],
    )
    for name, value in content["summary"].items():
        print(f"{name}: {value}")


def _megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f}"


if __name__ == "__main__":
    main()
