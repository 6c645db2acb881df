"""A network that was carried through random exact maps is found again: maps, weights and function."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import GENERIC, Attention, generic
from torch import nn

import interbasin as ib
from interbasin.wiring.folding import fold_norms

pytestmark = pytest.mark.slow


def planted(name: str, seed: int) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    build, inputs = GENERIC[name]
    torch.manual_seed(seed)
    source = generic(build(), seed)
    wiring = ib.wire(source, inputs())
    return source, ib.carry(source, wiring.sample(seed=seed + 1)), inputs()


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(((one - other).norm() / other.norm()).detach())


def require_found(found, target, inputs) -> None:
    assert found.alignment.is_exact
    assert found.metrics["exact"] == 1
    aligned = torch.cat([tensor.flatten() for tensor in found.model.parameters()])
    wanted = torch.cat([tensor.flatten() for tensor in target.parameters()])
    assert relative(aligned, wanted) < 1e-3
    middle = ib.interpolate(found.model, target, 0.5)
    assert relative(middle(inputs), target(inputs)) < 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GENERIC)
def test_weights_find_what_was_planted(name, seed):
    source, target, inputs = planted(name, seed)
    require_found(ib.rebasin(source, target, inputs, method="permutation-weights", seed=seed), target, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_folded_stream_turns_back(seed):
    torch.manual_seed(seed)
    source = generic(Attention(), seed)
    inputs = GENERIC["attention"][1]()
    folded = fold_norms(source, inputs)
    wiring = ib.wire(folded, inputs)
    groups = {str(space.group) for space in wiring.spaces.values()}
    assert "orthogonal" in groups
    target = ib.carry(folded, wiring.sample(seed=seed + 7))
    require_found(ib.rebasin(folded, target, inputs, method="procrustes-weights"), target, inputs)


@pytest.mark.parametrize("name", ["mlp", "residual", "attention"])
def test_small_noise_on_the_target_does_not_hide_it(name):
    source, target, inputs = planted(name, 3)
    with torch.no_grad():
        for tensor in target.parameters():
            tensor.add_(0.01 * tensor.std() * torch.randn_like(tensor)) if tensor.numel() > 1 else None
    found = ib.rebasin(source, target, inputs, method="permutation-weights")
    assert found.metrics["distance_after"] < 0.05 * found.metrics["distance_before"]


@pytest.mark.parametrize("variant", ["pre", "post"])
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_activations_find_permutations(name, variant):
    source, target, inputs = planted(name, 5)
    data = [torch.randn(64, *inputs.shape[1:], generator=torch.Generator().manual_seed(batch)) for batch in range(4)]
    require_found(
        ib.rebasin(source, target, inputs, method="permutation-activations", variant=variant, data=data),
        target,
        inputs,
    )


def test_orthogonal_maps_behind_a_non_linearity_are_said_to_be_approximate():
    build, rows = GENERIC["mlp"]
    source, target = generic(build(), 0), generic(build(), 1)
    found = ib.rebasin(source, target, rows())
    assert not found.alignment.is_exact
    assert found.metrics["exact"] == 0
    assert any("approximate" in note for note in found.notes)
    exact = ib.rebasin(source, target, rows(), reach="exact")
    assert exact.alignment.is_exact
    assert exact.metrics["distance_after"] >= found.metrics["distance_after"]
