"""Does the head of one network understand the encoder of another, without training?

Encoders and heads are trained apart. For every ordered pair, the rows of one encoder are translated into the other's
space and answered by its head: zero-shot stitching, Table 2 of the paper on inverse relative projection (IRP). Five
seeds: of the image encoders, of the heads of the frozen text encoders, and of the 768 pairs that serve as anchors.

- MNIST and Fashion-MNIST: two MLPs and two CNNs a seed, of 64, 128, 96 and 48 dimensions and four activations;
- TREC questions: MiniLM, WordLlama and potion, frozen, with a linear head each (`text_encoders.py`).

Then the sensitivity to how many subsets are averaged (omega) and how far apart anchors are kept (delta): figures 3 and
6 of the paper, within one space and between two, with condition numbers and the number of anchors kept.

    python benchmarks/stitching.py --quick    digits, one seed; writes results/stitching-quick.json
    python benchmarks/stitching.py            everything; writes results/stitching.json
    python benchmarks/stitching.py --only TREC    one data set again, merged into the results

Figures are of test data; the best delta and nothing else is chosen, on validation data. The data lie in the folder that
INTERBASIN_DATA names; without it digits stand in for all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import interbasin as ib
from interbasin.datasets.arrays import idx_pairs, read_idx
from interbasin.datasets.digits import load_digits
from interbasin.outcome.plots import heat_map

SEED = 0
ANCHORS = 768
DELTAS = (0.0, 0.3, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
OMEGAS = (1, 2, 4, 8, 16)
# Table 2 of the paper: delta, accuracy of zero-shot stitching and of heads on their own encoder.
PAPER = {"MNIST": (0.65, 0.88, 0.97), "Fashion-MNIST": (0.65, 0.82, 0.91), "TREC": (0.70, 0.73, 0.87)}
CACHE = Path(__file__).parent / ".cache"

# The bars.
OF_NATIVE, OF_NATIVE_EACH, PRUNED_WITHIN, AUTO_WITHIN = 0.95, 0.88 / 0.97, 0.02, 0.01


@dataclass(frozen=True)
class Seen:
    """One encoder's rows of the data, and the head that was trained on them."""

    name: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    answers: Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Task:
    """A data set, and its encoders for a seed."""

    name: str
    valid_labels: np.ndarray
    test_labels: np.ndarray
    seen: Callable[[int], list[Seen]]


# ---------------------------------------------------------------------- images


class Encoder(nn.Module):
    """A small network up to the layer before its head."""

    def __init__(self, side: int, width: int, activation: type[nn.Module], convolutions: bool) -> None:
        super().__init__()
        if convolutions:
            small = (side + 3) // 4
            layers = [
                nn.Unflatten(1, (1, side, side)), nn.Conv2d(1, 8, 3, 2, 1), activation(), nn.Conv2d(8, 16, 3, 2, 1),
                activation(), nn.Flatten(), nn.Linear(16 * small * small, width),
            ]  # fmt: skip
        else:
            layers = [nn.Linear(side * side, 256), activation(), nn.Linear(256, width)]
        self.layers = nn.Sequential(*layers, activation())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


ENCODERS: dict[str, tuple[int, type[nn.Module], bool]] = {
    "ReLU MLP 64": (64, nn.ReLU, False),
    "tanh MLP 128": (128, nn.Tanh, False),
    "GELU CNN 96": (96, nn.GELU, True),
    "ELU CNN 48": (48, nn.ELU, True),
}


def images(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Pixels and labels of the three parts."""
    folder = Path(os.environ.get("INTERBASIN_DATA", "."))
    if name == "MNIST":
        parts = idx_pairs(folder / "mnist")
        (x, y), test = (
            (torch.from_numpy(read_idx(one)).flatten(1).float() / 255, torch.from_numpy(read_idx(two)).long())
            for one, two in (parts["train"], parts["test"])
        )
        return {"train": (x[:20_000], y[:20_000]), "valid": (x[20_000:23_000], y[20_000:23_000]), "test": test}
    if name == "Fashion-MNIST":
        held = np.load(folder / "fashion-mnist" / "shuffled-25000.npz")
        pixels, classes = (held[key] for key in held.files[:2])
        x, y = torch.from_numpy(pixels).reshape(len(pixels), -1).float(), torch.from_numpy(classes).long()
        x = x / float(x.max())
        cut = {"train": slice(0, 18_000), "valid": slice(18_000, 20_000), "test": slice(20_000, 25_000)}
        return {part: (x[one], y[one]) for part, one in cut.items()}
    digits = load_digits()
    x, y = digits.train_images.flatten(1), digits.train_labels
    return {
        "train": (x[:1200], y[:1200]),
        "valid": (x[1200:], y[1200:]),
        "test": (digits.test_images.flatten(1), digits.test_labels),
    }


def trained(name: str, label: str, seed: int, x: Tensor, y: Tensor) -> tuple[Encoder, nn.Linear]:
    """The encoder and head of a seed; kept once trained."""
    width, activation, convolutions = ENCODERS[label]
    side = round(x.shape[1] ** 0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 * seed + list(ENCODERS).index(label))
        encoder, head = Encoder(side, width, activation, convolutions), nn.Linear(width, int(y.max()) + 1)
        both = nn.ModuleList([encoder, head])
        path = CACHE / f"stitching-{name}-{label.replace(' ', '-')}-seed{seed}.safetensors".lower()
        if path.exists():
            both.load_state_dict(load_file(path))
            return encoder.eval(), head.eval()
        optimiser = torch.optim.Adam(both.parameters(), lr=2e-3)
        for _ in range(4 if len(x) > 5000 else 30):
            for rows in torch.randperm(len(x)).split(128):
                loss = nn.functional.cross_entropy(head(encoder(x[rows])), y[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    CACHE.mkdir(exist_ok=True)
    save_file(both.state_dict(), path)
    return encoder.eval(), head.eval()


def of_images(name: str) -> Task:
    parts = images(name)

    def seen(seed: int) -> list[Seen]:
        found = []
        for label in ENCODERS:
            encoder, head = trained(name, label, seed, *parts["train"])
            with torch.inference_mode():
                rows = {part: encoder(x).numpy() for part, (x, _) in parts.items()}

            def answers(given: Any, head: nn.Linear = head) -> np.ndarray:
                with torch.inference_mode():
                    return head(torch.as_tensor(given, dtype=torch.float32)).argmax(1).numpy()

            found.append(Seen(label, rows["train"], rows["valid"], rows["test"], answers))
        return found

    return Task(name, parts["valid"][1].numpy(), parts["test"][1].numpy(), seen)


# ---------------------------------------------------------------------- text


def of_questions() -> Task:
    from sklearn.linear_model import LogisticRegression

    import text_encoders

    held = zipfile.ZipFile(Path(os.environ["INTERBASIN_DATA"]) / "text" / "trec-qc.zip")

    def part(name: str) -> tuple[list[str], np.ndarray]:
        lines = [line.split(" ", 1) for line in held.read(f"qc/{name}.txt").decode("latin1").splitlines()]
        classes = sorted({"ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"})
        return [text for _, text in lines], np.array([classes.index(label.split(":")[0]) for label, _ in lines])

    (texts, labels), (test, test_labels) = part("train"), part("test")
    order = np.random.default_rng(SEED).permutation(len(texts))
    train, valid = order[:-800], order[-800:]

    def seen(seed: int) -> list[Seen]:
        found = []
        for name in text_encoders.available():
            rows, held_out = text_encoders.embedded(name, texts), text_encoders.embedded(name, test)
            # Each seed's head is trained on a sample of its own.
            own = np.random.default_rng(seed).choice(train, 3600, replace=False)
            head = LogisticRegression(C=30, max_iter=2000).fit(rows[own], labels[own])
            found.append(Seen(name, rows[train], rows[valid], held_out, head.predict))
        return found

    return Task("TREC", labels[valid], test_labels, seen)


# ---------------------------------------------------------------------- what is asked


def methods(delta: float) -> dict[str, dict[str, Any]]:
    return {
        "IRP of the paper": {"variant": "pruned", "delta": delta, "omega": 8, "completion": None},
        "IRP of the paper, polar": {"variant": "pruned", "delta": delta, "omega": 8},
        "IRP regularised": {},
        "IRP regularised, map": {"completion": "map"},
        "Procrustes": {"method": "procrustes"},
        "Procrustes, standardised": {"method": "procrustes", "standardise": True},
        "ridge": {"method": "ridge"},
        "CCA": {"method": "cca"},
        "auto": {"method": "auto"},
    }


def anchors_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(1000 + seed).permutation(count)[:ANCHORS]


def pairs(seen: Sequence[Seen]) -> Iterator[tuple[Seen, Seen]]:
    return itertools.permutations(seen, 2)


def right(head: Seen, rows: Any, labels: np.ndarray) -> float:
    return float((head.answers(rows) == labels).mean())


def as_wide(rows: np.ndarray, width: int) -> np.ndarray:
    """Rows as they are, cut or filled up with zeros: what happens without a translation."""
    return np.pad(rows[:, :width], ((0, 0), (0, max(0, width - rows.shape[1]))))


def stitched(task: Task, seeds: int) -> dict[str, Any]:
    delta = PAPER.get(task.name, (0.65,))[0]
    ways = methods(delta)
    accuracy: dict[str, dict[str, list[float]]] = {
        name: {} for name in [*ways, "absolute", "IRP of the paper, best delta"]
    }
    native: dict[str, list[float]] = {}
    valid_by_delta: dict[float, list[float]] = {one: [] for one in DELTAS}
    test_by_delta: dict[float, dict[str, list[float]]] = {one: {} for one in DELTAS}
    chosen: dict[str, int] = {}
    for seed in range(seeds):
        seen = task.seen(seed)
        for one in seen:
            native.setdefault(one.name, []).append(right(one, one.test, task.test_labels))
        taken = anchors_of(seed, len(seen[0].train))
        for source, target in pairs(seen):
            key = f"{source.name} -> {target.name}"
            untouched = as_wide(source.test, target.test.shape[1])
            accuracy["absolute"].setdefault(key, []).append(right(target, untouched, task.test_labels))
            for name, options in ways.items():
                translator = ib.Translator(seed=seed, **options).fit(source.train[taken], target.train[taken])
                found = right(target, translator.transform(source.test), task.test_labels)
                accuracy[name].setdefault(key, []).append(found)
                if name == "auto":
                    chosen[translator.chosen_] = chosen.get(translator.chosen_, 0) + 1
            for one in DELTAS:
                translator = ib.Translator(variant="pruned", delta=one, seed=seed).fit(
                    source.train[taken], target.train[taken]
                )
                valid_by_delta[one].append(right(target, translator.transform(source.valid), task.valid_labels))
                found = right(target, translator.transform(source.test), task.test_labels)
                test_by_delta[one].setdefault(key, []).append(found)
        print(f"{task.name}, seed {seed}", flush=True)
    best = max(DELTAS, key=lambda one: statistics.fmean(valid_by_delta[one]))
    accuracy["IRP of the paper, best delta"] = test_by_delta[best]
    return {
        "data": task.name,
        "anchors": min(ANCHORS, len(seen[0].train)),
        "seeds": seeds,
        "delta": delta,
        "best_delta": best,
        "native": {name: summed(values) for name, values in native.items()},
        "native_mean": statistics.fmean(itertools.chain(*native.values())),
        "chosen_by_auto": chosen,
        "pairs": len(accuracy["ridge"]),
        "accuracy": {
            name: {
                **summed(list(itertools.chain(*each.values()))),
                "pairs": {key: summed(values) for key, values in each.items()},
            }
            for name, each in accuracy.items()
        },
    }


def summed(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
        "least": min(values),
    }


def sensitivity(task: Task, seeds: int, omegas: Sequence[int], deltas: Sequence[float]) -> dict[str, Any]:
    """Reconstruction, accuracy, condition and anchors kept for every omega and delta, mean over pairs and seeds."""
    names = ("cosine_within", "cosine_between", "accuracy", "condition", "anchors_kept")
    total = {name: np.zeros((len(omegas), len(deltas))) for name in names}
    count = 0
    for seed in range(seeds):
        seen = task.seen(seed)
        taken = anchors_of(seed, len(seen[0].train))
        for source, target in pairs(seen):
            count += 1
            for row, omega in enumerate(omegas):
                for column, delta in enumerate(deltas):
                    asked = {"variant": "pruned", "delta": delta, "omega": omega, "completion": None, "seed": seed}
                    between = ib.Translator(**asked).fit(source.train[taken], target.train[taken])
                    within = ib.Translator(**asked).fit(target.train[taken], target.train[taken])
                    there = between.transform(source.test)
                    for name, value in (
                        ("cosine_within", within.score(target.test, target.test)),
                        ("cosine_between", between.score(source.test, target.test)),
                        ("accuracy", right(target, there, task.test_labels)),
                        ("condition", between.details_["condition"]),
                        ("anchors_kept", between.details_["anchors_kept"]),
                    ):
                        total[name][row, column] += value
    print(f"{task.name}: sensitivity", flush=True)
    means = {name: value / count for name, value in total.items()}

    def pearson(one: str, other: str) -> float:
        return float(np.corrcoef(means[one].ravel(), means[other].ravel())[0, 1])

    return {
        "data": task.name,
        "seeds": seeds,
        "omegas": list(omegas),
        "deltas": list(deltas),
        **{name: value.tolist() for name, value in means.items()},
        "correlation_cosine_accuracy": pearson("cosine_between", "accuracy"),
        "correlation_condition_anchors": pearson("condition", "anchors_kept"),
    }


def bars(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, value: float, bar: float, most: bool) -> None:
        met = value <= bar if most else value >= bar
        found[name] = {"bar": f"{'<=' if most else '>='} {bar:.3g}", "found": value, "met": met}

    for one in results:
        share = {name: figures["mean"] / one["native_mean"] for name, figures in one["accuracy"].items()}
        regularised = one["accuracy"]["IRP regularised"]
        if one["data"] == "MNIST":
            add("MNIST: IRP regularised over native", share["IRP regularised"], OF_NATIVE, most=False)
        each = [
            pair["mean"] / one["native"][key.split(" -> ")[1]]["mean"] for key, pair in regularised["pairs"].items()
        ]
        add(f"{one['data']}: IRP regularised over native, worst pair's mean", min(each), OF_NATIVE_EACH, most=False)
        behind = regularised["mean"] - one["accuracy"]["IRP of the paper, best delta"]["mean"]
        add(f"{one['data']}: pruned IRP at its best delta behind regularised", behind, PRUNED_WITHIN, most=True)
        single = {
            name: figures["mean"] for name, figures in one["accuracy"].items() if name not in ("auto", "absolute")
        }
        best = max(single, key=lambda name: single[name])
        add(
            f"{one['data']}: auto behind the best ({best})",
            single[best] - one["accuracy"]["auto"]["mean"],
            AUTO_WITHIN,
            most=True,
        )
        by_pair = {
            key: max(one["accuracy"][name]["pairs"][key]["mean"] for name in single)
            - one["accuracy"]["auto"]["pairs"][key]["mean"]
            for key in one["accuracy"]["auto"]["pairs"]
        }
        add(
            f"{one['data']}: auto behind the best for a pair, the worst pair",
            max(by_pair.values()),
            AUTO_WITHIN,
            most=True,
        )
    return found


# ---------------------------------------------------------------------- the run


def report(content: Mapping[str, Any]) -> None:
    for one in content["stitching"]:
        frame.show(
            f"{one['data']}: {one['pairs']} pairs, {one['seeds']} seeds, native {one['native_mean']:.3f}",
            ("method", "accuracy", "±", "worst", "of native"),
            [
                (
                    name,
                    f"{figures['mean']:.3f}",
                    f"{figures['deviation']:.3f}",
                    f"{figures['least']:.3f}",
                    f"{figures['mean'] / one['native_mean']:.3f}",
                )
                for name, figures in one["accuracy"].items()
            ],
        )
    for name, bar in content["bars"].items():
        print(f"{'met' if bar['met'] else 'NOT met':>7}: {name} {bar['bar']}: {bar['found']:.4g}")


def plot(content: Mapping[str, Any], folder: Path, stem: str) -> None:
    for one in content["sensitivity"]:
        for name, title in (
            ("cosine_within", "Reconstruction within a space"),
            ("cosine_between", "Reconstruction between spaces"),
            ("accuracy", "Accuracy of stitching"),
            ("condition", "Condition number (log 10)"),
            ("anchors_kept", "Anchors kept"),
        ):
            values = np.array(one[name])
            drawn = heat_map(
                np.log10(values) if name == "condition" else values,
                rows=[f"ω {omega}" for omega in one["omegas"]],
                columns=[f"δ {delta}" for delta in one["deltas"]],
                title=f"{one['data']}: {title}",
            )
            path = folder / f"{stem}-{one['data'].lower()}-{name.replace('_', '-')}.svg"
            path.write_text(drawn, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits, one seed")
    parser.add_argument("--only", help="one data set; others keep their results")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    quick = arguments.quick or not os.environ.get("INTERBASIN_DATA")
    stem = "stitching-quick" if quick else "stitching"
    path = frame.RESULTS / f"{stem}.json"
    kept = json.loads(path.read_text("utf-8")) if arguments.only and path.exists() else {}
    content: dict[str, Any] = {
        "question": "stitching",
        "environment": frame.environment(seed=SEED, threads=arguments.threads),
        "stitching": kept.get("stitching", []),
        "sensitivity": kept.get("sensitivity", []),
        "bars": {},
    }
    tasks: dict[str, Callable[[], Task]] = (
        {"digits": lambda: of_images("digits")}
        if quick
        else {
            "MNIST": lambda: of_images("MNIST"),
            "Fashion-MNIST": lambda: of_images("Fashion-MNIST"),
            "TREC": of_questions,
        }
    )
    for name, make in tasks.items():
        if arguments.only and name != arguments.only:
            continue
        task = make()
        for key, found in (
            ("stitching", stitched(task, 1 if quick else 5)),
            ("sensitivity", sensitivity(task, 1, OMEGAS[::2] if quick else OMEGAS, DELTAS[::3] if quick else DELTAS)),
        ):
            content[key] = [one for one in content[key] if one["data"] != name] + [found]
        content["bars"] = bars(content["stitching"])
        frame.save(path, content)
    plot(content, path.parent, stem)
    report(content)


if __name__ == "__main__":
    main()
