"""Is the orthogonal factor as accurate as it says, and is it ever slower than the SVD it stands in for?

Times ``interbasin.fit.polar`` against ``torch.linalg.svd(full_matrices=False)`` followed by ``U @ Vh``, in the same
process and in turn, over widths, shapes, precisions and spectra, and measures the errors of both in float64.

    python benchmarks/polar.py --quick     widths up to 512, about a minute; writes results/polar-quick.json
    python benchmarks/polar.py             everything, half an hour of one core; writes results/polar.json
    python benchmarks/polar.py --only "float32 1024x1024"    those cases again, merged into the full results
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
from interbasin.fit.polar import polar

SEED = 0
WIDTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 4096)
RECTANGLES = ((64, 128), (256, 1024), (768, 1024), (1024, 768), (1024, 2048), (2048, 1024))
HEADS = ((12, 64, 64), (16, 64, 128), (32, 128, 128))
INPUTS = ("gaussian", "power-law", "rank-deficient")
DTYPES = {"float64": torch.float64, "float32": torch.float32}

# The bars. Errors are Frobenius norms: of Q'Q - I, of QH - A relative to A, of the difference to the SVD's factor.
SLOWEST = 0.9
RECTANGLE_SPEED = 1.4
BAR_RECTANGLES = ("float64 768x1024 power-law", "float64 1024x2048 power-law")
ERROR = {"float64": 1e-12, "float32": 1e-5}
DIFFERENCE = 1e-10
COMPARABLE_CONDITION = 1e4


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    dtype: str
    spectrum: str

    @property
    def key(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape))} {self.spectrum}"

    def matrix(self) -> Tensor:
        generator = torch.Generator().manual_seed(SEED + sum(map(ord, self.key)))
        count = math.prod(self.shape[:-2])
        one = [self._one(generator) for _ in range(count)]
        return torch.stack(one).reshape(self.shape) if len(self.shape) > 2 else one[0]

    def _one(self, generator: torch.Generator) -> Tensor:
        rows, columns = self.shape[-2:]
        short = min(rows, columns)

        def normal(height: int, width: int) -> Tensor:
            return torch.randn(height, width, generator=generator, dtype=torch.float64)

        if self.spectrum == "gaussian":
            made = normal(rows, columns)
        elif self.spectrum == "rank-deficient":
            made = normal(rows, short // 4) @ normal(short // 4, columns)
        else:
            index = torch.arange(1, short + 1, dtype=torch.float64)
            sizes = index ** (-6 / math.log10(short))
            left, right = (torch.linalg.qr(normal(side, short)).Q for side in (rows, columns))
            made = (left * sizes) @ right.mT
        return made.to(DTYPES[self.dtype])


def cases(quick: bool) -> Iterator[Case]:
    limit = 512 if quick else max(WIDTHS)
    shapes: list[tuple[int, ...]] = [(width, width) for width in WIDTHS] + [*RECTANGLES, *HEADS]
    # Largest last, so that what is interesting while waiting comes early.
    for shape in sorted(shapes, key=lambda shape: math.prod(shape[-2:])):
        for dtype in DTYPES:
            for spectrum in INPUTS:
                if max(shape) <= limit:
                    yield Case(shape, dtype, spectrum)


def by_svd(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def errors(matrix: Tensor, factor: Tensor) -> dict[str, float]:
    """Worst over the batch, measured in float64 whatever the precision of the factor."""
    exact, factor = matrix.double(), factor.double()
    if exact.shape[-2] > exact.shape[-1]:
        exact, factor = exact.mT, factor.mT
    excess = factor @ factor.mT
    excess.diagonal(dim1=-2, dim2=-1).sub_(1)
    symmetric = exact @ factor.mT
    rebuilt = (symmetric + symmetric.mT) / 2 @ factor
    norm = torch.linalg.matrix_norm
    return {
        "orthogonality": float(norm(excess).max()),
        "reconstruction": float((norm(rebuilt - exact) / norm(exact)).max()),
    }


def measure(case: Case, budget: float) -> dict[str, Any]:
    matrix = case.matrix()
    kept: dict[str, Any] = {}
    times = frame.compare(
        {
            "svd": lambda: kept.__setitem__("svd", by_svd(matrix)),
            "polar": lambda: kept.__setitem__("polar", polar(matrix)),
        },
        budget=budget,
    )
    result = kept["polar"]
    record = {
        "key": case.key,
        "seconds": times.record(),
        "speed": times.speed("polar", "svd"),
        "path": result.path,
        **errors(matrix, result.factor),
        "svd_errors": errors(matrix, kept["svd"]),
        "difference": None,
        "condition": None,
        "peak_memory": None,
    }
    if case.spectrum == "gaussian" and max(case.shape) <= 2048:
        sizes = torch.linalg.svdvals(matrix.double())
        record["condition"] = float((sizes[..., 0] / sizes[..., -1]).max())
        if record["condition"] <= COMPARABLE_CONDITION:
            gap = torch.linalg.matrix_norm((result.factor - kept["svd"]).double())
            record["difference"] = float(gap.max())
    if max(case.shape) in (1024, 2048) and case.spectrum == "gaussian":
        record["peak_memory"] = {
            "svd": frame.peak_memory(lambda: by_svd(matrix)),
            "polar": frame.peak_memory(lambda: polar(matrix)),
        }
    return record


def judge(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each bar with what was found and whether it is met; a bar nobody measured is not met."""
    worst = min(records, key=lambda record: record["speed"])
    bars: dict[str, dict[str, Any]] = {
        "speed anywhere": {
            "bar": f">= {SLOWEST}",
            "found": worst["speed"],
            "where": worst["key"],
            "met": worst["speed"] >= SLOWEST,
        }
    }
    for key in BAR_RECTANGLES:
        found = next((record["speed"] for record in records if record["key"] == key), None)
        bars[f"speed on {key}"] = {
            "bar": f">= {RECTANGLE_SPEED}",
            "found": found,
            "where": key,
            "met": found is not None and found >= RECTANGLE_SPEED,
        }
    for dtype, limit in ERROR.items():
        for name in ("orthogonality", "reconstruction"):
            bars[f"{name} in {dtype}"] = _error_bar(records, name, dtype, limit)
    bars["difference to the SVD in float64"] = _error_bar(records, "difference", "float64", DIFFERENCE)
    return bars


def _error_bar(records: list[dict[str, Any]], name: str, dtype: str, limit: float) -> dict[str, Any]:
    held = [record for record in records if record["key"].startswith(dtype) and record[name] is not None]
    worst = max(held, key=lambda record: record[name], default=None)
    return {
        "bar": f"<= {limit:g}",
        "found": worst and worst[name],
        "where": worst and worst["key"],
        "met": worst is not None and worst[name] <= limit,
    }


def number(value: float | None, form: str = ".1e") -> str:
    return "-" if value is None else format(value, form)


def report(records: list[dict[str, Any]], bars: dict[str, dict[str, Any]]) -> None:
    frame.show(
        "polar against torch.linalg.svd + U @ Vh",
        ("case", "svd ms", "polar ms", "speed", "path", "Q'Q - I", "QH - A", "svd's Q'Q - I", "to svd", "noise"),
        [
            (
                record["key"],
                number(1e3 * record["seconds"]["svd"]["best"], ".2f"),
                number(1e3 * record["seconds"]["polar"]["best"], ".2f"),
                number(record["speed"], ".2f"),
                record["path"],
                number(record["orthogonality"]),
                number(record["reconstruction"]),
                number(record["svd_errors"]["orthogonality"]),
                number(record["difference"]),
                number(record["seconds"]["svd"]["spread"], ".0%"),
            )
            for record in records
        ],
    )
    for name, bar in bars.items():
        verdict = "met" if bar["met"] else "NOT met"
        where = f" at {bar['where']}" if bar["where"] and bar["where"] not in name else ""
        print(f"{verdict:>7}: {name} {bar['bar']}: {number(bar['found'], '.3g')}{where}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="widths up to 512 only, about a minute")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch (default: 1)")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains this; others keep their results")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where results go")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    path = asked.json or frame.RESULTS / ("polar-quick.json" if asked.quick else "polar.json")

    found: dict[str, dict[str, Any]] = {}
    if asked.only and path.exists():
        found = {record["key"]: record for record in json.loads(path.read_text("utf-8"))["cases"]}
    environment = frame.environment(seed=SEED, threads=asked.threads)
    wanted = [case.key for case in cases(asked.quick)]
    for case in cases(asked.quick):
        if asked.only and asked.only not in case.key:
            continue
        # Cases measured again later carry their own date; the environment is that of the last run.
        found[case.key] = {"date": environment["date"], **measure(case, budget=0.5 if asked.quick else 6.0)}
        gc.collect()
        records = [found[key] for key in wanted if key in found]
        frame.save(path, {"environment": environment, "bars": judge(records), "cases": records})
        print(f"{case.key}: {found[case.key]['speed']:.2f}", file=sys.stderr, flush=True)
    records = [found[key] for key in wanted if key in found]
    report(records, judge(records))


if __name__ == "__main__":
    main()
