"""Does recording spaces inside hooks beat hooking every module and multiplying in float64, in time and memory?

Two vision transformers, 192 and 256 wide, 12 blocks, see the same 32 images, and the moments of their activations are
collected. Ours twice: the *spaces* of the wiring, each once, which is what alignments are fitted from; and every
*boundary* of a module with parameters that differs from the others, which is what the reference holds, without its
repetitions. The reference is the published way (`reference/published_recording.py`). All run in turn in one process,
and each has a process of its own for its memory. Tracing the networks, done once for whatever amount of data, is timed
apart.

    python benchmarks/recording.py            images of 224 x 224: some minutes, 5 GB
    python benchmarks/recording.py --quick    images of 96 x 96, and 6 blocks: under a minute

The published code itself was measured at 32.5 s on one idle thread, and 6.0 GB, for recording and solving.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import frame

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from interbasin.extras import import_extra  # isort: skip
from interbasin.activations import Recording, record, standing  # isort: skip
from interbasin.wiring.wire import wire  # isort: skip
from interbasin.wiring.wiring import Wiring  # isort: skip
from reference import published_recording  # isort: skip

timm = import_extra("timm", "A vision transformer", "timm")

SEED = 0
IMAGES = 32
WIDTHS = {"source": (192, 3), "target": (256, 4)}
BAR_MEMORY, BAR_SPEED = 4.0, 2.0
WAYS = ("spaces", "boundaries", "published")


def networks(quick: bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(SEED)
    source, target = (
        timm.create_model(
            "vit_tiny_patch16_224",
            img_size=96 if quick else 224,
            depth=6 if quick else 12,
            embed_dim=width,
            num_heads=heads,
        ).eval()
        for width, heads in WIDTHS.values()
    )
    return source, target


def images(quick: bool) -> Tensor:
    edge = 96 if quick else 224
    return torch.randn(IMAGES, 3, edge, edge, generator=torch.Generator().manual_seed(SEED))


def distinct_boundaries(model: nn.Module, example: Tensor) -> list[str]:
    """The boundaries that the reference hooks, each activation under the first name it comes by."""
    hooks = published_recording.Hooks(model)
    try:
        with torch.inference_mode():
            model(example)
        first: dict[tuple[int, tuple[int, ...]], str] = {}
        for name, tensor in hooks.seen.items():  # all are held, so that no memory was used twice
            first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
        return list(first.values())
    finally:
        hooks.remove()


def ways(quick: bool) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    source, target = networks(quick)
    batch = images(quick)
    started = time.perf_counter()
    wirings: tuple[Wiring, Wiring] = (wire(source, batch[:2]), wire(target, batch[:2]))
    seconds = {"wiring": time.perf_counter() - started}
    spaces = list(standing(wirings[0]))
    boundaries = distinct_boundaries(source, batch[:2])
    pair = (source, target)
    return {
        "spaces": lambda: record(pair, [batch], spaces, wirings=wirings),
        "boundaries": lambda: record(pair, [batch], boundaries),
        "published": lambda: published_recording.record(source, target, [batch]),
    }, seconds


def products(found: Any) -> int:
    return len(found.moments) if isinstance(found, Recording) else len(found)


def difference(ours: Recording, published: dict[str, published_recording.Sums]) -> float:
    """The largest relative difference of a centred cross-product."""
    worst = 0.0
    for (name, _), moments in ours.moments.items():
        wanted = published[name].centred()
        worst = max(worst, float(torch.linalg.matrix_norm(moments.cross() - wanted) / torch.linalg.matrix_norm(wanted)))
    return worst


def memory(way: str, quick: bool, threads: int) -> int | None:
    """Peak memory above the networks and the images, in a process of its own."""
    words = [sys.executable, __file__, "--measure", way, "--threads", str(threads), *(["--quick"] if quick else [])]
    found: int | None = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller networks; writes recording-quick.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    quick = arguments.quick
    calls, seconds = ways(quick)
    if arguments.measure:
        print(json.dumps(frame.peak_memory(calls[arguments.measure])))
        return
    path = arguments.json or frame.RESULTS / ("recording-quick.json" if quick else "recording.json")
    found = {way: call() for way, call in calls.items()}
    content: dict[str, Any] = {
        "question": "recording",
        "environment": frame.environment(seed=SEED, threads=arguments.threads),
        "images": IMAGES,
        "widths": [width for width, _ in WIDTHS.values()],
        "wiring_seconds": seconds["wiring"],
        "products": {way: products(one) for way, one in found.items()},
        "difference": difference(found["boundaries"], found["published"]),
    }
    found.clear()
    times = frame.compare(calls, budget=15 if quick else 90, single_from=1e9)
    content["times"] = times.record()
    frame.save(path, content)
    content["bytes"] = {way: memory(way, quick, arguments.threads) for way in WAYS}
    content["summary"] = summary(content, times, quick)
    frame.save(path, content)
    report(content)


def summary(content: dict[str, Any], times: frame.Times, quick: bool) -> dict[str, Any]:
    held = content["bytes"]
    found: dict[str, Any] = {}
    for way in ("spaces", "boundaries"):
        found[f"{way}_speed"] = times.speed(way, "published")
        known = held[way] is not None and held["published"] is not None
        found[f"{way}_memory"] = held["published"] / held[way] if known else None
    if not quick:
        found["speed_bar_met"] = found["spaces_speed"] >= BAR_SPEED
        found["memory_bar_met"] = found["spaces_memory"] is not None and found["spaces_memory"] >= BAR_MEMORY
    return found


def report(content: dict[str, Any]) -> None:
    frame.show(
        f"Recording {IMAGES} images in two vision transformers, {content['environment']['threads']} thread(s)",
        ("way", "products", "best s", "median s", "speed", "peak MB", "less memory"),
        [
            (
                way,
                str(content["products"][way]),
                f"{content['times'][way]['best']:.2f}",
                f"{content['times'][way]['median']:.2f}",
                _ratio(content["summary"].get(f"{way}_speed", 1.0)),
                "-" if content["bytes"][way] is None else f"{content['bytes'][way] / 1e6:,.0f}",
                _ratio(content["summary"].get(f"{way}_memory", 1.0)),
            )
            for way in WAYS
        ],
    )
    print(f"tracing both networks: {content['wiring_seconds']:.1f} s; largest difference {content['difference']:.1e}")
    for name, value in content["summary"].items():
        print(f"{name}: {value}")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
