"""Heads read as one flat space: the same tensors, fewer blocks, and every map that could be said before."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.profiles import at_most
from tests.wiring.known_networks import (
    CHANNELS,
    HEADS,
    WIDTH,
    Written,
    attention,
    between,
    fused_attention,
    parameter,
    rotary_halves,
    rotary_pairs,
    rows,
)
from tests.wiring.programs import Program
from tests.wiring.test_random_networks import networks
from torch import Tensor, nn

from interbasin.activations import record
from interbasin.fit import procrustes
from interbasin.maps import Identity, Linear, Map, Orthogonal
from interbasin.wiring import Alignment, Group, Wiring, carry, wire
from interbasin.wiring.axes.notation import line
from interbasin.wiring.axes.spaces import Axis, Each, Grid, In, Reason, Role, Row, Still, narrow
from interbasin.wiring.mover import Mover

CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, CHANNELS)).transpose(1, 2)


def shared_by_all() -> Written:
    """One head of keys and values for all queries."""

    def run(self: Written, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.q(x)), self.k(x)[:, None], self.v(x)[:, None]
        return self.o(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))

    wide, narrow = nn.Linear(WIDTH, HEADS * CHANNELS), nn.Linear(WIDTH, CHANNELS)
    return Written(run, q=wide, k=narrow, v=nn.Linear(WIDTH, CHANNELS), o=nn.Linear(HEADS * CHANNELS, 2))


def stacked() -> Written:
    """Queries, keys and values from one parameter that has an axis for which of them it is."""

    def run(self: Written, x: Tensor) -> Tensor:
        q, k, v = (heads_of(x @ weight.t()) for weight in self.stack)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return Written(run, stack=parameter(3, HEADS * CHANNELS, WIDTH), o=nn.Linear(HEADS * CHANNELS, 2))


def biased() -> Written:
    """A bias for each head, as tables of relative positions are."""

    def run(self: Written, x: Tensor) -> Tensor:
        q, k, v = (heads_of(layer(x)) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) + self.table.t()[:, None]
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    layers = {name: nn.Linear(WIDTH, HEADS * CHANNELS) for name in "qkv"}
    return Written(run, **layers, table=parameter(5, HEADS), o=nn.Linear(HEADS * CHANNELS, 2))


def long_norms() -> Written:
    """Norms of all queries and of all keys together, with gains."""

    def run(self: Written, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.q_norm(self.q(x))), heads_of(self.k_norm(self.k(x))), heads_of(self.v(x))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    layers = {name: nn.Linear(WIDTH, HEADS * CHANNELS) for name in "qkv"}
    norms = {name: nn.RMSNorm(HEADS * CHANNELS) for name in ("q_norm", "k_norm")}
    return Written(run, **layers, **norms, o=nn.Linear(HEADS * CHANNELS, 2))


def convolved(*, groups: int = 1, norm: bool = False) -> nn.Module:
    """A convolution with groups, or a norm of groups, and a head that reads channels by positions."""
    inside = nn.GroupNorm(2, 8) if norm else nn.Conv1d(8, 8, 1, groups=groups)
    network = nn.Sequential(nn.Conv1d(3, 8, 1), inside, nn.ReLU(), nn.Flatten(), nn.Linear(40, 2))
    return Written(lambda self, x: self.net(x), net=network).double().eval()


def mixer() -> Written:
    """Tokens and channels that are both mixed, and read together at the end."""

    def run(self: Written, x: Tensor) -> Tensor:
        x = torch.relu(self.up(x).transpose(1, 2))
        return self.head(torch.relu(self.tokens(x)).flatten(1))

    return Written(run, up=nn.Linear(3, 6), tokens=nn.Linear(5, 4), head=nn.Linear(24, 2))


X = rows(5, WIDTH)
NETWORKS = {
    "heads": (attention(), X),
    "grouped heads": (attention(shared=2), X),
    "rotary halves": (attention(turn=rotary_halves), X),
    "rotary pairs, grouped": (attention(shared=2, turn=rotary_pairs), X),
    "norms of channels": (attention(norm=True), X),
    "norms of channels, rotary": (attention(norm=True, turn=rotary_halves), X),
    "norms of channels, rotary, grouped": (attention(norm=True, shared=2, turn=rotary_pairs), X),
    "norms of all": (long_norms(), X),
    "one head for all": (shared_by_all(), X),
    "thirds": (fused_attention("thirds"), X),
    "3 heads channels": (fused_attention("3 heads channels"), X),
    "heads 3 channels": (fused_attention("heads 3 channels"), X),
    "heads channels 3": (fused_attention("heads channels 3"), X),
    "stacked": (stacked(), X),
    "bias of heads": (biased(), X),
    "groups of a convolution": (convolved(groups=2), rows(3, 5)),
    "groups of a norm": (convolved(norm=True), rows(3, 5)),
    "tokens by channels": (mixer(), rows(5, 3)),
    "no blocks": (between(torch.relu), rows(4)),
}
HEADED = [name for name in NETWORKS if name not in ("groups of a convolution", "tokens by channels", "no blocks")]


@cache
def wired(name: str) -> Wiring:
    return wire(*NETWORKS[name])


def flat_lines(name: str) -> dict[str, str]:
    return {tensor: line(wiring.axes) for tensor, wiring in wired(name).flattened().tensors.items()}


def semi(target: int, source: int, seed: int = 0) -> Orthogonal:
    tall = torch.randn(max(target, source), min(target, source), generator=torch.Generator().manual_seed(seed))
    q = torch.linalg.qr(tall.double()).Q
    return Orthogonal(q if target >= source else q.mT)


# ---------------------------------------------------------------------- which spaces there are


def test_queries_keys_and_values_have_a_space_each_and_the_output_reads_values() -> None:
    lines = flat_lines("heads")
    assert {name: lines[f"{name}.weight"] for name in "qkvo"} == {
        "q": "q <- input",
        "k": "k <- input",
        "v": "v <- input",
        "o": "output <- v",
    }
    assert (lines["q.bias"], lines["k.bias"]) == ("q", "k")


@pytest.mark.parametrize("name", ["grouped heads", "rotary pairs, grouped"])
def test_values_that_queries_share_are_read_in_a_space_of_their_own(name: str) -> None:
    spaces = wired(name).flattened().spaces
    assert {flat: spaces[flat].width for flat in ("q", "k", "v", "o.input")} == {
        "q": 24,
        "k": 12,
        "v": 12,
        "o.input": 24,
    }
    assert spaces["o.input"].reads == ("o.weight[1]",)


@pytest.mark.parametrize("name", ["thirds", "3 heads channels"])
def test_the_segments_of_a_fused_projection_have_a_space_each(name: str) -> None:
    lines = flat_lines(name)
    assert lines["qkv.weight"].partition(" <- ")[0] == lines["qkv.bias"] == "(qkv.0 + qkv.1 + qkv.2)"
    assert lines["o.weight"] == "output <- qkv.2"


@pytest.mark.parametrize("name", ["heads 3 channels", "heads channels 3"])
def test_segments_inside_each_head_are_one_space_together(name: str) -> None:
    lines = flat_lines(name)
    assert (lines["qkv.weight"], lines["o.weight"]) == ("qkv <- input", "output <- o.input")


def test_segments_on_an_axis_of_their_own_have_a_space_each() -> None:
    assert flat_lines("stacked")["stack"].startswith("(1 + 1 + 1) (stack.0 | stack.1 | stack.2)")


def test_one_head_of_keys_and_values_for_all_queries_is_read_flat_too() -> None:
    wiring = wired("one head for all").flattened()
    assert flat_lines("one head for all")["k.weight"] == "q.2 <- input"  # where keys are written, by their old name
    assert {name: space.width for name, space in wiring.spaces.items() if space.is_flattened} == {
        "q": 12,
        "q.2": 4,
        "v": 4,
        "o.input": 12,
    }


def test_what_has_an_entry_for_each_channel_or_head_keeps_a_space_for_it() -> None:
    assert flat_lines("norms of channels")["k_norm.weight"] == "|q_norm|"
    assert flat_lines("bias of heads")["table"] == "input q.heads"
    assert "q_norm:input:0" in wired("norms of channels").flattened().activations


@pytest.mark.parametrize("name", ["norms of channels, rotary", "norms of channels, rotary, grouped"])
def test_channels_that_cannot_move_in_a_head_are_merged_all_the_same(name: str) -> None:
    lines = flat_lines(name)
    assert "fixed" in {space.describe() for space in wired(name).spaces.values() if space.name.startswith("q")}
    assert [lines[f"{one}.weight"] for one in "qkv"] == ["q <- input", "k <- input", "v <- input"]
    assert (lines["q_norm.weight"], lines["k_norm.weight"]) == ("|q_norm|", "|q_norm|")


def test_gains_of_all_heads_follow_the_space_that_their_norm_is_given() -> None:
    lines = flat_lines("norms of all")
    assert (lines["q_norm.weight"], lines["k_norm.weight"]) == ("|q|", "|k|")


def test_groups_of_a_norm_are_merged_beside_positions() -> None:
    lines = flat_lines("groups of a norm")
    assert (lines["net.1.weight"], lines["net.4.weight"]) == ("|net.0|", "output <- (net.0 5)")


@pytest.mark.parametrize("name", ["groups of a convolution", "tokens by channels", "no blocks"])
def test_what_has_no_blocks_inside_an_axis_stays_as_it_is(name: str) -> None:
    assert wired(name).flattened() is wired(name)


def test_keys_can_be_recorded_as_queries_are() -> None:
    activations = wired("heads").flattened().activations
    assert {place: line(axes) for place, axes in activations.items()} == {
        "q:output:0": "2 5 q",
        "k:output:0": "2 5 k",
        "v:output:0": "2 5 v",
        "o:input:0": "2 5 v",
    }


@pytest.mark.parametrize("name", ["grouped heads", "rotary halves", "thirds"])
def test_a_map_that_was_fitted_on_flat_spaces_is_what_the_network_was_carried_by(name: str) -> None:
    network, _ = NETWORKS[name]
    flat, alignment = wired(name).flattened(), wired(name).sample(1, isometric=True)
    spaces = [space.name for space in flat.spaces.values() if space.is_flattened]
    data = [rows(5, WIDTH) + shift for shift in torch.randn(20, 1, 1, WIDTH, dtype=torch.float64)]
    seen = record((network, carry(network, alignment)), data, spaces, wirings=(flat, flat))
    planted = said_flat(alignment).maps
    for space in spaces:
        if flat.spaces[space].writes and flat.spaces[space].width > WIDTH:
            continue  # a projection of fewer inputs shows too little of it
        fitted = procrustes(seen.moments[space, space])
        assert fitted.residual < 1e-6
        torch.testing.assert_close(fitted.map.matrix, planted[space].matrix, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- what is said of them


@pytest.mark.parametrize("name", HEADED)
def test_flat_spaces_are_approximate_in_every_answer(name: str) -> None:
    (network, inputs), wiring = NETWORKS[name], wired(name).flattened()
    flat = [space for space in wiring.spaces.values() if space.is_flattened]
    for space in flat:
        assert space.group is Group.FIXED and not space.within and space.blocks == 1
        assert space.describe() == f"flat of {space.width}, approximate"
        assert Alignment(wiring, {space.name: Identity(space.width)}).is_exact
        assert not Alignment(wiring, {space.name: semi(space.width, space.width)}).is_exact
    assert {space.name for space in flat}.isdisjoint(wiring.sample().maps)
    assert wiring.coverage < wired(name).coverage
    assert wiring.check(network, inputs) < 1e-9
    assert wiring.check(network, inputs, alignment={"output": Identity(2)}) == 0
    turned = wiring.check(network, inputs, alignment={flat[0].name: semi(flat[0].width, flat[0].width)})
    assert turned > 1e-3  # and check tells how much


@pytest.mark.parametrize("name", NETWORKS)
def test_flattening_twice_is_flattening_once_and_files_change_nothing(name: str, tmp_path: Path) -> None:
    wiring = wired(name).flattened()
    assert wiring.flattened() == wiring
    assert {n: t.shape for n, t in wiring.tensors.items()} == {n: t.shape for n, t in wired(name).tensors.items()}
    wiring.save(tmp_path / "wiring")
    again = Wiring.load(tmp_path / "wiring")
    assert again == wiring and again.flattened() == again
    moved = {n: semi(s.width, s.width) for n, s in wiring.spaces.items() if s.is_flattened}
    Alignment(wiring, moved).save(tmp_path / "alignment")
    assert Alignment.load(tmp_path / "alignment") == Alignment(wiring, moved)


# ---------------------------------------------------------------------- the maps of heads, said flat


def merged(before: Axis, after: Axis) -> Iterator[tuple[Axis, In]]:
    """The leaves of a flattened axis, each with what it was before."""
    if isinstance(before, Each) and not isinstance(after, Each):
        yield from merged(before.parts[0], after)
    elif isinstance(after, In):
        yield before, after
    elif isinstance(after, Each) and not isinstance(before, Each):
        for position, part in enumerate(after.parts):
            yield from merged(narrow(before, after.key, position), part)
    elif isinstance(after, Row | Each | Grid):
        old, new = list(factors(before)), list(after.parts)
        if len(old) > len(new):
            start = next(place for place, part in enumerate(new) if part != old[place])
            stop = start + 1 + len(old) - len(new)
            old[start:stop] = [Grid(tuple(old[start:stop]))]
        for one, other in zip(old, new, strict=True):
            yield from merged(one, other)


def factors(axis: Axis) -> Iterator[Axis]:
    for part in axis.parts:
        yield from factors(part) if isinstance(axis, Grid) and isinstance(part, Grid) else [part]


def said_flat(alignment: Alignment) -> Alignment:
    """The same alignment in the flattened wiring: what each axis that was merged goes through, as one matrix."""
    wiring = alignment.wiring.flattened()
    mover = Mover(alignment.wiring.spaces, alignment.maps)
    maps: dict[str, Map] = {}
    for name, tensor in wiring.tensors.items():
        for before, after in zip(alignment.wiring.tensors[name].axes, tensor.axes, strict=True):
            for axis, leaf in merged(before, after):
                if axis == leaf and leaf.space in alignment.maps:
                    maps[leaf.space] = alignment.maps[leaf.space]
                if axis == leaf or (leaf.role is Role.SCALE and leaf.space in maps):
                    continue
                along = torch.eye(axis.size, dtype=torch.float64)
                moved = Linear(mover.move(along, (axis, Still(axis.size, Reason("position", "")))))
                flat = moved.dual() if leaf.role is Role.READ else moved
                known = maps.setdefault(leaf.space, flat)
                torch.testing.assert_close(known.matrix, flat.matrix, **CLOSE)
    return Alignment(wiring, maps)


@given(st.sampled_from(sorted(NETWORKS)), st.integers(0, 2**31), st.booleans())
def test_heads_that_change_places_with_maps_of_their_own_can_be_said_flat(
    name: str, seed: int, isometric: bool
) -> None:
    network, inputs = NETWORKS[name]
    alignment = wired(name).sample(seed, isometric=isometric)
    flat = said_flat(alignment)
    expected = carry(network, alignment).state_dict()
    for key, tensor in carry(dict(network.state_dict()), flat).items():
        torch.testing.assert_close(tensor, expected[key], **CLOSE)
    assert flat.wiring.check(network, inputs, alignment=flat) < 1e-8


@pytest.mark.slow
@at_most(10)
@given(networks(), st.integers(0, 1000))
def test_any_network_can_be_flattened(program: Program, seed: int) -> None:
    wiring = wire(program, program.example)
    flat = wiring.flattened()
    assert flat.flattened() is flat
    assert Wiring.from_json(flat.to_json()) == flat
    before = dict(program.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in carry(before, Alignment(flat, {})).items())
    assert flat.check(program, program.example, seed=seed) < 1e-8
    expected = carry(before, wiring.sample(seed))
    for name, tensor in carry(before, said_flat(wiring.sample(seed))).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-7, atol=1e-7)
