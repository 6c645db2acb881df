"""The door between numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.test_storage import case, refused

from interbasin.arrays import as_tensor, like_input, narrowed, working_dtype
from interbasin.errors import DataError


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("nothing", lambda: None, DataError, "NoneType"),
        case("text", lambda: "three", DataError, "str"),
        case("a list of text", lambda: ["1.0", "2.0"], DataError, "list"),
        case("rows of unequal length", lambda: [[1.0, 2.0], [3.0]], DataError, "list"),
        case("objects", lambda: np.array([object()]), DataError, "dtype object"),
        case("dates", lambda: np.array(["2020-01-01"], dtype="datetime64[D]"), DataError, "datetime64"),
        case("a structured array", lambda: np.zeros(2, dtype=[("a", "f4")]), DataError, "ndarray"),
        case("extended precision", lambda: np.zeros(2, dtype=np.longdouble), DataError, "float128"),
        case("a complex array", lambda: np.zeros(2, dtype=complex), DataError, "complex128"),
        case("a complex tensor", lambda: torch.zeros(2, dtype=torch.complex64), DataError, "torch.complex64"),
        case("a sparse tensor", lambda: torch.eye(2).to_sparse(), DataError, "torch.sparse_coo"),
        case("an eight-bit float", lambda: torch.eye(2).to(torch.float8_e4m3fn), DataError, "float8_e4m3fn"),
        case("a mapping", lambda: {"x": [1.0]}, DataError, "dict"),
        case("masked values", lambda: np.ma.array([1.0, 2.0], mask=[False, True]), DataError, "mask"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_has_no_real_numbers_is_refused(make, error, words):
    refused(lambda: as_tensor(make(), "the thing"), error, ("the thing", *words))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quantised_tensor_is_refused():
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    refused(lambda: as_tensor(quantised, "the thing"), DataError, ("the thing", "qint8"))


def test_a_list_of_tensors_that_require_gradients_is_taken_or_refused_in_our_words():
    rows = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    try:
        found = as_tensor(rows, "the thing")
    except DataError as error:
        assert "the thing" in str(error)
    else:
        assert torch.equal(found, torch.ones(2, 2))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3)[::-1, ::-1],
        np.arange(6.0).reshape(3, 2).T,
        np.arange(6.0, dtype=">f8").reshape(2, 3),
        np.arange(6, dtype=np.float16),
        np.arange(6, dtype=np.uint8),
        np.array([True, False]),
        np.float64(3.0),
        [[1, 2], [3, 4]],
        [],
    ],
    ids=[
        "plain",
        "negative strides",
        "transposed",
        "big-endian",
        "half",
        "bytes",
        "booleans",
        "scalar",
        "list",
        "none",
    ],
)
def test_arrays_of_every_layout_keep_their_numbers(array):
    assert np.array_equal(as_tensor(array, "the thing").numpy(), np.asarray(array))


def test_an_array_that_may_not_be_written_is_copied_without_a_warning():
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = as_tensor(array, "the thing")
    tensor[0] = 7.0
    assert array[0] == 0.0


def test_memory_is_shared_where_it_can_be():
    array = np.arange(3.0)
    as_tensor(array, "the thing")[0] = 7.0
    assert array[0] == 7.0


def test_tensors_come_in_without_their_history():
    assert not as_tensor(torch.ones(2, requires_grad=True), "the thing").requires_grad


def test_results_come_out_as_what_came_in():
    assert isinstance(like_input(torch.ones(2), np.ones(2)), np.ndarray)
    assert isinstance(like_input(torch.ones(2), [1.0, 1.0]), np.ndarray)
    assert isinstance(like_input(torch.ones(2), torch.ones(2)), torch.Tensor)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((), torch.float32),
        ((torch.float16, torch.bfloat16), torch.float32),
        ((torch.float16, torch.float64), torch.float64),
        ((torch.float32, torch.bfloat16), torch.float32),
    ],
)
def test_products_are_formed_in_the_widest_precision_and_at_least_in_float32(dtypes, expected):
    assert working_dtype(*dtypes) == expected


def test_a_masked_array_is_refused_because_its_mask_would_be_lost():
    with pytest.raises(DataError, match="masked array, whose mask would be lost"):
        as_tensor(np.ma.masked_array([1.0, 2.0], mask=[0, 1]), "The input")


def test_what_a_narrower_dtype_cannot_hold_is_refused_and_what_was_infinite_stays():
    wide = torch.tensor([1.0, 65_504.0, float("inf"), float("nan")])
    assert narrowed(wide, torch.float16, "It").tolist()[:3] == [1.0, 65_504.0, float("inf")]
    assert narrowed(wide, torch.float32, "It") is wide
    refused(
        lambda: narrowed(2 * wide, torch.float16, "It"), DataError, ("It would have numbers beyond 65504", "float32")
    )
