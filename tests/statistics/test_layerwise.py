"""Layers by name: the unknown, the unpaired, and agreement with pairs collected one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.test_storage import case, left_in, refused

from interbasin import LayerwiseMoments, PairedMoments
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError
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


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        case("source", ("hiden", "out"), UnknownNameError, "source layer", "'hiden'", "one of: hidden"),
        case("target", ("embed", "embed"), UnknownNameError, "target layer", "'embed'"),
        case("not a name", (0, "out"), UnknownNameError, "source layer", "0"),
    ],
)
def test_an_unknown_layer_is_named_with_those_there_are(moments, names, error, words):
    message = refused(lambda: moments.pair(*names), error, words)
    assert all(name in message for name in (TARGETS if "target" in words[0] else SOURCES))


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


def test_what_cannot_be_merged_is_refused(moments):
    other = LayerwiseMoments()
    other.update({"embed": rows(3, 4)}, {"out": rows(3, 3)})
    refused(lambda: moments.merge(other), ShapeError, ("source widths", "hidden"))
    refused(lambda: moments.merge(moments.pair("hidden", "out")), DataError, ("LayerwiseMoments", "PairedMoments"))


def test_layers_come_back_from_a_file_exactly(moments, tmp_path):
    moments.save(tmp_path / "layers")
    found = LayerwiseMoments.load(tmp_path / "layers")
    assert (found.sources, found.targets, found.count) == (moments.sources, moments.targets, moments.count)
    assert torch.equal(found.cka(), moments.cka())
    assert left_in(tmp_path) == ["layers", "layers/moments.json", "layers/moments.safetensors"]
    assert repr(found) == "LayerwiseMoments(3 source and 2 target layers, 30 rows)"


def test_each_kind_of_moments_names_the_other(moments, tmp_path):
    moments.save(tmp_path / "layers")
    refused(lambda: PairedMoments.load(tmp_path / "layers"), DataError, ("several layers", "LayerwiseMoments.load"))
    PairedMoments.of(rows(5, 2), rows(5, 2), grams=False).save(tmp_path / "pair")
    refused(lambda: LayerwiseMoments.load(tmp_path / "pair"), DataError, ("no Gram matrices",))
    refused(lambda: moments.save(tmp_path / "pair"), FileError, ("exists already",))


def test_names_of_layers_that_are_no_text_are_refused():
    with pytest.raises(DataError, match=r"names of layers are text, found \(1, 2\)"):
        LayerwiseMoments().update({(1, 2): rows(5, 2)}, {"out": rows(5, 2)})


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(0, 99))
def test_the_sums_of_affine_images_are_those_of_the_mapped_rows(source, target, grams, seed):
    x, y = rows(20, 4, seed=seed) + 7, rows(20, 3, seed=seed + 1) - 2
    (v, a), (w, b) = (
        (rows(wide, narrow, seed=seed + 2), rows(wide, seed=seed + 3)) for wide, narrow in ((source, 4), (target, 3))
    )
    made = LayerwiseMoments()
    made.update({"x": x[:9]}, {"y": y[:9]})
    made.update({"x": x[9:]}, {"y": y[9:]})
    images = made._state.through(
        {"itself": ("x", None, None), "image": ("x", v, a)}, {"linear": ("y", w, None), "image": ("y", w, b)}, grams
    )
    mapped = {"itself": x, "image": x @ v.mT + a}, {"linear": y @ w.mT, "image": y @ w.mT + b}
    assert images.grams is grams and images.count == 20
    for names, cross in images.crosses.items():
        assert cross.shape == (target, mapped[0][names[0]].shape[1])
        sides = [images.sources[names[0]], images.targets[names[1]]]
        state = replace(images, sources={"source": sides[0]}, targets={"target": sides[1]})
        found = PairedMoments._of_state(replace(state, crosses={("source", "target"): cross}))
        wanted = PairedMoments.of(mapped[0][names[0]], mapped[1][names[1]], grams=grams)
        for one, other in (
            (found.cross(), wanted.cross()),
            (found.cross(centered=False), wanted.cross(centered=False)),
            (found.mean_source, wanted.mean_source),
            (found.mean_target, wanted.mean_target),
            (found.squares_source(), wanted.squares_source()),
            (found.squares_target(), wanted.squares_target()),
            *(
                [(found.gram_source(), wanted.gram_source()), (found.gram_target(), wanted.gram_target())]
                if grams
                else []
            ),
        ):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * float(other.abs().max() + 1))
