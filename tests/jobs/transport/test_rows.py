"""What a watcher hands over, inside torch's attention too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.laws.strategies import gaussian
from torch import Tensor, nn

from interbasin.jobs.transport.rows import Watcher, argument_at, reading_at


class Crossing(nn.Module):
    """Attention from one sequence to another of other widths."""

    def __init__(
        self, *, batch_first: bool = True, bias: bool = True, weights: bool = False, masked: bool = False
    ) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.attend = nn.MultiheadAttention(8, 2, bias=bias, kdim=5, vdim=6, batch_first=batch_first)
        for bias_ in (self.attend.in_proj_bias, self.attend.out_proj.bias) if bias else ():
            nn.init.normal_(bias_)
        self.weights, self.masked = weights, masked

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, keys = (len(k), k.shape[1]) if self.attend.batch_first else (k.shape[1], len(k))
        padding = torch.zeros(batch, keys, dtype=torch.bool)
        padding[:, -2:] = True
        mask = padding if self.masked else None
        return self.attend(q, k, value=v, key_padding_mask=mask, need_weights=self.weights)[0].relu()


OPTIONS: list[dict[str, Any]] = [{}, {"batch_first": False}, {"bias": False}, {"weights": True}, {"masked": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_what_the_output_projection_reads_is_what_makes_its_output(options: dict[str, Any]) -> None:
    network = Crossing(**options).double().eval()
    inputs = gaussian(0, 3, 4, 8), gaussian(1, 3, 7, 5), gaussian(2, 3, 7, 6)
    if options.get("batch_first") is False:
        inputs = tuple(each.transpose(0, 1) for each in inputs)  # type: ignore[assignment]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    reads, output = argument_at("attend.out_proj:input"), reading_at("attend:output")
    shown = Watcher(network, [reads, output]).run(inputs)
    with torch.no_grad():
        torch.testing.assert_close(network.attend.out_proj(shown[reads]), shown[output])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert not network.attend._forward_pre_hooks
    assert "forward" not in vars(network.attend)


def test_queries_keys_and_values_are_read_and_so_are_the_arguments_that_they_are_made_from() -> None:
    network = Crossing().double().eval()
    inputs = gaussian(0, 3, 4, 8), gaussian(1, 3, 7, 5), gaussian(2, 3, 7, 6)
    biases = network.attend.in_proj_bias.chunk(3)
    for side, given, bias in zip("qkv", inputs, biases, strict=True):
        place = f"attend:{side}"
        shown = Watcher(network, [reading_at(place), argument_at(place)]).run(inputs)
        torch.testing.assert_close(shown[argument_at(place)], given)
        weight = getattr(network.attend, f"{side}_proj_weight")
        torch.testing.assert_close(shown[reading_at(place)], (given @ weight.mT + bias).detach())
