"""Maps between spaces: what they are, how they compose, and how they are kept. `base` explains the direction."""

from interbasin.maps.affine import Affine
from interbasin.maps.base import Map
from interbasin.maps.blocks import Blocks
from interbasin.maps.composition import compose
from interbasin.maps.files import load
from interbasin.maps.linear import Linear
from interbasin.maps.orthogonal import Orthogonal
from interbasin.maps.permutation import Identity, Permutation, SignedPermutation

__all__ = [
    "Affine",
    "Blocks",
    "Identity",
    "Linear",
    "Map",
    "Orthogonal",
    "Permutation",
    "SignedPermutation",
    "compose",
    "load",
]
