"""Networks of others, divided, built from the names and shapes of their tensors; and the tones that CREPE hears."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from interbasin.jobs.adapt import Fittings, Source

RATE, FRAME = 16_000, 1024  # what CREPE takes: samples in a second, samples in a frame
LOWEST_CENTS, CENTS = 1997.3794084376191, 20.0  # of CREPE's first bin above 10 Hz, and from bin to bin
TONE_CLASSES, TONE_STEP, LOWEST_TONE = 24, 200.0, 80.0  # classes of two semitones each, from 80 Hz on

# ---------------------------------------------------------------------- a vision transformer


class _Attention(nn.Module):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(width, 3 * inner, bias=False), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out: Tensor = self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A pre-norm block of a transformer."""

    def __init__(self, width: int, inner: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, inner, heads)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class PatchEmbedder(nn.Module):
    """Images -> tokens with a class token and positions."""

    def __init__(self, patch: nn.Conv2d, prefix: Tensor, positions: Tensor) -> None:
        super().__init__()
        self.patch, self.prefix, self.positions = patch, nn.Parameter(prefix), nn.Parameter(positions)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch(images).flatten(2).mT
        return torch.cat([self.prefix.expand(len(tokens), -1, -1), tokens], 1) + self.positions


def divide_vit(stored: Mapping[str, Tensor], heads: int = 4) -> Source:
    """The transformer of the repository `vit-mnist-explorations`, from its tensors."""
    weight = stored["to_patch_embedding.1.weight"]
    width, side = weight.shape[0], round(weight.shape[1] ** 0.5)
    patch = nn.Conv2d(1, width, side, side)
    patch.load_state_dict({"weight": weight.reshape(width, 1, side, side), "bias": stored["to_patch_embedding.1.bias"]})
    blocks: list[nn.Module] = []
    while f"transformer.layers.{len(blocks)}.0.norm.weight" in stored:
        at = f"transformer.layers.{len(blocks)}"
        names = {
            "norm": "0.norm",
            "norm2": "1.norm",
            "attention.to_qkv": "0.fn.to_qkv",
            "attention.to_out": "0.fn.to_out.0",
            "up": "1.fn.net.0",
            "down": "1.fn.net.3",
        }
        held = {
            f"{ours}.{part}": stored[f"{at}.{theirs}.{part}"]
            for ours, theirs in names.items()
            for part in ("weight", "bias")
            if f"{at}.{theirs}.{part}" in stored
        }
        block = Block(width, held["attention.to_out.weight"].shape[1], len(held["up.weight"]), heads)
        block.load_state_dict(held)
        blocks.append(block)
    # The norm before the head acts on each token by itself, so that it can stand before the class token is picked.
    norm, head = nn.LayerNorm(width), nn.Linear(width, len(stored["mlp_head.1.bias"]))
    norm.load_state_dict({part: stored[f"mlp_head.0.{part}"] for part in ("weight", "bias")})
    head.load_state_dict({part: stored[f"mlp_head.1.{part}"] for part in ("weight", "bias")})
    prefix, positions = stored["cls_token"][0], stored["pos_embedding"][0]
    return Source(
        PatchEmbedder(patch, prefix.clone(), positions.clone()),
        nn.Sequential(*blocks, norm),
        head,
        pool="first",
        layout="tokens",
        fittings=Fittings(patch, prefix, positions),
    )


# ---------------------------------------------------------------------- CREPE


class _Padded(nn.Module):
    """A convolution that keeps the length, up to its stride, of which the longer half of the padding comes last."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int) -> None:
        super().__init__()
        after, before, size = weight.shape
        whole = size - stride
        self.pads = whole // 2, whole - whole // 2
        self.convolution = nn.Conv1d(before, after, size, stride)
        self.convolution.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, signal: Tensor) -> Tensor:
        out: Tensor = self.convolution(F.pad(signal, self.pads))
        return out


class _PitchFeatures(nn.Module):
    """What the classifier of CREPE reads: places first, channels last, in one row."""

    def forward(self, signal: Tensor) -> Tensor:
        return signal.mT.flatten(1)


def divide_crepe(stored: Mapping[str, Tensor]) -> tuple[Source, nn.Linear]:
    """CREPE from its tensors, and its own classifier of 360 pitches."""
    layers: list[nn.Module] = []
    depth = 1
    while f"conv{depth}.weight" in stored:
        weight = stored[f"conv{depth}.weight"].squeeze(-1)
        layers += [_Padded(weight, stored[f"conv{depth}.bias"], 4 if depth == 1 else 1), nn.ReLU()]
        norm = nn.BatchNorm1d(len(weight), eps=1e-3, momentum=0.0)
        norm.load_state_dict({name: stored[f"conv{depth}_BN.{name}"] for name in norm.state_dict()})
        layers += [norm, nn.MaxPool1d(2)]
        depth += 1
    embedder, *body = layers
    classifier = nn.Linear(stored["classifier.weight"].shape[1], len(stored["classifier.bias"]))
    classifier.load_state_dict({part: stored[f"classifier.{part}"] for part in ("weight", "bias")})
    return Source(embedder, nn.Sequential(*body, _PitchFeatures()), layout="signals"), classifier


def make_tones(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Frames of harmonic tones ``(count, 1, 1024)``, their classes, and their pitches in Hz.

    A tone has harmonics that fall off with a random power, random phases, and some noise. Its pitch lies within 60
    cents of the middle of its class, so that classes are 80 cents apart. A frame has mean 0 and deviation 1.
    """
    draw = np.random.default_rng(seed)
    classes = draw.permutation(np.arange(count) % TONE_CLASSES)
    cents = (classes + 0.5) * TONE_STEP + draw.uniform(-60, 60, count)
    pitch = LOWEST_TONE * 2 ** (cents / 1200)
    times = np.arange(FRAME) / RATE
    frames = np.zeros((count, FRAME))
    power = draw.uniform(0.5, 2.0, count)
    for harmonic in range(1, 21):
        strength = harmonic**-power * draw.uniform(0.3, 1.0, count) * (harmonic * pitch < RATE / 2)
        phase = draw.uniform(0, 2 * np.pi, (count, 1))
        frames += strength[:, None] * np.sin(2 * np.pi * harmonic * pitch[:, None] * times + phase)
    frames /= frames.std(1, keepdims=True)
    frames += draw.uniform(0.02, 0.2, (count, 1)) * draw.standard_normal(frames.shape)
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)
    return torch.from_numpy(frames[:, None].astype(np.float32)), torch.from_numpy(classes), torch.from_numpy(pitch)


def heard_pitch(source: Source, classifier: nn.Linear, frames: Tensor) -> Tensor:
    """The pitch in Hz that CREPE hears: the mean of the nine bins around the largest, weighted by what it says."""
    with torch.no_grad():
        answers = classifier(source.features(frames)).sigmoid()
    bins = torch.arange(answers.shape[1])
    near = (bins - answers.argmax(1, keepdim=True)).abs() <= 4
    weights = answers * near
    cents = (weights * (LOWEST_CENTS + CENTS * bins)).sum(1) / weights.sum(1)
    return 10 * 2 ** (cents / 1200)


# ---------------------------------------------------------------------- encoders of text


class WordEmbedder(nn.Module):
    """Numbers of tokens -> what the encoder takes; where there is no token, zeros."""

    def __init__(self, embeddings: nn.Module, padding: int) -> None:
        super().__init__()
        self.embeddings, self.padding = embeddings, padding

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.embeddings(tokens) * (tokens != self.padding)[..., None]
        return out
