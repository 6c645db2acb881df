"""Writes in place that change more than the tensor they are made on: followed or refused, never a wrong map."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.wiring.known_networks import Written, generic, parameter, rows
from tests.wiring.test_mended import EXACT
from torch import Tensor, nn

from interbasin.errors import WiringError
from interbasin.wiring import carry, wire


def layers(run: Callable[[Written, Tensor], Tensor], **more: nn.Module | nn.Parameter) -> Written:
    return Written(run, first=nn.Linear(4, 8), other=nn.Linear(4, 8), out=nn.Linear(8, 3), **more)


def a_slice(hidden: Tensor, other: Tensor) -> Tensor:
    hidden[:, :4] = 0.5
    return hidden


def a_slice_of_others(hidden: Tensor, other: Tensor) -> Tensor:
    hidden[:, 2:6] = other[:, :4]
    return hidden


def all_of_it(hidden: Tensor, other: Tensor) -> Tensor:
    hidden.copy_(other)
    return hidden


def a_member_of_a_split(hidden: Tensor, other: Tensor) -> Tensor:
    first, _ = hidden.split(4, -1)
    first.copy_(other[:, 4:])
    return hidden


def a_chunk(hidden: Tensor, other: Tensor) -> Tensor:
    hidden.chunk(2, -1)[1].fill_(0.5)
    return hidden


def one_of_many(hidden: Tensor, other: Tensor) -> Tensor:
    hidden.view(-1, 2, 4).unbind(1)[0].zero_()
    return hidden


def a_view_of_a_view(hidden: Tensor, other: Tensor) -> Tensor:
    hidden.mT[1:].unsqueeze(0).select(0, 0)[2:].add_(1)
    return hidden


def as_another_result(hidden: Tensor, other: Tensor) -> Tensor:
    result = torch.empty_like(hidden)
    torch.maximum(hidden, other, out=result)
    return result


def a_tensor_made_of_nothing(hidden: Tensor, other: Tensor) -> Tensor:
    result = torch.zeros_like(hidden)
    result[:, ::2] = hidden[:, :4]
    result[:, 1::2] = other[:, :4]
    return result


WRITES = [a_slice, a_slice_of_others, all_of_it, a_member_of_a_split, a_chunk, one_of_many, a_view_of_a_view,
          as_another_result, a_tensor_made_of_nothing]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_writes_without_gradients_reach_what_is_read_later(
    write: Callable[[Tensor, Tensor], Tensor], bent: bool
) -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden, other = self.first(x), self.other(x)
        with torch.no_grad():
            hidden = write(hidden, other)
        return self.out(hidden.relu() if bent else hidden)

    network = layers(run)
    wiring = wire(network, rows(4))
    assert max(wiring.check(network, rows(4), seed=seed) for seed in range(3)) < EXACT


@pytest.mark.parametrize("write", [a_slice, a_slice_of_others, all_of_it, a_view_of_a_view, a_tensor_made_of_nothing])
def test_writes_with_gradients_reach_what_is_read_later(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    network = layers(lambda self, x: self.out(write(self.first(x), self.other(x)).relu()))
    wiring = wire(network, rows(4))
    assert max(wiring.check(network, rows(4), seed=seed) for seed in range(3)) < EXACT


@pytest.mark.parametrize("hand_on", [lambda h: F.dropout(h, 0.5, False), lambda h: torch.einsum("ij->ij", h)])
def test_a_write_into_what_an_operator_hands_on_in_secret_is_refused(hand_on: Callable[[Tensor], Tensor]) -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hand_on(hidden).copy_(self.other(x))
        return self.out(hidden)

    with pytest.raises(WiringError, match=r"writes in place.*memory that another tensor shares.*tensor\.clone\(\)"):
        wire(layers(run), rows(4))


def test_a_write_into_what_is_handed_on_is_followed_if_nothing_else_is_read() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x), 0.5, False)
        hidden += self.other(x)
        return self.out(hidden.relu_())

    network = layers(run)
    wiring = wire(network, rows(4))
    assert wiring.spaces["first"].describe() == "permutation of 8"
    assert wiring.check(network, rows(4)) < EXACT


def test_what_is_handed_on_after_a_write_reads_what_was_written() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden, other = self.first(x).clone(), self.other(x)
        hidden[:, :3] = other[:, :3]
        return self.out(torch.lerp(*torch.broadcast_tensors(hidden, other), 0.3))

    network = layers(run)
    assert wire(network, rows(4)).check(network, rows(4)) < EXACT


def test_activations_in_place_keep_the_operators_whole() -> None:
    network = generic(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 3)))
    wiring = wire(network, rows(4))
    assert wiring.coverage == 1
    assert wiring.check(network, rows(4)) < EXACT


class Remembering(nn.Module):
    """A network that reads what it was given in the call before."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("state", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        answer = self.out(hidden * self.state)
        if self.how == "copied":
            self.state.copy_(hidden.mean(0).flip(0))
        elif self.how == "without gradients":
            with torch.no_grad():
                self.state[:4] = hidden.mean(0)[4:]
        else:
            self.state.mul_(0.5).add_(hidden.mean(0))
        return answer


@pytest.mark.parametrize("how", ["copied", "without gradients", "mixed"])
def test_what_a_network_keeps_from_call_to_call_moves_with_what_it_is_made_of_or_not_at_all(how: str) -> None:
    network = generic(Remembering(how)).requires_grad_(False)
    wiring = wire(network, rows(4))
    assert wiring.check(network, rows(4)) < EXACT
    assert any(not space.is_fixed for space in wiring.spaces.values()) == (how == "mixed")
    other = carry(network, wiring.sample(seed=1))
    for _ in range(3):
        torch.testing.assert_close(other(rows(4)), network(rows(4)))


def test_a_table_that_is_rescaled_as_it_is_read_stays() -> None:
    network = generic(nn.Sequential(nn.Embedding(5, 8, max_norm=0.5), nn.Linear(8, 3))).requires_grad_(False)
    inputs = torch.arange(4)
    before = network[0].weight.clone()  # type: ignore[index]
    wiring = wire(network, inputs)
    assert wiring.check(network, inputs) < EXACT
    assert torch.equal(network[0].weight, before)  # type: ignore[index]


def test_a_parameter_that_is_written_into_is_fixed() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.gain[:4].add_(x[0])
        return self.out(self.first(x).relu() * self.gain)

    network = layers(run, gain=parameter(8))
    wiring = wire(network, rows(4))
    assert wiring.check(network, rows(4)) < EXACT
