"""Networks made of operators that few networks have: what moves, moves exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from interbasin.wiring import carry, wire

pytestmark = pytest.mark.slow


class Written(nn.Module):
    """Parts and a function of them."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))))


def steps(cell: nn.Module, x: Tensor) -> Tensor:
    state = torch.zeros(len(x), 6, dtype=x.dtype)
    for time in range(x.shape[1]):
        state = cell(x[:, time], state)
    return state


def long_short_steps(cell: nn.Module, x: Tensor) -> Tensor:
    hidden = memory = torch.zeros(len(x), 6, dtype=x.dtype)
    for time in range(x.shape[1]):
        hidden, memory = cell(x[:, time], (hidden, memory))
    return hidden + memory


def replaced(value: Tensor, places: list[int], what: Tensor) -> Tensor:
    value = value.clone()
    value[:, torch.tensor(places)] = what
    return value


ROWS, SERIES, WORDS = (5, 4), (3, 5, 4), "words"
ACROSS, OUT = nn.Linear(4, 6), nn.Linear(6, 2)
EDGES = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 2, 0, 3, 3, 4]])
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "gru cell": (lambda s, x: s.out(steps(s.cell, x)), {"cell": nn.GRUCell(4, 6), "out": OUT}, SERIES),
    "rnn cell": (lambda s, x: s.out(steps(s.cell, x)), {"cell": nn.RNNCell(4, 6), "out": OUT}, SERIES),
    "relu cell": (
        lambda s, x: s.out(steps(s.cell, x)), {"cell": nn.RNNCell(4, 6, nonlinearity="relu"), "out": OUT}, SERIES,
    ),
    "lstm cell": (lambda s, x: s.out(long_short_steps(s.cell, x)), {"cell": nn.LSTMCell(4, 6), "out": OUT}, SERIES),
    "lstm state": (
        lambda s, x: s.out(s.net(x)[1][0][-1]), {"net": nn.LSTM(4, 6, 2, batch_first=True), "out": OUT}, SERIES,
    ),
    "all states": (
        lambda s, x: s.out(s.net(x)[1][1].transpose(0, 1).flatten(1)),
        {"net": nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True), "out": nn.Linear(24, 2)}, SERIES,
    ),
    "bag of words": (lambda s, x: s.out(s.bag(x)), {"bag": nn.EmbeddingBag(7, 6), "out": OUT}, WORDS),
    "largest of words": (lambda s, x: s.out(s.bag(x)), {"bag": nn.EmbeddingBag(7, 6, mode="max"), "out": OUT}, WORDS),
    "cosine": (
        lambda s, x: functional.cosine_similarity(s.a(x), s.b(x)), {"a": ACROSS, "b": nn.Linear(4, 6)}, ROWS,
    ),
    "cosine by head": (
        lambda s, x: functional.cosine_similarity(s.a(x).view(5, 2, 3), s.b(x).view(5, 2, 3), dim=-1),
        {"a": ACROSS, "b": nn.Linear(4, 6)}, ROWS,
    ),
    "addcdiv": (
        lambda s, x: s.out(torch.addcdiv(s.a(x), s.b(x), s.b(x).exp())),
        {"a": ACROSS, "b": nn.Linear(4, 6), "out": OUT}, ROWS,
    ),
    "outer product": (
        lambda s, x: functional.linear(torch.tanh(s.a(x)), torch.outer(s.u, s.v)),
        {"a": ACROSS, "u": weight(2), "v": weight(6)}, ROWS,
    ),
    "joined weights": (
        lambda s, x: s.out(functional.linear(x, torch.cat([s.u, s.v])).relu()),
        {"u": weight(2, 4), "v": weight(4, 4), "out": OUT}, ROWS,
    ),
    "projected states": (
        lambda s, x: s.out(s.net(x)[0]), {"net": nn.LSTM(4, 8, 2, proj_size=6, batch_first=True), "out": OUT}, SERIES,
    ),
    "encoder and decoder": (
        lambda s, x: s.out(s.second(*s.first(x))[0]),
        {"first": nn.LSTM(4, 6, 2, bidirectional=True), "second": nn.LSTM(12, 6, 2, bidirectional=True),
         "out": nn.Linear(12, 2)}, SERIES,
    ),
    "learned first state": (
        lambda s, x: s.out(s.net(x, s.start.expand(-1, 3, -1).contiguous())[0]),
        {"net": nn.GRU(4, 6, 2, batch_first=True), "start": weight(2, 1, 6), "out": OUT}, SERIES,
    ),
    "messages along edges": (
        lambda s, x: s.out(x.new_zeros(5, 6).index_add(0, EDGES[1], s.a(x)[EDGES[0]].relu())),
        {"a": ACROSS, "out": OUT}, ROWS,
    ),
    "largest message": (
        lambda s, x: s.out(
            x.new_zeros(5, 6).scatter_reduce(0, EDGES[1][:, None].expand(-1, 6), s.a(x)[EDGES[0]], "amax")
        ),
        {"a": ACROSS, "out": OUT}, ROWS,
    ),
    "some tokens replaced": (
        lambda s, x: s.out(replaced(s.a(x), [0, 2], s.mask)),
        {"a": ACROSS, "mask": weight(6), "out": OUT}, SERIES,
    ),
    "filter of frequencies": (
        lambda s, x: s.out(torch.fft.irfft(torch.fft.rfft(s.a(x), dim=1) * s.gain, n=5, dim=1).relu()),
        {"a": ACROSS, "gain": weight(6), "out": OUT}, SERIES,
    ),
    "complex modulus": (
        lambda s, x: s.out(torch.complex(s.a(x), s.b(x)).abs()), {"a": ACROSS, "b": nn.Linear(4, 6), "out": OUT}, ROWS,
    ),
    "complex turns of heads": (
        lambda s, x: s.out(
            torch.view_as_real(torch.view_as_complex(s.a(x).view(5, 3, 2)) * torch.polar(x[:, :1].abs(), x[:, 1:2]))
            .flatten(1)
        ),
        {"a": ACROSS, "out": OUT}, ROWS,
    ),
    "distances from centres": (
        lambda s, x: torch.cdist(s.a(x), s.centres).neg().softmax(-1) @ s.w,
        {"a": ACROSS, "centres": weight(7, 6), "w": weight(7, 2)}, ROWS,
    ),
    "tensor product": (
        lambda s, x: s.out(torch.tensordot(s.a(x).view(5, 2, 3), s.w, dims=([1, 2], [2, 0])).relu()),
        {"a": ACROSS, "w": weight(3, 6, 2), "out": OUT}, ROWS,
    ),
    "inner product": (
        lambda s, x: s.out(torch.inner(s.a(x), s.w).relu()), {"a": ACROSS, "w": weight(6, 6), "out": OUT}, ROWS,
    ),
    "tied upside down": (
        lambda s, x: functional.linear(functional.linear(x, s.w).relu(), s.w.t()), {"w": weight(6, 4)}, ROWS,
    ),
}  # fmt: skip


def inputs_of(kind: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if kind == WORDS:
        return torch.randint(0, 7, (5, 4), generator=generator)
    return torch.randn(*kind, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_it_is_wired_in_full_and_exactly(name: str) -> None:
    run, parts, kind = CASES[name]
    network, inputs = Written(run, **parts).double().eval(), inputs_of(kind)
    wiring = wire(network, inputs)
    assert wiring.coverage == 1
    assert any(not space.is_fixed for space in wiring.spaces.values())
    assert max(wiring.check(network, inputs, seed=seed) for seed in range(3)) < 1e-10


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_first_state_that_tells_the_units_apart_fixes_them(kind: type[nn.Module]) -> None:
    def run(self: Written, x: Tensor, state: Tensor) -> Tensor:
        states = (state, state) if kind is nn.LSTM else state
        return self.out(self.net(x, states)[0])

    network = Written(run, net=kind(4, 6, batch_first=True), out=nn.Linear(6, 2)).double().eval()
    inputs = (inputs_of(SERIES), torch.randn(1, 3, 6, dtype=torch.float64))
    assert wire(network, inputs).check(network, inputs) < 1e-10


def test_a_difference_with_something_before_it_is_not_followed() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        return self.out(torch.diff(self.a(x), dim=1, prepend=self.b(x)[:, :1]))

    network = Written(run, a=nn.Linear(4, 6), b=nn.Linear(4, 6), out=nn.Linear(6, 2)).double().eval()
    inputs = inputs_of(SERIES)
    assert wire(network, inputs).check(network, inputs) < 1e-10


def test_distances_of_embeddings_keep_what_turns_them_all() -> None:
    network = Written(lambda s, x: torch.cdist(s.a(x), s.b(x)), a=nn.Linear(4, 6), b=nn.Linear(4, 6)).double().eval()
    wiring = wire(network, inputs_of(SERIES))
    assert [space.describe() for space in wiring.spaces.values() if not space.is_fixed] == ["orthogonal of 6"]


def test_kernels_that_are_turned_keep_their_channels() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        turned = [functional.conv2d(x, self.w.rot90(k, (2, 3))) for k in range(4)]
        return self.out(torch.stack(turned, 2).amax(2))

    network = Written(run, w=weight(6, 3, 3, 3), out=nn.Conv2d(6, 2, 1)).double().eval()
    inputs = inputs_of((2, 3, 5, 5))
    wiring = wire(network, inputs)
    assert [space.describe() for space in wiring.spaces.values() if not space.is_fixed] == ["permutation of 6"]
    assert max(wiring.check(network, inputs, seed=seed) for seed in range(3)) < 1e-10


def test_a_pruned_layer_is_wired_and_carried() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double().eval()
    prune.random_unstructured(network[0], "weight", 0.3)
    x = inputs_of(ROWS)
    network(x)
    wiring = wire(network, x)
    assert {"0.weight_orig", "0.weight_mask"} <= set(wiring.tensors)
    other = carry(network, wiring.sample(seed=1))
    torch.testing.assert_close(other(x), network(x))
