"""All measures of two networks at once: they are those of the single measures, and they are left in one folder."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from tests.test_storage import left_in, refused
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, WiringError
from interbasin.evaluate import alignment_error, barrier, cka, distance
from interbasin.jobs.comparison import compare_networks
from interbasin.wiring import Alignment


def network(seed: int, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 3))


def batches(seed: int = 0, count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(20, 4, generator=generator), torch.randint(3, (20,), generator=generator)) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def found():
    return compare_networks(network(0), network(1), batches(), points=5)


def test_the_figures_are_those_of_the_single_measures(found):
    a, b, data = network(0), network(1), batches()
    way = barrier(a, b, data, points=5)
    wiring = ib.wire(a, data[0][0])
    errors = alignment_error(a, b, Alignment(wiring, {}), data, spaces=["0", "2"])
    expected = {**distance(a, b).metrics, **way.metrics, **errors.metrics}
    expected |= {"loss_a": way.loss[0], "loss_b": way.loss[-1]}
    assert way.accuracy is not None
    expected |= {"accuracy_a": way.accuracy[0], "accuracy_b": way.accuracy[-1]}
    assert dict(found.metrics) == pytest.approx(expected)
    assert torch.equal(found.similarity.matrix, cka(a, b, data).matrix)
    assert set(found.timings) == {"barrier", "alignment error", "cka", "pca"} and found.notes == ()


def test_what_was_measured_is_left_in_one_folder(found, tmp_path):
    outcome = found.save(tmp_path / "out", request={"points": 5, "seed": 1}, inputs={"data": "digits"})
    assert dict(outcome.metrics) == dict(found.metrics) and outcome.seed == 1
    assert outcome.table("path") == found.barrier.curve
    assert outcome.table("spaces")["space"] == ["0", "2"]
    layers = outcome.table("layers")
    assert layers["a"] == ["0", "0", "2", "2"] and layers["cka"] == found.similarity.matrix.flatten().tolist()
    points = outcome.table("activations-1-points")
    assert points["network"] == ["A"] * 60 + ["B"] * 60
    assert torch.tensor([points["first"], points["second"]]).T.allclose(
        torch.cat(list(found.coordinates["0"].coordinates.values())).float()
    )
    names = ["accuracy", "activations-1", "activations-2", "alignment-error", "cka", "loss"]
    assert [name for name in left_in(tmp_path / "out") if name.endswith(".svg")] == [f"{name}.svg" for name in names]
    assert all(outcome.path(name).read_text("utf-8").startswith("<svg") for name in names)
    outcome.verify()


def test_without_labels_there_is_no_barrier_and_it_is_said(tmp_path):
    found = compare_networks(network(0), network(1), [inputs for inputs, _ in batches()])
    assert found.barrier is None and not any(name.startswith(("barrier", "loss")) for name in found.metrics)
    assert {"distance", "alignment_error.0"} <= set(found.metrics)
    assert [warning for warning in found.notes if "no labels" in warning]
    found.save(tmp_path / "out")
    assert "loss.svg" not in left_in(tmp_path / "out")


def test_the_original_and_its_alignment_give_the_figures_against_it():
    b, data = network(1), batches()
    alignment = ib.wire(b, data[0][0]).sample(seed=3)
    a = ib.carry(b, alignment.inverse())  # so that the alignment carries a to b exactly
    aligned = ib.carry(a, alignment)
    found = compare_networks(aligned, b, data, points=3, original=a, alignment=alignment)
    assert abs(found["barrier_original"]) < 1e-5 and found["loss_original"] == pytest.approx(found["loss_b"], abs=1e-5)
    assert found["alignment_error_relative.0"] < 1e-5 and found["cosine_after.0"] > 0.9999 > found["cosine_before.0"]
    assert set(found.coordinates["0"].coordinates) == {"A before", "A", "B"}


def test_an_alignment_of_another_network_is_refused():
    a, b, data = network(0), network(1), batches()
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    words = ("The alignment moves 2.weight in shape (3, 8)", "Sequential has it in shape (6, 8)", "alignment=")
    found = ib.wire(other, data[0][0]).sample(seed=0)
    refused(lambda: compare_networks(a, b, data, original=a, alignment=found), WiringError, words)
    named = ib.wire(nn.Sequential(*(nn.Identity() for _ in range(7)), *other), data[0][0]).sample(seed=0)
    words = ("The alignment moves 7.weight", "Sequential does not have it")
    refused(lambda: compare_networks(a, b, data, alignment=named), WiringError, words)


def test_the_seconds_are_those_of_the_measuring_too(found, tmp_path):
    outcome = found.save(tmp_path / "out")
    assert outcome.seconds >= sum(found.timings.values())


def test_cycle_consistency_is_measured_where_something_aligns():
    class Aligned:
        def __init__(self, source: nn.Module) -> None:
            self.model, self.alignment = source, Alignment(ib.wire(source, batches()[0][0]), {})

    found = compare_networks(network(0), network(1), batches(), points=2, align=lambda source, target: Aligned(source))
    assert found["cycle_frne"] == 0 and found["cycle_loss"] == 0 and "cycle" in found.timings


def test_a_network_that_cannot_be_wired_is_measured_as_far_as_it_goes():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if float(x.detach().sum()) > -math.inf else x

    found = compare_networks(Odd(), Odd(), batches(), points=2)
    assert found.errors is None and found.similarity is None and found.coordinates == {}
    assert "barrier" in found.metrics and any("Spaces were not compared" in one for one in found.notes)
    flat = compare_networks(nn.Linear(4, 3), nn.Linear(4, 3), batches(), points=2)
    assert any("none of them moves" in one for one in flat.notes)


def test_batch_norms_that_were_interpolated_are_warned_of():
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    assert any(
        "interpolated like weights" in one for one in compare_networks(normed(), normed(), batches(), points=3).notes
    )
    reset = compare_networks(normed(), normed(), batches(), points=3, reset=batches(1))
    assert not any("interpolated like weights" in one for one in reset.notes)
    (told,) = [one for one in reset.notes if "batch norms" in one]
    assert "at every point between the ends, on 3 batches;" in told and "the ends keep their own" in told
    assert reset.request == {"points": 3, "path": "lerp", "reset": True}


def test_progress_grows_to_one():
    told: list[float] = []
    compare_networks(network(0), network(1), batches(), points=4, progress=told.append)
    assert told == sorted(told) and told[-1] == 1.0 and len(told) > 6


def test_a_measure_that_fails_is_a_warning(monkeypatch):
    def fail(*arguments: object, **keywords: object) -> None:
        raise DataError("There is nothing to see.")

    monkeypatch.setattr(sys.modules["interbasin.jobs.comparison"], "cka", fail)
    found = compare_networks(network(0), network(1), batches(), points=2)
    assert found.similarity is None and "CKA was not measured: There is nothing to see." in found.notes
