"""Every tensor that a network returns stays the same, whatever it is and whatever it comes in."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.wiring.known_networks import Written, rows
from torch import Tensor, nn

from interbasin.extras import import_extra
from interbasin.wiring import wire
from interbasin.wiring.trace.calls import returned_tensors


def returning(what: Callable[[Tensor, Tensor], Any]) -> Written:
    """A network of two layers that returns something made of its hidden units and of its last layer."""

    def run(self: Written, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        return what(hidden, self.second(hidden))

    return Written(run, first=nn.Linear(4, 8), second=nn.Linear(8, 3))


@dataclass
class Pair:
    hidden: Tensor
    answer: Tensor


class Named(tuple[Tensor, ...]):
    """A tuple of a class of its own."""


SHOWING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "signs": lambda hidden, answer: (answer, hidden > 0),
    "whole numbers": lambda hidden, answer: (answer, (8 * hidden).long()),
    "an index": lambda hidden, answer: (answer, hidden.argmax(-1)),
    "complex numbers": lambda hidden, answer: (answer, torch.complex(hidden, hidden)),
    "a mapping": lambda hidden, answer: {"answer": answer, "hidden": hidden},
    "a cache by name only": lambda hidden, answer: {"answer": answer, "past_key_values": hidden},
    "a cache by name in a tuple": lambda hidden, answer: {"answer": answer, "past_key_values": ((hidden, hidden),)},
    "a dataclass": lambda hidden, answer: Pair(hidden, answer),
    "nested": lambda hidden, answer: [answer, ({"deep": [hidden]},)],
    "an ordered mapping": lambda hidden, answer: OrderedDict(a=answer, b=hidden),
    "a class of tuples": lambda hidden, answer: Named((answer, hidden)),
    "what torch knows how to flatten": lambda hidden, answer: deque([answer, hidden]),
}


@pytest.mark.parametrize("name", SHOWING)
def test_hidden_units_that_are_returned_are_fixed(name: str) -> None:
    network = returning(SHOWING[name])
    wiring = wire(network, rows(4))
    assert all(space.is_fixed for space in wiring.spaces.values())
    assert wiring.check(network, rows(4)) == 0


def test_numbers_and_words_beside_tensors_are_no_matter() -> None:
    network = returning(lambda hidden, answer: {"answer": answer, "count": 3, "name": "net", "none": None})
    wiring = wire(network, rows(4))
    assert wiring.spaces["first"].describe() == "signed permutation of 8"
    assert wiring.check(network, rows(4)) < 1e-10


def test_caches_of_transformers_are_not_outputs() -> None:
    transformers = import_extra("transformers", "A cache of its own", "hf")
    modeling_outputs = import_extra("transformers.modeling_outputs", "An output of its own", "hf")
    made = modeling_outputs.BaseModelOutputWithPast(torch.ones(2), past_key_values=transformers.DynamicCache())
    assert len(returned_tensors(nn.Identity(), made)) == 1
    made = modeling_outputs.BaseModelOutputWithPast(torch.ones(2), past_key_values=((torch.ones(1), torch.ones(1)),))
    assert len(returned_tensors(nn.Identity(), made)) == 1
