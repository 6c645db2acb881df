"""What a network is made of: its spaces, and for every tensor which space each axis writes, reads or scales."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from interbasin.errors import FileError, InterbasinError, UnknownNameError, WiringError
from interbasin.maps import Map
from interbasin.randomness import generator_of
from interbasin.storage import new_folder, read_record, write_record
from interbasin.text import printable
from interbasin.wiring.axes.groups import Group, meet, sample
from interbasin.wiring.axes.notation import axis_from_json, axis_to_json, line, space_from_json, space_to_json
from interbasin.wiring.axes.spaces import Axis, Space, spaces_in
from interbasin.wiring.flatten import flatten
from interbasin.wiring.summary import coverage
from interbasin.wiring.trace.tracing import Inputs
from interbasin.wiring.validate import require_sound

if TYPE_CHECKING:
    from interbasin.wiring.alignment import Alignment

VERSION = 1
Content = TypeVar("Content")


@dataclass(frozen=True)
class TensorWiring:
    """One tensor: its shape, and what each axis is made of."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Wiring:
    """The wiring of a network, as data.

    Attributes:
        spaces: By name.
        tensors: By name in the state dict; tied names share one entry through `tied`.
        activations: What goes into modules and comes out of them, by place (``"blocks.0.mlp:output:0"``, the last
            number counting the calls of a module that is used more than once).
        tied: Name -> the name under which the same tensor is listed.
        unused: Tensors that the traced call did not touch.
        constants: Tensors of the state dict that belong to the architecture: counts, indices, tables of angles.
        unknown: Operators without a rule that met something that could have moved, and how often.
    """

    spaces: Mapping[str, Space]
    tensors: Mapping[str, TensorWiring]
    activations: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def places_of(self) -> Mapping[str, tuple[str, ...]]:
        """For each space the activations that it lies in, whole or in part, in the order of the forward pass."""
        found: dict[str, list[str]] = {}
        for place, axes in self.activations.items():
            for name in spaces_in(axes):
                found.setdefault(name, []).append(place)
        return {name: tuple(places) for name, places in found.items()}

    @property
    def coverage(self) -> float:
        """Of all axes that could lie in a space, the share that can move, weighted by the tensors' parameters.

        Axes of inputs, outputs, kernels and positions could not. A network without any other is covered.
        """
        return coverage(self)

    def sample(self, seed: int = 0, spaces: Sequence[str] | None = None, *, isometric: bool = False) -> Alignment:
        """Random exact maps, one for each space that is not fixed (or each of the named ``spaces``).

        Args:
            seed: Of the maps.
            spaces: Draw maps of these alone; each is the one that it has among all.
            isometric: Draw orthogonal maps only: permutations and rotations, also where any invertible map is exact.
        """
        from interbasin.wiring.alignment import Alignment  # a wiring's maps: alignment.py builds on this file

        if isinstance(spaces, str):
            raise WiringError(
                f"The spaces to sample are a list of names, found the text {spaces!r}; give [{spaces!r}]."
            )
        for name in spaces or ():
            if name not in self.spaces:
                raise UnknownNameError.of("space", name, self.spaces)
        generator = generator_of(seed)
        maps = {}
        for name, space in self.spaces.items():
            if not space.is_fixed:
                group = meet(space.group, Group.ORTHOGONAL) if isometric else space.group
                drawn = sample(group, space.size, space.blocks, generator)
                if spaces is None or name in spaces:
                    maps[name] = drawn
        return Alignment(self, maps)

    def check(
        self,
        model: nn.Module,
        inputs: Inputs,
        seed: int = 0,
        each: bool = False,
        alignment: Alignment | Mapping[str, Map] | None = None,
    ) -> Any:
        """The largest relative change of the outputs when the network is carried through random exact maps.

        Args:
            model: The network that was wired (or one of the same class with other weights).
            inputs: One batch.
            seed: Of the maps.
            each: Give a mapping space -> change instead, each space moved alone.
            alignment: Maps of your own in place of random ones; the figure then tells how far they are from exact.
        """
        from interbasin.wiring.alignment import Alignment
        from interbasin.wiring.check import changes

        if alignment is not None and not isinstance(alignment, Alignment):
            alignment = Alignment(self, alignment)
        if alignment is not None and alignment.wiring != self:
            raise WiringError(
                "Asked to check an alignment of another wiring; call check of that one (alignment.wiring), or make the "
                "alignment with this one."
            )
        if each:
            movable = [name for name, space in self.spaces.items() if not space.is_fixed]
            names = movable if alignment is None else list(alignment.maps)
            alone = (
                self.sample(seed, [name]) if alignment is None else Alignment(self, {name: alignment.maps[name]})
                for name in names
            )
            return dict(zip(names, changes(self, model, inputs, alone), strict=True))
        # A generator: maps are drawn only after the network was found fit to be checked.
        return changes(self, model, inputs, (maps or self.sample(seed) for maps in [alignment]))[0]

    def flattened(self) -> Wiring:
        """The same tensors with heads, and other blocks inside an axis, read as one flat space.

        Maps of a flat space need not keep to heads: queries, keys and values can each have a map of their own, and 4
        heads can become 6. Every map of it but the identity is approximate, so `sample` draws none, `coverage` counts
        none and `Alignment.is_exact` is False with one. All other spaces, and a wiring without blocks, stay as they
        are; so do groups that a weight reads block by block, such as those of a convolution.
        """
        return flatten(self)

    # ------------------------------------------------------------------ as text and as data

    def __str__(self) -> str:
        tensors = {name: line(tensor.axes) for name, tensor in self.tensors.items()}
        spaces = {name: space.describe() for name, space in self.spaces.items()}
        return "\n".join([*_columns(tensors), "", *_columns(spaces), "", repr(self)])

    def __repr__(self) -> str:
        moving = sum(not space.is_fixed for space in self.spaces.values())
        return f"Wiring({len(self.spaces)} spaces, {moving} of them move, coverage {self.coverage:.3f})"

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        return {
            "spaces": {name: space_to_json(space) for name, space in self.spaces.items()},
            "tensors": {
                name: {"shape": list(tensor.shape), "axes": [axis_to_json(axis) for axis in tensor.axes]}
                for name, tensor in self.tensors.items()
            },
            "activations": {place: [axis_to_json(axis) for axis in axes] for place, axes in self.activations.items()},
            "tied": dict(self.tied),
            "unused": list(self.unused),
            "constants": list(self.constants),
            "unknown": dict(self.unknown),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Wiring:
        """The wiring that `to_json` told.

        Raises:
            FileError: if it does not hold together; names what is damaged.
        """
        wiring = cls(
            spaces={name: space_from_json(name, space) for name, space in document["spaces"].items()},
            tensors={
                name: TensorWiring(tuple(tensor["shape"]), tuple(axis_from_json(axis) for axis in tensor["axes"]))
                for name, tensor in document["tensors"].items()
            },
            activations={
                place: tuple(axis_from_json(axis) for axis in axes) for place, axes in document["activations"].items()
            },
            tied=dict(document["tied"]),
            unused=tuple(document["unused"]),
            constants=tuple(document["constants"]),
            unknown=dict(document["unknown"]),
        )
        require_sound(wiring)
        return wiring

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write ``wiring.json`` into a new folder, whole or not at all."""
        with new_folder(folder, ("wiring",), force=force) as temporary:
            write_record(temporary, "wiring", "wiring", VERSION, self.to_json(), {})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Wiring:
        """The wiring that was saved to ``folder``."""
        document, _ = read_record(folder, "wiring", "wiring", VERSION)
        return read_back(lambda: cls.from_json(document), "wiring", folder)


def _columns(rows: Mapping[str, str]) -> list[str]:
    shown = {printable(name): printable(text) for name, text in rows.items()}
    width = max(map(len, shown), default=0)
    return [f"{name:<{width}}  {text}" for name, text in shown.items()]


def read_back(build: Callable[[], Content], what: str, folder: str | os.PathLike[str]) -> Content:
    """What ``build`` makes of a record, or a `FileError` that calls the record damaged."""
    try:
        return build()
    except (KeyError, TypeError, AttributeError, ValueError, InterbasinError) as error:
        raise FileError(f"The {what} in {folder} is damaged ({error}); copy it again or make it anew.") from error
