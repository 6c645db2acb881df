"""What a result says about itself: what was reset, what was kept exact, what collapsed, and in how few words."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import GENERIC, Attention, Residual, generic, mlp
from torch import nn

import interbasin as ib
from interbasin.outcome import Outcome
from interbasin.wiring.folding import fold_norms


def labelled(*shape: int, classes: int = 5, batches: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [
        (torch.randn(16, *shape, generator=drawn), torch.randint(0, classes, (16,), generator=drawn))
        for _ in range(batches)
    ]


def normed(seed: int) -> nn.Module:
    return generic(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)), seed)


def test_statistics_that_were_reset_are_told_with_the_data():
    data = labelled(6)
    found = ib.rebasin(normed(0), normed(1), method="permutation-weights", data=data, points=3)
    (note,) = [note for note in found.notes if "batch norms" in note]
    assert "between its ends, which keep their own, on 3 batches of the data" in note
    assert found.request["reset"] is True
    middle = ib.merge([found.model, normed(1)], reset=data)
    curve = found.curves["permutation-weights"]
    assert curve.loss[1] == pytest.approx(ib.evaluate.loss(middle, data), abs=1e-6)


def test_statistics_that_were_not_reset_are_told_too():
    found = ib.rebasin(normed(0), normed(1), method="permutation-weights", data=labelled(6), points=3, reset=False)
    assert any("interpolated like weights" in note for note in found.notes)
    assert found.request["reset"] is False
    plain = ib.rebasin(generic(mlp(6, 8, 5), 0), generic(mlp(6, 8, 5), 1), data=labelled(6), points=3)
    assert not any("batch norms" in note for note in plain.notes) and plain.request["reset"] is False


def test_statistics_can_be_reset_on_other_batches():
    data, other = labelled(6), [torch.randn(64, 6, generator=torch.Generator().manual_seed(5)) + 1]
    found = ib.rebasin(normed(0), normed(1), reach="orthogonal", data=data, reset=other)
    assert any("in the aligned network, on 1 batch;" in note for note in found.notes)
    expected = other[0] @ found.model[0].weight.T + found.model[0].bias
    torch.testing.assert_close(found.model[1].running_mean, expected.mean(0), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_method_for_rotations_says_where_it_was_kept_exact():
    images = GENERIC["residual"][1]()
    found = ib.rebasin(generic(Residual(), 0), generic(Residual(), 1), images)
    assert any("norm gains scale them" in note and "reach='orthogonal'" in note for note in found.notes)
    tokens = GENERIC["attention"][1]()
    found = ib.rebasin(generic(Attention(), 0), generic(Attention(), 1), tokens)
    assert any("exact rotations elsewhere" in note for note in found.notes)
    for asked in ({"method": "permutation-weights"}, {"reach": "exact"}, {"reach": "orthogonal"}):
        found = ib.rebasin(generic(Residual(), 0), generic(Residual(), 1), images, **asked)
        assert not any("exact maps, such as" in note for note in found.notes)


def test_an_aligned_network_that_collapsed_is_told():
    source, target = generic(mlp(10, 24, 24, 5), 0), generic(mlp(10, 24, 24, 5), 1)
    with torch.no_grad():
        for place in (0, 2, 4):  # or one class would win for all inputs
            source[place].bias.sub_(1)
    data = [(inputs, source(inputs).argmax(-1)) for inputs, _ in labelled(10)]
    found = ib.rebasin(source, target, data=data, method="procrustes-weights", variant="layerwise")
    assert found.metrics["delta_accuracy_self"] < -0.1
    assert any("points below the source's" in note and "barrier_original" in note for note in found.notes)
    exact = ib.rebasin(source, target, data=data, method="permutation-weights")
    assert not any("points below" in note for note in exact.notes)


def test_straight_through_says_when_it_found_nothing_better():
    build, rows = GENERIC["mlp"]
    source = generic(build(), 0)
    target = ib.carry(source, ib.wire(source, rows()).sample(seed=1))
    data = [(inputs, source(inputs).argmax(-1)) for inputs, _ in labelled(10)]
    found = ib.rebasin(source, target, method="straight-through", data=data, epochs=1)
    assert any(note.startswith("Nothing better was found in 1 pass over the data") for note in found.notes)
    assert found.request["epochs"] == 1


def test_straight_through_lowers_the_loss_of_the_middle_or_says_so():
    source, target = generic(mlp(10, 16, 16, 5), 0), generic(mlp(10, 16, 16, 5), 1)
    found = ib.rebasin(source, target, method="straight-through", data=labelled(10), epochs=3)
    assert found.alignment.is_exact
    said = any(note.startswith("Nothing better") for note in found.notes)
    assert said is (min(found.path) == found.path[0]) and found.metrics["objective"] == min(found.path)


def test_a_result_is_a_short_line(tmp_path):
    found = ib.rebasin(normed(0), normed(1), data=labelled(6), points=3)
    assert repr(found).startswith("Rebasin(Sequential, procrustes-weights, coordinate, ")
    assert len(repr(found)) < 250 and "tensor" not in repr(found)
    found.save(tmp_path / "out")
    outcome = Outcome.load(tmp_path / "out")
    assert "rebasin" in repr(outcome) and "more figures" in repr(outcome) and len(repr(outcome)) < 400
    assert outcome.written()[0] == "model.safetensors" and "." not in outcome.written()


def test_the_alignment_of_an_outcome_is_found_by_its_folder(tmp_path):
    found = ib.rebasin(normed(0), normed(1), torch.randn(4, 6), method="permutation-weights")
    found.save(tmp_path / "out")
    loaded = ib.Alignment.load(tmp_path / "out")
    assert loaded.maps.keys() == found.alignment.maps.keys()
    assert ib.Alignment.load(tmp_path / "out" / "alignment").maps == loaded.maps


def test_one_folded_network_is_matched_where_both_may_be_folded():
    tokens = GENERIC["attention"][1]()
    source, target = generic(Attention(), 0), generic(Attention(), 1)
    folded = fold_norms(target, tokens)
    found = ib.rebasin(source, folded, tokens, stay_in_class=False)
    assert found.target is folded and found.metrics["exact"] == 1


@pytest.mark.parametrize("method", ["permutation-weights", "procrustes-weights", "permutation-activations"])
def test_networks_that_cannot_move_are_measured_and_it_is_said(method):
    data = labelled(6)
    found = ib.rebasin(nn.Linear(6, 5), nn.Linear(6, 5), method=method, data=data, points=3)
    assert found.metrics["exact"] == 1 and found.metrics["distance_before"] == found.metrics["distance_after"]
    assert any(note.startswith("No space of these networks can move") for note in found.notes)
    assert found.metrics["barrier"] == found.metrics["barrier_none"]


def test_maps_from_fewer_rows_than_units_are_told():
    one, other = (generic(mlp(6, 8, 5), seed) for seed in range(2))
    for method in ("permutation-activations", "procrustes-activations"):
        few = ib.rebasin(one, other, method=method, data=[torch.ones(1, 6)])
        assert any(
            "Only 1 row of activations was seen in 0, no more than there are units" in note for note in few.notes
        )
        many = ib.rebasin(one, other, method=method, data=[torch.randn(9, 6)])
        assert not any("arbitrary" in note for note in many.notes)


def test_an_outcome_tells_how_long_the_whole_took(tmp_path):
    one, other = (generic(mlp(6, 8, 5), seed) for seed in range(2))
    found = ib.rebasin(one, other, method="permutation-weights", data=labelled(6), points=3, finetune=1)
    assert set(found.timings) == {"wire", "match", "carry", "measure", "barrier", "fine-tune"}
    found.save(tmp_path / "out")
    outcome = Outcome.load(tmp_path / "out")
    assert outcome.timings.items() >= found.timings.items()
    assert outcome.seconds >= sum(found.timings.values())
