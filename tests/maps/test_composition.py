"""The kind of a composition. That compositions do what they should is a law."""

from __future__ import annotations

import pytest
import torch

from interbasin.maps import Affine, Blocks, Identity, Linear, Orthogonal, Permutation, SignedPermutation

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
