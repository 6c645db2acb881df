"""Orders of rows: every row once per pass, another order in each pass, and the same for the same seed and pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interbasin.errors import DataError
from interbasin.training import ShuffledRows, train


@given(count=st.integers(1, 40), batch_size=st.integers(1, 12), seed=st.integers(0, 2**63 - 1))
def test_each_pass_has_every_row_once_in_batches_of_equal_size(count, batch_size, seed):
    rows = ShuffledRows(count, batch_size, seed)
    for _ in range(2):
        batches = list(rows)
        assert len(batches) == len(rows)
        assert sorted(torch.cat(batches).tolist()) == list(range(count))
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(rows) - 1)


@given(seed=st.integers(0, 1000), passes=st.integers(1, 4))
def test_a_pass_is_a_function_of_the_seed_and_its_number(seed, passes):
    rows, again = ShuffledRows(60, 60, seed), ShuffledRows(60, 60, seed)
    orders = [next(iter(rows)).tolist() for _ in range(passes + 1)]
    assert len({tuple(order) for order in orders}) == passes + 1
    again.epoch = passes
    assert next(iter(again)).tolist() == orders[passes]
    assert next(iter(ShuffledRows(60, 60, seed + 1))).tolist() != orders[0]


def test_orders_neither_read_nor_move_the_global_generator():
    before = torch.get_rng_state()
    first = torch.cat(list(ShuffledRows(9, 2)))
    assert torch.equal(before, torch.get_rng_state())
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(torch.cat(list(ShuffledRows(9, 2))), first)


def test_a_training_starts_with_the_first_order_whatever_was_read_before():
    weight, orders = torch.zeros(1, requires_grad=True), []
    rows = ShuffledRows(6, 3, seed=2)
    wanted = [batch.tolist() for _ in range(2) for batch in rows]
    train([weight], rows, lambda batch, _: orders.append(batch.tolist()) or weight.sum(), epochs=2, rate=0.1)
    assert orders == wanted


@pytest.mark.parametrize("arguments", [(0, 2), (3, 0), (3.0, 2), (3, 2, -1), (3, 2, "x")])
def test_what_cannot_be_an_order_is_refused(arguments):
    with pytest.raises(DataError, match="must be a whole number"):
        ShuffledRows(*arguments)
