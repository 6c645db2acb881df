"""Misuses of ``ib.evaluate``: data without labels, networks that do not compare, rows that cannot be searched."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from tests.misuses.table import misuses, the
from tests.misuses.things import Net
from torch import nn

import interbasin as ib
from interbasin import evaluate
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError


def loss(data: object, loss: object = None, model: object = None) -> float:
    return evaluate.loss(the.mlp if model is None else model, data, loss)


def once() -> object:
    return iter(the.labelled)


def whole_numbers() -> nn.Module:
    return Net(lambda self, x: x.long())


@misuses(
    ("a loss on no data", lambda: loss([]), DataError, "no batch"),
    ("a loss without labels", lambda: loss([the.batch]), DataError, "labels"),
    ("a loss without labels in a later batch", lambda: loss([the.labelled[0], the.batch]), DataError, "Batch 1"),
    ("an accuracy without labels", lambda: evaluate.accuracy(the.mlp, the.batch), DataError, "labels"),
    ("labels that are rows", lambda: loss([(the.batch, the.batch[:, :3])]), DataError, "loss="),
    ("labels that are a list", lambda: loss([(the.batch, [0, 1, 2, 0, 1, 2])]), DataError, "list"),
    ("fewer labels than rows", lambda: loss([(the.batch, the.labels[:5])]), ShapeError, "(5,)"),
    ("a label that is no class", lambda: loss([(the.batch, the.labels + 3)]), DataError, "label"),
    ("labels of which none counts", lambda: loss([(the.batch, torch.full((6,), -100))]), DataError, "-100"),
    ("rows of another width", lambda: loss([(torch.ones(5, 7), the.labels[:5])]), DataError, "(5, 7)"),
    ("a loss in words", lambda: loss(the.labelled, "mse"), DataError, "str"),
    ("a loss that takes no labels", lambda: loss(the.labelled, lambda outputs: 1.0), DataError, "loss("),
    ("a loss that needs labels", lambda: loss([the.batch], F.cross_entropy), DataError, "loss("),
    ("outputs that are no logits", lambda: loss(the.labelled, model=whole_numbers()), DataError, "loss="),
    ("a mapping for a network", lambda: loss(the.labelled, model={}), WiringError, "dict"),
    ("a mapping for the batches", lambda: loss({"x": the.batch}), DataError, "dict"),
    ("a number for the batches", lambda: loss(3), DataError, "int"),
    ("nothing for the batches", lambda: loss(None), DataError, "NoneType"),
    ("performance on no data", lambda: evaluate.performance(the.mlp, []), DataError, "no batch"),
    ("performance of a name", lambda: evaluate.performance("model", the.labelled), WiringError, "str"),
    ("performance in batches of zero", lambda: evaluate.performance(the.mlp, the.batch, batch_size=0), DataError, "0"),
    (
        "a figure that was not measured",
        lambda: evaluate.distance(the.mlp, the.other_mlp)["distanc"],
        UnknownNameError,
        "distance",
    ),
    ("the norms of a vector", lambda: evaluate.norms(torch.ones(3)), ShapeError, "(3,)"),
    ("the norms of no rows", lambda: evaluate.norms(torch.ones(0, 3)), ShapeError, "(0, 3)"),
    ("the norms of text", lambda: evaluate.norms("rows"), DataError, "str"),
    ("a module that is not there", lambda: rescaled("9"), UnknownNameError, "'9'"),
    ("no factors", lambda: rescaled(factors=[]), DataError, "one at least"),
    ("a factor of NaN", lambda: rescaled(factors=[math.nan]), DataError, "nan"),
    ("a module that is not called", lambda: rescaled("spare", model=odd()), DataError, "spare"),
    ("a module that gives no rows", lambda: rescaled("classes", model=odd()), DataError, "classes"),
    ("rescaling on data that end", lambda: evaluate.rescaled(the.mlp, once(), "0", [1.0]), DataError, "more than once"),
)
def test_what_cannot_be_measured_is_refused(misuse):
    misuse.check()


def rescaled(modules: str = "0", factors: object = (1.0,), model: nn.Module | None = None) -> object:
    return evaluate.rescaled(the.mlp if model is None else model, the.labelled, modules, list(factors))


def odd() -> nn.Module:
    def run(self: Net, x: torch.Tensor) -> torch.Tensor:
        self.classes(x)
        return self.used(x)

    classes = Net(lambda self, x: x.argmax(1))
    return Net(run, used=nn.Linear(4, 3), spare=nn.Linear(4, 3), classes=classes).eval()


def barrier(b: object = None, data: object = None, **options: object) -> object:
    options = {"points": 3, **options}
    return evaluate.barrier(
        the.mlp, the.other_mlp if b is None else b, the.labelled if data is None else data, **options
    )


def align(source: nn.Module, target: nn.Module) -> object:
    return ib.rebasin(source, target, the.batch, method="permutation-weights")


def cycle(align: object = align, **options: object) -> object:
    return evaluate.cycle(the.mlp, the.other_mlp, align, **options)


@misuses(
    *(
        (f"a barrier of {points!r} points", lambda points=points: barrier(points=points), DataError, repr(points))
        for points in (1, 0, -3, 2.5, "3", True)
    ),
    ("a barrier on an unknown path", lambda: barrier(path="arc"), UnknownNameError, "slerp"),
    ("a barrier on data that end", lambda: barrier(data=once()), DataError, "more than once"),
    ("a barrier reset on data that end", lambda: barrier(reset=once()), DataError, "reset="),
    ("a barrier on no data", lambda: barrier(data=[]), DataError, "no batch"),
    ("a barrier without labels", lambda: barrier(data=[the.batch]), DataError, "labels"),
    ("a barrier between other widths", lambda: barrier(the.wider_mlp), ShapeError, "0.weight"),
    ("a barrier between other depths", lambda: barrier(the.deeper_mlp), WiringError, "4."),
    ("a barrier to a mapping", lambda: barrier({"w": 1}), WiringError, "dict"),
    ("one end of a chord", lambda: barrier(ends=the.mlp), WiringError, "ends="),
    ("a pair with one end", lambda: barrier(ends=(the.mlp,)), WiringError, "ends="),
    ("a pair of names for ends", lambda: barrier(ends=("a", "b")), WiringError, "ends="),
    ("a distance of other widths", lambda: evaluate.distance(the.mlp, the.wider_mlp), ShapeError, "0.weight"),
    (
        "a distance without the biases",
        lambda: evaluate.distance(the.mlp, the.mlp_without_biases),
        WiringError,
        "0.bias",
    ),
    ("a distance of a list", lambda: evaluate.distance([], the.mlp), WiringError, "list"),
    ("a distance of nothing", lambda: evaluate.distance(None, the.mlp), WiringError, "NoneType"),
    ("a distance without parameters", lambda: evaluate.distance(nn.ReLU(), nn.ReLU()), DataError, "parameter"),
    ("a cycle of an unknown kind", lambda: cycle(kinds=["there"]), UnknownNameError, "'there'"),
    ("a cycle of one kind not in a list", lambda: cycle(kinds="return"), UnknownNameError, "list"),
    ("a cycle on data that end", lambda: cycle(data=once()), DataError, "more than once"),
    ("a cycle by the name of a method", lambda: cycle("permutation-weights"), DataError, "str"),
    ("a cycle by a function that aligns nothing", lambda: cycle(lambda a, b: None), WiringError, "NoneType"),
    (
        "a cycle by a function without an alignment",
        lambda: cycle(lambda a, b: SimpleNamespace(model=a, alignment={})),
        WiringError,
        "dict",
    ),
    ("the error of an alignment on no data", lambda: alignment_error(data=[]), DataError, "no batch"),
    ("the error in a space that is not there", lambda: alignment_error(spaces=["fc"]), UnknownNameError, "'fc'"),
    (
        "the error of an alignment without maps",
        lambda: alignment_error(ib.Alignment(the.wiring, {})),
        DataError,
        "space",
    ),
    (
        "a change that an exact alignment cannot make",
        lambda: evaluate.self_change(the.mlp, the.other_mlp, the.labelled, alignment=the.alignment),
        WiringError,
        "exact",
    ),
    (
        "a change on data that end",
        lambda: evaluate.self_change(the.mlp, the.other_mlp, once()),
        DataError,
        "more than once",
    ),
    (
        "a comparison of other widths",
        lambda: ib.compare_networks(the.mlp, the.wider_mlp, the.labelled),
        ShapeError,
        "0.weight",
    ),
    (
        "a comparison on data that end",
        lambda: ib.compare_networks(the.mlp, the.other_mlp, once()),
        DataError,
        "more than once",
    ),
    (
        "a comparison by the alignment of another network",
        lambda: ib.compare_networks(the.wider_mlp, the.wider_mlp, the.labelled, alignment=the.alignment),
        WiringError,
        "0.weight",
    ),
    ("a picture on data that end", lambda: evaluate.pca({"net": the.mlp}, once()), DataError, "more than once"),
    ("a picture of one network without a name", lambda: evaluate.pca(the.mlp, the.labelled), DataError, "Sequential"),
    ("a picture of no networks", lambda: evaluate.pca({}, the.labelled), DataError, "name"),
    (
        "a picture of no samples",
        lambda: evaluate.pca({"net": the.mlp}, the.labelled, samples=0),
        DataError,
        "samples must be a whole number of at least 1, got 0.",
    ),
    ("a picture on no data", lambda: evaluate.pca({"net": the.mlp}, []), DataError, "no batch"),
    (
        "a picture of networks of other widths",
        lambda: evaluate.pca({"a": the.mlp, "b": the.wider_mlp}, the.labelled, ["0"]),
        WiringError,
        "0.weight",
    ),
    ("CKA on data that end", lambda: evaluate.cka(the.mlp, the.other_mlp, once()), DataError, "more than once"),
    ("CKA on no data", lambda: evaluate.cka(the.mlp, the.other_mlp, []), DataError, "no batch"),
    (
        "CKA of layers that are not there",
        lambda: evaluate.cka(the.mlp, the.other_mlp, the.labelled, ["9"]),
        UnknownNameError,
        "'9'",
    ),
)
def test_networks_that_do_not_compare_are_refused(misuse):
    misuse.check()


def alignment_error(alignment: object = None, data: object = None, **options: object) -> object:
    alignment = the.alignment if alignment is None else alignment
    return evaluate.alignment_error(
        the.mlp, the.other_mlp, alignment, the.labelled if data is None else data, **options
    )


ROW, OTHER = [[1.0, 2.0]], [[1.0, 2.0, 3.0]]


@misuses(
    ("a search by an unknown metric", lambda: evaluate.nearest(ROW, ROW, 1, "cosin"), UnknownNameError, "cosine"),
    ("a search for no documents", lambda: evaluate.nearest(ROW, ROW, 0), ShapeError, "got 0"),
    ("a search for half a document", lambda: evaluate.nearest(ROW, ROW, 1.5), ShapeError, "got 1.5"),
    ("a search for a yes", lambda: evaluate.nearest(ROW, ROW, True), ShapeError, "got True"),
    ("a search for a number in words", lambda: evaluate.nearest(ROW, ROW, "3"), ShapeError, "got '3'"),
    (
        "a search for too many documents",
        lambda: evaluate.nearest(ROW, ROW, 10**30),
        ShapeError,
        "k must",
    ),
    ("a search without queries", lambda: evaluate.nearest(np.ones((0, 2)), ROW), ShapeError, "no query"),
    ("lengths in no bins", lambda: evaluate.norms(ROW, bins=0), DataError, "bins must"),
    ("lengths of NaN", lambda: evaluate.norms([[math.nan, 2.0]]), DataError, "NaN"),
    ("intervals of more draws than there is time for", lambda: evaluate.Bootstrap(9, 10**30), DataError, "draws must"),
    ("intervals of a seed below zero", lambda: evaluate.Bootstrap(9, seed=-1), DataError, "seed must"),
    ("intervals of a whole array of draws", lambda: evaluate.Bootstrap(9, np.ones(99)), DataError, "type ndarray"),
    ("a search among other widths", lambda: evaluate.nearest(ROW, OTHER), ShapeError, "3"),
    ("a search for a vector", lambda: evaluate.nearest([1.0, 2.0], ROW), ShapeError, "(2,)"),
    ("a search in a vector", lambda: evaluate.nearest(ROW, np.ones(2)), ShapeError, "(2,)"),
    ("a search for NaN", lambda: evaluate.nearest([[math.nan, 2.0]], ROW), DataError, "queries"),
    ("a search in NaN", lambda: evaluate.nearest(ROW, np.full((3, 2), math.nan)), DataError, "documents"),
    ("labels of a query that is not there", lambda: evaluate.Labels.of({7: 1}, 3, 5), DataError, "query 7"),
    ("labels that name no document", lambda: evaluate.Labels.of([0, 5, 1], 3, 5), DataError, "document 5"),
    ("labels in words", lambda: evaluate.Labels.of([["a"], 1, 1], 3, 5), DataError, "'a'"),
    ("fewer labels than queries", lambda: evaluate.Labels.of([0, 1], 3, 5), DataError, "3 queries"),
    ("no labels", lambda: evaluate.Labels.of({}, 3, 5), DataError, "label"),
    ("intervals of no query", lambda: evaluate.Bootstrap(0), DataError, "query"),
    ("intervals of NaN queries", lambda: evaluate.Bootstrap(math.nan), DataError, "nan"),
    ("intervals of half a query", lambda: evaluate.Bootstrap(2.5), DataError, "query"),
    ("intervals in words", lambda: evaluate.Bootstrap("3"), DataError, "'3'"),
    ("draws of NaN", lambda: evaluate.Bootstrap(3, math.nan), DataError, "draw"),
    ("a confidence of NaN", lambda: evaluate.Bootstrap(3, 10, math.nan), DataError, "nan"),
    ("a confidence of 95", lambda: evaluate.Bootstrap(3, 10, 95), DataError, "95"),
    ("no draws", lambda: evaluate.Bootstrap(3, 0), DataError, "draw"),
    ("intervals of fewer values", lambda: evaluate.Bootstrap(3).interval(np.zeros(4)), DataError, "(4, 1)"),
    ("intervals of NaN", lambda: evaluate.Bootstrap(2).interval(np.array([1, math.nan])), DataError, "finite"),
)
def test_what_cannot_be_searched_is_refused(misuse):
    misuse.check()
