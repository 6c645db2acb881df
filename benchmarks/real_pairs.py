"""What does re-basin do for real pairs: networks that others trained, and transformers trained here?

For each pair the accuracy and loss on the way from one network to the other, without alignment and with each method.
Methods look at one part of the data; all figures are of another part.

- two CIFAR-10 ResNet-20, trained independently, one in torch and one in flax (which pads convolutions of stride 2 on
  one side only: the network takes that as an option, and ways are measured with the target's padding); batch norms
  reset at every point, on test images 0 to 999; figures on 1000 to 2999;
- Fashion-MNIST MLPs, one pair of the same initialisation and one of different ones (their different scalings of the
  inputs are brought together in the first layer, exactly); maps from 5,000 images, figures on 5,000 others;
- two vision transformers and two decoder-only language models, trained here from different seeds.

    python benchmarks/real_pairs.py                    everything; writes results/real_pairs.json
    python benchmarks/real_pairs.py --only cifar       one of them again, merged into the results
    python benchmarks/real_pairs.py --quick            the transformers, on digits and for few steps

The networks of others lie in ``models`` in the folder that INTERBASIN_DATA names; without it only the transformers are
measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
from interbasin import fold_norms, rebasin
from interbasin.datasets.arrays import idx_pairs, read_idx
from interbasin.datasets.digits import load_digits
from interbasin.evaluate import barrier, performance

SEED = 0
POINTS = 11
CACHE = Path(__file__).parent / ".cache"
DATA = Path(os.environ.get("INTERBASIN_DATA", "."))


@dataclass
class Pair:
    """Two networks, what methods may look at, what is reported, and what is tried."""

    name: str
    source: nn.Module
    target: nn.Module
    seen: list[Any]
    held: list[Any]
    methods: list[tuple[str, dict[str, Any]]]
    note: str = ""
    has_norms: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def batches(inputs: Tensor, labels: Tensor, size: int = 250) -> list[tuple[Tensor, Tensor]]:
    return list(zip(inputs.split(size), labels.split(size), strict=True))


# ---------------------------------------------------------------------- CIFAR-10


class ResNet20(nn.Module):
    """Of the tutorial that both networks come from; ``one_sided`` pads as flax does at stride 2."""

    def __init__(self, one_sided: bool) -> None:
        super().__init__()
        self.input_net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = [16] * 3 + [32] * 3 + [64] * 3
        self.blocks = nn.Sequential(
            *(Block(before, after, one_sided) for before, after in zip([16, *widths[:-1]], widths, strict=True))
        )
        self.output_net = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.output_net(self.blocks(self.input_net(x)))


class Block(nn.Module):
    def __init__(self, before: int, after: int, one_sided: bool) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.pads = one_sided and stride == 2
        self.net = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=0 if self.pads else 1, stride=stride, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.downsample = nn.Conv2d(before, after, 1, stride=2) if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.net(F.pad(x, (0, 1, 0, 1)) if self.pads else x) + skip)


def of_flax(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Flax names and layouts (height, width, in, out) as torch has them."""

    def kernel(name: str) -> Tensor:
        return stored[f"params/{name}/kernel"].permute(3, 2, 0, 1).contiguous()

    def norm(theirs: str, ours: str) -> dict[str, Tensor]:
        return {
            f"{ours}.weight": stored[f"params/{theirs}/scale"],
            f"{ours}.bias": stored[f"params/{theirs}/bias"],
            f"{ours}.running_mean": stored[f"batch_stats/{theirs}/mean"],
            f"{ours}.running_var": stored[f"batch_stats/{theirs}/var"],
            f"{ours}.num_batches_tracked": torch.tensor(0),
        }

    made = {"input_net.0.weight": kernel("Conv_0"), **norm("BatchNorm_0", "input_net.1")}
    for index in range(9):
        block = f"ResNetBlock_{index}"
        made[f"blocks.{index}.net.0.weight"] = kernel(f"{block}/Conv_0")
        made[f"blocks.{index}.net.3.weight"] = kernel(f"{block}/Conv_1")
        made |= norm(f"{block}/BatchNorm_0", f"blocks.{index}.net.1")
        made |= norm(f"{block}/BatchNorm_1", f"blocks.{index}.net.4")
        if f"params/{block}/Conv_2/kernel" in stored:
            made[f"blocks.{index}.downsample.weight"] = kernel(f"{block}/Conv_2")
            made[f"blocks.{index}.downsample.bias"] = stored[f"params/{block}/Conv_2/bias"]
    made["output_net.2.weight"] = stored["params/Dense_0/kernel"].T.contiguous()
    made["output_net.2.bias"] = stored["params/Dense_0/bias"]
    return made


def cifar(quick: bool) -> Iterator[Pair]:
    folder = DATA / "models" / "uvadlc"
    if quick or not (folder / "flax_tutorial5_ResNet.safetensors").exists():
        return
    stored = np.load(DATA / "cifar10" / "test-first-3000.npz")
    images = torch.from_numpy(stored["images"]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    images, labels = (images - mean) / std, torch.from_numpy(stored["labels"]).long()
    in_torch = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(folder / "torch_tutorial5_ResNet.safetensors").items()
    }
    in_flax = of_flax(load_file(folder / "flax_tutorial5_ResNet.safetensors"))
    methods = [
        ("permutation-weights", {"restarts": 5}),
        ("permutation-activations", {"variant": "pre"}),
        ("permutation-activations", {"variant": "post"}),
        ("straight-through", {"epochs": 3}),
    ]

    def made(weights: dict[str, Tensor], one_sided: bool) -> nn.Module:
        network = ResNet20(one_sided)
        network.load_state_dict(weights)
        return network.eval().requires_grad_(False)

    for name, (source, target), one_sided in (
        ("ResNet-20 on CIFAR-10, flax to torch", (in_flax, in_torch), False),
        ("ResNet-20 on CIFAR-10, torch to flax", (in_torch, in_flax), True),
    ):
        yield Pair(
            name,
            made(source, one_sided),
            made(target, one_sided),
            batches(images[:1000], labels[:1000]),
            batches(images[1000:], labels[1000:]),
            methods,
            note="The source stands with the target's padding, which is not the one it was trained with.",
            has_norms=True,
            extra={
                "source_with_its_own_padding": performance(
                    made(source, not one_sided), batches(images[1000:], labels[1000:])
                ).accuracy
            },
        )


# ---------------------------------------------------------------------- Fashion-MNIST


def mlp() -> nn.Sequential:
    widths = (784, 512, 256, 256, 128, 10)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fashion(quick: bool) -> Iterator[Pair]:
    folder = DATA / "models" / "uvadlc"
    if quick or not (folder / "torch_tutorial4_FashionMNIST_SGD.safetensors").exists():
        return
    stored = np.load(DATA / "fashion-mnist" / "shuffled-25000.npz")
    raw = torch.from_numpy(stored["images"]).float().flatten(1) / 255
    images, labels = (raw - 0.2861) / 0.353, torch.from_numpy(stored["labels"]).long()

    def made(name: str) -> nn.Module:
        weights = load_file(folder / f"torch_{name}.safetensors")
        weights = {key.removeprefix("layers."): tensor for key, tensor in weights.items()}
        if name.startswith("tutorial3"):
            # Trained on (x - .5) / .5: the same function of (x - .2861) / .353.
            weights["0.bias"] = weights["0.bias"] + weights["0.weight"].sum(1) * (0.2861 - 0.5) / 0.5
            weights["0.weight"] = weights["0.weight"] * (0.353 / 0.5)
        network = mlp()
        network.load_state_dict(weights)
        return network.eval().requires_grad_(False)

    adam, sgd = made("tutorial4_FashionMNIST_Adam"), made("tutorial4_FashionMNIST_SGD")
    other = made("tutorial3_FashionMNIST_relu")
    every = [
        ("permutation-weights", {}),
        ("permutation-activations", {"variant": "pre"}),
        ("procrustes-weights", {"variant": "coordinate", "sweeps": 50}),
        ("procrustes-weights", {"variant": "sequential"}),
        ("procrustes-activations", {"variant": "pre"}),
        ("straight-through", {"epochs": 2}),
    ]
    seen, held = batches(images[:5000], labels[:5000]), batches(images[-5000:], labels[-5000:])
    note = "Parts of these images were trained on: the source of the data mixes training and test images."
    yield Pair("MLPs on Fashion-MNIST, the same initialisation", sgd, adam, seen, held, every, note)
    yield Pair("MLPs on Fashion-MNIST, different initialisations", other, adam, seen, held, every, note)


# ---------------------------------------------------------------------- transformers, trained here


class Layer(nn.Module):
    """A pre-norm block; attention as torch has it, causal or not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Patches of an image to classes, or tokens to the next token."""

    def __init__(self, width: int, depth: int, heads: int, length: int, classes: int, patch: int | None) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, width) if patch else nn.Embedding(classes, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, causal=patch is None) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.patch:
            x = x.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch).flatten(3).flatten(1, 2)
        hidden = self.norm(self.layers(self.embed(x) + self.places))
        return self.head(hidden.mean(1) if self.patch else hidden)


def trained(
    name: str,
    build: Callable[[], nn.Module],
    draw: Callable[[torch.Generator], tuple[Tensor, Tensor]],
    steps: int,
    seed: int,
) -> nn.Module:
    """A network after ``steps`` of AdamW; kept in the cache."""
    path = CACHE / f"{name}-{steps}-{seed}.safetensors"
    torch.manual_seed(seed)
    network = build()
    if path.exists():
        network.load_state_dict(load_file(path))
        return network.eval().requires_grad_(False)
    drawn = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(steps):
        inputs, labels = draw(drawn)
        optimiser.zero_grad()
        F.cross_entropy(network(inputs).flatten(0, -2), labels.flatten()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    CACHE.mkdir(exist_ok=True)
    save_file(network.state_dict(), path)
    return network.eval().requires_grad_(False)


TRANSFORMER_METHODS = [
    ("permutation-weights", {}),
    ("permutation-weights", {"stay_in_class": False}),
    ("permutation-activations", {"variant": "post"}),
    ("procrustes-activations", {"variant": "post", "stay_in_class": False}),
]


def vision(quick: bool) -> Iterator[Pair]:
    pairs = {} if quick else idx_pairs(DATA / "mnist")
    if "train" in pairs:
        read = [[torch.from_numpy(np.asarray(read_idx(path))) for path in pairs[part]] for part in ("train", "test")]
        (images, labels), (test, test_labels) = [(x.float() / 255, y.long()) for x, y in read]
        name, patch, steps = "MNIST", 7, 1500
    else:
        digits = load_digits()
        images, labels, test, test_labels = (
            digits.train_images.float(),
            digits.train_labels,
            digits.test_images.float(),
            digits.test_labels,
        )
        name, patch, steps = "digits", 2, 30 if quick else 1500
    images, test = ((x - images.mean()) / images.std() for x in (images, test))

    def draw(drawn: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(images), (128,), generator=drawn)
        return images[rows], labels[rows]

    def build() -> nn.Module:
        return Transformer(64, 4, 4, (images.shape[1] // patch) ** 2, 10, patch)

    source, target = (trained(f"vit-{name}", build, draw, steps, seed) for seed in (0, 1))
    seen, held = batches(images[:2000], labels[:2000]), batches(test, test_labels)
    yield Pair(f"vision transformers on {name}, width 64, 4 blocks", source, target, seen, held, TRANSFORMER_METHODS)


def text(quick: bool) -> Iterator[Pair]:
    path = DATA / "text" / "train.en.gz"
    if quick or not path.exists():
        return
    stored = gzip.decompress(path.read_bytes()).decode("utf-8", "ignore")
    letters = sorted(set(stored))[:96]
    numbers = {letter: number for number, letter in enumerate(letters)}
    tokens = torch.tensor([numbers.get(letter, 0) for letter in stored])
    cutoff, length = len(tokens) - 200_000, 64

    def rows(drawn: torch.Generator, low: int, high: int, count: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(low, high - length - 1, (count,), generator=drawn)
        taken = torch.stack([tokens[start : start + length + 1] for start in starts.tolist()])
        return taken[:, :-1], taken[:, 1:]

    def build() -> nn.Module:
        return Transformer(96, 3, 4, length, len(letters), None)

    def draw(drawn: torch.Generator) -> tuple[Tensor, Tensor]:
        return rows(drawn, 0, cutoff, 48)

    source, target = (trained("decoder-letters", build, draw, 2000, seed) for seed in (0, 1))
    drawn = torch.Generator().manual_seed(SEED)
    seen, held = ([rows(drawn, *part, 64) for _ in range(8)] for part in ((0, cutoff), (cutoff, len(tokens))))
    yield Pair(
        "decoder-only transformers on letters, width 96, 3 blocks", source, target, seen, held, TRANSFORMER_METHODS
    )


CASES = {"cifar": cifar, "fashion": fashion, "vision": vision, "text": text}


# ---------------------------------------------------------------------- measuring


def way(pair: Pair, source: nn.Module, target: nn.Module, original: nn.Module) -> dict[str, Any]:
    resets = [inputs for inputs, _ in pair.seen] if pair.has_norms else None
    found = barrier(source, target, pair.held, points=POINTS, ends=(original, target), reset=resets)
    assert found.accuracy is not None
    return {
        "t": list(found.t),
        "loss": list(found.loss),
        "accuracy": list(found.accuracy),
        "middle_accuracy": found.accuracy[POINTS // 2],
        "middle_loss": found.loss[POINTS // 2],
        **found.metrics,
    }


def measure(pair: Pair) -> dict[str, Any]:
    print(pair.name, flush=True)
    ends = [performance(network, pair.held) for network in (pair.source, pair.target)]
    record: dict[str, Any] = {
        "pair": pair.name,
        "note": pair.note,
        **pair.extra,
        "source": vars(ends[0]),
        "target": vars(ends[1]),
        "ways": [{"method": "none", "options": {}, "seconds": 0.0, **way(pair, pair.source, pair.target, pair.source)}],
    }
    if pair.has_norms:
        # Without the reset, to show what it is worth.
        plain = barrier(pair.source, pair.target, pair.held, points=3)
        assert plain.accuracy is not None
        record["middle_accuracy_without_reset"] = plain.accuracy[1]
    for method, options in pair.methods:
        started = time.perf_counter()
        found = rebasin(pair.source, pair.target, method=method, data=pair.seen, seed=SEED, **options)
        seconds = time.perf_counter() - started
        original = pair.source if options.get("stay_in_class", True) else fold_norms(pair.source, pair.seen[0][0])
        row = {
            "method": method,
            "options": options,
            "seconds": seconds,
            "exact": bool(found.metrics["exact"]),
            "distance_before": found.metrics["distance_before"],
            "distance_after": found.metrics["distance_after"],
            "aligned_accuracy": performance(found.model, pair.held).accuracy,
            **way(pair, found.model, found.target, original),
        }
        record["ways"].append(row)
        print(f"  {method} {options}: middle {row['middle_accuracy']:.2%}, {seconds:.1f} s", flush=True)
    return record


def report(records: list[dict[str, Any]]) -> None:
    for record in records:
        frame.show(
            f"{record['pair']}: ends {record['source']['accuracy']:.2%} and {record['target']['accuracy']:.2%}",
            ("method", "exact", "aligned", "middle", "loss there", "barrier_original", "distance", "s"),
            [
                (
                    described(row),
                    "" if "exact" not in row else "yes" if row["exact"] else "no",
                    "" if "aligned_accuracy" not in row else f"{row['aligned_accuracy']:.2%}",
                    f"{row['middle_accuracy']:.2%}",
                    f"{row['middle_loss']:.3f}",
                    f"{row['barrier_original']:.3f}",
                    f"{row.get('distance_after', math.nan):.2f}",
                    f"{row['seconds']:.1f}",
                )
                for row in record["ways"]
            ],
        )


def described(row: dict[str, Any]) -> str:
    options = dict(row["options"])
    folded = not options.pop("stay_in_class", True)
    return " ".join([row["method"], *(str(options.get(key)) for key in ("variant",) if key in options)]) + (
        ", folded" if folded else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=CASES, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = frame.RESULTS / ("real_pairs-quick.json" if given.quick else "real_pairs.json")
    kept = json.loads(path.read_text("utf-8"))["pairs"] if given.only and path.exists() else []
    records = {record["pair"]: record for record in kept}
    for name, case in CASES.items():
        if given.only and name not in given.only:
            continue
        for pair in case(given.quick):
            records[pair.name] = measure(pair)
            frame.save(path, {"environment": frame.environment(seed=SEED, threads=1), "pairs": list(records.values())})
    report(list(records.values()))


if __name__ == "__main__":
    main()
