r"""Tuned A written into B: an exact copy of a narrower network inside a wider one. No data, and nothing of B is left.

The gains of A's norms go into what reads them first (`fold_norms`), so that the stream may be turned. An isometry then
takes it to directions of B's stream whose entries sum to zero, where B's layer norms see no mean. A norm divides by the
root of the mean square, which is :math:`\sqrt{d_A / d_B}` times as large there, so that B's gains are that number.
Hidden units, heads and the channels of heads that A does not have get zeros. Logits of attention are divided by the
root of the head's width: queries and keys are multiplied by :math:`(h_B / h_A)^{1/4}` each. A norm's bias goes into
what reads it too; where that has no bias (the untied head of a GPT-2), it stays with B's norm, divided by the gain and
turned by the isometry, which comes to the same. What remains is the norms' epsilon, which weighs more in the wider
network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from interbasin.batches import WithoutLabels
from interbasin.correspondence.outline import Outline
from interbasin.correspondence.pairs import expand, tensor_of
from interbasin.errors import InterbasinError, WiringError
from interbasin.jobs.transport.bases import Bases, Pair
from interbasin.jobs.transport.methods import as_update
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.theseus.carrier import Carrier
from interbasin.jobs.transport.theseus.rules import SpaceMap
from interbasin.jobs.transport.updates.update import Update
from interbasin.maps import Blocks, Identity, Linear, Map
from interbasin.text import list_names
from interbasin.wiring.axes.spaces import In, Role
from interbasin.wiring.check import difference
from interbasin.wiring.folding import fold_norms, folding_of
from interbasin.wiring.trace.copying import copied

# How far outputs may be from tuned A's, relative to them: what the epsilon of norms does, and no more.
EXACT = 1e-2
_WHY = "written into the target as it is"


def written_in(task: Task, variant: str) -> Transported:
    """The target with tuned A in it: B computes what tuned A does, and nothing of its own.

    Raises:
        WiringError: If B has no room for A, or the result does not compute what tuned A does; says why.
    """
    inputs = WithoutLabels(task.data).first()
    bases = task.bases.with_heads
    if not bases.shares_outputs:
        raise _refusal("the networks' outputs are their own")
    folded = _fold_all(task.tuned, inputs)
    if folded.homeless:
        folded = _fold_all_but_biases(task.tuned, inputs, folded.norms, bases)
    maps = _embeddings(bases, folded.norms)
    state = {
        name: tensor.detach()
        for name, tensor in folded.model.state_dict().items()
        if tensor.is_floating_point() and name in bases.wirings[0].tensors
    }
    carried = Carrier(bases, maps).carry(Update(dense=state, label="tuned A"))
    lost = [f"{row.source} ({row.reason})" for row in carried.moved if row.status == "skipped" and row.share > 0]
    if lost or folded.homeless:
        raise _refusal(f"some of A has no place there: {list_names([*lost, *folded.homeless])}")
    gains = _gains(bases, folded.norms, maps, folded.shifts)
    tensors = {name: carried.update.tensor(name) for name in carried.update} | gains
    model = copied(task.bases.target).eval()
    target_state = model.state_dict()
    wiring = bases.wirings[1]
    missing = [
        name for name, tensor in target_state.items() if tensor.is_floating_point() and name not in wiring.constants
    ]
    missing = [name for name in missing if name not in tensors and wiring.tied.get(name, name) not in tensors]
    if missing:
        raise _refusal(f"A has nothing for {list_names(missing)}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            target_state[name].copy_(tensor.to(target_state[name]))
    gap = difference(task.tuned, model, inputs)
    if not gap <= EXACT:
        reason = f" (its norms were not folded: {folded.why_not})" if folded.why_not else ""
        raise _refusal(f"what comes out differs from tuned A's outputs by {gap:.1e}{reason}")
    note = f"Tuned A written into the target: nothing of the target is left. Outputs differ by {gap:.1e}."
    return Transported(as_update(model, task.bases.target), carried.moved, notes=(note,))


def _refusal(why: str) -> WiringError:
    return WiringError(f"Tuned A cannot be written into the target: {why}; leave written-in out.")


@dataclass(frozen=True, eq=False)
class _FoldedNetwork:
    """Tuned A without gains.

    Attributes:
        model: The network.
        norms: Which of its norms have no gain any more.
        new: Biases that folding made.
        why_not: Why nothing was folded.
        shifts: Biases of norms that were not folded, divided by the gains that were.
    """

    model: nn.Module
    norms: frozenset[str] = frozenset()
    new: tuple[str, ...] = field(default=())
    why_not: str = ""
    shifts: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def homeless(self) -> list[str]:
        """Biases that folding made, and for which the target has no tensor."""
        state = self.model.state_dict() if self.new else {}
        return [name for name in self.new if bool(state[name].any())]


def _fold_all(tuned: nn.Module, inputs: object) -> _FoldedNetwork:
    """Tuned A with the gains and biases of its norms folded into what reads them."""
    try:
        model = fold_norms(copied(tuned).eval(), inputs)  # type: ignore[arg-type]
    except InterbasinError as error:  # a network without norms needs none; others fail when outputs are compared
        return _FoldedNetwork(tuned, why_not=str(error).rstrip("."))
    done = folding_of(model)
    assert done is not None
    spelled = [name for name, each in done.replaced.items() if each.kind not in ("unit", "nothing")]
    if spelled:
        raise _refusal(f"the gain of {list_names(spelled)} has no linear layer behind it to go into")
    norms = frozenset(name for name, each in done.replaced.items() if each.kind == "unit")
    return _FoldedNetwork(model, norms, tuple(f"{name}.bias" for name in done.biases))


def _fold_all_but_biases(tuned: nn.Module, inputs: object, norms: Iterable[str], bases: Bases) -> _FoldedNetwork:
    """Tuned A without gains; its norms keep biases that the target's have a place for: ``g u + b = g (u + b / g)``."""
    model, shifts = copied(tuned).eval(), {}
    paired = {pair.source for pair in expand(bases.correspondence.tensors, *bases.wirings)}
    for name in norms:
        module = model.get_submodule(name)
        gain, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if f"{name}.bias" not in paired or not isinstance(gain, Tensor) or not isinstance(bias, Tensor):
            continue
        if bool((gain != 0).all()):
            shifts[f"{name}.bias"] = bias.detach().double() / gain.detach().double()
            with torch.no_grad():
                bias.zero_()
    return replace(_fold_all(model, inputs), shifts=shifts)


# ---------------------------------------------------------------------- where A lies in B


def _embeddings(bases: Bases, norms: Iterable[str]) -> dict[Pair, SpaceMap]:
    """The isometry of every pair of spaces."""
    source, target = bases.wirings
    axes = [axis for name in _tensors_in(source.tensors, norms) for axis in tensor_of(source, name).axes]
    streams = {axis.space for axis in axes if isinstance(axis, In)}
    roles = Outline(target).roles
    maps: dict[Pair, SpaceMap] = {}
    for entry in bases.correspondence.spaces:
        pair = entry.source, entry.target
        ours, theirs = bases.spaces(pair)
        if entry.share != 1:
            raise _refusal("the networks are not equally deep")
        if bases.is_shared(pair):
            maps[pair] = SpaceMap(Identity(ours.width), ours.width, ours.width, _WHY)
            continue
        if ours.size > theirs.size or ours.blocks > theirs.blocks:
            sizes = [
                f"{space.blocks} x {space.size}" if space.blocks > 1 else f"{space.size}" for space in (ours, theirs)
            ]
            raise _refusal(f"{pair[0]!r} has {sizes[0]} units, and {pair[1]!r} only {sizes[1]}")
        matrix = _zero_mean(ours.size, theirs.size) if pair[0] in streams else _corner(ours.size, theirs.size)
        reads: Map | None = None
        role = roles.get(pair[1])
        if ours.within and role is not None and role.compared:
            matrix = matrix * (theirs.size / ours.size) ** 0.25
            reads = Blocks([Linear(matrix)] * ours.blocks)
        written: Map = Blocks([Linear(matrix)] * ours.blocks) if ours.within else Linear(matrix)
        maps[pair] = SpaceMap(written, ours.width, ours.width, _WHY, reads)
    return maps


def _tensors_in(names: Iterable[str], modules: Iterable[str]) -> list[str]:
    """The tensors that some modules hold."""
    owners = set(modules)
    return [name for name in names if name.rpartition(".")[0] in owners]


def _corner(source: int, target: int) -> Tensor:
    return torch.eye(target, source, dtype=torch.float64)


def _zero_mean(source: int, target: int) -> Tensor:
    """Orthonormal columns that sum to zero each (Helmert's); the identity for equal widths."""
    if source == target:
        return _corner(source, target)
    steps = torch.arange(1, source + 1, dtype=torch.float64)
    columns = torch.triu(torch.ones(target, source, dtype=torch.float64))
    columns[torch.arange(source) + 1, torch.arange(source)] = -steps
    return columns / (steps * (steps + 1)).sqrt()


def _gains(
    bases: Bases, norms: Iterable[str], maps: Mapping[Pair, SpaceMap], shifts: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What B's norms hold: the ratio of sizes as gain, and no bias but those that were not folded, turned."""
    source, target = bases.wirings
    norm_tensors: dict[str, Tensor] = {}
    modules: set[str] = set()
    for pair in expand(bases.correspondence.tensors, source, target):
        if pair.source not in _tensors_in([pair.source], norms):
            continue
        ours, theirs = tensor_of(source, pair.source), tensor_of(target, pair.target)
        axis = theirs.axes[-1]
        is_gain = isinstance(axis, In) and axis.role is Role.SCALE
        ratio = math.sqrt(ours.shape[-1] / theirs.shape[-1]) if is_gain else 0.0
        norm_tensors[pair.target] = torch.full(theirs.shape, ratio, dtype=torch.float64)
        if pair.source in shifts and isinstance(axis, In) and isinstance(own := ours.axes[-1], In):
            norm_tensors[pair.target] = maps[own.space, axis.space].map(shifts[pair.source])
        modules.add(pair.target.rpartition(".")[0])
    for name in _tensors_in(target.tensors, modules):  # a bias that A's norms do not have
        norm_tensors.setdefault(name, torch.zeros(tensor_of(target, name).shape, dtype=torch.float64))
    return norm_tensors
