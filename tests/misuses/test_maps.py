"""Misuses of ``ib.maps``: matrices, indices and widths that make no map, inputs that no map acts on, wrong folders."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.misuses.table import misuses, the
from tests.test_storage import TOO_LONG

import interbasin as ib
from interbasin.errors import DataError, FileError, MapError, ShapeError
from interbasin.maps import Affine, Blocks, Identity, Linear, Orthogonal, Permutation, SignedPermutation

SQUARE = {
    "identity": lambda: Identity(2),
    "permutation": lambda: Permutation([1, 0]),
    "signed permutation": lambda: SignedPermutation([1, 0], [1, -1]),
    "orthogonal map": lambda: Orthogonal([[0.0, -1.0], [1.0, 0.0]]),
    "linear map": lambda: Linear([[1.0, 2.0], [0.0, 1.0]]),
    "affine map": lambda: Affine([[1.0, 2.0], [0.0, 1.0]], [3.0, 4.0]),
    "map of blocks": lambda: Blocks([Linear([[2.0]]), Identity(1)], order=[1, 0]),
}
MAKERS = {"Orthogonal": Orthogonal, "Linear": Linear, "Affine": lambda matrix: Affine(matrix, [0.0, 0.0])}
NO_MATRICES = [
    ("a vector", lambda: [1.0, 0.0], ShapeError, "(2,)"),
    ("a number", lambda: 1.0, ShapeError, "()"),
    ("three axes", lambda: torch.eye(2)[None], ShapeError, "(1, 2, 2)"),
    ("no rows", lambda: torch.ones(0, 2), ShapeError, "(0, 2)"),
    ("no columns", lambda: torch.ones(2, 0), ShapeError, "(2, 0)"),
    ("an empty list", lambda: [], ShapeError, "(0,)"),
    ("unequal rows", lambda: [[1.0], [1.0, 2.0]], DataError, "list"),
    ("NaN", lambda: [[math.nan, 0.0], [0.0, 1.0]], DataError, "1 entry"),
    ("infinity", lambda: torch.full((2, 2), math.inf), DataError, "4 entries"),
    ("complex numbers", lambda: torch.eye(2, dtype=torch.complex64), DataError, "complex64"),
    ("text", lambda: [["a", "b"]], DataError, "list"),
    ("nothing", lambda: None, DataError, "NoneType"),
    ("objects", lambda: np.array([[None]]), DataError, "object"),
    ("dates", lambda: np.array([["2020-01-01"]], dtype="datetime64[D]"), DataError, "datetime64"),
    ("a structured array", lambda: np.zeros((2, 2), dtype=[("a", "f4")]), DataError, "ndarray"),
    ("extended precision", lambda: np.eye(2, dtype=np.longdouble), DataError, "float128"),
    ("a sparse tensor", lambda: torch.eye(2).to_sparse(), DataError, "sparse_coo"),
    ("a mapping", lambda: {"x": [1.0]}, DataError, "dict"),
    ("masked values", lambda: np.ma.array(np.eye(2), mask=np.eye(2)), DataError, "mask"),
    ("eight-bit floats", lambda: torch.eye(2).to(torch.float8_e4m3fn), DataError, "float8_e4m3fn"),
]
NO_ISOMETRIES = {
    "a shear": [[1.0, 2.0], [0.0, 1.0]],
    "a stretch": [[2.0, 0.0], [0.0, 1.0]],
    "a shrinking": [[0.5, 0.0], [0.0, 0.5]],
    "a tall matrix of ones": [[1.0], [1.0]],
    "a wide matrix of ones": [[1.0, 1.0]],
    "whole numbers": [[1, 1], [1, 1]],
    "entries whose squares overflow": [[1e200, 0.0], [0.0, 1.0]],
}
NO_INDICES = [
    ("a matrix", lambda: ([[0, 1]],), ShapeError, "(1, 2)"),
    ("a number", lambda: (0,), ShapeError, "()"),
    ("an empty tensor", lambda: (torch.zeros(0, dtype=torch.int64),), ShapeError, "(0,)"),
    ("floats", lambda: ([0.0, 1.0],), MapError, "float64"),
    ("NaN", lambda: ([math.nan],), MapError, "float64"),
    ("booleans", lambda: ([True, False],), MapError, "bool"),
    ("complex numbers", lambda: (torch.zeros(2, dtype=torch.complex64),), DataError, "complex64"),
    ("text", lambda: ("ab",), DataError, "str"),
    ("nothing", lambda: (None,), DataError, "NoneType"),
    ("a unit twice", lambda: ([0, 0, 2],), MapError, "[0]"),
    ("a unit above the source", lambda: ([0, 1, 3],), MapError, "source_width"),
    ("a unit below minus one", lambda: ([0, -2],), MapError, "[-2]"),
    ("a unit above a narrower source", lambda: ([0, 1], 1), MapError, "[1]"),
    ("a huge unsigned number", lambda: (np.array([2**64 - 1, 0], dtype=np.uint64),), MapError, "2**63"),
    ("a source of width zero", lambda: ([-1], 0), ShapeError, "at least 1"),
    ("a negative width", lambda: ([-1], -3), ShapeError, "-3"),
    ("a width with a fraction", lambda: ([0], 2.0), ShapeError, "2.0"),
    ("a width in words", lambda: ([0], "2"), ShapeError, "'2'"),
    ("a width that is true", lambda: ([0], True), ShapeError, "True"),
    ("a width beyond all numbers", lambda: ([0], 10**30), ShapeError, "2**63"),
]


@misuses(
    *(
        (f"{name} of {what}", lambda make=make, give=give: make(give()), error, word)
        for name, make in MAKERS.items()
        for what, give, error, word in NO_MATRICES
    ),
    *(
        (f"an orthogonal map of {what}", lambda matrix=matrix: Orthogonal(matrix), MapError, "Linear")
        for what, matrix in NO_ISOMETRIES.items()
    ),
    ("an orthogonal map of a rounded rotation", lambda: Orthogonal(the.rounded_turn.double()), MapError, "float64"),
    ("an affine map in an affine map", lambda: Affine(Affine([[1.0]], [0.0]), [1.0]), MapError, "@"),
    ("an offset that is too short", lambda: Affine(np.eye(2), [1.0]), ShapeError, "(1,)"),
    ("an offset as wide as the source", lambda: Affine(torch.ones(2, 3), [1.0, 2.0, 3.0]), ShapeError, "(3,)"),
    ("an offset of one number", lambda: Affine(np.eye(2), 1.0), ShapeError, "()"),
    ("an offset that is a row", lambda: Affine(np.eye(2), [[1.0, 2.0]]), ShapeError, "(1, 2)"),
    ("an offset with NaN", lambda: Affine(np.eye(2), [1.0, math.nan]), DataError, "offset"),
    ("an offset of infinities", lambda: Affine(np.eye(2), [math.inf, -math.inf]), DataError, "2 entries"),
    ("an offset too large for the map", lambda: Affine(Linear(torch.eye(2).half()), [1e6, 0.0]), DataError, "offset"),
    ("an offset of complex numbers", lambda: Affine(np.eye(2), np.zeros(2, complex)), DataError, "complex128"),
    ("an offset of text", lambda: Affine(np.eye(2), "ab"), DataError, "str"),
    ("an offset of nothing", lambda: Affine(np.eye(2), None), DataError, "NoneType"),
    *(
        (f"a permutation by {what}", lambda give=give: Permutation(*give()), error, word)
        for what, give, error, word in NO_INDICES
    ),
    *(
        (f"a signed permutation by {what}", lambda give=give: signed_by(*give()), error, word)
        for what, give, error, word in NO_INDICES
    ),
    ("too few signs", lambda: SignedPermutation([1, 0], [1]), ShapeError, "(1,)"),
    ("too many signs", lambda: SignedPermutation([1, 0], [1, 1, 1]), ShapeError, "(3,)"),
    ("a matrix of signs", lambda: SignedPermutation([1, 0], [[1, 1]]), ShapeError, "(1, 2)"),
    ("a sign of zero", lambda: SignedPermutation([1, 0], [1, 0]), MapError, "+1 or -1"),
    ("a sign of two", lambda: SignedPermutation([1, 0], [1, 2]), MapError, "Linear"),
    ("a sign of a half", lambda: SignedPermutation([1, 0], [1.0, 0.5]), MapError, "+1 or -1"),
    ("a sign of NaN", lambda: SignedPermutation([1, 0], [1.0, math.nan]), MapError, "+1 or -1"),
    ("signs in words", lambda: SignedPermutation([1, 0], "+-"), DataError, "str"),
    ("no signs", lambda: SignedPermutation([1, 0], None), DataError, "NoneType"),
    *(
        (f"an identity of width {width!r}", lambda width=width: Identity(width), ShapeError, repr(width))
        for width in (0, -1, 2.0, "2", None, True, [2])
    ),
    ("no blocks", lambda: Blocks([]), ShapeError, "empty"),
    ("a generator of blocks", lambda: Blocks(Identity(2) for _ in range(2)), ShapeError, "generator"),
    ("one map for the blocks", lambda: Blocks(Identity(2)), ShapeError, "Identity"),
    ("a number for the blocks", lambda: Blocks(3), ShapeError, "int"),
    ("matrices for the blocks", lambda: Blocks([torch.eye(2)]), MapError, "Tensor"),
    ("a map and a matrix for the blocks", lambda: Blocks([Identity(2), torch.eye(2)]), MapError, "Block 1"),
    ("text for the blocks", lambda: Blocks("ab"), MapError, "str"),
    ("an affine block", lambda: Blocks([Identity(2), Affine([[1.0]], [0.0])]), MapError, "affine"),
    ("an order of too few blocks", lambda: blocks_in([0]), ShapeError, "1 <- 1"),
    ("an order of too many blocks", lambda: blocks_in([0, 1, 2]), ShapeError, "3 <- 3"),
    ("an order with a gap", lambda: blocks_in([0, -1]), ShapeError, "1 matched"),
    ("an order from more blocks", lambda: blocks_in(Permutation([0, 2], source_width=3)), ShapeError, "2 <- 3"),
    ("an order with a block twice", lambda: blocks_in([0, 0]), MapError, "[0]"),
    ("an order with a block that is not there", lambda: blocks_in([0, 2]), MapError, "[2]"),
    ("an order of floats", lambda: blocks_in([0.0, 1.0]), MapError, "float64"),
    ("an order in words", lambda: blocks_in("01"), DataError, "str"),
)
def test_what_makes_no_map_is_refused(misuse):
    misuse.check()


def signed_by(index: object, *width: object) -> SignedPermutation:
    return SignedPermutation(index, [1, 1], *width)


def blocks_in(order: object) -> Blocks:
    return Blocks([Identity(1), Identity(2)], order=order)


@misuses(
    *(
        (f"{what} into a {name}", lambda make=make, give=give: make()(give()), error, word)
        for name, make in SQUARE.items()
        for what, give, error, word in [
            ("rows that are too wide", lambda: torch.ones(5, 3), ShapeError, "(5, 3)"),
            ("a vector that is too narrow", lambda: torch.ones(1), ShapeError, "(1,)"),
            ("the wrong axis", lambda: torch.ones(2, 3), ShapeError, "axis"),
            ("a number", lambda: torch.tensor(1.0), ShapeError, "()"),
            ("rows of no width", lambda: torch.ones(2, 0), ShapeError, "(2, 0)"),
            ("an array that is too wide", lambda: np.ones((5, 3)), ShapeError, "(5, 3)"),
            ("text", lambda: "ab", DataError, "str"),
            ("nothing", lambda: None, DataError, "NoneType"),
            ("rows of unequal length", lambda: [[1.0, 2.0], [3.0]], DataError, "list"),
            ("a complex array", lambda: np.ones((3, 2), dtype=complex), DataError, "complex128"),
            ("eight-bit floats", lambda: torch.ones(3, 2).to(torch.float8_e4m3fn), DataError, "float8_e4m3fn"),
        ]
    ),
    *(
        (f"{dtype} into a {name}", lambda n=name, d=dtype: SQUARE[n]()(torch.ones(3, 2, dtype=d)), DataError, ".float")
        for name in ("orthogonal map", "linear map", "affine map", "map of blocks")
        for dtype in (torch.int64, torch.bool, torch.complex64)
    ),
    *(
        (f"{dtype} into a signed permutation", lambda d=dtype: signed_by([1, 0])(torch.ones(2, dtype=d)), DataError, w)
        for dtype, w in [
            (torch.bool, "bool"),
            (torch.uint8, "uint8"),
            (torch.uint16, "uint16"),
            (torch.uint32, "uint32"),
            (torch.uint64, "uint64"),
        ]
    ),
    (
        "signs of unsigned numbers in blocks",
        lambda: Blocks([signed_by([1, 0])])(np.ones(2, np.uint8)),
        DataError,
        "int8",
    ),
    (
        "half-precision numbers that grow too large",
        lambda: Linear(2 * np.eye(2))(np.full(2, 6e4, np.float16)),
        DataError,
        "65504",
    ),
    (
        "half-precision numbers and a large offset",
        lambda: Affine(Identity(2), [6e4, 6e4])(torch.full((2,), 6e4).half()),
        DataError,
        "65504",
    ),
    ("whole numbers and an offset", lambda: Affine(Identity(2), [0.5, 0.5])(torch.ones(2).long()), DataError, "int64"),
    ("matrices that do not meet", lambda: Linear(np.ones((2, 3))) @ Linear(np.ones((2, 3))), ShapeError, "width 3"),
    ("identities that do not meet", lambda: Identity(2) @ Identity(3), ShapeError, "Identity(3 <- 3)"),
    ("permutations that do not meet", lambda: Permutation([1, 0]) @ Permutation([0]), ShapeError, "width 1"),
    ("signs that do not meet", lambda: SignedPermutation([0], [1]) @ Permutation([1, 0]), ShapeError, "width 2"),
    (
        "an affine map that does not meet",
        lambda: SQUARE["affine map"]() @ Linear(np.ones((3, 2))),
        ShapeError,
        "width 3",
    ),
    ("blocks that do not meet", lambda: Blocks([Identity(2)]) @ Blocks([Identity(3)]), ShapeError, "width 3"),
    ("a map after a tensor", lambda: Identity(2) @ torch.eye(2), MapError, "Tensor"),
    ("a map after an array", lambda: Identity(2) @ np.eye(2), MapError, "ndarray"),
    ("a map after nothing", lambda: Identity(2) @ None, MapError, "NoneType"),
    ("a map composed after a number", lambda: ib.maps.compose(Identity(2), 3), MapError, "int"),
    ("a number composed after a map", lambda: ib.maps.compose(3, Identity(2)), MapError, "int"),
    ("a tensor composed after a map", lambda: ib.maps.compose(torch.eye(2), Identity(2)), MapError, "Tensor"),
    ("a tensor that multiplies a map", lambda: torch.eye(2) @ Identity(2), TypeError, "Identity"),
    ("the interface itself", lambda: ib.maps.Map(), TypeError, "abstract"),
    ("a number set in a map", lambda: setattr(Identity(2), "source_width", 3), AttributeError, "immutable"),
    ("a matrix taken out of a map", lambda: delattr(Identity(2), "matrix"), AttributeError, "immutable"),
)
def test_what_no_map_does_is_refused(misuse):
    misuse.check()


@misuses(
    ("a map from a folder that is not there", lambda: ib.maps.load("missing"), FileError, "missing"),
    ("a map from a file", lambda: ib.maps.load(the.letter), FileError, "file"),
    ("a map from a folder of something else", lambda: ib.maps.load(the.someones_folder), FileError, "map.json"),
    ("a map from saved statistics", lambda: ib.maps.load(the.saved_moments), FileError, "map.json"),
    ("a map from a name that is too long", lambda: ib.maps.load(TOO_LONG), FileError, TOO_LONG),
    ("a map from a name that is a number", lambda: ib.maps.load(3), FileError, "int"),
    ("a map from nothing", lambda: ib.maps.load(None), FileError, "NoneType"),
    ("a map over a saved one", lambda: Identity(2).save(the.saved_map), FileError, "force"),
    ("a map over someone's folder", lambda: Identity(2).save(the.someones_folder, force=True), FileError, "not write"),
    ("a map over a file", lambda: Identity(2).save(the.letter, force=True), FileError, "file"),
    ("a map below a file", lambda: Identity(2).save(the.letter / "map"), FileError, "not a folder"),
    ("a map into the current folder", lambda: Identity(2).save(".", force=True), FileError, "current"),
    ("a map into a name that is too long", lambda: Identity(2).save(TOO_LONG), FileError, "long"),
    ("a map into a name that is a number", lambda: Identity(2).save(3), FileError, "int"),
    ("a map into a name that no file can have", lambda: Identity(2).save("a\0b"), FileError, "null"),
)
def test_a_folder_that_cannot_be_is_refused(misuse):
    misuse.check()
