"""Does merging agree with mergekit, and is it faster and smaller?

Llama-shaped checkpoints of about 30 M parameters are written to disk, merged by `interbasin merge` and by mergekit's
`mergekit-yaml`, and compared: the numbers, the time of the whole commands, the time with start-up removed on both
sides, and the peak memory. Then checkpoints of 1 B parameters in bfloat16 are merged by us alone, to see whether memory
grows.

mergekit lives in an environment of its own, made from benchmarks/peers/mergekit.txt on first use.

    python benchmarks/merge.py --quick     two methods, few rounds, no 1 B; writes results/merge-quick.json
    python benchmarks/merge.py             everything; writes results/merge.json
    python benchmarks/merge.py --only slerp     those cases again, merged into the full results

How mergekit's parameters map to ours: `linear` with weights 1 - t and t is lerp, with any weights average (both
normalise them); `slerp` with base_model the first model and t is slerp; `task_arithmetic` and `ties` have the same
weight and density, and mergekit's lambda is our scale (its normalize stays as it is by default: off for
task_arithmetic, on for ties). dtype is float32, the checkpoints' own. There is one difference: from a tensor that is
zero (length below 1e-8) mergekit's slerp goes along a quarter circle and ours along the line. And where several updates
are exactly as large as the smallest that TIES keeps, we keep the first ones and mergekit any: such entries are counted
apart.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.checkpoints.checkpoint import Entry, LazyTensors
from interbasin.checkpoints.in_memory import tensor_from
from interbasin.jobs.merge.kernel import narrow
from peers import peer_python

SEED = 0
ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(__file__).parent / "peers"

# The bars.
AGREEMENT = 1e-6
WHOLE_COMMAND = 5.0
IN_PROCESS = 1.0
MEMORY = 1.0
GROWTH = 32.0  # megabytes that 35 times the parameters may add

SMALL = {"hidden": 384, "inner": 1024, "layers": 8, "vocabulary": 22_000}
LARGE = {"hidden": 2048, "inner": 5632, "layers": 22, "vocabulary": 32_000}


@dataclass(frozen=True)
class Case:
    """One merge, in our words and in mergekit's."""

    method: str
    models: int
    theirs: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.method}, {self.models} models"

    @property
    def based(self) -> bool:
        return self.method in ("task-arithmetic", "ties")

    def flags(self, folder: Path) -> list[str]:
        """What our command line is given."""
        words = [str(folder / f"model{number}") for number in range(self.models)] + ["--method", self.method]
        for name, value in self.options.items():
            words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
        return words + (["--base", str(folder / "base")] if self.based else [])

    def configuration(self, folder: Path) -> dict[str, Any]:
        """What mergekit is given."""
        t = self.options.get("t", 0.5)
        weights = self.options.get("weights", [1 - t, t] if self.method == "lerp" else [1.0] * self.models)
        models = []
        for number in range(self.models):
            parameters = {} if self.method == "slerp" else {"weight": weights[number]}
            if self.method == "ties":
                parameters["density"] = self.options["density"]
            models.append({"model": str(folder / f"model{number}"), "parameters": parameters})
        asked: dict[str, Any] = {"merge_method": self.theirs, "models": models, "dtype": "float32"}
        if self.method == "slerp":
            asked |= {"base_model": str(folder / "model0"), "parameters": {"t": t}}
        if self.based:
            asked |= {"base_model": str(folder / "base"), "parameters": {"lambda": self.options.get("scale", 1.0)}}
        return asked


CASES = (
    Case("lerp", 2, "linear", {"t": 0.3}),
    Case("slerp", 2, "slerp", {"t": 0.3}),
    Case("average", 3, "linear", {"weights": [1, 2, 0.5]}),
    Case("task-arithmetic", 2, "task_arithmetic", {"weights": [1, 0.5]}),
    Case("task-arithmetic", 3, "task_arithmetic", {"weights": [0.5, 0.4, 0.3], "scale": 0.8}),
    Case("ties", 2, "ties", {"weights": [1, 0.5], "density": 0.5}),
    Case("ties", 3, "ties", {"weights": [1, 1, 1], "density": 0.2, "scale": 0.7}),
)


# ---------------------------------------------------------------------- checkpoints


def shapes(hidden: int, inner: int, layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama whose keys and values have half as many heads."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(layers):
        place = f"model.layers.{layer}"
        found |= {f"{place}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        found |= {f"{place}.self_attn.{name}_proj.weight": (hidden // 2, hidden) for name in "kv"}
        found |= {f"{place}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        found |= {f"{place}.mlp.down_proj.weight": (hidden, inner)}
        found |= {f"{place}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def configuration(hidden: int, inner: int, layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def make_small(folder: Path) -> int:
    """A base and three fine-tunes of it, in float32; how many parameters each has."""
    base: dict[str, torch.Tensor] = {}
    for seed, name in enumerate(("base", "model0", "model1", "model2")):
        generator = torch.Generator().manual_seed(SEED + seed)
        drawn = {
            tensor: 0.02 * torch.randn(*shape, generator=generator) + (1.0 if len(shape) == 1 else 0.0)
            for tensor, shape in shapes(**SMALL).items()
        }
        # An update is a third as long as what it is added to, as after much fine-tuning.
        values = {tensor: base[tensor] + value / 3 for tensor, value in drawn.items()} if base else drawn
        base = base or values
        write_checkpoint(folder / name, values)
        (folder / name / "config.json").write_text(json.dumps(configuration(**SMALL)))
    return sum(value.numel() for value in base.values())


class RandomTensors(LazyTensors):
    """Tensors in bfloat16, whose numbers are cut from one block: a billion draws would take minutes."""

    def __init__(self, seed: int) -> None:
        self.entries = {name: Entry("bfloat16", shape, 2) for name, shape in shapes(**LARGE).items()}
        self.ties = {}
        self.block = narrow(np.random.default_rng(seed).normal(0, 0.02, 1 << 22).astype(np.float32), "bfloat16")

    def chunks(self, name: str) -> Iterator[np.ndarray[Any, Any]]:
        count, start = self.entries[name].numel, 97 * list(self.entries).index(name)
        while count:
            piece = self.block[start : start + count]
            yield piece
            count, start = count - len(piece), 0

    def __getitem__(self, name: str) -> torch.Tensor:
        return tensor_from(self.chunks(name), self.entries[name])


def make_large(folder: Path) -> int:
    """A base and two others of a billion parameters in bfloat16, a piece at a time."""
    for seed, name in enumerate(("base", "model0", "model1")):
        tensors = RandomTensors(SEED + seed)
        write_checkpoint(folder / name, tensors, max_shard_bytes=1_000_000_000)
        (folder / name / "config.json").write_text(json.dumps(configuration(**LARGE) | {"dtype": "bfloat16"}))
    return tensors.numel


# ---------------------------------------------------------------------- running both

# A process of its own without torch in it: the peak that the system tells of a child is never below its parent's.
LAUNCH = """
import json, os, sys, time
started = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - started
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime]))
"""


def surroundings(threads: int) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }


def command(words: list[str], threads: int) -> tuple[float, int, float]:
    """Seconds, peak memory and processor seconds of a command."""
    launched = [sys.executable, "-S", "-E", "-c", LAUNCH, *words]
    done = subprocess.run(launched, env=surroundings(threads), capture_output=True, text=True, check=True)
    code, seconds, peak, processor = json.loads(done.stdout)
    if code:
        shown = subprocess.run(words, env=surroundings(threads), capture_output=True, text=True, check=False)
        raise SystemExit(f"{' '.join(words)} failed:\n{shown.stderr}")
    return seconds, peak, processor


@contextmanager
def served(words: list[str], threads: int) -> Iterator[Any]:
    """A process that merges when it is told to; yields the function that tells it, which returns the seconds."""
    environment = surroundings(threads)
    process = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(asked: Mapping[str, Any]) -> float:
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        while line := process.stdout.readline():
            if line.startswith("{"):
                return float(json.loads(line)["seconds"])
        raise SystemExit(f"{' '.join(words)} ended early")

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait()


def difference(case: Case, folder: Path) -> tuple[float, int, int]:
    """The largest difference between what both made, and what of it lies at the border of a trim.

    Of updates that are exactly as large as the smallest that TIES keeps, only some are kept: here the first ones, by
    mergekit those that an unstable sort puts first. Entries at which a model's update is of that very size are counted
    apart: how many there are, and how many of them differ.
    """
    ours, theirs = open_checkpoint(folder / "ours"), open_checkpoint(folder / "theirs")
    assert set(ours) == set(theirs), sorted(set(ours) ^ set(theirs))[:3]
    base = open_checkpoint(folder / "base")
    models = [open_checkpoint(folder / f"model{number}") for number in range(case.models)]
    largest, at_border, differing = 0.0, 0, 0
    for name in ours:
        gap = (ours[name].double() - theirs[name].double()).abs().flatten()
        border = torch.zeros(len(gap), dtype=torch.bool)
        for model in models if case.method == "ties" else ():
            sizes = (model[name] - base[name]).abs().flatten()
            smallest = sizes.kthvalue(len(sizes) - max(1, int(case.options["density"] * len(sizes))) + 1).values
            equal = sizes == smallest
            if int(equal.sum()) > 1:
                border |= equal
        largest = max(largest, float(gap[~border].max()))
        at_border += int(border.sum())
        differing += int((gap[border] > AGREEMENT).sum())
    return largest, at_border, differing


# ---------------------------------------------------------------------- the questions


def measure(case: Case, folder: Path, programs: Path, threads: int, rounds: int) -> dict[str, Any]:
    ours, theirs, config = folder / "ours", folder / "theirs", folder / "merge.yml"
    config.write_text(json.dumps(case.configuration(folder)))  # JSON is YAML
    commands = {
        "interbasin": [sys.executable, "-m", "interbasin", "merge", *case.flags(folder), "-o", str(ours), "--quiet"],
        "mergekit": [str(programs / "mergekit-yaml"), str(config), str(theirs), "--no-copy-tokenizer", "--quiet"],
    }

    def clear() -> None:
        for made in (ours, theirs):
            shutil.rmtree(made, ignore_errors=True)

    taken: dict[str, list[tuple[float, int, float]]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        clear()
        for name, words in sorted(commands.items(), reverse=bool(turn % 2)):
            result = command(words, threads)
            if turn:  # the first time, files are not in the cache yet
                taken[name].append(result)
    found, at_border, differing = difference(case, folder)
    inside: dict[str, list[float]] = {name: [] for name in commands}
    options = {**case.options, "method": case.method, **({"base": str(folder / "base")} if case.based else {})}
    models = [str(folder / f"model{number}") for number in range(case.models)]
    asked = {
        "interbasin": {"models": models, "options": options, "output": str(ours)},
        "mergekit": {"config": str(config), "output": str(theirs)},
    }
    with (
        served([sys.executable, str(PEERS / "serve_interbasin.py")], threads) as merge_here,
        served([str(programs / "python"), str(PEERS / "serve_mergekit.py")], threads) as merge_there,
    ):
        for turn in range(rounds + 1):
            clear()
            for name, ask in sorted((("interbasin", merge_here), ("mergekit", merge_there)), reverse=bool(turn % 2)):
                seconds = ask(asked[name])
                if turn:
                    inside[name].append(seconds)
    clear()
    best = {name: min(one[0] for one in results) for name, results in taken.items()}
    peaks = {name: min(one[1] for one in results) for name, results in taken.items()}
    processor = {name: min(one[2] for one in results) for name, results in taken.items()}
    within = {name: min(seconds) for name, seconds in inside.items()}
    return {
        "key": case.key,
        "theirs": case.theirs,
        "options": dict(case.options),
        "difference": found,
        "at_border": at_border,
        "differing_at_border": differing,
        "command_seconds": best,
        "command_processor_seconds": processor,
        "command_ratio": best["mergekit"] / best["interbasin"],
        "inside_seconds": within,
        "inside_ratio": within["mergekit"] / within["interbasin"],
        "peak_bytes": peaks,
        "memory_ratio": peaks["interbasin"] / peaks["mergekit"],
        "rounds": rounds,
    }


def measure_growth(small: Path, large: Path, threads: int) -> list[dict[str, Any]]:
    """The peak of our command on 30 M parameters in float32 and on 1 B in bfloat16."""
    found = []
    for case in (one for one in CASES if one.models == 2):
        peaks, seconds = {}, {}
        for size, folder in (("small", small), ("large", large)):
            output = folder / "merged"
            words = [sys.executable, "-m", "interbasin", "merge", *case.flags(folder), "-o", str(output), "--quiet"]
            seconds[size], peaks[size], _ = command(words, threads)
            shutil.rmtree(output)
        found.append({"method": case.method, "peak_bytes": peaks, "seconds": seconds})
    return found


def judge(cases: list[dict[str, Any]], growth: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each bar with what was found and whether it is met."""

    def worst(name: str, largest: bool) -> dict[str, Any]:
        return (max if largest else min)(cases, key=lambda case: case[name])

    bars = {}
    for title, name, limit, largest in (
        ("largest difference to mergekit", "difference", AGREEMENT, True),
        ("times as fast, whole command", "command_ratio", WHOLE_COMMAND, False),
        ("times as fast, start-up removed", "inside_ratio", IN_PROCESS, False),
        ("peak memory, as a share of mergekit's", "memory_ratio", MEMORY, True),
    ):
        case = worst(name, largest)
        bars[title] = {
            "bar": f"{'<=' if largest else '>='} {limit:g}",
            "found": case[name],
            "where": case["key"],
            "met": case[name] <= limit if largest else case[name] >= limit,
        }
    if growth:
        for case in growth:
            case["grown_megabytes"] = (case["peak_bytes"]["large"] - case["peak_bytes"]["small"]) / 1e6
        case = max(growth, key=lambda case: case["grown_megabytes"])
        bars["MB more for 1 B parameters"] = {
            "bar": f"<= {GROWTH:g}",
            "found": case["grown_megabytes"],
            "where": case["method"],
            "met": case["grown_megabytes"] <= GROWTH,
        }
    return bars


def report(cases: list[dict[str, Any]], growth: list[dict[str, Any]], bars: dict[str, dict[str, Any]]) -> None:
    frame.show(
        "interbasin merge beside mergekit",
        (
            "merge",
            "difference",
            "command s",
            "mergekit s",
            "ratio",
            "inside s",
            "mergekit s",
            "ratio",
            "MB",
            "mergekit MB",
        ),
        [
            (
                case["key"],
                f"{case['difference']:.1e}",
                *(f"{case['command_seconds'][name]:.2f}" for name in ("interbasin", "mergekit")),
                f"{case['command_ratio']:.1f}",
                *(f"{case['inside_seconds'][name]:.2f}" for name in ("interbasin", "mergekit")),
                f"{case['inside_ratio']:.2f}",
                *(f"{case['peak_bytes'][name] / 1e6:.0f}" for name in ("interbasin", "mergekit")),
            )
            for case in cases
        ],
    )
    for case in growth:
        peaks = case["peak_bytes"]
        print(f"{case['method']}: {peaks['small'] / 1e6:.0f} MB for 30 M, {peaks['large'] / 1e6:.0f} MB for 1 B")
    for name, bar in bars.items():
        print(f"{'met' if bar['met'] else 'NOT met':>7}: {name} {bar['bar']}: {bar['found']:.3g} at {bar['where']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two methods and few rounds, without the 1 B checkpoints")
    parser.add_argument("--threads", type=int, default=1, help="threads for torch (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="of every measurement (default: 5)")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains this; others keep their results")
    parser.add_argument("--folder", type=Path, help="where checkpoints go; needs 10 GB (default: a temporary folder)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where results go")
    asked = parser.parse_args()
    path = asked.json or frame.RESULTS / ("merge-quick.json" if asked.quick else "merge.json")
    environment = frame.environment(seed=SEED, threads=asked.threads)
    programs = peer_python("mergekit").parent
    told = [
        str(programs / "python"),
        "-c",
        "from importlib.metadata import version as v; print(v('mergekit'), v('torch'))",
    ]
    environment["mergekit"] = subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        small, large = Path(place) / "small", Path(place) / "large"
        small.mkdir()
        parameters = {"small": make_small(small)}
        before = json.loads(path.read_text("utf-8")) if asked.only and path.exists() else {"cases": [], "growth": []}
        growth: list[dict[str, Any]] = before["growth"]
        parameters = before.get("parameters", {}) | parameters
        found = {case["key"]: case for case in before["cases"]}

        def keep() -> list[dict[str, Any]]:
            cases = [found[case.key] for case in CASES if case.key in found]
            content = {"environment": environment, "parameters": parameters, "bars": judge(cases, growth)}
            frame.save(path, {**content, "cases": cases, "growth": growth})
            return cases

        for case in CASES[::5] if asked.quick else CASES:
            if asked.only and asked.only not in case.key:
                continue
            rounds = 2 if asked.quick else asked.rounds
            measured = measure(case, small, programs, asked.threads, rounds)
            # Cases measured again later carry their own date; the environment is that of the last run.
            found[case.key] = {"date": environment["date"], **measured}
            keep()
            print(f"{case.key}: {measured['command_ratio']:.1f}, {measured['inside_ratio']:.2f}", file=sys.stderr)
        if not asked.quick and (not asked.only or asked.only in "growth"):
            large.mkdir()
            parameters["large"] = make_large(large)
            growth = measure_growth(small, large, asked.threads)
        cases = keep()
    report(cases, growth, judge(cases, growth))


if __name__ == "__main__":
    main()
