"""What all maps have in common: they act on what they are given, and nobody can change one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interbasin.maps import Affine, Blocks, Identity, Linear, Map, Orthogonal, Permutation, SignedPermutation

SQUARE: list[Map] = [
    Identity(2),
    Permutation([1, 0]),
    SignedPermutation([1, 0], [1, -1]),
    Orthogonal([[0.0, -1.0], [1.0, 0.0]]),
    Linear([[1.0, 2.0], [0.0, 1.0]]),
    Affine([[1.0, 2.0], [0.0, 1.0]], [3.0, 4.0]),
    Blocks([Linear([[2.0]]), Identity(1)], order=[1, 0]),
]


def kind(map: Map) -> str:
    return map.kind


@pytest.mark.parametrize("map", [Identity(2), Permutation([1, 0])], ids=kind)
def test_maps_that_only_move_entries_take_whole_numbers(map):
    x = torch.tensor([[1, 2], [3, 4]])
    assert map(x).dtype == torch.int64
    assert map(np.array([[True, False]])).dtype == bool


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_unsigned_numbers_of_every_size_are_moved(dtype):
    assert Permutation([1, 0])(np.array([[1, 2]], dtype=dtype)).tolist() == [[2, 1]]
    assert Permutation([1, 0])(np.array([1, 2], dtype=dtype)).tolist() == [2, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_the_result_has_the_dtype_of_the_input(map, dtype):
    assert map(torch.ones(3, 2, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_arrays_come_back_as_arrays_and_empty_input_as_empty_output(map):
    assert isinstance(map(np.ones((3, 2), dtype=np.float32)), np.ndarray)
    assert map(np.ones((3, 2), dtype=np.float32)).dtype == np.float32
    assert map(torch.ones(0, 2)).shape == (0, 2)
    assert map(torch.ones(4, 0, 2)).shape == (4, 0, 2)


@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_writing_into_a_result_does_not_reach_the_input(map):
    x = torch.ones(3, 2)
    map(x).fill_(7.0)
    assert torch.equal(x, torch.ones(3, 2))


@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_gradients_pass_through_a_map(map):
    x = torch.ones(3, 2, requires_grad=True)
    map(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("map", SQUARE, ids=kind)
@pytest.mark.parametrize("name", ["source_width", "matrix", "_matrix", "_index", "new"])
def test_attributes_cannot_be_set_or_deleted(map, name):
    before = map.matrix
    with pytest.raises(AttributeError, match="immutable"):
        setattr(map, name, 3)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(map, name)
    assert torch.equal(map.matrix, before)


@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_what_a_map_hands_out_is_a_copy(map):
    before = map.matrix
    for name in ("matrix", "offset", "index", "sign"):
        if hasattr(type(map), name):
            getattr(map, name).zero_()
    for related in (map.inverse(), map.dual(), map.to(dtype=torch.float64)):
        related.matrix.zero_()
    assert torch.equal(map.matrix, before)


def test_what_was_given_may_be_changed_afterwards():
    matrix, offset = torch.eye(2), torch.ones(2)
    index, sign = torch.tensor([1, 0]), torch.tensor([1, -1])
    array = np.eye(2)
    blocks: list[Map] = [Identity(1), Identity(1)]
    maps = [Linear(matrix), Orthogonal(matrix), Affine(matrix, offset), Permutation(index), Linear(array)]
    maps += [SignedPermutation(index, sign), Blocks(blocks, order=index), Linear(matrix.mT), Linear(matrix[:1])]
    before = [map(torch.tensor([3.0, 5.0])) for map in maps]
    for tensor in (matrix, offset, index, sign):
        tensor.zero_()
    array[:] = 0
    blocks.clear()
    assert all(torch.equal(map(torch.tensor([3.0, 5.0])), y) for map, y in zip(maps, before, strict=True))


def test_maps_are_equal_by_kind_and_numbers():
    assert Linear(torch.eye(2)) == Linear(torch.eye(2))
    assert Linear(torch.eye(2)) != Linear(torch.eye(2).double())
    assert Linear(torch.eye(2)) != Orthogonal(torch.eye(2))
    assert Permutation([1, 0]) != Permutation([0, 1])
    assert Permutation([0], source_width=2) != Permutation([0], source_width=3)
    assert Identity(2) != "identity"
    assert len({Permutation([1, 0]), Permutation([1, 0]), Permutation([0, 1])}) == 2


@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_a_map_shows_its_kind_and_direction(map):
    assert repr(map).startswith(type(map).__name__) and "2 <- 2" in repr(map)


def test_a_space_may_be_one_wide():
    assert Identity(1).matrix.tolist() == [[1.0]]
