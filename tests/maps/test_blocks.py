"""Blocks that change places, hold blocks, or differ in precision."""

from __future__ import annotations

import torch

from interbasin.maps import Blocks, Identity, Linear, Permutation


def test_blocks_know_where_they_come_from():
    blocks = Blocks([Linear([[1.0, 1.0, 1.0]]), Identity(2)], order=[1, 0])
    assert blocks.source_blocks == (2, 3) and blocks.target_blocks == (1, 2)
    assert blocks(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [12.0, 1.0, 2.0]


def test_blocks_may_hold_blocks():
    inner = Blocks([Identity(1), Identity(1)], order=[1, 0])
    outer = Blocks([inner, Identity(1)], order=[1, 0])
    assert outer(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 2.0, 1.0]


def test_the_precision_of_blocks_is_the_widest_of_them():
    assert Blocks([Linear(torch.eye(1)), Linear(torch.eye(1).double())]).dtype == torch.float64
    assert Blocks([Linear(torch.eye(1)), Linear(torch.eye(1).double()), Identity(1)]).matrix.dtype == torch.float64
    assert Blocks([Identity(1), Permutation([0])]).dtype is None
