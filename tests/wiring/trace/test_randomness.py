"""A network that draws random numbers has no two calls that agree: refused where it is seen, and by the check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.wiring.known_networks import Written, generic, rows
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.wiring import wire


class Layer(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.out = nn.Linear(4, 8), layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.out(self.layer(hidden, hidden, hidden)[0])
        found = self.layer(hidden)
        return self.out(found if isinstance(found, Tensor) else found[0])


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(8, 8, 2, dropout=0.5),
    "gru": lambda: nn.GRU(8, 8, 2, dropout=0.5),
    "attention": lambda: nn.MultiheadAttention(8, 2, dropout=0.5),
    "rrelu": lambda: nn.RReLU(),
}


@pytest.mark.parametrize("name", TRAINED)
def test_layers_that_are_random_in_training_are_refused_there(name: str) -> None:
    network = generic(Layer(TRAINED[name]()))
    assert wire(network, rows(5, 4)).check(network, rows(5, 4)) < 1e-10
    with pytest.raises(WiringError, match=r"Layer draws random numbers at .*no two calls agree; call model\.eval\(\)"):
        wire(network.train(), rows(5, 4))


@pytest.mark.parametrize("layer", [nn.LSTM(8, 8, dropout=0), nn.RReLU(0.2, 0.2), nn.Dropout(0.0), nn.LayerNorm(8)])
def test_a_network_in_training_in_which_nothing_is_random_is_wired(layer: nn.Module) -> None:
    network = generic(Layer(layer)).train()
    assert wire(network, rows(5, 4)).check(network, rows(5, 4)) < 1e-10


DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.5),
    "channels dropped": lambda h: F.dropout1d(h, 0.5),
    "noise": lambda h: h + torch.randn_like(h),
    "a number": lambda h: h * torch.rand(()),
    "coins": lambda h: h * torch.bernoulli(torch.full((8,), 0.5)).to(h.dtype),
    "an order": lambda h: h[torch.randperm(2)],
    "in place": lambda h: torch.empty_like(h).normal_() + h,
    "attention": lambda h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.5),
}


@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_numbers_that_are_drawn_in_evaluation_are_refused(name: str, switched: bool) -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not switched):
            hidden = DRAWN[name](self.first(x))
        return self.out(hidden)

    network = Written(run, first=nn.Linear(4, 8), out=nn.Linear(8, 3))
    with pytest.raises(WiringError, match=r"Written draws random numbers at .*give what it draws as an input"):
        wire(network, rows(5, 4))


def test_numbers_that_are_drawn_for_nothing_are_no_matter() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        torch.rand(3)
        return self.out(F.dropout(F.dropout(self.first(x), 0.0), 1.0, training=False))

    network = Written(run, first=nn.Linear(4, 8), out=nn.Linear(8, 3))
    assert wire(network, rows(4)).check(network, rows(4)) < 1e-10


def seeded(seed: int | None) -> Callable[[Written, Tensor], Tensor]:
    def run(self: Written, x: Tensor) -> Tensor:
        generator = torch.Generator()
        if seed is not None:
            generator.manual_seed(seed)
        else:
            generator.seed()
        return self.out(self.first(x) * torch.randn(8, generator=generator, dtype=x.dtype))

    return run


def test_two_calls_that_disagree_are_refused_by_the_check() -> None:
    network = Written(seeded(None), first=nn.Linear(4, 8), out=nn.Linear(8, 3))
    wiring = wire(network, rows(4))
    with pytest.raises(WiringError, match=r"two calls disagree by .* on the same inputs.*model\.eval\(\)"):
        wiring.check(network, rows(4))
    network = Written(seeded(3), first=nn.Linear(4, 8), out=nn.Linear(8, 3))
    assert wire(network, rows(4)).check(network, rows(4)) < 1e-10


def test_a_check_leaves_the_generator_of_the_user_alone() -> None:
    network = generic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    wiring = wire(network, rows(4))
    before = torch.get_rng_state()
    wiring.check(network, rows(4))
    assert torch.equal(torch.get_rng_state(), before)
