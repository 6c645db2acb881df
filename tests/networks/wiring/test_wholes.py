"""The map of a whole space is what its activations go through."""

from __future__ import annotations

import pytest
import torch
from tests.networks.recording.examples import by_hand, llama, mlp, numbers, rows_of, texts

import interbasin as ib
from interbasin.errors import UnknownNameError
from interbasin.maps import Identity
from interbasin.networks.wiring import Alignment
from interbasin.networks.wiring.wholes import whole_map


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heads_that_change_places_take_their_maps_along(seed):
    model, batch = llama(), texts()[0]
    wiring = ib.wire(model, batch)
    alignment = wiring.sample(seed)
    carried = ib.carry(model, alignment)
    name = "model.layers.0.self_attn.v_proj"
    assert wiring.spaces[name].within
    before, after = (rows_of(by_hand(one, [batch], name)) for one in (model, carried))
    torch.testing.assert_close(whole_map(alignment, name)(before), after)
    only_heads = Alignment(wiring, {n: m for n, m in alignment.maps.items() if n in wiring.spaces[name].within})
    after = rows_of(by_hand(ib.carry(model, only_heads), [batch], name))
    torch.testing.assert_close(whole_map(only_heads, name)(before), after)


def test_a_space_without_blocks_has_its_map_and_one_without_a_map_stays():
    model = mlp()
    alignment = ib.wire(model, numbers(4, 5)).sample(0)
    assert whole_map(alignment, "0") is alignment.maps["0"]
    assert whole_map(Alignment(alignment.wiring, {}), "0") == Identity(8)
    with pytest.raises(UnknownNameError, match="no space named 'fc'"):
        whole_map(alignment, "fc")
