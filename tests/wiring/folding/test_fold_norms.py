"""Folding changes nothing that a network computes, and frees its residual stream."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.selection import parameters
from tests.architectures.zoo import ARCHITECTURES
from tests.wiring.folding.test_recognise import ChannelNorm, ChannelScale, Scale
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.wiring import Group, wire
from interbasin.wiring.check import difference
from interbasin.wiring.folding import fold_norms, folding_of

EXACT = 1e-12


def in_double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: in_double(part) for name, part in value.items()}
    return tuple(in_double(part) for part in value)


def entry(name: str) -> tuple[nn.Module, Any]:
    network, inputs = ARCHITECTURES[name](0)
    return randomise(network, 0, inputs).double(), in_double(inputs)


class PreNorm(nn.Module):
    """One residual branch read through a norm, and a head behind another."""

    def __init__(self, norm: type[nn.Module] = nn.LayerNorm, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, width)
        self.norm, self.last = norm(width), norm(width)
        self.up, self.down = nn.Linear(width, 20), nn.Linear(20, width)
        self.head = nn.Linear(width, 9, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.embed(x)
        stream = stream + self.down(torch.relu(self.up(self.norm(stream))))
        return self.head(self.last(stream))


def tokens() -> Tensor:
    return torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(0))


def small(norm: type[nn.Module] = nn.LayerNorm) -> PreNorm:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return randomise(PreNorm(norm), 0).double().eval()  # type: ignore[return-value]


PRE_NORM = {
    "torch/encoder-pre-norm": 1,
    "torch/transformer-pre-norm": 2,
    "timm/vit": 1,
    "timm/vit-registers": 1,  # a norm behind the embedding, layer scale, norms of queries and keys
    "timm/deit3": 1,
    "transformers/gpt2": 1,
    "transformers/gptj": 1,
    "transformers/llama": 1,
    "transformers/gemma": 1,
    "transformers/qwen3": 1,
    "transformers/t5": 1,
    "transformers/opt": 1,
    "transformers/mamba": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", parameters(PRE_NORM))
def test_a_folded_network_computes_the_same_and_its_stream_is_orthogonal(name: str) -> None:
    network, inputs = entry(name)
    folded = fold_norms(network, inputs)
    assert difference(network, folded, inputs) < EXACT
    wiring = wire(folded, inputs)
    streams = [space for space in wiring.spaces.values() if space.group is Group.ORTHOGONAL]
    assert len(streams) >= PRE_NORM[name]
    assert wiring.check(folded, inputs) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm/vit", *(f"transformers/{name}" for name in ("llama", "gemma", "t5", "mamba"))])
def test_in_float32_where_casts_change_nothing_all_norms_of_the_stream_fold_as_well(name: str) -> None:
    network, inputs = ARCHITECTURES[name](0)
    randomise(network, 0, inputs)
    folded = fold_norms(network, inputs)
    assert difference(network, folded, inputs) < 1e-4
    groups = [space.group for space in wire(folded, inputs).spaces.values()]
    assert groups.count(Group.ORTHOGONAL) >= 1


@pytest.mark.parametrize(
    "name", parameters(["torch/encoder-post-norm", "transformers/bert", "transformers/roberta", "transformers/bart"])
)
def test_a_post_norm_network_is_refused_with_the_reason(name: str) -> None:
    network, inputs = entry(name)
    with pytest.raises(WiringError, match=r"added to a stream .a post-norm network.*Keep to permutations"):
        fold_norms(network, inputs)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_the_network_that_was_given_stays_as_it_is(norm: type[nn.Module]) -> None:
    network = small(norm)
    before = copy.deepcopy(network.state_dict())
    fold_norms(network, tokens())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert isinstance(network.norm, norm)


def test_the_gain_and_bias_of_a_norm_end_in_what_reads_it() -> None:
    network = small()
    folded = fold_norms(network, tokens())
    with torch.no_grad():
        assert network.norm.bias is not None
        torch.testing.assert_close(folded.up.weight, network.up.weight * network.norm.weight)
        torch.testing.assert_close(folded.up.bias, network.up.bias + network.up.weight @ network.norm.bias)
        # The head had no bias, and got one.
        torch.testing.assert_close(folded.head.bias, network.head.weight @ network.last.bias)


def test_what_writes_a_layer_normed_stream_loses_its_mean_and_what_writes_an_rms_normed_one_does_not() -> None:
    layer, rms = fold_norms(small(), tokens()), fold_norms(small(nn.RMSNorm), tokens())
    assert float(layer.embed.weight.detach().mean(1).abs().max()) < 1e-15
    assert float(layer.down.weight.detach().mean(0).abs().max()) < 1e-15
    torch.testing.assert_close(rms.embed.weight, small(nn.RMSNorm).embed.weight)


def test_a_tied_head_becomes_a_tensor_of_its_own_and_other_ties_stay() -> None:
    network = small()
    network.head.weight = network.embed.weight
    folded = fold_norms(network, tokens())
    assert folded.head.weight is not folded.embed.weight
    assert network.head.weight is network.embed.weight
    assert difference(network, folded, tokens()) < EXACT


def test_folding_in_float32_and_bfloat16_keeps_the_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        network = small().to(dtype)
        folded = fold_norms(network, tokens())
        assert {tensor.dtype for tensor in folded.parameters()} == {dtype}


def test_norms_that_share_one_gain_are_folded() -> None:
    network = small()
    network.last.weight = network.norm.weight
    folded = fold_norms(network, tokens())
    assert difference(network, folded, tokens()) < EXACT
    assert wire(folded, tokens()).spaces["embed"].group is Group.ORTHOGONAL


class OfImages(nn.Module):
    """A stream of channels, read through norms over the channels."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2)
        self.norm, self.last = ChannelNorm(width), ChannelNorm(width)
        self.scale = ChannelScale(width)
        self.up, self.down = nn.Conv2d(width, 12, 1), nn.Conv2d(12, width, 1)
        self.head = nn.Conv2d(width, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        stream = stream + self.scale(self.down(torch.relu(self.up(self.norm(stream)))))
        return self.head(self.last(stream))


def test_norms_and_scalings_over_the_channels_of_images_are_folded() -> None:
    network, images = randomise(OfImages(), 0).double().eval(), torch.rand(2, 3, 6, 6, dtype=torch.float64)
    folded = fold_norms(network, images)
    assert difference(network, folded, images) < EXACT
    wiring = wire(folded, images)
    assert wiring.spaces["stem"].group is Group.ORTHOGONAL
    assert wiring.check(folded, images, seed=0) < 1e-10
    assert str(folding_of(folded)) == ("2 norms folded into what reads them\n1 scaling folded into what writes it")


def test_a_factor_between_a_norm_and_its_readers_keeps_the_bias_out_of_them() -> None:
    class Doubled(PreNorm):
        def forward(self, x: Tensor) -> Tensor:
            stream = self.embed(x)
            doubled = self.norm(stream)
            doubled.mul_(2.0)
            stream = stream + self.down(torch.relu(self.up(doubled)))
            return self.head(self.last(stream))

    network = randomise(Doubled(), 0).double().eval()
    folded = fold_norms(network, tokens())
    assert difference(network, folded, tokens()) < EXACT
    assert wire(folded, tokens()).spaces["embed"].group is Group.ORTHOGONAL
    assert str(folding_of(folded)) == "2 norms, the gain a linear layer behind them"


def test_a_norm_that_is_never_called_says_so() -> None:
    network = small()
    network.spare = nn.LayerNorm(12).double()
    assert folding_of(fold_norms(network, tokens())).left == {"it is not called on these inputs": ("spare",)}


class Scaled(PreNorm):
    """The stream is scaled as it is handed on, and by the same module before it begins."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.twice, self.scale = twice, Scale(12)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.scale(self.embed(x)) if self.twice else self.embed(x)
        stream = self.scale(stream) + self.down(torch.relu(self.up(self.norm(stream))))
        return self.head(self.last(stream))


@pytest.mark.parametrize(
    ("twice", "reason"),
    [
        (True, r"last: scale is called more than once, and not always to write its stream 'down'"),
        (False, r"norm: its stream 'embed' is scaled, by scale, which no orthogonal map commutes with"),
    ],
)
def test_a_stream_that_is_scaled_says_so(twice: bool, reason: str) -> None:
    with pytest.raises(WiringError, match=reason):
        fold_norms(randomise(Scaled(twice), 0).double().eval(), tokens())


def test_what_is_no_longer_one_tensor_is_told() -> None:
    network = small()
    network.head.weight = network.embed.weight
    assert "no longer one tensor: embed.weight and head.weight" in str(folding_of(fold_norms(network, tokens())))
