"""Every method on small networks: what is exact stays the same function, what is approximate comes closer."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.rebasin.networks_to_match import GENERIC, Attention, generic, mlp
from tests.profiles import at_most
from torch import nn

import interbasin as ib
from interbasin.jobs.rebasin import METHODS
from interbasin.wiring.folding import fold_norms

pytestmark = pytest.mark.slow

SEEDS = st.integers(0, 2**20)


def tokens(count: int = 6) -> list[torch.Tensor]:
    return [torch.randint(0, 40, (8, 7), generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in network.parameters()])


def test_activations_find_what_was_planted_in_a_transformer():
    source = generic(Attention(), 0)
    data = tokens()
    wiring = ib.wire(source, data[0])
    # Activations tell isometries: heads and what is in them, places of the stream, units of the feed-forward layers.
    movable = {
        name: one for name, one in wiring.sample(seed=1).maps.items() if str(wiring.spaces[name].group) == "permutation"
    }
    target = ib.carry(source, ib.Alignment(wiring, movable))
    found = ib.rebasin(source, target, data[0], method="permutation-activations", data=data)
    assert found.metrics["exact"] == 1
    assert found.metrics["distance_after"] < 0.05 * found.metrics["distance_before"]
    with torch.no_grad():
        assert torch.allclose(found.model(data[0]), source(data[0]), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["procrustes-activations", "procrustes-weights+activations"])
def test_a_folded_stream_is_found_by_activations(method):
    source = fold_norms(generic(Attention(), 0), tokens(1)[0])
    data = tokens()
    wiring = ib.wire(source, data[0])
    stream = next(name for name, space in wiring.spaces.items() if str(space.group) == "orthogonal")
    planted = ib.Alignment(wiring, {stream: wiring.sample(seed=2).maps[stream]})
    found = ib.rebasin(source, ib.carry(source, planted), data[0], method=method, data=data)
    assert found.metrics["exact"] == 1
    torch.testing.assert_close(
        found.alignment.maps[stream].matrix.float(), planted.maps[stream].matrix.float(), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("variant", ["layerwise", "joint"])
def test_descent_ends_where_procrustes_does_or_near(variant):
    rows = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    # More inputs than units, so that the first space is determined by what writes it.
    source, target = generic(mlp(16, 12, 5), 0), generic(mlp(16, 12, 5), 1)
    found = ib.rebasin(source, target, rows, method="stiefel", variant=variant)
    wanted = ib.rebasin(
        source, target, rows, method="procrustes-weights", variant="sequential" if variant == "layerwise" else None
    )
    # A joint descent keeps the sides of its start, a sweep may change them.
    near = 1e-3 if variant == "layerwise" else 0.03
    assert found.metrics["objective"] == pytest.approx(wanted.metrics["objective"], rel=near)
    assert found.metrics["converged"] == 1 and found.path[-1] <= found.path[0]


@pytest.mark.parametrize(("method", "variant"), [(one.name, name) for one in METHODS.values() for name in one.variants])
def test_every_variant_gives_a_network_and_true_figures(method, variant):
    source, target = generic(mlp(10, 16, 16, 5), 0), generic(mlp(10, 16, 16, 5), 1)
    drawn = torch.Generator().manual_seed(0)
    data = [(torch.randn(32, 10, generator=drawn), torch.randint(0, 5, (32,), generator=drawn)) for _ in range(3)]
    found = ib.rebasin(source, target, method=method, variant=variant, data=data, epochs=1, points=3, finetune=1)
    assert found.request["variant"] == variant
    assert found.metrics["exact"] == found.alignment.is_exact
    if found.alignment.is_exact:
        assert abs(found.metrics["delta_loss_self"]) < 1e-4
    if "activations" not in method:  # which bring activations closer, not weights
        assert found.metrics["distance_after"] < found.metrics["distance_before"]
    aligned = ib.carry(source, found.alignment)
    distance = float((flat(aligned) - flat(target)).norm())
    assert found.metrics["distance_after"] == pytest.approx(distance, rel=1e-5)
    # What comes back is the fine-tuned network, which is another.
    assert not torch.equal(flat(aligned), flat(found.model))
    assert set(found.curves) == {"none", method, f"{method}, fine-tuned"}


def test_straight_through_turns_spaces_where_that_is_asked():
    source, target = generic(mlp(10, 16, 5), 0), generic(mlp(10, 16, 5), 1)
    drawn = torch.Generator().manual_seed(0)
    data = [(torch.randn(32, 10, generator=drawn), torch.randint(0, 5, (32,), generator=drawn)) for _ in range(2)]
    found = ib.rebasin(source, target, method="straight-through", data=data, epochs=2, reach="orthogonal", sweeps=5)
    assert not found.alignment.is_exact and found.metrics["objective"] == min(found.path)
    assert all(isinstance(one, ib.maps.Orthogonal) for one in found.alignment.maps.values())


@pytest.mark.slow
def test_folded_networks_are_saved_and_built_again(tmp_path, monkeypatch):
    (tmp_path / "folded_nets.py").write_text(
        "import torch\nfrom tests.jobs.rebasin.networks_to_match import Attention\n\n"
        "def small():\n    return Attention(), torch.zeros(2, 7, dtype=torch.long)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source, target = generic(Attention(), 0), generic(Attention(), 1)
    batch = tokens(1)[0]
    found = ib.rebasin(source, target, batch, stay_in_class=False)
    assert found.metrics["exact"] == 1 and found.target is not target
    found.save("out")
    for name, network in (("model", found.model), ("target", found.target)):
        built = ib.models.load_model(f"folded_nets:small@out/{name}").model
        assert torch.equal(flat(built), flat(network))
        assert torch.allclose(built(batch), (source if name == "model" else target)(batch), atol=1e-4)


def test_repair_brings_back_the_spread_between_aligned_networks():
    source, target = generic(mlp(10, 32, 32, 5), 0), generic(mlp(10, 32, 32, 5), 1)
    rows = torch.randn(256, 10, generator=torch.Generator().manual_seed(0))
    found = ib.rebasin(source, target, rows, method="permutation-weights")
    middle = ib.interpolate(found.model, target, 0.5)
    repaired = ib.batch_norm.repair(middle, found.model, target, 0.5, [rows])
    wanted = (found.model(rows).std(0) + target(rows).std(0)) / 2
    assert (repaired(rows).std(0) - wanted).norm() < 1e-3 * (middle(rows).std(0) - wanted).norm()


@at_most(15)
@given(SEEDS, st.lists(st.integers(3, 14), min_size=1, max_size=3))
def test_a_planted_symmetry_is_recovered(seed, widths):
    source = generic(mlp(6, *widths, 4), seed)
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    target = ib.carry(source, ib.wire(source, rows).sample(seed=seed + 1))
    found = ib.rebasin(source, target, rows, method="permutation-weights", seed=seed)
    assert found.metrics["distance_after"] <= 1e-5 * float(flat(target).norm())


@at_most(15)
@given(SEEDS, st.sampled_from(["mlp", "odd mlp", "linear in the middle", "residual", "attention"]))
def test_exact_alignments_leave_the_function(seed, name):
    build, inputs = GENERIC[name]
    source, target = generic(build(), seed), generic(build(), seed + 1)
    found = ib.rebasin(source, target, inputs(), method="permutation-weights", seed=seed)
    assert found.alignment.is_exact
    with torch.no_grad():
        before, after = source(inputs()), found.model(inputs())
    assert (after - before).norm() <= 1e-4 * before.norm()


@at_most(15)
@given(
    SEEDS,
    st.sampled_from(["permutation-weights", "procrustes-weights", "stiefel"]),
    st.lists(st.integers(2, 12), min_size=1, max_size=3),
)
def test_the_objective_never_rises(seed, method, widths):
    source, target = (generic(mlp(6, *widths, 4), one) for one in (seed, seed + 1))
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    variant = "joint" if method == "stiefel" else None
    found = ib.rebasin(source, target, rows, method=method, variant=variant, seed=seed, sweeps=20)
    # From the start on: the start itself takes what is known first, and may stand higher than no map at all.
    swept = found.path[1:]
    assert all(later <= before * (1 + 1e-9) + 1e-9 for before, later in pairwise(swept))
    assert found.metrics["objective"] == found.path[-1]


def test_no_network_changes():
    source, target = (generic(mlp(10, 12, 12, 5), seed) for seed in range(2))
    kept = [flat(source), flat(target)]
    data = [(GENERIC["mlp"][1](), torch.tensor([0, 1, 2, 3, 4, 0]))]
    found = ib.rebasin(source, target, data=data, finetune=1, points=3)
    assert torch.equal(flat(source), kept[0]) and torch.equal(flat(target), kept[1])
    pairs = zip(found.model.parameters(), source.parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)
