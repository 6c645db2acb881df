"""The workload of transport: residual networks on digits and clothes, independently trained, and A's fine-tunes.

A (width 128) sees images 0 to 9,999 of MNIST's training part and of Fashion-MNIST, B (width 192) images 10,000 to
19,999. Both learn all 20 classes, with random rotations up to 30 degrees. The output is compared with fixed random
class embeddings (logits are 15 times the cosine), so outputs are shared, as in CLIP. The two tasks are digits, and
clothes, turned by 60 degrees; A is fine-tuned on each, and so is B, with labels, for reference. Calibration images
come, without labels, from B's half.

The quick form is the same on the embedded digits, with one task, 10 classes and small networks.

Images lie in the folder that INTERBASIN_DATA names. Trained networks are kept in ``benchmarks/.cache``, named by all
that they depend on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, gelu, grid_sample, normalize

from interbasin.datasets.arrays import idx_pairs, read_idx
from interbasin.datasets.digits import load_digits

CACHE = Path(__file__).parent / ".cache"
OUTPUTS, TEMPERATURE = 64, 15.0
TURN, SWAY = 60.0, 30.0  # degrees: of the tasks, and at most in pre-training
BATCH, GENERIC_BATCHES = 32, 20
PRETRAIN_RATE, FINETUNE_RATE = 2e-3, 5e-4  # peaks

Side = Literal["A", "B"]
N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True)
class Images:
    """Normalised images (count, 1, height, width) and their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor | slice) -> Images:
        return Images(self.images[rows], self.labels[rows])

    def plus(self, other: Images) -> Images:
        return Images(torch.cat([self.images, other.images]), torch.cat([self.labels, other.labels]))


@dataclass(frozen=True)
class Workload:
    """Which images, how large the networks are, and how long they are trained.

    Attributes:
        name: In the names of files.
        tasks: The parts of the data; each, turned, is a task.
        half: Images of each part that a side sees.
        reserved: Images of the shuffled calibration pool that batches may use; the others are for validation.
        widths: Of A and of B.
        steps: Of pre-training and of fine-tuning.
        train_batch: Images in a step.
    """

    name: str
    tasks: tuple[str, ...]
    half: int
    reserved: int
    widths: tuple[int, int]
    steps: tuple[int, int]
    train_batch: int

    # ------------------------------------------------------------------ images

    @cached_property
    def parts(self) -> dict[str, tuple[Images, Images]]:
        """The images that networks learn from, and those of the test, of every part."""
        return _digits_alone(self.half) if self.name.startswith("quick") else _digits_and_clothes(self.half)

    @property
    def classes(self) -> int:
        return 10 * len(self.tasks)

    @cached_property
    def embeddings(self) -> Tensor:
        """The fixed output that stands for each class."""
        # Whoever asks first may be in inference mode, and whoever asks later may need gradients.
        with torch.inference_mode(False):
            drawn = torch.randn(20, OUTPUTS, generator=torch.Generator().manual_seed(777))
            return normalize(drawn, dim=1)[: self.classes]

    def readout(self, outputs: Tensor) -> Tensor:
        """Outputs to logits."""
        return TEMPERATURE * normalize(outputs, dim=-1) @ self.embeddings.to(outputs.dtype).T

    def seen_by(self, side: Side, task: str | None = None) -> Images:
        """The training images of a side, of one part or of all."""
        rows = slice(0, self.half) if side == "A" else slice(self.half, 2 * self.half)
        names = self.tasks if task is None else (task,)
        images = [self.parts[name][0].take(rows) for name in names]
        return images[0] if len(images) == 1 else images[0].plus(images[1])

    @cached_property
    def tests(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The test images of each task, turned, with labels; and under ``""`` those of all classes, as they are."""
        found = {name: (turned(self.parts[name][1].images, TURN), self.parts[name][1].labels) for name in self.tasks}
        pixels = torch.cat([self.parts[name][1].images.flatten(1) for name in self.tasks])
        return {**found, "": (pixels, torch.cat([self.parts[name][1].labels for name in self.tasks]))}

    @torch.no_grad()
    def accuracy(self, model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
        """Per cent of the rows whose class is the nearest of all."""
        pixels, labels = data
        answer = getattr(model, "answer", model)  # a network may have a shorter way
        right = sum(
            int((self.readout(answer(rows)).argmax(1) == truth).sum())
            for rows, truth in zip(pixels.split(250), labels.split(250), strict=True)
        )
        return 100 * right / len(labels)

    # ------------------------------------------------------------------ networks

    def base(self, side: Side, seed: int, shape: Shape) -> nn.Module:
        """The pre-trained network of a side."""
        number = 1_000 * seed + (side == "B")
        model = shape.build(self.pixels, number)
        name = f"base-{side}-{shape.name}-s{seed}"
        return self.cached(
            model, name, lambda: self.train(model, self.seen_by(side), self.steps[0], PRETRAIN_RATE, number + 10, None)
        )

    def tuned(self, side: Side, task: str, seed: int, shape: Shape) -> nn.Module:
        """The network of a side, fine-tuned on a task with labels."""
        model = shape.build(self.pixels)
        number = 1_000 * seed + 20 + (side == "B")

        def make() -> None:
            model.load_state_dict(self.base(side, seed, shape).state_dict())
            self.train(model, self.seen_by(side, task), self.steps[1], FINETUNE_RATE, number, TURN)

        return self.cached(model, f"tuned-{side}-{task}-{shape.name}-s{seed}", make)

    @property
    def pixels(self) -> int:
        return self.parts[self.tasks[0]][0].images[0].numel()

    def train(self, model: N, data: Images, steps: int, peak: float, seed: int, degrees: float | None) -> N:
        """Train in place: AdamW, one-cycle schedule; turned by the angle given, or by random ones if None."""
        generator = torch.Generator().manual_seed(seed)
        model.requires_grad_(True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=peak)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps)
        model.train()
        for _ in range(steps):
            rows = torch.randint(len(data), (self.train_batch,), generator=generator)
            images = data.images[rows]
            pixels = swayed(images, generator) if degrees is None else turned(images, degrees)
            loss = cross_entropy(self.readout(model(pixels)), data.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return model.eval()

    def cached(self, model: N, name: str, make: Callable[[], object]) -> N:
        """The network of that name from the cache, or made and kept there."""
        steps = "-".join(map(str, self.steps))
        path = CACHE / f"transport-{self.name}-{steps}-{name}.safetensors"
        if path.exists():
            model.load_state_dict(load_file(path))
        else:
            make()
            CACHE.mkdir(exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, partial)
            os.replace(partial, path)
        return model.eval().requires_grad_(False)

    def pair(self, seed: int, shapes: tuple[Shape, Shape] | None = None, sides: tuple[Side, Side] = ("A", "B")) -> Pair:
        """Networks A and B of a seed; trained if they are not in the cache."""
        shapes = shapes or (Shape(self.widths[0]), Shape(self.widths[1]))
        networks = [self.base(side, seed, shape) for side, shape in zip(sides, shapes, strict=True)]
        return Pair(self, seed, networks[0], networks[1], shapes, sides)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two independently trained networks, their fine-tunes, and the data of one seed.

    With ``sides`` the other way round, the network of the second half is fine-tuned, and data come from the first.
    """

    workload: Workload
    seed: int
    source: nn.Module
    target: nn.Module
    shapes: tuple[Shape, Shape]
    sides: tuple[Side, Side] = ("A", "B")

    def tuned_source(self, task: str) -> nn.Module:
        return self.workload.tuned(self.sides[0], task, self.seed, self.shapes[0])

    def tuned_target(self, task: str) -> nn.Module:
        """B fine-tuned with labels: a reference, not an input."""
        return self.workload.tuned(self.sides[1], task, self.seed, self.shapes[1])

    def calibration(self, task: str, batches: int) -> tuple[Tensor, Tensor]:
        """Rows of task images from B's half, and labels for the controls; fewer batches are the beginning of more."""
        return self._taken(task, self._shuffled(task)[: batches * BATCH])

    def shots(self, task: str, each: int) -> tuple[Tensor, Tensor]:
        """The same, with so many examples of each class."""
        order = self._shuffled(task)[: self.workload.reserved]
        labels = self.workload.seen_by(self.sides[1], task).labels[order]
        rows = torch.cat([order[labels == label][:each] for label in labels.unique()])
        mixed = torch.randperm(len(rows), generator=torch.Generator().manual_seed(70_000 + self.seed))
        return self._taken(task, rows[mixed])

    def generic(self, batches: int = GENERIC_BATCHES) -> Tensor:
        """Rows of unlabelled images of all parts from B's half, turned by up to 30 degrees."""
        data, generator = self.workload.seen_by(self.sides[1]), torch.Generator().manual_seed(50_000 + self.seed)
        rows = torch.randperm(len(data), generator=generator)[: batches * BATCH]
        return swayed(data.images[rows], generator)

    def validation(self, task: str, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Task images that no calibration batch holds, with labels: what choices are made on."""
        rows = self._shuffled(task)[self.workload.reserved :]
        return self._taken(task, rows[:most])

    def original_validation(self, most: int) -> tuple[Tensor, Tensor]:
        """Images of all parts as they are that no calibration batch holds, with labels."""
        rows = {task: self._shuffled(task)[self.workload.reserved :][:most] for task in self.workload.tasks}
        data = [self.workload.seen_by(self.sides[1], task).take(taken) for task, taken in rows.items()]
        pixels = torch.cat([each.images.flatten(1) for each in data])
        return pixels, torch.cat([each.labels for each in data])

    def training(self, task: str) -> tuple[Tensor, Tensor]:
        """Task images with labels, for fine-tuning: those of the pool that validation does not hold."""
        return self._taken(task, self._shuffled(task)[: self.workload.reserved])

    def _taken(self, task: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        data = self.workload.seen_by(self.sides[1], task).take(rows)
        return turned(data.images, TURN), data.labels

    def _shuffled(self, task: str) -> Tensor:
        number = 60_000 + self.seed + 500 * self.workload.tasks.index(task)
        return torch.randperm(self.workload.half, generator=torch.Generator().manual_seed(number))


@dataclass(frozen=True)
class Shape:
    """How large a network is; a benchmark with networks of its own makes another kind of shape."""

    width: int
    depth: int = 3

    @property
    def name(self) -> str:
        """In the names of files."""
        return f"w{self.width}-d{self.depth}"

    def build(self, pixels: int, seed: int = 0) -> nn.Module:
        """A network with weights drawn from the seed, whatever the state of the global generator."""
        return new_residual(pixels, self.width, self.depth, seed)


FULL = Workload("full", ("digits", "clothes"), 10_000, 6_000, (128, 192), (800, 600), 256)
QUICK = Workload("quick", ("digits",), 700, 480, (32, 48), (300, 150), 128)


# ---------------------------------------------------------------------- networks


class Block(nn.Module):
    """A pre-norm residual block with inner width twice the outer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.fc2(gelu(self.fc1(self.norm(stream))))


class Residual(nn.Module):
    """Pixels to a vector that is compared with the class embeddings."""

    def __init__(self, pixels: int, width: int, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(pixels, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, pixels: Tensor) -> Tensor:
        stream = self.stem(pixels)
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


def new_residual(pixels: int, width: int, depth: int, seed: int) -> Residual:
    """A network with weights drawn from the seed, whatever the state of the global generator, which is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Residual(pixels, width, depth)


# ---------------------------------------------------------------------- images


def turned(images: Tensor, degrees: float | Tensor) -> Tensor:
    """Images turned (bilinear, the border continued), one angle for all or one each, as rows of pixels."""
    angles = torch.as_tensor(degrees, dtype=images.dtype).expand(len(images)) * (math.pi / 180)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False).flatten(1)


def swayed(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image turned by a random angle up to 30 degrees either way."""
    return turned(images, (2 * torch.rand(len(images), generator=generator) - 1) * SWAY)


def data_folder() -> Path | None:
    """Where the images lie, or None if nobody says so."""
    named = os.environ.get("INTERBASIN_DATA")
    return Path(named) if named else None


@cache
def _digits_and_clothes(half: int) -> dict[str, tuple[Images, Images]]:
    folder = data_folder()
    assert folder is not None, "the full workload needs INTERBASIN_DATA"
    pairs = idx_pairs(folder / "mnist")
    digits, digits_test = (Images(*_read(*pairs[split])) for split in ("train", "test"))
    with np.load(folder / "fashion-mnist" / "shuffled-25000.npz") as file:
        clothes = Images(_normalised(file["images"]), torch.from_numpy(file["labels"].astype("int64")) + 10)
    seen = slice(0, 2 * half)
    return {
        "digits": (digits.take(seen), digits_test.take(slice(0, 5_000))),
        "clothes": (clothes.take(seen), clothes.take(slice(20_000, 25_000))),
    }


def _read(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    return _normalised(read_idx(images)), torch.from_numpy(np.array(read_idx(labels))).long()


def _normalised(pixels: np.ndarray) -> Tensor:
    side = math.isqrt(pixels[0].size)
    return (torch.from_numpy(pixels.reshape(-1, 1, side, side).astype("float32")) / 255 - 0.2) / 0.33


@cache
def _digits_alone(half: int) -> dict[str, tuple[Images, Images]]:
    digits = load_digits()
    train, test = (
        Images((images.unsqueeze(1) - 0.3) / 0.38, labels)
        for images, labels in ((digits.train_images, digits.train_labels), (digits.test_images, digits.test_labels))
    )
    return {"digits": (train.take(slice(0, 2 * half)), test)}
