"""What does it cost to give one network the fine-tune of another, beside the published procedure and beside gradients?

- **pair**: two vision transformers, 192 and 256 wide, 12 blocks, and 32 images. Theseus with all that it takes (traces
  of both networks, recording, maps, the update carried) beside `reference/published_transport.py`, in time and memory;
  and the objective ``tr(T^T C)`` where both solve the same problem, at the inputs and outputs of modules.
- **regression**: on the same networks and images, beside distillation steps (ten are timed, a hundred is the bar).
- **width**: two blocks, a source 256 wide and targets of growing width; rows as in figure 5 of the paper.
- **samples**: the peak of recording 8, 32 and 128 batches, with and without the gaps in the C library's heap.
- **disk**: two residual networks of 63 and 99 MB whose weights stay in files, and an update that is written a tensor at
  a time (`transport_on_disk`): the most that the process holds of its own, beside what it said it would.
- **lora**: a rank-16 adapter between two Llama-shaped configurations of a billion parameters, which stay on the meta
  device: maps are given, and blocks come one at a time. As factors, and as the dense update that they stand for.

Everything runs on one thread, ways in turn in one process, and each has a process of its own for its memory. Times are
those of the processor, user and system, so that other programs on the machine count little.

    python benchmarks/transport_cost.py                    a quarter of an hour, 7 GB
    python benchmarks/transport_cost.py --only lora        one part
    python benchmarks/transport_cost.py --quick            small networks: a minute or two
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import frame

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from interbasin.checkpoints.lora import Factors  # isort: skip
from interbasin.extras import import_extra  # isort: skip
from interbasin.jobs.transport.updates.adapter import kinds_of  # isort: skip
from interbasin.jobs.transport.bases import Bases, Pair, relate  # isort: skip
from interbasin.jobs.transport.theseus.by_module import places_of  # isort: skip
from interbasin.jobs.transport.theseus.carrier import Carrier  # isort: skip
from interbasin.jobs.transport.comparison.table import COMPARED  # isort: skip
from interbasin.jobs.transport.theseus.maps import observe

from interbasin.jobs.transport.theseus.rules import SecondMoments, SpaceMap, procrustes  # isort: skip
from interbasin.jobs.transport.methods import METHODS  # isort: skip
from interbasin.jobs.transport.task import Task  # isort: skip
from interbasin.jobs.transport.updates.update import Update  # isort: skip
from interbasin.jobs.transport.theseus.on_disk import transport_on_disk  # isort: skip
from interbasin.checkpoints import write_checkpoint  # isort: skip
from interbasin.models import map_weights  # isort: skip
from interbasin.maps import Identity, Orthogonal  # isort: skip
from reference import published_transport  # isort: skip

timm = import_extra("timm", "A vision transformer", "timm")
transformers = import_extra("transformers", "A language model", "hf")

SEED, IMAGES, RANK = 0, 32, 16
PARTS = ("pair", "regression", "width", "samples", "disk", "lora")
STEPS, STEPS_TIMED, STEPS_OF_WIDTH = 100, 3, 20
ROUNDS = 2
BATCHES = (8, 32, 128)
BAR_SPEED, BAR_MEMORY, BAR_OBJECTIVE, BAR_FLAT, BAR_LORA, BAR_DISK = 4.0, 8.0, 1e-6, 1.1, 10.0, 0.5
# Settings of the C library with which what is freed goes back to the system at once.
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}

Call = Callable[[], Any]


# ---------------------------------------------------------------------- networks and data


def vit(width: int, depth: int, edge: int) -> nn.Module:
    network: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=edge, depth=depth, embed_dim=width, num_heads=width // 64
    )
    return network.eval()


def images(edge: int, count: int = IMAGES, seed: int = SEED) -> Tensor:
    return torch.randn(count, 3, edge, edge, generator=torch.Generator().manual_seed(seed))


def fine_tuned(network: nn.Module) -> nn.Module:
    """A copy with noise: what an update costs does not depend on what it is worth."""
    other, generator = copy.deepcopy(network), torch.Generator().manual_seed(SEED + 1)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-2 * float(tensor.std(correction=0)))
    return other


class Pairing:
    """Two networks, a fine-tune of the first, and images."""

    def __init__(self, widths: tuple[int, int], depth: int, edge: int) -> None:
        torch.manual_seed(SEED)
        self.source, self.target = (vit(width, depth, edge) for width in widths)
        self.tuned, self.batch = fine_tuned(self.source), images(edge)

    @classmethod
    def usual(cls, quick: bool) -> Pairing:
        return cls((192, 256), *((2, 96) if quick else (12, 224)))

    def task(self) -> Task:
        bases = relate(self.source, self.target, [self.batch])
        return Task(bases, Update.of(self.tuned, self.source), self.tuned, [self.batch])

    def theseus(self) -> Any:
        task = self.task()
        return task.carrier(task.maps()).carry(task.update)

    def modules(self) -> Any:
        return METHODS["theseus"].function(self.task(), "modules")

    def published(self) -> Any:
        before, after = self.source.state_dict(), self.tuned.state_dict()
        update = {name: after[name] - before[name] for name in before}
        return published_transport.transport(self.source, self.target, update, [self.batch])

    def regression(self) -> Any:
        return METHODS["regression"].function(self.task(), "tuned")

    def distil(self, steps: int) -> Any:
        return COMPARED["distil"].function(self.task(), "cold", steps=steps)


class Stream:
    """Batches that are made when they are asked for."""

    def __init__(self, count: int, edge: int) -> None:
        self.count, self.edge = count, edge

    def __iter__(self) -> Iterator[Tensor]:
        return (images(self.edge, seed=number) for number in range(self.count))


# ---------------------------------------------------------------------- a LoRA between language models


def llama(width: int, hidden: int, layers: int) -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=32000,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        network: nn.Module = transformers.LlamaForCausalLM(config)
    return network.eval()


def isometry(source: int, target: int) -> Orthogonal:
    """The corner of a reflection: dense, and cheap to make at any width."""
    long = max(source, target)
    vector = torch.randn(long, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    vector /= torch.linalg.vector_norm(vector)
    matrix = torch.eye(target, source, dtype=torch.float64)
    matrix.addr_(vector[:target], vector[:source], alpha=-2)
    # A corner of a reflection has orthonormal columns only along the whole of one side.
    return Orthogonal._trusted(matrix, min(source, target))


class Adapter:
    """Two language models on the meta device, maps between them, and a LoRA of the first."""

    def __init__(self, quick: bool) -> None:
        shapes = ((256, 704, 2), (512, 1408, 2)) if quick else ((2048, 5632, 22), (2304, 6144, 22))
        self.source, self.target = (llama(*shape) for shape in shapes)
        ids = torch.zeros(1, 4, dtype=torch.long)
        self.bases = relate(self.source, self.target, [{"input_ids": ids}], heads="free")
        self.carrier = Carrier(self.bases, self._maps(self.bases))

    @staticmethod
    def _maps(bases: Bases) -> dict[Pair, SpaceMap]:
        made = functools.cache(isometry)  # blocks share their maps: what they cost is not what is asked here
        maps = {}
        for entry in bases.correspondence.spaces:
            source, target = bases.spaces(entry)
            rank = min(source.width, target.width)
            found = Identity(source.width) if bases.is_shared(entry) else made(source.width, target.width)
            maps[entry.source, entry.target] = SpaceMap(found, rank, rank, "given")
        return maps

    def update(self, layer: int) -> Update:
        """The adapter of one block: factors of all of its linear layers."""
        generator = torch.Generator().manual_seed(layer)
        factors = {
            f"{name}.weight": Factors(
                torch.randn(RANK, module.in_features, generator=generator),
                torch.randn(module.out_features, RANK, generator=generator),
            )
            for name, module in self.source.named_modules()
            if isinstance(module, nn.Linear) and name.startswith(f"model.layers.{layer}.")
        }
        return Update(factors=factors, kinds=kinds_of(self.source))

    def factors(self) -> Update:
        return self.carrier.carry(self.update(0)).update

    def dense(self) -> Update:
        return self.carrier.carry(self.update(0).as_dense()).update

    def all_factors(self) -> list[Update]:
        """The whole adapter, block by block, and kept."""
        layers = self.source.config.num_hidden_layers  # type: ignore[union-attr]
        return [self.carrier.carry(self.update(layer)).update for layer in range(layers)]  # type: ignore[arg-type]


def parameters(network: nn.Module) -> int:
    return sum(tensor.numel() for tensor in network.parameters())


# ---------------------------------------------------------------------- networks on disk


class Residual(nn.Module):
    """Blocks on one stream, each with a hidden space of its own that is as wide."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(64, width), nn.Linear(width, 8)
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + 0.1 * down(torch.relu(up(x)))
        answer: Tensor = self.head(x)
        return answer


def run_disk(folder: Path, depth: int, allowed: int) -> dict[str, int]:
    """In a process of its own: the peak of memory that is not a file's, and what was said before."""
    with torch.device("meta"):
        networks = [Residual(width, depth) for width in (512, 640)]
    small = Residual(8, 1).eval()
    transport_on_disk(small, {"head.bias": torch.ones(8)}, small, torch.randn(64, 64), folder / "warm")  # imports
    source, target = (
        map_weights(each, folder / f"{name}.safetensors") for each, name in zip(networks, "ab", strict=True)
    )
    data = torch.randn(600, 64, generator=torch.Generator().manual_seed(SEED))
    before, peak, done = frame._resident("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], frame._resident("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    written = transport_on_disk(source, folder / "tuned.safetensors", target, data, folder / "out", memory=allowed)
    done.set()
    watcher.join()
    return {
        "peak": peak[0] - before,
        "estimate": written.stages.memory,
        "passes": len(written.stages.passes),
        "weights": sum((folder / f"{name}.safetensors").stat().st_size for name in ("a", "b", "tuned")),
        "written": (folder / "out" / "update.safetensors").stat().st_size,
    }


def measure_disk(quick: bool) -> dict[str, Any]:
    depth = 4 if quick else 30
    with tempfile.TemporaryDirectory() as folder:
        for name, width, seed in (("a", 512, 0), ("b", 640, 1), ("tuned", 512, 0)):
            torch.manual_seed(seed)
            network: nn.Module = Residual(width, depth)
            network = fine_tuned(network) if name == "tuned" else network
            write_checkpoint(Path(folder) / f"{name}.safetensors", network.state_dict())
        command = [sys.executable, __file__, "--disk", folder, str(depth), str(16_000_000)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **RETURNING})
        found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "allowed": 16_000_000, "share": found["peak"] / found["weights"]}


# ---------------------------------------------------------------------- time, in turns


def compare(ways: dict[str, Call], rounds: int = ROUNDS) -> frame.Times:
    """Seconds of the processor, ways in turn; whoever goes first finds the caches as the other left them."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way, call in list(ways.items())[:: 1 if turn % 2 == 0 else -1]:
            began = time.process_time()
            call()
            seconds[way].append(time.process_time() - began)
    return frame.Times(seconds)


# ---------------------------------------------------------------------- memory, in processes of their own


def measured(words: str, quick: bool) -> Call:
    """What ``--measure`` runs: networks and data are made here, and do not count."""
    kind, _, detail = words.partition(":")
    if kind in ("theseus", "modules", "published", "regression"):
        call: Call = getattr(Pairing.usual(quick), kind)
        return call
    if kind == "distil":
        return functools.partial(Pairing.usual(quick).distil, 2)  # memory does not grow with steps
    if kind == "width":
        way, width = detail.split(",")
        pairing = Pairing((256, int(width)), 2, 64)
        return pairing.theseus if way == "theseus" else functools.partial(pairing.distil, 2)
    if kind == "samples":
        small = Pairing((192, 256), 2, 64)
        bases = relate(small.source, small.target, [small.batch])
        data = Stream(int(detail), 64)
        return Task(bases, Update.of(small.tuned, small.source), small.tuned, data).maps
    adapter = Adapter(quick)
    found: Call = getattr(adapter, detail)
    return found


def memory(words: str, quick: bool, *, returned: bool = False) -> int | None:
    """The peak of a call. ``returned``: what is freed goes back to the system at once, so that no gaps are counted."""
    command = [sys.executable, __file__, "--measure", words, *(["--quick"] if quick else [])]
    settings = RETURNING if returned else {}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **settings})
    found: int | None = json.loads(done.stdout)
    return found


# ---------------------------------------------------------------------- the parts


def measure_pair(quick: bool) -> dict[str, Any]:
    pairing = Pairing.usual(quick)
    ways: dict[str, Call] = {way: getattr(pairing, way) for way in ("theseus", "modules", "published")}
    times = compare(ways)
    held = {way: memory(way, quick) for way in ways}
    objective, places = objectives(pairing)
    found: dict[str, Any] = {"times": times.record(), "bytes": held, "objective": objective, "places": places}
    for way in ("theseus", "modules"):
        found[f"{way}_speed"] = times.speed(way, "published")
        found[f"{way}_memory"] = _ratio(held["published"], held[way])
    return found


def objectives(pairing: Pairing) -> tuple[float, int]:
    """The largest relative difference of ``tr(T^T C)`` over all places where both solve the same problem."""
    published = pairing.published().objectives
    bases = pairing.task().bases
    moments = observe(bases, [pairing.batch], list(places_of(bases)), grams=False)
    worst, count = 0.0, 0
    for (place, _), each in moments.items():
        module, _, side = place.rpartition(":")
        wanted = published.get(f"{module}[0]:{side}")
        if wanted is None or (module.endswith("qkv") and side == "output"):
            continue  # of a fused layer each third has maps of its own
        second_moments = SecondMoments.of(each, centered=True)
        ours = float((procrustes(second_moments)[0] * second_moments.cross).sum())
        worst, count = max(worst, abs(ours - wanted) / wanted), count + 1
    return worst, count


def measure_regression(quick: bool) -> dict[str, Any]:
    pairing = Pairing.usual(quick)
    ways: dict[str, Call] = {
        "regression": pairing.regression,
        "distil": functools.partial(pairing.distil, STEPS_TIMED),
    }
    times = compare(ways, 1)
    hundred = times.best("distil") * STEPS / STEPS_TIMED
    return {
        "times": times.record(),
        "steps_timed": STEPS_TIMED,
        "share_of_100_steps": times.best("regression") / hundred,
        "bytes": {way: memory(way, quick) for way in ways},
    }


def measure_width(quick: bool) -> dict[str, Any]:
    rows = {}
    for width in (64, 128, 256) if quick else (64, 128, 256, 512, 1024, 2048):
        pairing = Pairing((256, width), 2, 64)
        ways: dict[str, Call] = {
            "theseus": pairing.theseus,
            "distil": functools.partial(pairing.distil, STEPS_OF_WIDTH),
        }
        times = compare(ways, 1)
        rows[str(width)] = {
            "times": times.record(),
            "bytes": {way: memory(f"width:{way},{width}", quick) for way in ways},
            "parameters": parameters(pairing.target),
        }
    return {"steps": STEPS_OF_WIDTH, "rows": rows}


def measure_samples(quick: bool) -> dict[str, Any]:
    held = {str(count): memory(f"samples:{count}", quick) for count in BATCHES[: 2 if quick else 3]}
    # The heap of the C library has gaps of several MB, which differ from run to run. Without them nothing grows.
    returned = {count: memory(f"samples:{count}", quick, returned=True) for count in held}
    return {
        "bytes": held,
        "growth": _growth(held),
        "bytes_without_gaps": returned,
        "growth_without_gaps": _growth(returned),
    }


def _growth(held: dict[str, int | None]) -> float | None:
    known = [each for each in held.values() if each is not None]
    return max(known) / min(known) if known else None


def measure_lora(quick: bool) -> dict[str, Any]:
    adapter = Adapter(quick)
    times = compare({"factors": adapter.factors, "dense": adapter.dense})
    ours, dense = adapter.factors(), adapter.dense()
    apart = max(
        float(torch.linalg.matrix_norm(ours.tensor(name) - dense.tensor(name)))
        / float(torch.linalg.matrix_norm(dense.tensor(name)))
        for name in ours.factors
    )
    del ours, dense
    held = {way: memory(f"lora:{way}", quick) for way in ("factors", "all_factors", "dense")}
    return {
        "parameters": [parameters(adapter.source), parameters(adapter.target)],
        "rank": RANK,
        "times": times.record(),
        "bytes": held,
        "difference": apart,
        "speed": times.speed("factors", "dense"),
        "memory": _ratio(held["dense"], held["factors"]),
        "memory_of_all": _ratio(held["dense"], held["all_factors"]),
    }


def _ratio(more: int | None, less: int | None) -> float | None:
    return None if more is None or not less else more / less


# ---------------------------------------------------------------------- what was found


def bars(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every bar that was measured: the figure, the bar, and whether it is met."""
    found: dict[str, dict[str, Any]] = {}

    def bar(name: str, value: float | None, limit: float, *, least: bool) -> None:
        met = value is not None and (value >= limit if least else value <= limit)
        found[name] = {"value": value, "bar": limit, "least": least, "met": met}

    if "pair" in content:
        bar("theseus: times faster than published", content["pair"]["theseus_speed"], BAR_SPEED, least=True)
        bar("theseus: times less memory", content["pair"]["theseus_memory"], BAR_MEMORY, least=True)
        bar("objective: relative difference", content["pair"]["objective"], BAR_OBJECTIVE, least=False)
    if "regression" in content:
        share = content["regression"]["share_of_100_steps"]
        bar("regression: time, of 100 distillation steps", share, 1.0, least=False)
    if "samples" in content:
        # What is held; the gaps in the heap of the C library come and go from run to run.
        grown = content["samples"].get("growth_without_gaps")
        bar("recording: memory held with most batches, of that with fewest", grown, BAR_FLAT, least=False)
    if "disk" in content:
        bar("on disk: memory held, of the weights", content["disk"]["share"], BAR_DISK, least=False)
    if "lora" in content:
        bar("LoRA: times less memory than dense", content["lora"]["memory"], BAR_LORA, least=True)
    return found


def report(content: dict[str, Any]) -> None:
    for part in ("pair", "regression", "lora"):
        if part in content:
            taken, held = content[part]["times"], content[part]["bytes"]
            frame.show(
                f"{part}, one thread",
                ("way", "best s", "median s", "peak MB"),
                [
                    (way, *(f"{taken[way][key]:.2f}" if way in taken else "-" for key in ("best", "median")), _mb(peak))
                    for way, peak in held.items()
                ],
            )
    if "width" in content:
        frame.show(
            f"growth with width: Theseus and {content['width']['steps']} distillation steps",
            ("target width", "theseus s", "distil s", "theseus MB", "distil MB"),
            [
                (
                    width,
                    *(f"{row['times'][way]['best']:.2f}" for way in ("theseus", "distil")),
                    *(_mb(row["bytes"][way]) for way in ("theseus", "distil")),
                )
                for width, row in content["width"]["rows"].items()
            ],
        )
    if "samples" in content:
        frame.show(
            "recording more batches of 32 images",
            ("batches", "peak MB"),
            [(count, _mb(peak)) for count, peak in content["samples"]["bytes"].items()],
        )
    for name, each in content["bars"].items():
        value = "unknown" if each["value"] is None else f"{each['value']:.3g}"
        sign = "at least" if each["least"] else "at most"
        print(f"{name}: {value} ({sign} {each['bar']:g}): {'met' if each['met'] else 'NOT MET'}")


def _mb(peak: int | None) -> str:
    return "-" if peak is None else f"{peak / 1e6:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller networks; writes transport_cost-quick.json")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="some of the parts; others are kept")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--disk", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quick = arguments.quick
    if arguments.measure:
        print(json.dumps(frame.peak_memory(measured(arguments.measure, quick))))
        return
    if arguments.disk:
        folder, depth, allowed = arguments.disk
        print(json.dumps(run_disk(Path(folder), int(depth), int(allowed))))
        return
    path = arguments.json or frame.RESULTS / ("transport_cost-quick.json" if quick else "transport_cost.json")
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    content |= {"question": "transport_cost", "environment": frame.environment(seed=SEED, threads=1)}
    for part in arguments.only:
        # Parts may be of different runs, and machines.
        where = frame.environment(seed=SEED, threads=1)
        content[part] = {**globals()[f"measure_{part}"](quick), "environment": where}
        content["bars"] = {} if quick else bars(content)
        frame.save(path, content)
    report(content)


if __name__ == "__main__":
    main()
