"""Arguments that a rule could pass over: a tensor where a number is usual, a dtype that another tensor gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.wiring.known_networks import Written, parameter, rows
from torch import Tensor, nn

from interbasin.wiring import wire

EXACT = 1e-10


def figures(run: Callable[[Written, Tensor], Tensor], **more: nn.Module | nn.Parameter) -> float:
    network = Written(run, first=nn.Linear(4, 8), other=nn.Linear(4, 8), out=nn.Linear(8, 3), **more)
    wiring = wire(network, rows(4))
    return max(wiring.check(network, rows(4), seed=seed) for seed in range(3))


CASTS: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "as another": lambda self, x: x.type_as(self.index),
    "like another": lambda self, x: x.to(self.index),
    "by name": lambda self, x: x.type(torch.int32),
    "short": lambda self, x: x.long(),
    "signs": lambda self, x: x.bool(),
    "written into": lambda self, x: torch.empty_like(x, dtype=torch.int64).copy_(x),
}


@pytest.mark.parametrize("name", CASTS)
def test_what_is_cast_to_whole_numbers_is_rounded(name: str) -> None:
    index = nn.Parameter(torch.arange(8), requires_grad=False)
    cast = CASTS[name]
    assert figures(lambda self, x: self.out(cast(self, 3 * self.first(x)).to(x.dtype)), index=index) < EXACT


def test_what_was_rounded_is_not_the_same_as_before() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.out(self.wide(torch.cat([hidden, hidden.half().to(x.dtype), hidden.long().to(x.dtype)], -1)))

    assert figures(run, wide=nn.Linear(24, 8)) < EXACT


ENTRIES: dict[str, Callable[[Tensor, Tensor, Written], Tensor]] = {
    "at least": lambda hidden, other, self: hidden.clamp_min(other),
    "at least what was learned": lambda hidden, other, self: hidden.clamp_min(self.bound),
    "at most": lambda hidden, other, self: torch.clamp_max(hidden, other),
    "between": lambda hidden, other, self: hidden.clamp(-other.abs(), other.abs()),
    "along": lambda hidden, other, self: hidden.take_along_dim(other.argsort(-1), -1),
    "along everything": lambda hidden, other, self: hidden.take_along_dim(other.argsort(-1)).view(2, 8),
    "like": lambda hidden, other, self: hidden.view_as(other) + other.mean(0).expand_as(hidden),
    "filled": lambda hidden, other, self: hidden * torch.full_like(other, 2.0),
    "at a place that is a tensor": lambda hidden, other, self: hidden.tensor_split(torch.tensor([3]), -1)[0].repeat(
        1, 8
    )[:, :8],
    "with its indices": lambda hidden, other, self: hidden.max(-1).indices[:, None] * other,
}


@pytest.mark.parametrize("name", ENTRIES)
def test_no_tensor_among_the_arguments_is_passed_over(name: str) -> None:
    between = ENTRIES[name]
    assert figures(lambda self, x: self.out(between(self.first(x), self.other(x), self)), bound=parameter(8)) < EXACT


NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a factor": lambda hidden, x: hidden * x.sum().item(),
    "of what could move": lambda hidden, x: hidden * hidden[0, 0].item(),
    "a bound": lambda hidden, x: hidden.clamp(-x.sum().item(), x.sum().item()),
    "a power": lambda hidden, x: hidden ** (x.sum().item() * 2),
    "added": lambda hidden, x: hidden + x.sum().item(),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_taken_out_of_tensors_are_any_number(name: str) -> None:
    between = NUMBERS[name]

    def run(self: Written, x: Tensor) -> Tensor:
        return self.out(between(self.first(x).abs(), x))

    assert figures(run) < EXACT


def test_a_result_that_the_rule_does_not_tell_of_is_not_known() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden, mean, _ = torch.native_layer_norm(self.first(x), [8], None, None, 1e-5)
        return self.out(hidden * mean)

    assert figures(run) < EXACT
