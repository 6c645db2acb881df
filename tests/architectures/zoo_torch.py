"""Networks of plain torch: what people write themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.architectures.architecture import CLASSES, VOCABULARY, Architecture, ids, image, rows
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations


class Residual(nn.Module):
    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class UNet(nn.Module):
    """Two levels, a transposed convolution up, and the way down concatenated to the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.bottom = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(12, 10, 2, stride=2)
        self.merge = nn.Conv2d(18, 14, 3, padding=1)
        self.out = nn.Conv2d(14, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        level = functional.silu(self.norm(self.down(x)))
        raised = self.up(functional.relu(self.bottom(level)))
        return self.out(functional.relu(self.merge(torch.cat([level, raised], dim=1))))


class Attending(nn.Module):
    """A classifier around ``nn.MultiheadAttention``, with one token for the class."""

    def __init__(self, batch_first: bool, bias: bool = True, keys: int | None = None) -> None:
        super().__init__()
        self.batch_first, self.keys = batch_first, keys
        self.embed = nn.Linear(6, 32)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.attend = nn.MultiheadAttention(32, 4, batch_first=batch_first, bias=bias, kdim=keys, vdim=keys)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], dim=1)
        memory = x if self.keys else tokens
        if not self.batch_first:
            tokens, memory = tokens.transpose(0, 1), memory.transpose(0, 1)
        tokens = self.norm(tokens + self.attend(tokens, memory, memory, need_weights=False)[0])
        return self.head(tokens.mean(1) if self.keys else tokens[:, 0] if self.batch_first else tokens[0])


class Translator(nn.Module):
    """``nn.Transformer`` between two sequences of numbers."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Linear(6, 32), nn.Linear(5, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 44, activation="gelu", batch_first=True, norm_first=norm_first)
        self.transformer = nn.Transformer(
            32,
            4,
            num_decoder_layers=2,
            dim_feedforward=56,
            activation="gelu",
            # Without the nested tensors of inference, which nobody traces.
            custom_encoder=nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False),
            batch_first=True,
            norm_first=norm_first,
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
        # Said to be causal, for otherwise torch looks into the mask, which cannot be traced.
        decoded = self.transformer(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(decoded)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 12)
        self.layer = layer
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x))[0])


class Tied(nn.Module):
    """A language model whose output layer is its embedding, and whose two blocks are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 24)
        self.block = Residual(nn.LayerNorm(24), nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))
        self.head = nn.Linear(24, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.block(self.embed(x))))


class Folding(nn.Module):
    """Patches cut by hand with view and permute, heads with unflatten and einsum: what einops writes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(3 * 8 * 8, 32)
        self.keys = nn.Linear(32, 3 * 32, bias=False)
        self.join = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        patches = x.view(batch, channels, height // 8, 8, width // 8, 8).permute(0, 2, 4, 3, 5, 1)
        tokens = self.patch(patches.reshape(batch, -1, 8 * 8 * channels))
        query, key, value = self.keys(self.norm(tokens)).unflatten(-1, (3, 4, 8)).unbind(2)
        weights = torch.einsum("bqhd,bkhd->bhqk", query * 8**-0.5, key).softmax(-1)
        tokens = tokens + self.join(torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2))
        return self.head(tokens.mean(1))


class Gated(nn.Module):
    """A highway: one layer opens what another lets through, and the halves of one layer multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 24)
        self.gate, self.value = nn.Linear(24, 24), nn.Linear(24, 24)
        self.halves = nn.Linear(24, 40)
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        gate = torch.sigmoid(self.gate(x))
        x = gate * self.value(x) + (1 - gate) * x
        left, right = self.halves(x).chunk(2, dim=-1)
        return self.head(functional.silu(left) * right)


class Film(nn.Module):
    """One input scales and shifts what the network makes of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.content, self.style = nn.Conv2d(3, 12, 3), nn.Linear(5, 24)
        self.norm = nn.InstanceNorm2d(12, affine=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.style(style)[:, :, None, None].split(12, dim=1)
        x = functional.leaky_relu(self.norm(self.content(x)) * (1 + scale) + shift, 0.1)
        return self.head(x.amax(dim=(2, 3)))


class TwoTowers(nn.Module):
    """Two encoders, compared by the cosine of what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 16))
        self.right = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 16))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = functional.normalize(self.left(left), dim=-1), functional.normalize(self.right(right), dim=-1)
        return self.scale.exp() * left @ right.mT


class Paired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(10, 14), nn.Linear(6, 18)
        self.pair = nn.Bilinear(14, 18, 20)
        self.head = nn.Linear(20, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(self.pair(self.left(left).relu(), self.right(right).relu()).relu())


def mlp(
    activation: Callable[[], nn.Module], norm: Callable[[int], nn.Module] = lambda width: nn.Identity()
) -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 24), norm(24), activation(), nn.Linear(24, 20), norm(20), activation(), nn.Linear(20, CLASSES)
    )


def encoder(norm_first: bool, activation: str = "relu") -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 56, activation=activation, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(6, 32), stack, nn.Linear(32, CLASSES))


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, 2, 1),
        nn.PReLU(12),
        nn.ConvTranspose2d(12, 10, 4, 2, 1),
        nn.BatchNorm2d(10),
        nn.ELU(),
        nn.ConvTranspose2d(10, 3, 4, 2, 1),
        nn.Tanh(),
    )


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, groups=4),
        nn.ReLU6(),
        nn.ChannelShuffle(4),
        nn.Conv2d(24, 24, 3, groups=24),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, CLASSES),
    )


def super_resolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        Residual(nn.Conv2d(12, 14, 3, padding=1), nn.ReLU(), nn.Conv2d(14, 12, 1)),
        nn.PixelUnshuffle(2),
        nn.Conv2d(48, 20, 1),
        nn.ReLU(),
        nn.PixelShuffle(2),
        nn.Conv2d(5, 12, 1),
        nn.PixelShuffle(2),
    )


def weight_normed() -> nn.Module:
    normed = parametrizations.weight_norm
    return nn.Sequential(
        normed(nn.Conv1d(4, 12, 3)),
        nn.LeakyReLU(),
        normed(nn.Conv1d(12, 16, 3, groups=2)),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        normed(nn.Linear(48, CLASSES)),
    )


def spectral_normed() -> nn.Module:
    normed = parametrizations.spectral_norm
    return nn.Sequential(
        normed(nn.Conv2d(3, 8, 3)),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        normed(nn.Linear(72, 20)),
        nn.ReLU(),
        nn.Linear(20, CLASSES),
    )


def flattened() -> nn.Module:
    """Channels and positions become one axis, read by a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 10, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40, 24),
        nn.Tanh(),
        nn.Linear(24, CLASSES),
    )


def video() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 12, 3, padding=1),
        nn.Softplus(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


def both(*samples: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(sample() for sample in samples)


SERIES = rows(7, 6)

ARCHITECTURES: dict[str, Architecture] = {
    "torch/mlp-relu": Architecture(lambda: mlp(nn.ReLU), rows(10)),
    "torch/mlp-tanh": Architecture(lambda: mlp(nn.Tanh), rows(10)),
    "torch/mlp-layer-norm": Architecture(lambda: mlp(nn.GELU, nn.LayerNorm), rows(10)),
    "torch/mlp-batch-norm": Architecture(lambda: mlp(nn.SELU, nn.BatchNorm1d), rows(10)),
    "torch/mlp-rms-norm": Architecture(lambda: mlp(nn.SiLU, nn.RMSNorm), rows(10)),
    "torch/mlp-linear": Architecture(lambda: mlp(nn.Identity), rows(10)),
    "torch/gated": Architecture(Gated, rows(10)),
    "torch/two-towers": Architecture(TwoTowers, both(rows(10), rows(6))),
    "torch/film": Architecture(Film, both(image(12), rows(5))),
    "torch/bilinear": Architecture(Paired, both(rows(10), rows(6))),
    "torch/lenet": Architecture(flattened, image(18)),
    "torch/grouped": Architecture(grouped, image(12)),
    "torch/autoencoder": Architecture(autoencoder, image(16)),
    "torch/unet": Architecture(UNet, image(16)),
    "torch/super-resolution": Architecture(super_resolution, image(8)),
    "torch/video": Architecture(video, rows(3, 4, 8, 8)),
    "torch/weight-norm": Architecture(weight_normed, rows(4, 10)),
    "torch/spectral-norm": Architecture(spectral_normed, image(8)),
    "torch/tied": Architecture(Tied, ids(7)),
    "torch/folding": Architecture(Folding, image(32)),
    "torch/attention": Architecture(lambda: Attending(batch_first=True), SERIES),
    "torch/attention-time-first": Architecture(lambda: Attending(batch_first=False, bias=False), SERIES),
    "torch/attention-other-width": Architecture(lambda: Attending(batch_first=True, keys=6), SERIES),
    "torch/encoder-post-norm": Architecture(lambda: encoder(norm_first=False), SERIES),
    "torch/encoder-pre-norm": Architecture(lambda: encoder(norm_first=True, activation="gelu"), SERIES),
    "torch/transformer-post-norm": Architecture(lambda: Translator(norm_first=False), both(SERIES, rows(4, 5))),
    "torch/transformer-pre-norm": Architecture(lambda: Translator(norm_first=True), both(SERIES, rows(4, 5))),
    "torch/lstm": Architecture(lambda: Recurrent(nn.LSTM(12, 20, 2, batch_first=True), 20), ids(7)),
    "torch/lstm-bidirectional": Architecture(
        lambda: Recurrent(nn.LSTM(12, 20, batch_first=True, bidirectional=True), 40), ids(7)
    ),
    "torch/gru": Architecture(lambda: Recurrent(nn.GRU(12, 20, 2, batch_first=True), 20), ids(7)),
    "torch/rnn": Architecture(lambda: Recurrent(nn.RNN(12, 20, batch_first=True), 20), ids(7)),
}
