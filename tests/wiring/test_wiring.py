"""What a wiring draws: random maps that change nothing, and among them those that keep lengths."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.wiring.known_networks import (
    attention,
    between,
    fused_attention,
    normed,
    rotary_halves,
    rotary_pairs,
    rows,
)
from torch import Tensor, nn

from interbasin.maps import Linear
from interbasin.wiring import Group, Wiring, wire

# One network for each group that a space can have, and heads in every usual layout.
NETWORKS = {
    "linear": (between(lambda x: x), rows(4)),
    "odd": (between(torch.tanh), rows(4)),
    "relu": (between(torch.relu), rows(4)),
    "norm": (normed(nn.RMSNorm(8, elementwise_affine=False)), rows(4)),
    "heads": (attention(), rows(5, 12)),
    "grouped heads": (attention(shared=2), rows(5, 12)),
    "rotary": (attention(turn=rotary_halves), rows(5, 12)),
    "grouped heads, rotary": (attention(shared=2, turn=rotary_pairs), rows(5, 12)),
    "normed heads": (attention(norm=True), rows(5, 12)),
    "fused": (fused_attention("thirds"), rows(5, 12)),
    "fused by head": (fused_attention("heads 3 channels"), rows(5, 12)),
}


@cache
def wired(name: str) -> tuple[nn.Module, Tensor, Wiring]:
    network, inputs = NETWORKS[name]
    return network, inputs, wire(network, inputs)


@given(st.sampled_from(sorted(NETWORKS)), st.integers(0, 2**31))
def test_isometric_maps_are_orthogonal_and_change_nothing(name: str, seed: int) -> None:
    network, inputs, wiring = wired(name)
    alignment = wiring.sample(seed, isometric=True)
    assert alignment.maps.keys() == wiring.sample(seed).maps.keys()
    for mapping in alignment.maps.values():
        identity = torch.eye(mapping.source_width, dtype=torch.float64)
        torch.testing.assert_close(mapping.matrix.double() @ mapping.matrix.double().mT, identity)
        assert mapping.is_isometric
    assert alignment.is_exact
    assert wiring.check(network, inputs, alignment=alignment) < 1e-9


def test_the_networks_have_every_group() -> None:
    groups = {space.group for name in NETWORKS for space in wired(name)[2].spaces.values()}
    assert groups == set(Group) - {Group.ROTATION}  # rotary positions with a norm of lengths: see test_groups


def test_without_a_word_maps_are_drawn_from_the_whole_group() -> None:
    wiring = wired("heads")[2]
    assert all(isinstance(block, Linear) for block in wiring.sample(1).maps["v"].maps)
    assert all(block.is_isometric for block in wiring.sample(1, isometric=True).maps["v"].maps)


def test_a_space_alone_has_the_map_that_it_has_among_all() -> None:
    wiring = wired("rotary")[2]
    assert wiring.sample(3, ["v"], isometric=True).maps["v"] == wiring.sample(3, isometric=True).maps["v"]
    with pytest.raises(TypeError):
        wiring.sample(3, ["v"], True)
