"""Misuses of ``ib.record``: data that are no batches, places that are not there, rows that do not pair."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from tests.misuses.table import misuses, public, the
from tests.misuses.things import Net
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, FileError, ShapeError, UnknownNameError, WiringError

DEFAULT = object()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def record(
    spaces: object = ("0:output",), data: object = DEFAULT, models: object = DEFAULT, **options: object
) -> object:
    models = (the.mlp, the.other_mlp) if models is DEFAULT else models
    return ib.record(
        models, [the.batch] if data is DEFAULT else data, list(spaces) if type(spaces) is tuple else spaces, **options
    )


def record_texts(data: object = DEFAULT, **options: object) -> object:
    return record(("first:output",), [the.texts] if data is DEFAULT else data, the.masked, **options)


def record_pairs(source: object, target: object, **options: object) -> object:
    return record(data=[(source, target)], own_inputs=True, **options)


OFFSETS = torch.tensor([[[0, 2], [2, 4], [4, 6]]] * 2)


def record_offsets(source: torch.Tensor, target: torch.Tensor) -> object:
    batch = tuple({"x": the.tokens, "offset_mapping": offsets} for offsets in (source, target))
    return record(("first:output",), [batch], (the.masked, the.masked), own_inputs=True, tokens="offsets")


def record_texts_of(source: list[int], target: list[int]) -> object:
    """Two tokenisations of two texts, of which each text has these tokens that count."""
    batch = tuple(
        {"x": torch.ones(2, len(mask), 4), "attention_mask": torch.tensor([mask, mask])} for mask in (source, target)
    )
    return record(("first:output",), [batch], (the.masked, the.masked), own_inputs=True, tokens="interpolate")


def training(layer: nn.Module) -> object:
    return record(("1:output",), models=nn.Sequential(layer, nn.Linear(4, 2)).train())


def idle() -> Net:
    def run(self: Net, x: torch.Tensor) -> torch.Tensor:
        self.ids(torch.arange(3))
        return self.used(x)

    return Net(run, used=nn.Linear(4, 3), idle=nn.Linear(4, 3), ids=nn.Identity()).eval()


def failing(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("on purpose")


def flat() -> Net:
    return Net(lambda self, x: self.fc(x.flatten(0, 1)), fc=nn.Linear(4, 3)).eval()


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 2, 1)).eval()


@misuses(
    ("no batches", lambda: record(data=[]), DataError, "no batch"),
    ("no batches for a wiring", lambda: record(("0",), []), DataError, "no batch"),
    ("an iterator that is empty", lambda: record(data=iter(())), DataError, "no batch"),
    ("a tensor without rows", lambda: record(data=torch.empty(0, 4)), DataError, "no batch"),
    ("a batch without rows", lambda: record(data=[the.batch[:0]]), DataError, "empty"),
    ("a batch without rows for a wiring", lambda: record(("0",), [the.batch[:0]]), WiringError, "empty"),
    ("one mapping for the batches", lambda: record(data={"x": the.batch}), DataError, "dict"),
    ("a number for the batches", lambda: record(data=3), DataError, "int"),
    ("a number for a batch", lambda: record(data=[the.batch, 3]), DataError, "Batch 1"),
    ("an array for the batches", lambda: record(data=the.batch.numpy()), DataError, "from_numpy"),
    ("a network for the batches", lambda: ib.record(the.mlp, the.other_mlp, ["0"]), WiringError, "pair"),
    ("a batch size of zero", lambda: record(data=the.batch, batch_size=0), DataError, "batches of 0"),
    ("a batch size in words", lambda: record(data=the.batch, batch_size="3"), DataError, "'3'"),
    ("a batch size that is true", lambda: record(data=the.batch, batch_size=True), DataError, "True"),
    ("no batch size", lambda: record(data=the.batch, batch_size=None), DataError, "None"),
    ("labels that are not there", lambda: record(labelled=True), DataError, "labels"),
    ("labels that were not spoken of", lambda: record(data=the.labelled), DataError, "labelled=True"),
    ("labels that a wiring is traced with", lambda: record(("0",), the.labelled), WiringError, "labelled=True"),
    ("three inputs for two networks", lambda: record(data=[(1, 2, 3)], own_inputs=True), DataError, "3 parts"),
    ("NaN in a later batch", lambda: record(data=[the.batch, the.batch * math.nan]), DataError, "batch 1"),
    ("NaN in a layer", lambda: record(data=[the.batch * math.nan], statistics="layerwise"), DataError, "'0:output'"),
    ("a batch of another width", lambda: record(data=[the.batch, torch.ones(5, 7)]), DataError, "(5, 7)"),
    ("a batch of another dtype", lambda: record(data=[the.batch, the.batch.double()]), DataError, "float64"),
    ("a batch without axes", lambda: record(data=[the.batch, torch.tensor(1.0)]), DataError, "batch 1"),
    ("a batch by a name that forward has not", lambda: record(data=[{"y": the.batch}]), DataError, "'y'"),
    ("a batch of no arguments", lambda: record(data=[{}]), DataError, "nothing"),
    ("a batch of another rank", lambda: record(("0",), [the.batch, the.tokens]), ShapeError, "3"),
    (
        "a network that fails",
        lambda: record(models=Net(lambda self, x: failing(x), fc=nn.Linear(4, 3)), spaces=("fc:output",)),
        DataError,
        "on purpose",
    ),
    ("a device that is not there", lambda: record(device="nonsense"), DataError, "'nonsense'"),
    ("a device that is a number", lambda: record(device=3.5), DataError, "3.5"),
    ("a device without numbers", lambda: record(device="meta"), DataError, "meta"),
)
def test_data_that_cannot_be_recorded_are_refused(misuse):
    misuse.check()


@misuses(
    ("three networks", lambda: record(models=(the.mlp,) * 3), WiringError, "pair"),
    ("no network", lambda: record(models=()), WiringError, "network"),
    ("names for networks", lambda: record(models=("a", "b")), WiringError, "str"),
    ("nothing for a network", lambda: record(models=None), WiringError, "network"),
    ("dropout in training", lambda: training(nn.Dropout(0.5)), WiringError, "eval"),
    ("batch norm in training", lambda: training(nn.BatchNorm1d(4)), WiringError, "eval"),
    ("a name that is no space", lambda: record(("fc",)), UnknownNameError, "'fc'"),
    ("a module that is not there", lambda: record(("9:input",)), UnknownNameError, "'9'"),
    ("a module that is no space", lambda: record(("1",)), UnknownNameError, "1:output"),
    ("a place that is none", lambda: record(("0:weight",)), WiringError, ":input"),
    ("a call that is none", lambda: record(("0:output:x",)), WiringError, ":input"),
    ("a module that is not called", lambda: record(("idle:output",), models=idle()), WiringError, "idle:output"),
    (
        "a second call of a module that has one",
        lambda: record(("used:output:1",), models=idle()),
        WiringError,
        "used:output:1",
    ),
    ("a place where no floats pass", lambda: record(("ids:output",), models=idle()), WiringError, "ids:output"),
    ("an axis that is not there", lambda: record(("0:output[4]",)), ShapeError, "axis 4"),
    ("a place of another width", lambda: record({"0": "2:output[1]"}, models=the.mlp), WiringError, "0:output"),
    (
        "a place that does not hold the space",
        lambda: record({"0": "0:input"}, models=the.mlp),
        UnknownNameError,
        "0:output",
    ),
    ("a place at a module that is not there", lambda: record({"0": "9"}, models=the.mlp), UnknownNameError, "'9'"),
    ("a place of a module of another width", lambda: record({"0": "3:output"}, models=the.uneven), ShapeError, "'0'"),
    ("one name for a list", lambda: record("0:output"), WiringError, "'0:output'"),
    ("a number for the spaces", lambda: record(3), WiringError, "int"),
    ("three names for a pair", lambda: record([("a", "b", "c")]), WiringError, "'c'"),
    ("a number for a name", lambda: record([("0:output", 3)]), WiringError, "3"),
    ("no spaces", lambda: record([]), DataError, "no spaces"),
    ("no layers", lambda: record([], statistics="layerwise"), DataError, "no layers"),
    ("nothing for layers", lambda: record([None, None], statistics="layerwise"), WiringError, "NoneType"),
    ("unknown statistics", lambda: record(statistics="cka"), UnknownNameError, "layerwise"),
    ("an unknown moment", lambda: record(at="mid"), WiringError, "'mid'"),
    ("an unknown pool", lambda: record(pool="max"), UnknownNameError, "mean"),
    ("an unknown alignment of tokens", lambda: record(tokens="crop"), UnknownNameError, "interpolate"),
    ("a number for the alignment of tokens", lambda: record(tokens=3), UnknownNameError, "interpolate"),
    ("one wiring for two networks", lambda: record(("0",), wirings=the.wiring), WiringError, "found 1"),
    (
        "a wiring of another network",
        lambda: record(("0",), models=the.wider_mlp, wirings=the.wiring),
        WiringError,
        "0.weight",
    ),
    ("true for a wiring", lambda: record(("0",), models=the.mlp, wirings=True), WiringError, "bool"),
    ("a network for a wiring", lambda: record(("0",), models=the.mlp, wirings=the.mlp), WiringError, "Sequential"),
    ("where spaces stand in nothing", lambda: public.standing(None), WiringError, "NoneType"),
    ("where spaces stand at an unknown moment", lambda: public.standing(the.wiring, at="mid"), WiringError, "'mid'"),
    ("a prefix of one number", lambda: public.Tokens("interpolate2d", prefix=3), DataError, "prefix"),
    ("a prefix below zero", lambda: public.Tokens("interpolate2d", prefix=(1, -1)), DataError, "prefix"),
    ("a grid of one side", lambda: public.Tokens("interpolate2d", grid=(3, 3)), DataError, "grid"),
    ("a grid of three numbers", lambda: public.Tokens("interpolate2d", grid=((3, 3), (2,))), DataError, "grid"),
)
def test_a_place_that_cannot_be_recorded_is_refused(misuse):
    misuse.check()


@misuses(
    ("other numbers of tokens", lambda: record_pairs(the.tokens, the.tokens[:, :2]), ShapeError, "tokens="),
    (
        "other numbers of tokens in layers",
        lambda: record_pairs(the.tokens, the.tokens[:, :2], statistics="layerwise"),
        ShapeError,
        "(2, 2)",
    ),
    ("other numbers of inputs", lambda: record_pairs(the.batch, the.batch[:3]), ShapeError, "(3,)"),
    (
        "other numbers of inputs, pooled",
        lambda: record_pairs(the.batch, the.batch[:3], tokens="mean"),
        ShapeError,
        "number of inputs",
    ),
    (
        "layers of other sizes",
        lambda: record(("0:output", "3:output"), [the.images], convolutions(), statistics="layerwise"),
        ShapeError,
        "pair",
    ),
    (
        "tokens that are no grid",
        lambda: record_pairs(
            the.tokens, the.tokens[:, :2], tokens=public.Tokens("interpolate2d", prefix=(0, 0), grid=((2, 2), (1, 2)))
        ),
        ShapeError,
        "3 tokens",
    ),
    (
        "pooling where inputs are not first",
        lambda: record(("fc:output",), [the.tokens], flat(), pool="mean"),
        ShapeError,
        "(6,)",
    ),
    (
        "the first of positions without an order",
        lambda: record(("0:output",), [the.images], convolutions(), pool="first"),
        ShapeError,
        "first",
    ),
    ("a mask that does not fit", lambda: record_texts(mask=lambda batch: torch.ones(2, 9)), ShapeError, "(2, 9)"),
    ("a mask that leaves nothing", lambda: record_texts(mask=lambda batch: torch.zeros(2, 3)), DataError, "No row"),
    ("a mask that is not in the batch", lambda: record_texts(mask="padding"), UnknownNameError, "attention_mask"),
    ("a mask by name for tensors", lambda: record(mask="padding"), DataError, "padding"),
    ("a mask that is a number", lambda: record(mask=3), DataError, "int"),
    ("a mask that is a tensor", lambda: record(mask=torch.ones(6, 4)), DataError, "Tensor"),
    ("a mask of one axis", lambda: record_texts(mask=lambda batch: torch.ones(3)), ShapeError, "(3,)"),
    (
        "a mask that is added to scores",
        lambda: record_texts(mask=lambda batch: torch.full((2, 3), -1e9)),
        DataError,
        "mask",
    ),
    ("a mask that is a list", lambda: record_texts(mask=lambda batch: [1]), ShapeError, "list"),
    (
        "masks that leave other tokens",
        lambda: record(
            ("first:output",),
            [(the.texts, the.texts | {"attention_mask": torch.ones(2, 3)})],
            (the.masked, the.masked),
            own_inputs=True,
        ),
        ShapeError,
        "5 rows",
    ),
    (
        "offsets that are not given",
        lambda: record_pairs(the.tokens, the.tokens, tokens="offsets"),
        DataError,
        "offset_mapping",
    ),
    ("padding that would be interpolated", lambda: record_texts_of([1, 1, 0], [1, 1]), DataError, "padding"),
    ("offsets of no shape", lambda: record_offsets(torch.zeros(2, 3), torch.zeros(2, 3)), ShapeError, "(2, 3)"),
    ("offsets of other texts", lambda: record_offsets(OFFSETS, OFFSETS + 7), DataError, "character"),
    ("offsets of other tokens", lambda: record_offsets(OFFSETS[:, :2], OFFSETS), ShapeError, "(2, 2)"),
    (
        "positions of three axes",
        lambda: record_pairs(torch.ones(2, 2, 2, 2, 4), torch.ones(2, 3, 3, 3, 4), tokens="interpolate2d"),
        ShapeError,
        "(2, 2, 2)",
    ),
    (
        "offsets that are no numbers",
        lambda: record_texts([the.texts | {"offset_mapping": [[(0, 1)], [(0, 1), (1, 2)]]}]),
        DataError,
        "offset_mapping",
    ),
)
def test_rows_that_do_not_pair_are_refused(misuse):
    misuse.check()


@misuses(
    (
        "a state of data that can be read once",
        lambda: record(data=iter([the.batch]), state="state"),
        DataError,
        "state=",
    ),
    ("a state in someone's folder", lambda: record(state=the.someones_folder), FileError, "someones"),
    ("a state in a folder without a name", lambda: record(state=3), FileError, "int"),
    (
        "a state of another recording",
        lambda: record(models=the.mlp, spaces=("2:output",), data=the.batch, state=the.recording_state),
        DataError,
        "spaces",
    ),
    (
        "a state of another network",
        lambda: record(models=the.other_mlp, data=the.batch, state=the.recording_state),
        DataError,
        "networks",
    ),
    (
        "a state of other data",
        lambda: record(models=the.mlp, data=the.batch + 1, state=the.recording_state),
        DataError,
        "batch",
    ),
    ("a state every no batches", lambda: record(state="state", every=0), DataError, "at least 1, got 0."),
    ("a state every so many words", lambda: record(state="state", every="2"), DataError, "at least 1, got '2'."),
    ("a recording from a state", lambda: public.Recording.load(the.recording_state), FileError, "state"),
    ("a recording from a folder that is not there", lambda: public.Recording.load("nowhere"), FileError, "nowhere"),
    ("a recording from nothing", lambda: public.Recording.load(None), FileError, "NoneType"),
    ("a recording from a saved map", lambda: public.Recording.load(the.saved_map), FileError, "recording.json"),
    ("a recording over a saved one", lambda: record().save(the.saved_recording), FileError, "force"),
    ("a pair that was not recorded", lambda: record().moments["0:output", "2:output"], UnknownNameError, "0:output"),
    ("one name for a recorded pair", lambda: record().moments["0:output"], UnknownNameError, "pair"),
)
def test_a_folder_or_a_pair_that_cannot_be_is_refused(misuse):
    misuse.check()
