"""Names of spaces: after what writes them, and one name for one input however often it is read."""

from __future__ import annotations

import torch
from tests.wiring.known_networks import Written, rows, tokens
from torch import nn

from interbasin.wiring import Wiring, wire


def test_everything_that_reads_the_input_reads_one_space() -> None:
    network = Written(
        lambda self, x: self.c(torch.relu(self.a(x)) + torch.relu(self.b(x))),
        a=nn.Linear(4, 6), b=nn.Linear(4, 6), c=nn.Linear(6, 2),
    )  # fmt: skip
    wiring = wire(network, rows(4))
    assert list(wiring.spaces) == ["a", "input", "output"]
    assert wiring.spaces["input"].reads == ("a.weight[1]", "b.weight[1]")
    assert "b.weight  a <- input" in str(wiring)
    assert Wiring.from_json(wiring.to_json()) == wiring


def test_inputs_of_other_widths_have_names_of_their_own() -> None:
    network = Written(
        lambda self, x, y: self.c(torch.relu(self.a(x) + self.b(y))),
        a=nn.Linear(4, 6), b=nn.Linear(3, 6), c=nn.Linear(6, 2),
    )  # fmt: skip
    wiring = wire(network, (rows(4), rows(3)))
    assert [(name, wiring.spaces[name].width) for name in ("input", "input.2")] == [("input", 4), ("input.2", 3)]


def test_what_is_compared_with_a_tied_table_is_told_as_written_in_the_dual_of_its_space() -> None:
    network = Written(
        lambda self, ids: torch.relu(self.change(torch.relu(self.table(ids)))) @ self.table.weight.t(),
        table=nn.Embedding(10, 8),
        change=nn.Linear(8, 8),
    )
    told = str(wire(network, tokens()))
    assert "change.weight  ~table <- table" in told
    assert "change.bias    ~table" in told
