"""Maps that cannot follow one another. That the ones that can do so rightly is a law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.test_storage import case, refused

from interbasin.errors import MapError, ShapeError
from interbasin.maps import Affine, Blocks, Identity, Linear, Orthogonal, Permutation, SignedPermutation, compose

WIDE, TALL = Linear(torch.ones(2, 3)), Linear(torch.ones(3, 2))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        case("matrices", lambda: WIDE @ WIDE, ShapeError, "Linear(2 <- 3)", "width 2", "width 3", "does f first"),
        case("identities", lambda: Identity(2) @ Identity(3), ShapeError, "Identity(2 <- 2)", "Identity(3 <- 3)"),
        case("permutations", lambda: Permutation([1, 0]) @ Permutation([0]), ShapeError, "width 1", "width 2"),
        case("signs", lambda: SignedPermutation([0], [1]) @ Permutation([1, 0]), ShapeError, "width 2", "width 1"),
        case("affine", lambda: Affine(torch.eye(2), [0.0, 0.0]) @ TALL, ShapeError, "width 3", "width 2"),
        case("blocks", lambda: Blocks([Identity(2)]) @ Blocks([Identity(3)]), ShapeError, "width 3", "width 2"),
        case("a tensor", lambda: Identity(2) @ torch.eye(2), MapError, "right side of @", "Tensor"),
        case("an array", lambda: Identity(2) @ np.eye(2), MapError, "right side of @", "ndarray"),
        case("nothing", lambda: Identity(2) @ None, MapError, "NoneType"),
        case("a number first", lambda: compose(Identity(2), 3), MapError, "int"),
        case("a number last", lambda: compose(3, Identity(2)), MapError, "int"),
        case("a tensor last", lambda: compose(torch.eye(2), Identity(2)), MapError, "Tensor"),
    ],
)
def test_what_cannot_follow_is_refused(make, error, words):
    refused(make, error, words)


def test_a_tensor_does_not_multiply_a_map():
    with pytest.raises(TypeError):
        torch.eye(2) @ Identity(2)


TURN = Orthogonal([[0.0, -1.0], [1.0, 0.0]])
SWAP = Permutation([1, 0])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Identity(2) @ TURN, Orthogonal),
        (lambda: TURN @ Identity(2), Orthogonal),
        (lambda: SWAP @ SWAP, Permutation),
        (lambda: SWAP @ SignedPermutation([0, 1], [1, -1]), SignedPermutation),
        (lambda: TURN @ SWAP, Orthogonal),
        (lambda: SWAP @ TURN, Orthogonal),
        (lambda: Blocks([Identity(1), Identity(1)], order=[1, 0]) @ Blocks([Identity(1), Identity(1)]), Blocks),
        (lambda: Blocks([Identity(1), Identity(1)]) @ Blocks([Identity(2)]), Orthogonal),
        (lambda: Affine(torch.eye(2), [1.0, 2.0]) @ SWAP, Affine),
        (lambda: Blocks([Identity(2)]) @ Affine(torch.eye(2), [1.0, 2.0]), Affine),
        (lambda: Linear(torch.eye(2)) @ TURN, Linear),
        # An embedding and a projection onto other directions: a cosine is left, and that is no isometry.
        (lambda: Orthogonal([[0.6, 0.8]]) @ Orthogonal([[1.0], [0.0]]), Linear),
    ],
)
def test_the_most_special_kind_survives(make, kind):
    assert type(make()) is kind
