"""Misuses of the statistics: batches that cannot be added, sums that do not match, questions without an answer."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.misuses.table import misuses, the
from tests.test_storage import TOO_LONG

import interbasin as ib
from interbasin import LayerwiseMoments, PairedMoments
from interbasin.errors import DataError, FileError, MapError, ShapeError, UnknownNameError
from interbasin.maps import Identity, Linear

NOT_FINITE = [[math.nan, 0.0, 0.0, 0.0]] * 30


@misuses(
    ("NaN in the source", lambda: PairedMoments.of(np.array(NOT_FINITE), the.y), DataError, "source"),
    ("NaN in the target", lambda: PairedMoments.of(the.x, np.array(NOT_FINITE)), DataError, "target"),
    ("NaN in some columns", lambda: PairedMoments.of(np.array(NOT_FINITE), the.y), DataError, "1 of 4 columns"),
    ("infinity in the source", lambda: PairedMoments.of(the.x / 0.0, the.y), DataError, "infinity"),
    ("fewer rows of the target", lambda: PairedMoments.of(the.x, the.y[:9]), ShapeError, "(9,)"),
    ("axes the other way", lambda: PairedMoments.of(the.x.view(5, 6, 4), the.y.view(6, 5, 4)), ShapeError, "(6, 5)"),
    ("rows that flatten to fewer", lambda: PairedMoments.of(the.x.view(5, 6, 4), the.y[:9]), ShapeError, "(9,)"),
    ("another source width", lambda: the.moments.update(the.x, the.y[:, :3]), ShapeError, "source"),
    ("another target width", lambda: the.moments.update(the.x[:, :3], the.y), ShapeError, "target"),
    ("a vector for rows", lambda: PairedMoments.of(the.x[0], the.y), ShapeError, "(4,)"),
    ("a number for rows", lambda: PairedMoments.of(the.x, torch.tensor(1.0)), ShapeError, "()"),
    ("rows of no width", lambda: PairedMoments.of(the.x[:, :0], the.y), ShapeError, "(30, 0)"),
    ("no rows", lambda: PairedMoments.of(the.x[:0], the.y[:0]), DataError, "(0, 4)"),
    ("no tokens", lambda: PairedMoments.of(torch.ones(5, 0, 4), torch.ones(5, 0, 4)), DataError, "(5, 0, 4)"),
    ("whole numbers", lambda: PairedMoments.of(the.x.long(), the.y), DataError, "int64"),
    ("booleans", lambda: PairedMoments.of(the.x, the.y > 0), DataError, "bool"),
    ("complex numbers", lambda: PairedMoments.of(the.x, the.y.to(torch.complex128)), DataError, "complex128"),
    ("eight-bit floats", lambda: PairedMoments.of(the.x.to(torch.float8_e5m2), the.y), DataError, "float8_e5m2"),
    ("text for rows", lambda: PairedMoments.of("ab", the.y), DataError, "str"),
    ("nothing for rows", lambda: PairedMoments.of(the.x, None), DataError, "NoneType"),
    ("a masked array", lambda: PairedMoments.of(np.ma.array(the.x), the.y), DataError, "mask"),
    ("values whose products overflow", lambda: PairedMoments.of(1e200 * the.x, the.y), DataError, "overflow"),
    ("values whose products vanish", lambda: PairedMoments.of(1e-170 * the.x, the.y), DataError, "vanish"),
    ("sums about zero that overflow", lambda: the.far_moments.cross(centered=False), DataError, "overflow"),
    (
        "Gram matrices about zero that overflow",
        lambda: the.far_moments.gram_source(centered=False),
        DataError,
        "centered",
    ),
    ("merging moments of another source", lambda: the.moments.merge(moments(source=2)), ShapeError, "source"),
    ("merging moments of another target", lambda: the.moments.merge(moments(target=2)), ShapeError, "target"),
    ("merging without Gram matrices", lambda: the.moments.merge(the.moments_without_grams), DataError, "grams="),
    ("merging empty moments without them", lambda: the.moments.merge(PairedMoments()), DataError, "grams="),
    ("merging a tensor", lambda: the.moments.merge(the.x), DataError, "Tensor"),
    ("merging nothing", lambda: the.moments.merge(None), DataError, "NoneType"),
    ("merging layers into moments", lambda: the.moments.merge(the.layers), DataError, "LayerwiseMoments"),
    (
        "the source's Gram matrix that was not kept",
        lambda: the.moments_without_grams.gram_source(),
        DataError,
        "grams=True",
    ),
    (
        "the target's Gram matrix that was not kept",
        lambda: the.moments_without_grams.gram_target(),
        DataError,
        "grams=True",
    ),
    *(
        (f"{what} of empty moments", lambda ask=ask: ask(the.empty_moments), DataError, "empty")
        for what, ask in {
            "the cross-product": lambda empty: empty.cross(),
            "the cross-product about zero": lambda empty: empty.cross(centered=False),
            "the source's Gram matrix": lambda empty: empty.gram_source(),
            "the target's Gram matrix": lambda empty: empty.gram_target(centered=False),
            "the source's squares": lambda empty: empty.squares_source(),
            "the target's squares": lambda empty: empty.squares_target(),
            "the source's mean": lambda empty: empty.mean_source,
            "the target's mean": lambda empty: empty.mean_target,
            "the source's width": lambda empty: empty.source_width,
            "the target's width": lambda empty: empty.target_width,
            "the bound of the rank": lambda empty: empty.rank_bound(),
        }.items()
    ),
)
def test_what_moments_cannot_hold_or_tell_is_refused(misuse):
    misuse.check()


def moments(source: int = 3, target: int = 3) -> PairedMoments:
    return PairedMoments.of(the.x[:, :source], the.y[:, :target], grams=True)


@misuses(
    ("layers without sources", lambda: LayerwiseMoments().update({}, {"out": the.y}), DataError, "layer"),
    ("layers without targets", lambda: LayerwiseMoments().update({"out": the.x}, {}), DataError, "layer"),
    ("tensors for layers", lambda: LayerwiseMoments().update(the.x, the.y), DataError, "Tensor"),
    ("layers named by tuples", lambda: LayerwiseMoments().update({(1, 2): the.x}, {"out": the.y}), DataError, "(1, 2)"),
    ("a source layer less", lambda: the.layers.update({"embed": the.x}, layer_rows("targets")), ShapeError, "hidden"),
    (
        "a target layer more",
        lambda: the.layers.update(layer_rows("sources"), layer_rows("targets", new=the.y)),
        ShapeError,
        "new",
    ),
    (
        "a layer of another width",
        lambda: the.layers.update(layer_rows("sources", hidden=the.x), layer_rows("targets")),
        ShapeError,
        "hidden",
    ),
    (
        "a layer with fewer rows",
        lambda: the.layers.update(layer_rows("sources", hidden=the.x[:9, :2]), layer_rows("targets")),
        ShapeError,
        "(9,)",
    ),
    (
        "a layer with NaN",
        lambda: the.layers.update(layer_rows("sources"), layer_rows("targets", out=the.y[:, :3] * math.nan)),
        DataError,
        "'out'",
    ),
    (
        "a layer of whole numbers",
        lambda: the.layers.update(layer_rows("sources", hidden=the.x[:, :2].long()), layer_rows("targets")),
        DataError,
        "int64",
    ),
    (
        "a layer that is a vector",
        lambda: the.layers.update(layer_rows("sources", hidden=the.x[0]), layer_rows("targets")),
        ShapeError,
        "(4,)",
    ),
    ("an unknown source layer", lambda: the.layers.pair("hiden", "out"), UnknownNameError, "hidden"),
    ("an unknown target layer", lambda: the.layers.pair("embed", "embed"), UnknownNameError, "target"),
    ("a layer by its number", lambda: the.layers.pair(0, "out"), UnknownNameError, "embed"),
    ("a layer of empty moments", lambda: LayerwiseMoments().pair("a", "b"), UnknownNameError, "none"),
    ("the CKA of empty moments", lambda: LayerwiseMoments().cka(), DataError, "empty"),
    ("merging moments into layers", lambda: the.layers.merge(the.moments), DataError, "PairedMoments"),
    ("merging other layers", lambda: the.layers.merge(other_layers()), ShapeError, "hidden"),
)
def test_what_layers_cannot_hold_or_tell_is_refused(misuse):
    misuse.check()


def layer_rows(side: str, **changes: object) -> dict[str, object]:
    rows = {"sources": {"embed": the.x, "hidden": the.x[:, :2]}, "targets": {"hidden": the.y, "out": the.y[:, :3]}}
    return rows[side] | changes


def other_layers() -> LayerwiseMoments:
    made = LayerwiseMoments()
    made.update({"embed": the.x}, {"out": the.y[:, :3]})
    return made


OF_MOMENTS = (
    "linear_cka",
    "mean_cca",
    "pwcca",
    "canonical_correlations",
    "similarities",
    "procrustes_distance",
    "mean_cosine",
)
OF_A_MAP = {
    "the variance explained": lambda moments, map: ib.statistics.explained_variance(moments, map),
    "the mean cosine": lambda moments, map: ib.statistics.mean_cosine(moments, map),
    "the residual": lambda moments, map: ib.statistics.residual_energy(moments, map, centered=True),
}


@misuses(
    *(
        (f"{name} of {what}", lambda name=name, ask=ask: getattr(ib.statistics, name)(ask()), DataError, word)
        for name in OF_MOMENTS
        for what, ask, word in [
            ("rows that are all the same", lambda: the.still_moments, "vary"),
            ("one row", lambda: PairedMoments.of(the.x[:1], the.y[:1], grams=True), "vary"),
            ("nothing", lambda: the.empty_moments, "empty"),
        ]
    ),
    *(
        (
            f"{name} without Gram matrices",
            lambda n=name: getattr(ib.statistics, n)(the.moments_without_grams),
            DataError,
            "grams=True",
        )
        for name in ("linear_cka", "mean_cca", "pwcca", "canonical_correlations", "similarities")
    ),
    *(
        (f"{name} by a map between other widths", lambda m=measure: m(the.moments, Identity(2)), ShapeError, "2 <- 2")
        for name, measure in OF_A_MAP.items()
    ),
    *(
        (f"{name} by a matrix", lambda m=measure: m(the.moments, torch.eye(3)), MapError, "Tensor")
        for name, measure in OF_A_MAP.items()
    ),
    *(
        (f"{name} by a fit", lambda m=measure: m(the.moments, ib.fit.procrustes(the.moments)), MapError, "Fit")
        for name, measure in OF_A_MAP.items()
    ),
    ("the cosine of unequal widths", lambda: ib.statistics.mean_cosine(moments(target=2)), ShapeError, "3 and 2"),
    (
        "the cosine by a map of zeros",
        lambda: ib.statistics.mean_cosine(the.moments, Linear(np.zeros((3, 3)))),
        DataError,
        "vary",
    ),
    (
        "the cosine by a stretch without Gram matrices",
        lambda: ib.statistics.mean_cosine(the.moments_without_grams, Linear(np.eye(3))),
        DataError,
        "grams=True",
    ),
    (
        "what a stretch explains without Gram matrices",
        lambda: ib.statistics.explained_variance(the.moments_without_grams, Linear(np.eye(3))),
        DataError,
        "grams=True",
    ),
    (
        "what explains a constant",
        lambda: ib.statistics.explained_variance(the.still_moments, Identity(3)),
        DataError,
        "vary",
    ),
    ("pwcca of neither side", lambda: ib.statistics.pwcca(the.moments, "both"), DataError, "'both'"),
    ("pwcca of no side", lambda: ib.statistics.pwcca(the.moments, None), DataError, "None"),
)
def test_what_no_similarity_can_say_is_refused(misuse):
    misuse.check()


@misuses(
    ("statistics from a folder that is not there", lambda: PairedMoments.load("missing"), FileError, "missing"),
    ("statistics from a file", lambda: PairedMoments.load(the.letter), FileError, "file"),
    ("statistics from a saved map", lambda: PairedMoments.load(the.saved_map), FileError, "moments.json"),
    ("statistics from a name that is too long", lambda: PairedMoments.load(TOO_LONG), FileError, TOO_LONG),
    ("one pair from saved layers", lambda: PairedMoments.load(the.saved_layers), DataError, "LayerwiseMoments.load"),
    (
        "layers from one saved pair without Gram matrices",
        lambda: LayerwiseMoments.load(the.saved_moments),
        DataError,
        "Gram",
    ),
    ("statistics over saved ones", lambda: the.moments.save(the.saved_moments), FileError, "force"),
    ("layers over saved statistics", lambda: the.layers.save(the.saved_moments), FileError, "force"),
    (
        "statistics over someone's folder",
        lambda: the.moments.save(the.someones_folder, force=True),
        FileError,
        "not write",
    ),
    ("notes that are no JSON", lambda: the.moments.save("out", notes={"layer": torch.eye(2)}), FileError, "JSON"),
)
def test_a_folder_that_cannot_be_is_refused(misuse):
    misuse.check()
