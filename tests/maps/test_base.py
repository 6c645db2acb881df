"""What every map refuses to act on, and that nobody can change one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.test_storage import case, refused

from interbasin.errors import DataError, MapError, ShapeError
from interbasin.maps import Affine, Blocks, Identity, Linear, Map, Orthogonal, Permutation, SignedPermutation
from interbasin.maps.base import require_map

SQUARE: list[Map] = [
    Identity(2),
    Permutation([1, 0]),
    SignedPermutation([1, 0], [1, -1]),
    Orthogonal([[0.0, -1.0], [1.0, 0.0]]),
    Linear([[1.0, 2.0], [0.0, 1.0]]),
    Affine([[1.0, 2.0], [0.0, 1.0]], [3.0, 4.0]),
    Blocks([Linear([[2.0]]), Identity(1)], order=[1, 0]),
]
WITH_NUMBERS = [map for map in SQUARE if map.dtype is not None]


def kind(map: Map) -> str:
    return map.kind


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("too wide", lambda: torch.ones(5, 3), ShapeError, "width 2", "(5, 3)"),
        case("too narrow", lambda: torch.ones(1), ShapeError, "width 2", "(1,)"),
        case("the wrong axis", lambda: torch.ones(2, 3), ShapeError, "move the axis"),
        case("no axis", lambda: torch.tensor(1.0), ShapeError, "shape ()"),
        case("nothing wide", lambda: torch.ones(2, 0), ShapeError, "(2, 0)"),
        case("an array that is too wide", lambda: np.ones((5, 3)), ShapeError, "(5, 3)"),
        case("text", lambda: "ab", DataError, "str"),
        case("nothing", lambda: None, DataError, "NoneType"),
        case("rows of unequal length", lambda: [[1.0, 2.0], [3.0]], DataError, "list"),
        case("a complex array", lambda: np.ones((3, 2), dtype=complex), DataError, "complex128"),
    ],
)
@pytest.mark.parametrize("map", SQUARE, ids=kind)
def test_an_input_that_does_not_fit_is_refused(map, make, error, words):
    refused(lambda: map(make()), error, words)


@pytest.mark.parametrize(
    "x",
    [torch.ones(3, 2, dtype=torch.int64), torch.ones(3, 2, dtype=torch.bool), torch.ones(3, 2, dtype=torch.complex64)],
    ids=lambda x: str(x.dtype),
)
@pytest.mark.parametrize("map", WITH_NUMBERS, ids=kind)
def test_a_map_with_coefficients_acts_on_floating_point_only(map, x):
    refused(lambda: map(x), DataError, ("floating-point", str(x.dtype), ".float()"))


@pytest.mark.parametrize("map", WITH_NUMBERS, ids=kind)
def test_eight_bit_floats_are_refused_in_our_words(map):
    refused(lambda: map(torch.ones(3, 2).to(torch.float8_e4m3fn)), DataError, ("float8_e4m3fn",))


@pytest.mark.parametrize("map", [Identity(2), Permutation([1, 0])], ids=kind)
def test_maps_that_only_move_entries_take_whole_numbers(map):
    x = torch.tensor([[1, 2], [3, 4]])
    assert map(x).dtype == torch.int64
    assert map(np.array([[True, False]])).dtype == bool


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64], ids=str)
@pytest.mark.parametrize("shape", [(2,), (3, 2)], ids=["vector", "rows"])
def test_signs_need_numbers_that_have_them(dtype, shape):
    signed = SignedPermutation([1, 0], [1, -1])
    refused(lambda: signed(torch.ones(shape, dtype=dtype)), DataError, ("signs", str(dtype)))
    refused(lambda: Blocks([signed])(torch.ones(shape, dtype=dtype)), DataError, ("signs", str(dtype)))


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


def test_the_interface_itself_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Map()


def test_what_is_not_a_map_is_named():
    refused(lambda: require_map(torch.eye(2), "the carrier"), MapError, ("the carrier", "Tensor"))


def test_a_dtype_that_is_only_for_storage_is_refused():
    with pytest.raises(DataError, match=r"cannot calculate with torch\.float8_e4m3fn"):
        Permutation([1, 0])(torch.zeros(2).to(torch.float8_e4m3fn))
