"""What is recorded of a space follows the space's map: in a network that was carried, the rows are the map's images."""

from __future__ import annotations

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.selection import parameters
from tests.architectures.zoo import ARCHITECTURES
from torch import Tensor

from interbasin.activations import record, standing
from interbasin.wiring.carry import carry
from interbasin.wiring.wire import wire

# Some of these take steps in float32, whatever their weights are in.
TOLERANCE = 1e-5
NAMES = [
    "torch/lenet",
    "torch/gated",
    "torch/lstm-bidirectional",
    "torchvision/shufflenet",
    "timm/resnext",
    "timm/vit",
    "timm/vit-registers",
    "timm/swin",
    "transformers/bert",
    "transformers/gpt2",
    "transformers/llama",
    "transformers/t5",
    "transformers/squeezebert",
]


def doubled(inputs):
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: doubled(value) for name, value in inputs.items()}
    return tuple(doubled(value) for value in inputs)


def whole_map(wiring, maps, name):
    """The matrix of a space with its blocks: what is inside them moves first, then they change places."""
    space = wiring.spaces[name]
    matrix = maps[name].matrix.double() if name in maps else torch.eye(space.width, dtype=torch.float64)
    if not space.within:
        return matrix
    places = torch.eye(1, dtype=torch.float64)
    for position, outer in enumerate(space.within):
        moved = whole_map(wiring, maps, outer)
        # Blocks within blocks bring those that they lie in along.
        nested = wiring.spaces[outer].within == space.within[:position] and position > 0
        places = moved if nested else torch.kron(places, moved)
    return torch.kron(places, torch.eye(space.size, dtype=torch.float64)) @ matrix


@pytest.mark.slow
@pytest.mark.parametrize("name", parameters(NAMES))
def test_rows_of_a_carried_network_are_the_images_of_rows_under_the_map(name):
    network, inputs = ARCHITECTURES[name]()
    network, inputs = randomise(network, 1).double(), doubled(inputs)
    wiring = wire(network, inputs)
    alignment = wiring.sample(seed=3)
    carried = carry(network, alignment)
    for at in ("post", "pre"):
        spaces = list(standing(wiring, at))
        assert spaces
        found = record((network, carried), [inputs], spaces, wirings=(wiring, wiring), at=at, mask=False, grams=True)
        for space in spaces:
            moments = found.moments[space, space]
            matrix = whole_map(wiring, alignment.maps, space)
            gram = moments.gram_source(centered=False)
            for seen, wanted in (
                (moments.cross(centered=False), matrix @ gram),
                (moments.gram_target(centered=False), matrix @ gram @ matrix.mT),
            ):
                assert torch.linalg.matrix_norm(seen - wanted) <= TOLERANCE * torch.linalg.matrix_norm(wanted), space
