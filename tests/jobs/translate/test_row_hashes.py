"""Rows that are exactly alike are found, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from interbasin.jobs.translate.rows import find_rows, hash_rows


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_no_two_of_many_rows_share_a_hash(dtype):
    draws = np.random.default_rng(0)
    rows = np.unique((100 * draws.normal(size=(20_000, 6))).astype(dtype), axis=0)
    assert len(np.unique(hash_rows(rows))) == len(rows)
    assert np.array_equal(hash_rows(rows), hash_rows(rows[::-1])[::-1])


def test_rows_that_differ_in_one_bit_or_in_their_order_have_other_hashes():
    row = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    changed = np.repeat(row, 64 * 32, axis=0).view(np.uint32)
    changed[np.arange(64 * 32), np.arange(64 * 32) // 32] ^= np.uint32(1) << (np.arange(64 * 32) % 32).astype(np.uint32)
    found = hash_rows(changed.view(np.float32))
    assert len(np.unique(found)) == 64 * 32 and hash_rows(row)[0] not in found
    assert hash_rows(row)[0] != hash_rows(row[:, ::-1])[0]


def test_pairs_are_found_in_a_store_also_twice():
    store = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    store[30] = store[7]
    blocks = [(place, store[place : place + 9]) for place in range(0, 50, 9)]
    assert find_rows(store[[7, 12]], blocks) == {7: 0, 12: 1, 30: 0}
    assert find_rows(store[[7]] + 1, blocks) == {}
    assert find_rows(store[[7]].astype(np.float64), blocks) == {}
