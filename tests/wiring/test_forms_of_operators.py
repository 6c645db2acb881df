"""Forms of operators that are easily taken for others, and calls that come to more than the traced one did."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import interbasin as ib
from interbasin.wiring.interpret import RULES, Entry, Interpreter, Value

DTYPE = torch.float64


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def made(call: Callable[..., Tensor], **parts: Any) -> nn.Module:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, nn.Parameter(numbers(*part)) if isinstance(part, tuple) else part)

        def forward(self, *given: Tensor) -> Tensor:
            return call(self, *given)

    torch.manual_seed(0)
    return Made().double().eval()


def change(model: nn.Module, traced: tuple[Tensor, ...], called: tuple[Tensor, ...] | None = None) -> float:
    called = traced if called is None else called
    wiring = ib.wire(model, traced)
    worst = 0.0
    for seed in range(3):
        carried = ib.carry(model, wiring.sample(seed=seed))
        with torch.no_grad():
            before, after = model(*called), carried(*called)
        worst = max(worst, float((before - after).abs().max() / before.abs().max()))
    return worst


def put(value: Tensor, where: Any, what: Tensor) -> Tensor:
    value = value.clone()
    value[where] = what
    return value


L = nn.Linear

FORMS = {
    "addcdiv": (
        lambda: made(
            lambda m, x: m.c(torch.addcdiv(m.a(x), m.s(x), m.b(x))), a=L(6, 8), b=L(6, 8), s=L(6, 1), c=L(8, 3)
        ),
        (numbers(3, 6),),
    ),
    "einsum with dots and no arrow": (
        lambda: made(lambda m, x: torch.einsum("...ij,...jk", x, m.w).mean(1), w=(3, 6, 8)),
        (numbers(3, 5, 6),),
    ),
    "the T of three axes": (
        lambda: made(lambda m, x: torch.relu(m.a(x)).mT.mT.permute(2, 1, 0).mean(1), a=L(6, 8)),
        (numbers(3, 5, 6),),
    ),
    "gather with a shorter index": (
        lambda: made(lambda m, x: torch.gather(x, 1, m.a(x).argmax(1, keepdim=True)), a=L(6, 4)),
        (numbers(3, 5, 6),),
    ),
    "roll of all axes": (
        lambda: made(lambda m, x: m.c(torch.relu(m.d(x[..., None].expand(-1, -1, 2).roll(1)))), d=L(2, 8), c=L(8, 3)),
        (numbers(3, 6),),
    ),
    "grid_sample with channels for a batch": (
        lambda: made(
            lambda m, x, g: m.c(F.grid_sample(m.a(x).mT.reshape(8, 1, 3, 1), g, align_corners=False).reshape(8, 3).mT),
            a=L(6, 8),
            c=L(8, 3),
        ),
        (numbers(3, 6), torch.tanh(numbers(8, 3, 1, 2))),
    ),
    "narrow from the end": (
        lambda: made(lambda m, x: m.c(torch.relu(m.a(x)).narrow(-1, -3, 3)), a=L(6, 8), c=L(3, 3)),
        (numbers(3, 6),),
    ),
    "tensor_split that overlaps": (
        lambda: made(lambda m, x: m.c(torch.relu(m.a(x)).tensor_split((4, 2), -1)[2]), a=L(6, 8), c=L(6, 3)),
        (numbers(3, 6),),
    ),
    "addbmm": (
        lambda: made(
            lambda m, x: m.c(torch.addbmm(m.b(x[0]), m.a(x), m.w).flatten().reshape(5, 8)),
            a=L(6, 8),
            b=L(6, 8),
            w=(3, 8, 8),
            c=L(8, 3),
        ),
        (numbers(3, 5, 6),),
    ),
    "a cast to eight bits": (
        lambda: made(lambda m, x: m.c(m.a(x).to(torch.float8_e4m3fn).to(DTYPE)), a=L(6, 8), c=L(8, 3)),
        (numbers(3, 6),),
    ),
    "nothing less a value, beside it": (
        lambda: made(lambda m, x: (lambda h: m.c(torch.cat([0 - h, h], 1)))(m.a(x)), a=L(6, 8), c=L(16, 3)),
        (numbers(3, 6),),
    ),
    "attention of different ranks": (
        lambda: made(
            lambda m, x: m.c(F.scaled_dot_product_attention(m.q(x), m.k(x)[None], m.v(x)[None])),
            q=L(6, 8),
            k=L(6, 8),
            v=L(6, 8),
            c=L(8, 3),
        ),
        (numbers(5, 6),),
    ),
    "index_put of channels": (
        lambda: made(
            lambda m, x: m.c(put(m.a(x), (slice(None), torch.tensor([0, 2])), m.b(x)[:, :2])),
            a=L(6, 8),
            b=L(6, 8),
            c=L(8, 3),
        ),
        (numbers(3, 6),),
    ),
    "index_put by a mask of two axes": (
        lambda: made(lambda m, x: m.c(m.a(x).index_put((x[..., 0] > 0,), m.w)), a=L(6, 8), w=(8,), c=L(8, 3)),
        (numbers(3, 5, 6),),
    ),
    "index_put of axes apart": (
        lambda: made(
            lambda m, x: m.c(put(m.a(x), (torch.tensor([0, 1]), slice(None), torch.tensor([0, 2])), m.b(x)[:2, :, 0])),
            a=L(6, 8),
            b=L(6, 8),
            c=L(8, 3),
        ),
        (numbers(3, 5, 6),),
    ),
    "scatter with a shorter index": (
        lambda: made(
            lambda m, x: m.c(m.a(x).scatter(1, torch.tensor([[1, 0], [2, 1]]), m.b(x))), a=L(6, 8), b=L(6, 8), c=L(8, 3)
        ),
        (numbers(3, 6),),
    ),
    "scatter of a number": (
        lambda: made(
            lambda m, x: m.c(m.a(x).scatter(1, m.b(x).argmax(-1, True), 1.0)), a=L(6, 8), b=L(6, 8), c=L(8, 3)
        ),
        (numbers(3, 6),),
    ),
    "scatter by an index of its own for each unit": (
        lambda: made(
            lambda m, x: m.c(x.new_zeros(6, 8).scatter_add(0, (m.b(x) > 0).long() * 2, m.a(x))),
            a=L(6, 8),
            b=L(6, 8),
            c=L(8, 3),
        ),
        (numbers(3, 6),),
    ),
    "scatter_reduce by products": (
        lambda: made(
            lambda m, x: m.c(m.a(x).scatter_reduce(0, torch.tensor([[0], [1], [1]]).expand(3, 8), m.b(x), "prod")),
            a=L(6, 8),
            b=L(6, 8),
            c=L(8, 3),
        ),
        (numbers(3, 6),),
    ),
    "a transform along the channels": (
        lambda: made(lambda m, x: m.c(torch.fft.fft2(m.a(x)).real), a=L(6, 8), c=L(8, 3)),
        (numbers(3, 5, 6),),
    ),
    "a transform of given length along the last axis": (
        lambda: made(lambda m, x: m.c(torch.fft.fftn(m.a(x).mT, s=(7,)).abs().mT), a=L(6, 8), c=L(8, 3)),
        (numbers(3, 5, 6),),
    ),
    "a shift of all axes": (
        lambda: made(lambda m, x: m.c(torch.fft.fftshift(m.a(x))), a=L(6, 8), c=L(8, 3)),
        (numbers(3, 5, 6),),
    ),
    "a part of the conjugate, beside it": (
        lambda: made(
            lambda m, x: (lambda z: m.c(torch.cat([z.conj().imag, z.imag], -1)))(torch.complex(m.a(x), m.b(x))),
            a=L(6, 8),
            b=L(6, 8),
            c=L(16, 3),
        ),
        (numbers(3, 6),),
    ),
    "distances that are no lengths": (
        lambda: made(lambda m, x: m.c(torch.cdist(m.a(x), m.w, p=1.0)), a=L(6, 8), w=(5, 8), c=L(5, 3)),
        (numbers(3, 6),),
    ),
    "an LSTM that projects, from a state of ones": (
        lambda: made(
            lambda m, x: m.c(m.r(x, (x.new_ones(1, 3, 2), x.new_ones(1, 3, 4)))[0]),
            r=nn.LSTM(6, 4, batch_first=True, proj_size=2),
            c=L(2, 3),
        ),
        (numbers(3, 5, 6),),
    ),
    "an LSTM over a repeated vector": (
        lambda: made(
            lambda m, x: m.c(m.r(torch.relu(m.a(x))[:, None].repeat(1, 7, 1))[0].flatten(1)),
            a=L(6, 5),
            r=nn.LSTM(5, 4, batch_first=True),
            c=L(28, 3),
        ),
        (numbers(3, 6),),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_no_form_yields_a_wrong_map(name):
    build, inputs = FORMS[name]
    assert change(build(), inputs) < 1e-10


def test_a_rule_that_fails_on_a_form_of_its_operator_fixes_what_it_touches(monkeypatch):
    def fails(run: Interpreter, self: Value) -> Value:
        first, *_ = self.dims[5:]
        return run.result([first], self)

    monkeypatch.setitem(RULES, "relu", Entry(fails, False, inspect.signature(fails)))
    model, inputs = made(lambda m, x: m.c(torch.relu(m.a(x))), a=L(6, 8), c=L(8, 3)), (numbers(3, 6),)
    wiring = ib.wire(model, inputs)
    assert wiring.unknown == {"aten.relu.default in this form": 1}
    assert all(space.is_fixed for space in wiring.spaces.values())
    assert change(model, inputs) < 1e-10


@pytest.mark.filterwarnings("ignore:The use of")
def test_the_t_of_three_axes_turns_all_of_them():
    assert change(made(lambda m, x: torch.relu(m.a(x)).T.mean(1), a=L(6, 8)), (numbers(3, 5, 6),)) < 1e-10


class Steps(nn.Module):
    """As many steps as the input is long."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 5), L(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = memory = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            state, memory = self.cell(x[:, step], (state, memory))
        return self.head(state)


LONGER = {
    "positions": lambda: made(
        lambda m, x: m.c(torch.relu(m.a(x) + m.p[:, : x.shape[1]])), a=L(6, 8), p=(1, 16, 8), c=L(8, 3)
    ),
    "a mixer of tokens": lambda: made(
        lambda m, x: m.c(m.w[: x.shape[1], : x.shape[1]] @ torch.relu(m.a(x))), a=L(6, 8), w=(16, 16), c=L(8, 3)
    ),
    "steps of a cell": lambda: Steps().double(),
}


@pytest.mark.parametrize("name", LONGER)
@pytest.mark.parametrize("traced", [1, 5])
def test_a_longer_call_than_the_traced_one_is_the_same_too(name, traced):
    assert change(LONGER[name](), (numbers(2, traced, 6),), (numbers(2, 9, 6),)) < 1e-10


def test_positions_that_were_not_read_follow_those_that_were():
    wiring = ib.wire(LONGER["positions"](), (numbers(2, 5, 6),))
    assert [space.describe() for space in wiring.spaces.values() if not space.is_fixed] == ["permutation of 8"]
    assert wiring.coverage == 1


def test_a_parameter_that_is_kept_in_a_list_as_well_moves_as_itself():
    model = made(
        lambda m, x: m.c(torch.relu(m.a(x))) + m.d(torch.relu(F.linear(x, m.kept[0]))), a=L(6, 8), c=L(8, 3), d=L(8, 3)
    )
    model.kept = [model.a.weight]
    assert change(model, (numbers(3, 6),)) < 1e-10
