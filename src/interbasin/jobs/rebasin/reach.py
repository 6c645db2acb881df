"""Which maps are sought in each space.

A space's exact group leaves the network's function as it is. The papers' orthogonal maps reach beyond it: behind a ReLU
they change the function, in exchange for a closer match. So each method has a reach:

- ``"exact"``: in every space its own group, and nothing beyond.
- ``"orthogonal"``: orthogonal maps wherever the exact group is a smaller one; approximate, and said to be.
- ``"auto"``: beyond the groups only in networks that have no exact rotation at all (plain MLPs and the like, as in the
  papers), and there only in spaces without gains, which no rotation can carry. Networks with attention have exact
  rotations in their heads and, when norms are folded, in their streams: they stay exact.

Spaces that are divided into blocks (heads) move by permutations in any case.
"""

from __future__ import annotations

from interbasin.errors import UnknownNameError
from interbasin.jobs.rebasin.problem import Unknown
from interbasin.text import list_names, plural
from interbasin.wiring.axes.groups import Group
from interbasin.wiring.wiring import Wiring

__all__ = ["REACHES", "isometric", "kept_exact", "nothing_moves", "unknowns"]

REACHES = ("auto", "exact", "orthogonal")
_SMALLER = (Group.PERMUTATION, Group.SIGNED)
# The isometries of the groups that also change lengths: what activations alone can tell.
_ISOMETRIES = {Group.INVERTIBLE: Group.ORTHOGONAL, Group.SIMILARITY: Group.ROTATION}


def unknowns(wiring: Wiring, reach: str) -> list[Unknown]:
    """The spaces to be matched, and the group of each that maps are sought in."""
    if reach not in REACHES:
        raise UnknownNameError.of("reach", reach, REACHES)
    divided = {outer for space in wiring.spaces.values() for outer in space.within}
    moving = {name: space for name, space in wiring.spaces.items() if not space.is_fixed}
    beyond = reach == "orthogonal" or (reach == "auto" and all(space.group in _SMALLER for space in moving.values()))
    found = []
    for name, space in moving.items():
        group = space.group
        if name in divided:
            group = Group.PERMUTATION
        elif beyond and group in _SMALLER and (reach == "orthogonal" or not space.scales):
            group = Group.ORTHOGONAL
        found.append(Unknown(name, space.size, space.within, group))
    return found


def isometric(unknown: Unknown) -> Unknown:
    """The same, with maps that keep lengths."""
    return Unknown(unknown.name, unknown.size, unknown.within, _ISOMETRIES.get(unknown.kind, unknown.kind))


def kept_exact(wiring: Wiring, reach: str) -> tuple[str, ...]:
    """A sentence, where a method for orthogonal maps was kept to exact ones by ``"auto"``; none where it was not."""
    if reach != "auto":
        return ()
    both = zip(unknowns(wiring, "auto"), unknowns(wiring, "orthogonal"), strict=True)
    kept = [taken.name for taken, turned in both if taken.kind is not turned.kind]
    if not kept:
        return ()
    gains = all(wiring.spaces[name].scales for name in kept)
    why = "gains stand there, which no rotation can carry" if gains else "the network has exact rotations elsewhere"
    return (
        f"In {plural(len(kept), 'space')} ({list_names(kept)}) only exact maps, such as permutations, were sought, "
        f"because {why}; reach='orthogonal' turns all spaces, and changes the function.",
    )


def nothing_moves(wiring: Wiring) -> tuple[str, ...]:
    """A sentence, where a network has no other coordinates at all."""
    if not all(space.is_fixed for space in wiring.spaces.values()):
        return ()
    return ("No space of these networks can move without changing what they compute; they were left as they are.",)
