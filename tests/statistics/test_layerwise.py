"""Layers by name: the unknown, the unpaired, and agreement with pairs collected one by one."""

from __future__ import annotations

import math

import pytest
import torch
from tests.test_storage import case, left_in, refused

from interbasin import LayerwiseMoments, PairedMoments
from interbasin.errors import DataError, ShapeError, UnknownNameError
from interbasin.statistics import linear_cka


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SOURCES = {"embed": rows(30, 4, seed=1), "hidden": rows(30, 6, seed=2), "out": rows(30, 2, seed=3)}
TARGETS = {"hidden": rows(30, 5, seed=4) + rows(30, 1, seed=2), "out": SOURCES["embed"][:, :3]}


@pytest.fixture
def moments():
    made = LayerwiseMoments()
    for part in range(0, 30, 10):
        batch = slice(part, part + 10)
        made.update({n: x[batch] for n, x in SOURCES.items()}, {n: y[batch] for n, y in TARGETS.items()})
    return made


def test_the_matrix_of_cka_is_that_of_the_pairs(moments):
    found = moments.cka()
    assert found.shape == (3, 2)
    for i, x in enumerate(SOURCES.values()):
        for j, y in enumerate(TARGETS.values()):
            assert float(found[i, j]) == pytest.approx(linear_cka(PairedMoments.of(x, y)), rel=1e-12)


def test_a_pair_holds_what_collecting_it_alone_would_have(moments):
    batches = [(SOURCES["hidden"][i : i + 10], TARGETS["out"][i : i + 10]) for i in range(0, 30, 10)]
    alone, pair = PairedMoments.of_batches(batches), moments.pair("hidden", "out")
    assert (pair.count, pair.batches, pair.precision) == (alone.count, alone.batches, alone.precision)
    assert torch.equal(pair.cross(), alone.cross()) and torch.equal(pair.gram_source(), alone.gram_source())


def test_changing_a_pair_does_not_change_the_whole(moments):
    before = moments.cka()
    moments.pair("hidden", "out").update(rows(5, 6), rows(5, 3))
    assert torch.equal(moments.cka(), before)


def test_empty_moments_have_no_layers():
    empty = LayerwiseMoments()
    assert empty.count == 0 and empty.sources == () and empty.targets == ()
    refused(lambda: empty.pair("a", "b"), UnknownNameError, ("source layer", "none"))
    refused(empty.cka, DataError, ("empty", "update(sources, targets)"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        case("no sources", lambda x, y: ({}, y), DataError, "at least one source layer"),
        case("no targets", lambda x, y: (x, {}), DataError, "at least one source layer"),
        case("a layer less", lambda x, y: ({"embed": x["embed"]}, y), ShapeError, "source", "hidden"),
        case("a layer more", lambda x, y: (x, y | {"new": y["out"]}), ShapeError, "target", "new"),
        case("another width", lambda x, y: (x | {"out": rows(10, 3)}, y), ShapeError, "'out': 3", "'out': 2"),
        case("fewer rows in one", lambda x, y: (x | {"out": rows(9, 2)}, y), ShapeError, "not paired", "'out'"),
        case("fewer target rows", lambda x, y: (x, y | {"out": rows(9, 3)}), ShapeError, "not paired", "target"),
        case("NaN", lambda x, y: (x, y | {"out": rows(10, 3) * math.nan}), DataError, "target layer 'out'", "3 of 3"),
        case(
            "whole numbers", lambda x, y: (x | {"out": rows(10, 2).long()}, y), DataError, "source layer 'out'", "int64"
        ),
        case("a vector", lambda x, y: (x | {"out": rows(10)}, y), ShapeError, "source layer 'out'", "(10,)"),
        case("tensors instead of layers", lambda x, y: (x["out"], y["out"]), DataError, "Tensor"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing(moments, change, error, words):
    before, count = moments.cka(), moments.count
    x, y = ({name: layer[:10] for name, layer in side.items()} for side in (SOURCES, TARGETS))
    refused(lambda: moments.update(*change(x, y)), error, words)
    assert torch.equal(moments.cka(), before) and moments.count == count


def test_no_name_hides_rows_that_are_not_paired():
    sources = {"x": rows(5, 3), "a (target)": rows(4, 3)}
    refused(lambda: LayerwiseMoments().update(sources, {"a": rows(5, 3)}), ShapeError, ("not paired",))


def test_halves_merge_to_the_whole(moments):
    halves = [LayerwiseMoments(), LayerwiseMoments()]
    for half, batch in zip(halves, (slice(0, 13), slice(13, 30)), strict=True):
        half.update({n: x[batch] for n, x in SOURCES.items()}, {n: y[batch] for n, y in TARGETS.items()})
    assert torch.allclose(halves[0].merge(halves[1]).cka(), moments.cka(), rtol=1e-12)


def test_layers_come_back_from_a_file_exactly(moments, tmp_path):
    moments.save(tmp_path / "layers")
    found = LayerwiseMoments.load(tmp_path / "layers")
    assert (found.sources, found.targets, found.count) == (moments.sources, moments.targets, moments.count)
    assert torch.equal(found.cka(), moments.cka())
    assert left_in(tmp_path) == ["layers", "layers/moments.json", "layers/moments.safetensors"]
    assert repr(found) == "LayerwiseMoments(3 source and 2 target layers, 30 rows)"
