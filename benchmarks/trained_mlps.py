"""The networks of the re-basin papers: MLPs with four hidden layers, trained on MNIST, or on digits without it.

MNIST is read from the idx files in ``mnist`` in the folder that the environment variable INTERBASIN_DATA names. Of its
60,000 training images the last 5,000 are kept apart for validation: whatever had to be chosen was chosen there. The
first 5,000 are those that methods look at. Trained networks are kept in ``benchmarks/.cache``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from interbasin.datasets.arrays import idx_pairs, read_idx
from interbasin.datasets.digits import load_digits

CACHE = Path(__file__).parent / ".cache"
HIDDEN_LAYERS, CLASSES = 4, 10
MEAN, SPREAD = 0.1307, 0.3081  # of the pixels of MNIST
BATCH, RATE = 128, 1e-3
EPOCHS = {"MNIST": 4, "digits": 60}  # about 1,700 and 600 steps
VALIDATION, SEEN = 5_000, 5_000


@dataclass(frozen=True, eq=False)
class Part:
    """Images and labels, in batches as often as needed."""

    images: Tensor
    labels: Tensor
    batch: int = 500

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.images.split(self.batch), self.labels.split(self.batch), strict=True)

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch)

    def first(self, count: int, batch: int = 500) -> Part:
        return Part(self.images[:count], self.labels[:count], batch)


@dataclass(frozen=True, eq=False)
class Images:
    """What networks are trained on, what methods look at, what choices are made on, what is reported."""

    name: str
    train: Part
    seen: Part
    validation: Part
    test: Part

    @property
    def epochs(self) -> int:
        return EPOCHS[self.name]


def load_images(quick: bool = False) -> Images:
    """MNIST if it is there, and digits if it is not, or if quick."""
    folder = Path(os.environ.get("INTERBASIN_DATA", ".")) / "mnist"
    pairs = {} if quick else idx_pairs(folder)
    if {"train", "test"} <= pairs.keys():
        (images, labels), test = (_read(*pairs[split]) for split in ("train", "test"))
        name, held, seen = "MNIST", VALIDATION, SEEN
    else:
        digits = load_digits()
        images, labels = digits.train_images.flatten(1), digits.train_labels
        test = digits.test_images.flatten(1), digits.test_labels
        name, held, seen = "digits", 200, 500
    train = Part(images[:-held], labels[:-held])
    return Images(name, train, train.first(seen), Part(images[-held:], labels[-held:]), Part(*test))


def _read(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(read_idx(images)).flatten(1).float() / 255
    return (pixels - MEAN) / SPREAD, torch.from_numpy(read_idx(labels)).long()


def new_mlp(inputs: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for layer in range(HIDDEN_LAYERS):
        layers += [nn.Linear(inputs if layer == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def trained(images: Images, width: int, seed: int) -> nn.Sequential:
    """The network of a seed, which decides on its first weights and on the order of images. Kept once trained."""
    name = f"{images.name.lower()}-{HIDDEN_LAYERS}x{width}-{images.epochs}epochs-{BATCH}batch-seed{seed}.safetensors"
    network = new_mlp(images.train.images.shape[1], width)
    if (CACHE / name).exists():
        network.load_state_dict(load_file(CACHE / name))
        return network.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = new_mlp(images.train.images.shape[1], width)
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
        for _ in range(images.epochs):
            for rows in torch.randperm(len(images.train.labels)).split(BATCH):
                optimiser.zero_grad()
                cross_entropy(network(images.train.images[rows]), images.train.labels[rows]).backward()
                optimiser.step()
    CACHE.mkdir(exist_ok=True)
    partial = CACHE / f"{name}.partial"
    save_file({key: one.contiguous() for key, one in network.state_dict().items()}, partial)
    os.replace(partial, CACHE / name)
    return network.eval()
