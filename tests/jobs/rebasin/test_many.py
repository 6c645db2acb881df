"""Many networks: to one reference, and to a universe in which every cycle closes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.jobs.rebasin.networks_to_match import GENERIC, generic, mlp

import interbasin as ib
from interbasin.evaluate import cycle_errors


def family(name: str, count: int, noise: float) -> tuple[list[torch.nn.Module], torch.Tensor]:
    build, inputs = GENERIC[name]
    first = generic(build(), 0)
    wiring = ib.wire(first, inputs())
    made = [first, *(ib.carry(first, wiring.sample(seed=seed)) for seed in range(1, count))]
    with torch.no_grad():
        for seed, network in enumerate(made):
            drawn = torch.Generator().manual_seed(seed)
            for tensor in network.parameters():
                tensor.add_(noise * torch.randn(tensor.shape, generator=drawn))
    return made, inputs()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "residual", "attention"])
@pytest.mark.parametrize("reference", [None, 1])
def test_what_was_planted_falls_together(name, reference):
    networks, inputs = family(name, 3, 0.0)
    found = ib.rebasin_many(networks, inputs, reference=reference)
    assert found.converged
    assert found.spread[-1] < 1e-8 * found.spread[0]
    for network, model in zip(networks, found.models, strict=True):
        assert torch.allclose(model(inputs), network(inputs), atol=1e-4)


@pytest.mark.parametrize("method", ["permutation-weights", "procrustes-weights"])
def test_every_cycle_closes_in_the_universe(method):
    networks = [generic(mlp(10, 16, 16, 5), seed) for seed in range(3)]
    inputs = GENERIC["mlp"][1]()
    found = ib.rebasin_many(networks, inputs, method)
    assert all(later <= before * (1 + 1e-9) for before, later in zip(found.spread[1:], found.spread[2:], strict=False))
    around = found.between(2, 0) @ found.between(1, 2) @ found.between(0, 1)
    errors = cycle_errors(around, ib.Alignment(around.wiring, {})).metrics
    assert max(errors.values()) < 1e-6
    assert found.metrics["spread_after"] < found.metrics["spread_before"]


def test_a_reference_stays_where_it_is():
    networks, inputs = family("mlp", 3, 0.02)
    found = ib.rebasin_many(networks, inputs, reference=2)
    assert all(
        torch.equal(one, other)
        for one, other in zip(found.models[2].parameters(), networks[2].parameters(), strict=True)
    )


def test_a_result_says_whether_the_functions_are_the_same():
    networks, inputs = [generic(mlp(10, 16, 16, 5), seed) for seed in range(3)], GENERIC["mlp"][1]()
    exact = ib.rebasin_many(networks, inputs)
    assert exact.metrics["exact"] == 1 and not exact.notes
    turned = ib.rebasin_many(networks, inputs, "procrustes-weights", rounds=1)
    assert turned.metrics["exact"] == 0 and turned.metrics["converged"] == 0
    assert any("approximate" in note for note in turned.notes) and any("rounds=" in note for note in turned.notes)
    assert str(turned).startswith("JointRebasin(3 x Sequential in their universe, approximate, spread_before=")
    assert str(turned).endswith(", 2 notes)")
    first = ib.rebasin_many(networks, inputs, reference=0)
    assert "in the coordinates of network 0, exact" in repr(first)


def test_networks_that_cannot_move_are_left_as_they_are():
    networks = [torch.nn.Linear(3, 2) for _ in range(2)]
    found = ib.rebasin_many(networks, torch.ones(4, 3))
    assert found.spread[0] == found.spread[-1] and any("No space" in note for note in found.notes)


def test_a_result_is_saved_with_every_network_and_its_maps(tmp_path):
    networks, inputs = family("mlp", 3, 0.02)
    found = ib.rebasin_many(networks, inputs, seed=3)
    assert found.request["seed"] == 3 and set(found.timings) == {"wire", "match"}
    outcome = found.save(tmp_path / "out")
    assert outcome.job == "rebasin-many" and outcome.metrics["spread_after"] == found.metrics["spread_after"]
    assert outcome.table("spread-values")["value"] == list(found.spread)
    for number, model in enumerate(found.models):
        tensors = load_file(tmp_path / "out" / f"network-{number}" / "model.safetensors")
        assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
        loaded = ib.Alignment.load(tmp_path / "out" / f"alignment-{number}")
        assert loaded.maps == found.alignments[number].maps
