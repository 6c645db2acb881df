"""Targets of the cross-modal benchmark: what a source is to be adapted to.

- ``rotated-patches``: the source's own data, of which every patch was multiplied by one orthogonal matrix. For the
  ViT patches are its own, of 4 by 4; for the ResNet they are single points, so that colours are mixed, because the
  rule's embedder of three by three could undo nothing else; for CREPE segments of 4 samples of its tones, which the
  rule's embedder cannot undo;
- ``merged-labels``: the source's own data under new labels, two of the old ones in each; ``merged-labels-K`` has K
  labels, and ``rotated-merged-K`` has rotated patches as well. For CREPE about five tones share a label. MiniLM has
  none of these: its inputs are words, and a new embedder takes numbers;
- ``advection``, ``burgers``, ``reaction-diffusion``: equations in one dimension, 64 points, made here: 1,000 samples to
  train on and 500 to test on for each seed; ``burgers-16`` and ``darcy-16`` are data of others, of 16 points, with 200
  and 50 samples to test on;
- ``ecg200``, ``ecg5000``: heart beats of the UCR archive, as they were divided there.

Fields are standardised by the mean and the deviation of the training samples, inputs and outputs apart, and the error
(nRMSE: of each field relative to its own size, then the mean over fields) is that of standardised fields: 1 is what the
mean of the training data reaches. What is drawn depends on the seed alone; of the training samples that it orders the
first 100, the first 500 or all are labelled, and the others are unlabelled inputs. Where samples have classes, each
class keeps its share, and at least one sample.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from cross_modal_networks import TONE_CLASSES, make_tones
from cross_modal_sources import PROXY, cifar, data_folder, digits, mnist
from interbasin.datasets.equations import generate
from interbasin.datasets.planted import merge_labels, rotate_patches
from interbasin.jobs.adapt.task import TargetTask

ALL = 0  # labels
POOL, TEST, POINTS = 1000, 500, 64  # of equations
IMAGES = 2000  # of MNIST to train on, and to test on
SEGMENT = 4
MERGED = 5  # labels, in the target of the core
PATCHES = {"mnist-vit": 4, "cifar-resnet": 1, "digits-vit": 2}
PLANTED = ("rotated-patches", "merged-labels")

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Target:
    """Data of another modality.

    Attributes:
        name: One of `TARGETS`.
        train, test: Inputs and labels, or fields.
        unlabelled: Inputs of training samples whose labels are not given.
        task: ``classification`` or ``dense``.
        metric: ``error`` (0-1) or ``nrmse``; less is better.
        scales: Mean and deviation by which fields were standardised, of inputs and of outputs.
    """

    name: str
    train: Samples
    test: Samples
    unlabelled: Tensor
    task: str
    metric: str
    scales: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 1.0), (0.0, 1.0))

    @property
    def classes(self) -> int:
        return int(torch.cat([self.train[1], self.test[1]]).max()) + 1 if self.task == "classification" else 0

    @cached_property
    def _task(self) -> TargetTask:
        return TargetTask.of(self.task, self.train[1], metric=self.metric)

    def error_of(self, outputs: Tensor, wanted: Tensor) -> float:
        """The error of logits or fields, measured as ``ib.adapt`` measures it: rows of one table have one metric."""
        return self._task.error(outputs, wanted)


def target_case(name: str, source: str, labels: int, seed: int) -> Target:
    """A target by its name, with so many labels (`ALL` for all there are)."""
    (x, y), test, task = pool_of(name, source if name in planted_names() else "", seed)
    labelled = choose_samples(y, labels, seed) if task == "classification" else torch.arange(len(x))[: labels or len(x)]
    rest = torch.ones(len(x), dtype=torch.bool)
    rest[labelled] = False
    train, unlabelled = (x[labelled], y[labelled]), x[rest]
    if task == "classification":
        return Target(name, train, test, unlabelled, task, "error")
    scales = _scale_of(train[0]), _scale_of(train[1])
    train, test = (
        (standardise(fields, scales[0]), standardise(outputs, scales[1])) for fields, outputs in (train, test)
    )
    return Target(name, train, test, standardise(unlabelled, scales[0]), task, "nrmse", scales)


@cache
def pool_of(name: str, source: str, seed: int) -> tuple[Samples, Samples, str]:
    """All samples to train on, in the order of the seed, those to test on, and the task."""
    return TARGETS[name](source, seed)


def label_counts(name: str) -> tuple[int, ...]:
    """Numbers of labels that the benchmark asks for."""
    return {"ecg200": (100,), "ecg5000": (100, ALL)}.get(name, (100, 500, ALL))


def has_target(name: str, source: str) -> bool:
    """Whether there is such a target for a source."""
    return source != "minilm" or name not in planted_names()


def planted_names() -> tuple[str, ...]:
    return tuple(name for name in TARGETS if name.startswith(("rotated", "merged")))


def choose_samples(labels: Tensor, count: int, seed: int) -> Tensor:
    """Places of so many samples: of every class its share, at least one, the first ones in a random order."""
    if count == ALL or count >= len(labels):
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    classes, sizes = labels.unique(return_counts=True)
    wanted = (sizes.double() * count / len(labels)).floor().long().clamp(min=1)
    # What is left goes to the largest remainders.
    remainders = sizes.double() * count / len(labels) - wanted
    for place in remainders.argsort(descending=True, stable=True)[: max(0, count - int(wanted.sum()))]:
        wanted[place] += 1
    while int(wanted.sum()) > count and int(wanted.max()) > 1:  # what rare classes have beyond their share
        wanted[wanted.argmax()] -= 1
    parts = [order[labels[order] == label][:number] for label, number in zip(classes, wanted, strict=True)]
    return torch.cat(parts).sort().values


def _scale_of(fields: Tensor) -> tuple[float, float]:
    """Mean and deviation over all samples and points; all fields here have one channel."""
    return float(fields.mean()), max(float(fields.std()), 1e-6)


def standardise(fields: Tensor, scale: tuple[float, float]) -> Tensor:
    return (fields - scale[0]) / scale[1]


# ---------------------------------------------------------------------- gaps that are planted


def own_data(source: str, seed: int) -> tuple[Samples, Samples]:
    """Data of the source's modality that are no proxy data: to train on, and to test on."""
    if source == "mnist-vit":
        (images, labels), (others, wanted) = mnist("train"), mnist("t10k")
        chosen = 10_000 + _order(len(images) - 10_000, seed)[:IMAGES]  # behind the proxy data
        held = _order(len(others), seed)[:IMAGES]
        return (images[chosen], labels[chosen]), (others[held], wanted[held])
    if source == "cifar-resnet":
        images, labels = cifar()
        chosen = 1000 + _order(2000, seed)
        return (images[chosen[:1000]], labels[chosen[:1000]]), (images[chosen[1000:]], labels[chosen[1000:]])
    if source == "crepe-tiny":
        frames, labels, _ = make_tones(POOL + TEST, seed=1000 + seed)
        return (frames[:POOL], labels[:POOL]), (frames[POOL:], labels[POOL:])
    if source == "digits-vit":
        images, labels = digits("train")
        chosen = PROXY[source] + _order(len(images) - PROXY[source], seed)
        return (images[chosen], labels[chosen]), digits("test")
    raise SystemExit(f"No gap is planted in data of {source}.")


def plant_gap(source: str, seed: int, *, rotated: bool, classes: int) -> tuple[Samples, Samples, str]:
    """The source's own data with a gap, and ``classes`` labels (0: as there were)."""
    parts = []
    for inputs, labels in own_data(source, seed):
        if rotated and source == "crepe-tiny":
            inputs = rotate_segments(inputs, SEGMENT, seed)
        elif rotated:
            inputs = rotate_patches(inputs, PATCHES[source], seed=seed)
        if classes:
            known = TONE_CLASSES if source == "crepe-tiny" else 10
            labels = merge_labels(torch.cat([labels, torch.arange(known)]), classes, seed=seed)[: len(labels)]
        parts.append((inputs, labels))
    return parts[0], parts[1], "classification"


def rotate_segments(signals: Tensor, segment: int, seed: int) -> Tensor:
    """Signals ``(count, 1, length)`` of which every segment was multiplied by one orthogonal matrix."""
    drawn = torch.randn(segment, segment, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    turn = torch.linalg.qr(drawn)[0].to(signals)
    return (signals.unflatten(-1, (-1, segment)) @ turn).flatten(-2)


def _order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------- equations


def equation(source: str, seed: int, *, name: str) -> tuple[Samples, Samples, str]:
    inputs, outputs = (torch.from_numpy(each) for each in generate(name, POOL + TEST, points=POINTS, seed=seed))
    return (inputs[:POOL], outputs[:POOL]), (inputs[POOL:], outputs[POOL:]), "dense"


def burgers_16(source: str, seed: int) -> tuple[Samples, Samples, str]:
    """The field at the last of 17 times, from that at the first."""
    stored = np.load(_data() / "pde" / "burgers_lowres.npz")
    x = torch.from_numpy(stored["input"].astype(np.float32))[:, None]
    y = torch.from_numpy(stored["output"][:, -1].astype(np.float32))[:, None]
    order = _order(POOL, seed)
    return (x[order], y[order]), (x[POOL:], y[POOL:]), "dense"


def darcy_16(source: str, seed: int) -> tuple[Samples, Samples, str]:
    (x, y), test = (
        tuple(torch.from_numpy(stored[field].astype(np.float32))[:, None] for field in ("x", "y"))
        for stored in (np.load(_data() / "pde" / f"darcy_{part}_16.npz") for part in ("train", "test"))
    )
    order = _order(len(x), seed)
    return (x[order], y[order]), (test[0], test[1]), "dense"


# ---------------------------------------------------------------------- heart beats


def heart_beats(source: str, seed: int, *, name: str) -> tuple[Samples, Samples, str]:
    parts = []
    for part in ("TRAIN", "TEST"):
        content = gzip.decompress((_data() / "ecg" / f"{name}_{part}.tsv.gz").read_bytes())
        table = torch.from_numpy(np.loadtxt(io.BytesIO(content), dtype=np.float32))
        _, labels = table[:, 0].unique(return_inverse=True)  # both parts hold all classes
        parts.append((table[:, None, 1:].contiguous(), labels))
    (x, y), test = parts
    order = _order(len(x), seed)
    return (x[order], y[order]), test, "classification"


def _data() -> Path:
    folder = data_folder()
    if folder is None:
        raise SystemExit("The cross-modal benchmark reads its data from the folder that INTERBASIN_DATA names.")
    return folder


Maker = Callable[[str, int], tuple[Samples, Samples, str]]
CLASSES = (8, 5, 3, 2)  # of the curves of merged labels
TARGETS: dict[str, Maker] = {
    "rotated-patches": partial(plant_gap, rotated=True, classes=0),
    "merged-labels": partial(plant_gap, rotated=False, classes=MERGED),
    "advection": partial(equation, name="advection"),
    "burgers": partial(equation, name="burgers"),
    "reaction-diffusion": partial(equation, name="reaction-diffusion"),
    "darcy-16": darcy_16,
    "burgers-16": burgers_16,
    "ecg200": partial(heart_beats, name="ECG200"),
    "ecg5000": partial(heart_beats, name="ECG5000"),
    **{f"merged-labels-{count}": partial(plant_gap, rotated=False, classes=count) for count in CLASSES},
    **{f"rotated-merged-{count}": partial(plant_gap, rotated=True, classes=count) for count in CLASSES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="mnist-vit")
    arguments = parser.parse_args()
    for name in TARGETS:
        if has_target(name, arguments.source):
            for labels in label_counts(name):
                target = target_case(name, arguments.source, labels, 0)
                shapes = [tuple(part.shape) for pair in (target.train, target.test) for part in pair]
                print(f"{name}, {labels or 'all'} labels: {target.task}, {shapes}, {len(target.unlabelled)} unlabelled")


if __name__ == "__main__":
    main()
