"""How fast is a store translated, beside a bare matrix product of the same data and beside PyPI's `isotrieve`?

- `.npy` and uncompressed Parquet, 384 to 768 numbers a row, from a warm cache: rows a second until all is written, and
  apart from that the seconds in which it is flushed to the disk and put in its place. The bare product has all rows in
  memory, and room for its result.
- Memory: how far the peak rises for a quarter of the rows and for all of them.
- `isotrieve`, on its own `.npy` path, with fewer rows (it holds all of them as float64), ours in turn beside it.
- Fitting: relative projection, the regularised form, beside one SVD of the same matrix of anchors.

`isotrieve` lives in an environment of its own, made from benchmarks/peers/isotrieve.txt on first use.

    python benchmarks/translate_speed.py --quick    100,000 rows; writes results/translate_speed-quick.json
    python benchmarks/translate_speed.py            a million rows, 12 GB of disk and memory; a quarter of an hour
    python benchmarks/translate_speed.py --only memory    one part again, merged into the results
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
from interbasin.jobs.translate import Translator
from interbasin.jobs.translate.apply import translate_vectors
from peers import peer_python

SEED = 0
SOURCE, TARGET = 384, 768
PAIRS = 4000
ROW_GROUP = 16_384
METHODS = ("ridge", "relative-projection")
MEMORY_ROUNDS = 4
PARTS = ("memory", "apply", "fit", "peer")
# The bars: share of the bare product's rows a second, growth of memory from a quarter to all rows, speed beside the
# peer, and a fit in SVDs.
BAR_SHARE, BAR_GROWTH, BAR_PEER, BAR_FIT = 0.5, 1.1, 10.0, 10.0


def vectors(rows: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)


def fitted(method: str) -> tuple[Translator, np.ndarray, np.ndarray]:
    x = vectors(PAIRS, SOURCE, SEED)
    y = x @ vectors(SOURCE, TARGET, SEED + 1) / SOURCE**0.5 + 0.1 * vectors(PAIRS, TARGET, SEED + 2)
    return Translator(method=method).fit(x, y), x, y


def write_parquet(path: Path, x: np.ndarray) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1])
    table = pa.table({"id": np.arange(len(x)), "vector": lists})
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=ROW_GROUP)


def warmed(path: Path) -> None:
    """Read once, so that the file is in the system's cache."""
    with path.open("rb") as file:
        while file.read(2**24):
            pass


# ---------------------------------------------------------------------- applying


def applied(folder: Path, rows: int, method: str, rounds: int) -> dict[str, Any]:
    translator = fitted(method)[0]
    x = torch.from_numpy(np.load(folder / "x.npy"))
    matrix, out = torch.randn(SOURCE, TARGET), torch.empty(rows, TARGET)
    seconds: dict[str, list[float]] = {"product": [], "npy": [], "parquet": []}
    finishing: dict[str, list[float]] = {"npy": [], "parquet": []}
    for _ in range(rounds):
        started = time.perf_counter()
        torch.mm(x, matrix, out=out)
        seconds["product"].append(time.perf_counter() - started)
        for kind in ("npy", "parquet"):
            source, target = folder / f"x.{kind}", folder / f"y.{kind}"
            warmed(source)
            done = translate_vectors(translator, source, target, column="vector" if kind == "parquet" else None)
            seconds[kind].append(done.timings["translate"])
            finishing[kind].append(done.timings["finish"])
            target.unlink()
    times = frame.Times(seconds)
    return {
        "method": method,
        "rows": rows,
        "times": times.record(),
        "rows_per_second": {name: rows / times.best(name) for name in seconds},
        "share": {name: times.speed(name, "product") for name in finishing},
        "finishing": {name: min(taken) for name, taken in finishing.items()},
    }


def memory(folder: Path, rows: int) -> dict[str, Any]:
    """Peaks for a quarter of the rows and for all, each in turn in a process that has done nothing else."""
    found: dict[str, Any] = {}
    for kind in ("npy", "parquet"):
        for part in (rows // 4, rows):
            source = folder / f"part-{part}.{kind}"
            x = np.load(folder / "x.npy", mmap_mode="r")[:part]
            np.save(source, x) if kind == "npy" else write_parquet(source, x)
            del x
        with multiprocessing.get_context("spawn").Pool(1) as apart:
            peaks = apart.apply(peaks_of, (folder, kind, (rows // 4, rows)))
        few, many = peaks.values()
        found[kind] = {
            "bytes": {str(part): peak for part, peak in peaks.items()},
            "growth": many / few if few and many else None,
        }
    return found


def peaks_of(folder: Path, kind: str, parts: tuple[int, int]) -> dict[int, int | None]:
    torch.set_num_threads(1)
    translator = fitted("ridge")[0]
    target = folder / f"y.{kind}"
    options: dict[str, Any] = {"column": "vector"} if kind == "parquet" else {}
    found: dict[int, list[int]] = {part: [] for part in parts}
    for turn in range(MEMORY_ROUNDS):
        for part in parts:
            source = folder / f"part-{part}.{kind}"
            call: Callable[[], object] = lambda source=source: translate_vectors(translator, source, target, **options)  # type: ignore[misc]  # noqa: E731
            peak = frame.peak_memory(call)
            target.unlink()
            if turn and peak is not None:  # at first the allocator does not know what will be asked of it
                found[part].append(peak)
    # The least: how many batches are under way at once is up to chance.
    return {part: min(peaks) if peaks else None for part, peaks in found.items()}


# ---------------------------------------------------------------------- beside the peer


def beside_peer(rows: int, rounds: int, threads: int) -> dict[str, Any]:
    python = peer_python("isotrieve")
    script = Path(__file__).parent / "peers" / "run_isotrieve.py"
    translator, x, y = fitted("ridge")
    record: dict[str, Any] = {"rows": rows, "ours": [], "transform": [], "migrate_store": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "x.npy", vectors(rows, SOURCE, SEED + 3))
        np.save(folder / "pairs-x.npy", x)
        np.save(folder / "pairs-y.npy", y)
        for _ in range(rounds):
            words = [str(python), str(script), str(folder), str(threads)]
            run = subprocess.run(words, capture_output=True, text=True, check=True)
            for way, taken in json.loads(run.stdout.splitlines()[-1])["seconds"].items():
                record[way].append(taken)
            started = time.perf_counter()  # all of it, flushing included, which the peer does not do
            translate_vectors(translator, folder / "x.npy", folder / "y.npy")
            record["ours"].append(time.perf_counter() - started)
            (folder / "y.npy").unlink()
    record["speed"] = {way: min(record[way]) / min(record["ours"]) for way in ("transform", "migrate_store")}
    return record


# ---------------------------------------------------------------------- fitting


def fit_case(anchors: int, width: int, budget: float) -> dict[str, Any]:
    x = vectors(anchors, width, SEED).astype(np.float64)
    y = x @ np.linalg.qr(np.random.default_rng(SEED).standard_normal((width, width)))[0]
    matrix = torch.from_numpy(x)
    times = frame.compare(
        {
            "svd": lambda: torch.linalg.svd(matrix, full_matrices=False),
            "fit": lambda: Translator(method="relative-projection").fit(x, y),
        },
        budget=budget,
        single_from=60,
    )
    return {"anchors": anchors, "width": width, "times": times.record(), "svds": times.best("fit") / times.best("svd")}


# ---------------------------------------------------------------------- the run


def bars(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def bar(name: str, asked: float, value: float, most: bool = False) -> None:
        met = value <= asked if most else value >= asked
        found[name] = {"bar": f"{'<=' if most else '>='} {asked:g}", "found": value, "met": bool(met)}

    for case in content["apply"]:
        for kind, share in case["share"].items():
            bar(f"{kind}, {case['method']}: share of the product's speed", BAR_SHARE, share)
    for kind, one in content["memory"].items():
        if one["growth"] is not None:
            bar(f"{kind}: memory for all rows over a quarter", BAR_GROWTH, one["growth"], most=True)
    if content["peer"]:
        bar("speed beside isotrieve's fastest way", BAR_PEER, min(content["peer"]["speed"].values()))
    for case in content["fit"]:
        bar(f"fit of {case['anchors']} x {case['width']}, in SVDs", BAR_FIT, case["svds"], most=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--only", choices=PARTS, help="one part; others keep their results")
    parser.add_argument("--without-peer", action="store_true", help="do not install and run isotrieve")
    arguments = parser.parse_args()
    quick, threads = arguments.quick, arguments.threads
    torch.set_num_threads(threads)
    path = arguments.json or frame.RESULTS / ("translate_speed-quick.json" if quick else "translate_speed.json")
    rows, rounds = (100_000, 2) if quick else (1_000_000, 3)
    content: dict[str, Any] = {
        "question": "translate_speed",
        "environment": frame.environment(seed=SEED, threads=threads),
        "apply": [],
        "memory": {},
        "peer": {},
        "fit": [],
    }
    if arguments.only and path.exists():
        content = json.loads(path.read_text("utf-8")) | {
            "environment": content["environment"],
            arguments.only: content[arguments.only],
        }

    def keep() -> None:
        content["bars"] = bars(content)
        frame.save(path, content)

    def asked(part: str) -> bool:
        return arguments.only in (None, part)

    with threadpool_limits(threads):
        if asked("memory") or asked("apply"):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                x = vectors(rows, SOURCE, SEED + 3)
                np.save(folder / "x.npy", x)
                write_parquet(folder / "x.parquet", x)
                del x
                if asked("memory"):
                    content["memory"] = memory(folder, rows)
                    keep()
                for method in METHODS if asked("apply") else ():
                    content["apply"].append(applied(folder, rows, method, rounds))
                    keep()
        if asked("fit"):
            content["fit"].append(fit_case(*((4000, 256, 5.0) if quick else (20_000, 768, 60.0))))
            keep()
        if asked("peer") and not arguments.without_peer:
            content["peer"] = beside_peer(20_000 if quick else 100_000, rounds, threads)
            keep()
    report(content)


def report(content: dict[str, Any]) -> None:
    frame.show(
        "Rows a second, all written; and seconds to flush",
        ("method", "product", "npy", "parquet", "npy flush, s", "parquet flush, s"),
        [
            (
                case["method"],
                *(f"{case['rows_per_second'][name]:,.0f}" for name in ("product", "npy", "parquet")),
                *(f"{case['finishing'][name]:.2f}" for name in ("npy", "parquet")),
            )
            for case in content["apply"]
        ],
    )
    for name, bar in content["bars"].items():
        print(f"{'met' if bar['met'] else 'NOT met':>7}: {name} {bar['bar']}: {bar['found']:.4g}")


if __name__ == "__main__":
    main()
