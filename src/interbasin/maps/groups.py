"""The names of the groups that maps are taken from."""

from __future__ import annotations

from enum import StrEnum


class Group(StrEnum):
    """A group of maps of one space, by the name that people read. `interbasin.wiring.axes.groups` orders them."""

    INVERTIBLE = "invertible"
    ORTHOGONAL = "orthogonal"
    SIGNED = "signed permutation"
    PERMUTATION = "permutation"
    SIMILARITY = "rotation and scale"
    ROTATION = "rotation"
    FIXED = "fixed"
