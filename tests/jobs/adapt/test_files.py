"""An adapted model on the disk: what was saved is loaded to the last bit, for every method, kind of task and body."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import interbasin as ib
from interbasin.errors import CheckpointError, DataError, FileError
from interbasin.jobs.adapt import METHODS, Adaptation, Fittings, Verdict, load_adapted
from interbasin.jobs.adapt.files import FILE, describe_model
from interbasin.jobs.adapt.methods import trials_of
from interbasin.jobs.adapt.samples import Samples
from interbasin.jobs.adapt.settings import Settings
from interbasin.jobs.adapt.setup import Setup, prepare_setup
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead
from interbasin.jobs.adapt.task import TargetTask
from interbasin.outcome import Stopwatch

pytestmark = pytest.mark.slow

COUNT = 24
SHAPES = {"vectors": (6,), "tokens": (2, 12), "maps": (1, 8, 8)}


class Tokens(nn.Module):
    """Signals as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv1d(1, 8, 4, 4)

    def forward(self, signals: Tensor) -> Tensor:
        return self.cut(signals).mT


def source_of(layout: str, width: int = 8) -> tuple[Source, Tensor]:
    """A source that takes what the layout says, and inputs for it."""
    torch.manual_seed(width)
    if layout == "vectors":
        body = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        return Source(nn.Linear(5, 8), body, nn.Linear(width, 3)), torch.randn(COUNT, 5)
    if layout == "tokens":
        block = nn.TransformerEncoderLayer(8, 2, width, batch_first=True, dropout=0.0)
        fittings = Fittings(positions=torch.randn(4, 8))
        return Source(Tokens(), block, nn.Linear(8, 3), fittings=fittings), torch.randn(COUNT, 1, 16)
    body = nn.Sequential(nn.Conv2d(4, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
    embedder = nn.Conv2d(1, 4, 3, padding=1)
    return Source(embedder, body, nn.Linear(width, 3), fittings=Fittings(patch=embedder)), torch.randn(COUNT, 1, 6, 6)


@functools.cache
def setup_of(layout: str, task: str = "classification", embedder: nn.Module | None = None, **options: Any) -> Setup:
    source, proxy = source_of(layout)
    inputs = torch.randn(COUNT, *SHAPES[layout])
    labels = {
        "classification": torch.arange(COUNT) % 2,
        "multilabel": torch.randint(0, 2, (COUNT, 3)).float(),
        "regression": torch.randn(COUNT, 2),
        "dense": torch.randn(COUNT, 1, *SHAPES[layout][1:]),
    }[task]
    # How the source's head is recalibrated is tried elsewhere, and takes long.
    with patch(
        "interbasin.jobs.adapt.setup.recalibrate",
        lambda linear, *data, **asked: SourceHead(linear, *[1.0] * 5, torch.arange(2)),
    ):
        return prepare_setup(
            source,
            (proxy, torch.arange(COUNT) % 3),
            TargetTask.of(task, labels),
            Samples(inputs, labels),
            unlabelled=None,
            settings=Settings(steps=2, align_steps=1, **options),
            embedder=embedder,
            seed=0,
            watch=Stopwatch(),
        )


def saved(setup: Setup, name: str, trial: Any, folder: Path) -> nn.Module:
    """A model of a method, saved as the job does."""
    model = METHODS[name].function(setup, torch.arange(COUNT), trial).model
    verdict = Verdict("too-few", "it is a test")
    blueprint = describe_model(model, setup)
    Adaptation(model=model, method=name, trial=trial.name, verdict=verdict, blueprint=blueprint, metrics={}).save(
        folder
    )
    return model


def check(setup: Setup, name: str, layout: str, folder: Path, embedder: nn.Module | None = None) -> None:
    """All trials of a method come back, around a source whose weights are others."""
    for place, trial in enumerate(trials_of(name, setup)):
        model = saved(setup, name, trial, folder / str(place))
        source, _ = source_of(layout)
        for parameter in source.body.parameters():
            nn.init.normal_(parameter)
        loaded = load_adapted(folder / str(place), source, embedder=embedder)
        with torch.no_grad():
            expected, found = model(setup.samples.inputs), loaded(setup.samples.inputs)
        assert torch.equal(found, expected)
        assert not loaded.training and not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "means"])  # which needs positions
def test_what_was_saved_is_loaded_to_the_last_bit(name, tmp_path):
    check(setup_of("vectors"), name, "vectors", tmp_path)


@pytest.mark.parametrize("layout", ["tokens", "maps"])
@pytest.mark.parametrize("name", ["naive", "means", "recraft", "random-body"])
def test_so_it_is_for_bodies_that_take_tokens_and_maps(name, layout, tmp_path):
    check(setup_of(layout), name, layout, tmp_path)


@pytest.mark.parametrize("layout", ["tokens", "maps"])
@pytest.mark.parametrize("task", ["multilabel", "regression", "dense"])
@pytest.mark.parametrize("name", ["raw-linear", "nearest", "linear-probe"])
def test_so_it_is_for_every_kind_of_task(name, task, layout, tmp_path):
    check(setup_of(layout, task), name, layout, tmp_path)


def test_so_it_is_for_a_table_that_a_network_bends(tmp_path):
    check(setup_of("vectors", transport_width=4, predictor="transport"), "recraft", "vectors", tmp_path)


def test_an_embedder_of_ones_own_is_given_again(tmp_path):
    own = nn.Linear(6, 8)
    check(setup_of("vectors", embedder=own), "linear-probe", "vectors", tmp_path, nn.Linear(6, 8))
    with pytest.raises(DataError, match="embedder="):
        load_adapted(tmp_path / "0", source_of("vectors")[0])


def test_simple_models_need_no_source(tmp_path):
    setup = setup_of("vectors")
    model = saved(setup, "nearest", trials_of("nearest", setup)[0], tmp_path / "out")
    assert torch.equal(load_adapted(tmp_path / "out")(setup.samples.inputs), model(setup.samples.inputs))


@pytest.fixture
def probe(tmp_path) -> Path:
    setup = setup_of("vectors")
    saved(setup, "linear-probe", trials_of("linear-probe", setup)[0], tmp_path / "out")
    return tmp_path / "out"


def test_a_network_needs_its_source(probe):
    with pytest.raises(DataError, match="source="):
        load_adapted(probe)


def test_a_source_of_another_width_is_refused(probe):
    with pytest.raises(CheckpointError, match="another network"):
        load_adapted(probe, source_of("vectors", width=12)[0])


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [({"kind": "Mystery"}, "Mystery"), ({"body_inputs": [2]}, "around this source"), ({"outputs": None}, "built")],
)
def test_a_blueprint_that_nothing_can_be_built_from_is_refused(probe, changes, keyword):
    place = probe / FILE
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))
    (probe / "outcome.json").unlink()  # which knows what was written
    with pytest.raises((FileError, DataError, CheckpointError), match=keyword):
        load_adapted(probe, source_of("vectors")[0])


@pytest.mark.parametrize("damage", ["weights", "scale", "kind of task"])
def test_what_was_changed_after_it_was_saved_is_refused(damage, tmp_path):
    source, proxy = source_of("vectors")
    inputs = torch.randn(COUNT, *SHAPES["vectors"])
    result = ib.adapt(
        source, (proxy, torch.arange(COUNT) % 3), (inputs, torch.arange(COUNT) % 2), method="naive", steps=2
    )
    result.save(tmp_path / "saved")
    if damage == "weights":
        place = tmp_path / "saved" / "model.safetensors"
        content = bytearray(place.read_bytes())
        content[-3] ^= 1
        place.write_bytes(content)
    else:
        place = tmp_path / "saved" / FILE
        change = {"scale": 2.0} if damage == "scale" else {"task": "x"}
        place.write_text(json.dumps(json.loads(place.read_text()) | change, indent=2) + "\n")
    with pytest.raises(FileError, match=re.escape(place.name)):
        load_adapted(tmp_path / "saved", source)


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_a_source_of_any_precision_is_adapted_and_loaded(precision, tmp_path):
    source, proxy = source_of("vectors")
    source = replace(source, embedder=source.embedder.to(precision), body=source.body.to(precision), head=None)
    inputs = torch.randn(COUNT, *SHAPES["vectors"])
    result = ib.adapt(
        source, (proxy, torch.arange(COUNT) % 3), (inputs, torch.arange(COUNT) % 2), method="naive", steps=2
    )
    result.save(tmp_path / "saved")
    assert torch.equal(load_adapted(tmp_path / "saved", source)(inputs), result.model(inputs))


def test_a_folder_without_an_adaptation_is_refused(tmp_path):
    with pytest.raises(FileError, match=FILE):
        load_adapted(tmp_path, source_of("vectors")[0])


def test_the_job_saves_what_can_be_loaded(tmp_path):
    source, proxy = source_of("vectors")
    torch.manual_seed(0)
    train = torch.randn(40, 6), torch.arange(40) % 2
    state = torch.get_rng_state()
    result = ib.adapt(source, (proxy, torch.arange(COUNT) % 3), train, method="linear-probe", steps=1)
    outcome = result.save(tmp_path / "out")
    assert {"methods-plot", "bound-plot"} <= {artefact.name for artefact in outcome.artefacts}
    loaded = load_adapted(tmp_path / "out", source)
    assert torch.equal(loaded(train[0]), result.model(train[0]))
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone
