"""The two base networks: how each is wired, and which part of the source belongs to which part of the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from interbasin.activations import record
from interbasin.activations.places import choose_reading
from interbasin.batches import Progress, WithoutLabels, cut_inputs, inputs_in, outputs_of, require_reiterable
from interbasin.checks import require_choice
from interbasin.correspondence import Correspondence
from interbasin.correspondence.outline import Outline
from interbasin.correspondence.pairs import SpacePair
from interbasin.errors import DataError, WiringError
from interbasin.evaluate.performance import find_logits
from interbasin.jobs.transport.blocks import Filling, Lengthening
from interbasin.jobs.transport.updates.update import Update
from interbasin.text import list_names
from interbasin.wiring import Group, Wiring, wire
from interbasin.wiring.axes.spaces import BOUNDARY, Space

Heads = Literal["auto", "matched", "free"]
Depth = Literal["auto", "cka", "even", "interpolate"]
Outputs = Literal["auto", "shared", "own"]

# A pair of spaces, by their names in the source and in the target.
Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Bases:
    """Two networks and their correspondence.

    Attributes:
        source, target: The networks before any fine-tuning.
        correspondence: Of the wirings that maps are sought in: with heads, or flattened.
        heads: ``"matched"``: each head has a map of its own; ``"free"``: maps mix all heads of a layer.
        shares_outputs: Whether an output means the same in both.
        headed: The correspondence with heads, where the other is flattened.
        lengthening: How the source was made as deep as the target; None if it is the one that was given.
        given_bases: The bases with the source as it was given, where new blocks were put into it. The result is judged
            by these.
    """

    source: nn.Module
    target: nn.Module
    correspondence: Correspondence
    heads: Literal["matched", "free"]
    shares_outputs: bool
    headed: Correspondence | None = None
    lengthening: Lengthening | None = None
    given_bases: Bases | None = None

    def lengthen(self, update: Update) -> Update:
        """An update of the source that was given, as one of `source`."""
        return update if self.lengthening is None else self.lengthening.update(update)

    @property
    def given_source(self) -> nn.Module:
        return self.source if self.lengthening is None else self.lengthening.source

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        return () if self.lengthening is None else (self.lengthening.note,)

    @property
    def with_heads(self) -> Bases:
        """The same networks with heads as the wirings have them, whether or not they can be matched one to one."""
        return self if self.headed is None else replace(self, correspondence=self.headed, headed=None)

    @property
    def wirings(self) -> tuple[Wiring, Wiring]:
        return self.correspondence.source, self.correspondence.target

    def spaces(self, pair: SpacePair | Pair) -> tuple[Space, Space]:
        """The two spaces of a pair."""
        names = (pair.source, pair.target) if isinstance(pair, SpacePair) else pair
        return self.wirings[0].spaces[names[0]], self.wirings[1].spaces[names[1]]

    def is_shared(self, pair: SpacePair | Pair) -> bool:
        """Whether the two networks have a space in common: their inputs, and their outputs where these are shared."""
        both = self.spaces(pair)
        if both[0].width != both[1].width or not all(_is_end(space) for space in both):
            return False
        ends_in_it = any(space.because is not None and space.because.kind == "output" for space in both)
        # A stream that is also put out, as last hidden states are, is read on the way: each network has its own.
        return not ends_in_it or (self.shares_outputs and not any(space.reads for space in both))


def relate(
    source: nn.Module,
    target: nn.Module,
    data: Any,
    *,
    heads: Heads = "auto",
    depth: Depth = "auto",
    outputs: Outputs = "auto",
    correspondence: Correspondence | Mapping[str, Any] | None = None,
    progress: Progress = None,
) -> Bases:
    """The bases with their wirings, traced on the first batch, and the correspondence.

    Args:
        source, target: The networks.
        data: Batches without or with labels, for the trace and, with ``depth="cka"``, for the path.
        heads: ``"auto"`` matches heads where every layer has as many in both networks.
        depth: How blocks are paired where the networks are not equally deep: along the monotone path of largest CKA,
            or spread evenly. ``"interpolate"`` puts new blocks into the source until it is as deep. ``"auto"`` takes
            the path where depths differ.
        outputs: ``"auto"`` takes outputs of equal shape as shared.
        correspondence: Your own, or names for `Correspondence.by_name`.
        progress: True for a bar while the path is sought.
    """
    require_choice("heads", heads, get_args(Heads))
    require_choice("depth", depth, get_args(Depth))
    require_choice("outputs", outputs, get_args(Outputs))
    require_reiterable(data, "Transport")
    if depth == "interpolate":
        return _relate_lengthened(source, target, data, heads, outputs, correspondence)
    inputs = WithoutLabels(data).first()
    wirings = [wire(network, inputs) for network in (source, target)]
    shared = _shares_outputs((source, target), inputs, outputs)
    if isinstance(correspondence, Correspondence):
        _require_wirings_of(correspondence, wirings)
        is_free = correspondence.source != wirings[0]
        return Bases(source, target, correspondence, "free" if is_free else "matched", shared)
    pairing = _correspond(source, target, wirings, data, depth, correspondence, progress)
    kind: Literal["matched", "free"] = "matched"
    headed = pairing
    if heads == "free" or (heads == "auto" and not _has_equal_heads(pairing)):
        kind = "free"
        wirings = [wiring.flattened() for wiring in wirings]
        pairing = _correspond(source, target, wirings, data, depth, correspondence, progress)
    elif heads == "matched" and not _has_equal_heads(pairing):
        raise WiringError(
            "Asked to match heads one to one, but a layer of the target has another number of heads, of query heads "
            "for a key, or of rotary angles in a head; take heads='free', or 'auto'."
        )
    other = None if pairing is headed else headed
    return Bases(source, target, pairing, kind, shared, other)


def _relate_lengthened(
    source: nn.Module, target: nn.Module, data: Any, heads: Heads, outputs: Outputs, correspondence: Any
) -> Bases:
    """The bases with new blocks in the source, so that blocks pair one to one."""
    if correspondence is not None:
        raise WiringError(
            "A correspondence says which blocks belong together, and so does depth='interpolate'; give one of the two."
        )
    given_bases = relate(source, target, data, heads=heads, depth="even", outputs=outputs)
    fillings = _fillings(given_bases)
    if not fillings:
        return given_bases
    lengthening = Lengthening(source, fillings)
    longer = lengthening.model(source)
    bases = relate(longer, target, data, heads=heads, depth="even", outputs=outputs)
    depths = [len(Outline(wiring).layers) for wiring in bases.wirings]
    expected = len(Outline(given_bases.wirings[0]).layers) + sum(each.depth - len(each.blocks) for each in fillings)
    idle = set(bases.wirings[0].unused) - set(given_bases.wirings[0].unused)
    if depths[0] != expected or idle:
        raise WiringError(
            f"The source does not run the blocks that were put into it ({depths[0]} of {expected} are in use"
            f"{f', not {list_names(idle)}' if idle else ''}): its forward has to go through all blocks of its list; "
            "take depth='cka' or 'even'."
        )
    return replace(bases, lengthening=lengthening, given_bases=given_bases)


def _fillings(bases: Bases) -> tuple[Filling, ...]:
    """The source's stacks of blocks that are shallower than their partners in the target."""
    outlines = [Outline(wiring) for wiring in bases.with_heads.wirings]
    stacks = [outline.root.stacks for outline in outlines]
    if not all(stacks):
        side = "target" if stacks[0] else "source"
        raise WiringError(
            f"New blocks can only be put between blocks, and the {side} has none that are numbered and built alike; "
            "take depth='cka' or 'even'."
        )
    fillings = []
    for ours in stacks[0]:
        counts = Counter(
            place
            for pair in bases.correspondence.tensors
            for place, theirs in enumerate(stacks[1])
            if any(block.holds(pair.source) for block in ours.blocks)
            and any(block.holds(pair.target) for block in theirs.blocks)
        )
        if not counts:
            continue
        partner = stacks[1][counts.most_common(1)[0][0]]
        if len(partner.blocks) < len(ours.blocks):
            raise WiringError(
                f"Blocks can be put into a source, not taken out, and {ours.name or 'the source'!r} has "
                f"{len(ours.blocks)} where the target has {len(partner.blocks)}; take depth='cka' or 'even', which "
                "pair blocks of a shallower target too."
            )
        if len(partner.blocks) > len(ours.blocks):
            fillings.append(Filling(tuple(block.name for block in ours.blocks), len(partner.blocks)))
    return tuple(fillings)


def _correspond(
    source: nn.Module,
    target: nn.Module,
    wirings: list[Wiring],
    data: Any,
    depth: str,
    names: Mapping[str, Any] | None,
    progress: Progress,
) -> Correspondence:
    if names is not None:
        return Correspondence.by_name(wirings[0], wirings[1], names)
    layers = [Outline(wiring).layers for wiring in wirings]
    if depth == "even" or (depth == "auto" and len(layers[0]) == len(layers[1])) or not all(layers):
        return Correspondence.by_role(*wirings)
    # Blocks are modules, whose outputs show the stream behind them; hidden spaces of a plain network show themselves.
    places = [[_shown_at(layer, wiring) for layer in side] for side, wiring in zip(layers, wirings, strict=True)]
    recorded = record(
        (source, target),
        WithoutLabels(data),
        (places[0], places[1]),
        wirings=wirings,
        statistics="layerwise",
        pool="mean" if _has_tokens(wirings[0]) else None,
        progress=progress,
    )
    assert recorded.layerwise is not None
    return Correspondence.by_depth(wirings[0], wirings[1], recorded.layerwise)


def _shown_at(layer: str, wiring: Wiring) -> str:
    return layer if layer in wiring.spaces else f"{layer}:output"


def _has_tokens(wiring: Wiring) -> bool:
    """Whether activations have positions beside the batch."""
    return any(len(axes) > 2 for axes in wiring.activations.values())


def _has_equal_heads(correspondence: Correspondence) -> bool:
    """Whether blocks inside spaces come in the same numbers in both networks, and are alike where they cannot be mixed.

    The angles of rotary positions belong to the size of a head: between other sizes no map of a head keeps to them.
    """
    for pair in correspondence.spaces:
        source, target = correspondence.source.spaces[pair.source], correspondence.target.spaces[pair.target]
        blocks = [
            [wiring.spaces[name].size for name in space.within]
            for wiring, space in ((correspondence.source, source), (correspondence.target, target))
        ]
        mixed = all(each.group in (Group.INVERTIBLE, Group.ORTHOGONAL) for each in (source, target))
        if blocks[0] != blocks[1] or (source.within and not mixed and source.size != target.size):
            return False
    return True


def _shares_outputs(networks: Sequence[nn.Module], inputs: Any, outputs: str) -> bool:
    """Whether the networks' answers, logits where they have some, are of one shape and may mean the same."""
    if outputs == "own":
        return False
    with torch.no_grad():
        answers = [find_logits(_outputs_of_few(network, inputs)) for network in networks]
    shapes = [None if answer is None else tuple(answer.shape) for answer in answers]
    if outputs == "shared" and shapes[0] != shapes[1]:
        raise DataError(
            f"Outputs were said to be shared, but those of the source have shape {shapes[0]} and those of the target "
            f"{shapes[1]}; take outputs='own'."
        )
    return shapes[0] is not None and shapes[0] == shapes[1]


def _outputs_of_few(network: nn.Module, inputs: Any) -> Any:
    """What a network answers to two inputs of a batch, which have the shapes that all have; to all where it must."""
    count = inputs_in(inputs)
    if count > 2:
        try:
            return outputs_of(network, cut_inputs(inputs, slice(2), count), 0)
        except DataError:  # what looked like inputs was something else: tokens, where these come first
            pass
    return outputs_of(network, inputs, 0)


def _is_end(space: Space) -> bool:
    return space.is_fixed and space.because is not None and space.because.kind in BOUNDARY


def _require_wirings_of(correspondence: Correspondence, wirings: list[Wiring]) -> None:
    for side, correspondence_wiring, network_wiring in (
        ("source", correspondence.source, wirings[0]),
        ("target", correspondence.target, wirings[1]),
    ):
        if set(correspondence_wiring.tensors) != set(network_wiring.tensors):
            raise WiringError(
                f"The correspondence is of another network than the {side}: their tensors differ; make it from "
                f"interbasin.wire of this {side}."
            )


def is_observable(wiring: Wiring, name: str) -> bool:
    """Whether some activation shows the whole of a space."""
    try:
        choose_reading(wiring, name)
    except WiringError:
        return False
    return True


def writers_of(wiring: Wiring, space: str) -> set[str]:
    """The modules whose matrices write a space."""
    return {
        name.rpartition(".")[0]
        for axis in wiring.spaces[space].writes
        for name in [axis.rpartition("[")[0]]
        if sum(size > 1 for size in wiring.tensors[name].shape) > 1
    }
