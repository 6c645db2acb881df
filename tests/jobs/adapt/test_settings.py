"""Settings with their defaults, and the paper's tables 8 and 9."""

from __future__ import annotations

import math

import pytest

from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.adapt.settings import PRESETS, Settings, make_settings

# Rows of the paper's tables: backbone, batch, epochs, accumulation, optimiser, rate, decay, omega, FA, FLD epochs.
TABLES = """
cifar100 swin 32 60 32 sgd 1e-4 1e-3 .3 60 4
spherical swin 32 60 4 adamw 1e-4 1e-1 .3 60 4
ninapro swin 32 60 1 adam 1e-4 1e-5 .3 60 4
fsd50k swin 32 100 1 adam 1e-4 5e-5 .3 60 4
darcy swin 4 100 1 adamw 1e-3 5e-3 .3 60 4
psicov roberta 1 10 32 adam 5e-6 1e-5 .5 60 4
cosmic swin 4 60 1 adamw 1e-3 0 .3 60 4
ecg roberta 4 15 16 sgd 1e-6 1e-1 .5 60 2
satellite roberta 16 60 4 adamw 3e-5 3e-6 .5 60 4
deepsea roberta 16 13 1 adam 1e-5 0 .5 60 2
pde-advection roberta 4 200 1 adam 1e-4 1e-5 .5 60 4
pde-burgers roberta 4 200 1 adam 1e-5 1e-5 .5 60 4
pde-reaction-diffusion roberta 4 200 1 sgd 1e-3 1e-5 .5 60 4
pde-diffusion-sorption swin 4 200 1 adamw 1e-4 0 .3 60 4
pde-navier-stokes roberta 4 200 1 adamw 1e-4 1e-3 .5 60 4
pde-darcy swin 4 100 1 adamw 1e-4 1e-5 .3 60 4
pde-shallow-water swin 4 200 1 adamw 1e-4 0 .3 60 4
pde-reaction-diffusion-2d swin 4 200 1 adam 1e-4 1e-3 .3 60 4
"""
ROWS = {row.split()[0]: row.split()[1:] for row in TABLES.strip().splitlines()}


def test_presets_are_the_columns_of_the_papers_tables():
    assert set(PRESETS) == set(ROWS)
    for name, (backbone, batch, epochs, accumulate, optimiser, *numbers) in ROWS.items():
        preset = PRESETS[name]
        assert (preset.backbone, preset.optimiser) == (backbone, optimiser), name
        assert (preset.batch_size, preset.epochs, preset.accumulate) == (int(batch), int(epochs), int(accumulate)), name
        rate, decay, omega, align, distortion = map(float, numbers)
        assert (preset.rate, preset.decay, preset.omega) == (rate, decay, omega), name
        assert (preset.align_epochs, preset.distortion_epochs) == (align, distortion), name


@pytest.mark.parametrize("samples", [40, 100, 330, 1000])
@pytest.mark.parametrize("name", ROWS)
def test_stage_1_of_a_preset_has_the_epochs_of_the_papers_tables(name, samples):
    align, distortion = map(int, ROWS[name][-2:])
    settings = make_settings({}, preset=name, samples=samples)
    options = settings.alignment(with_distortion=True, seed=0)
    terms = [options.terms_at(step) for step in range(1, options.steps + 1)]
    per_epoch = math.ceil(samples / options.batch)
    assert terms == [(True, False)] * (align * per_epoch) + [(False, True)] * (distortion * per_epoch)


def test_a_preset_with_another_number_of_steps_keeps_its_share_of_them():
    shares = {"ecg": 2 / 62, "pde-burgers": 4 / 64}
    for name, share in shares.items():
        for steps in (310, 640, 3):
            settings = make_settings({"align_steps": steps}, preset=name, samples=330)
            assert settings.distortion_steps == max(1, round(share * steps))
    own = make_settings({"align_steps": 50, "distortion_steps": 20}, preset="ecg", samples=330)
    assert (own.align_steps, own.distortion_steps) == (50, 20)


def test_a_preset_counts_its_epochs_in_steps_and_gives_way_to_what_is_given():
    settings = make_settings({}, preset="ecg", samples=330)
    assert settings.steps == 15 * math.ceil(330 / 64) and settings.accumulate == 16 and settings.optimiser == "sgd"
    assert settings.align_steps == 62 * math.ceil(330 / 64) and settings.schedule == "sequential"
    assert settings.rate == settings.body_rate == 1e-6 and settings.omega == 0.5
    own = make_settings({"rate": 1e-2, "omega": None, "steps": 7}, preset="ecg", samples=330)
    assert (own.rate, own.body_rate, own.omega, own.steps) == (1e-2, 1e-6, 0.5, 7)
    with pytest.raises(UnknownNameError, match="pde-burgers"):
        make_settings({}, preset="burgers", samples=10)


def test_steps_are_ten_passes_within_bounds():
    assert (
        Settings().steps_for(40) == 150 and Settings().steps_for(1600) == 1000 and Settings().steps_for(10**6) == 2000
    )
    assert Settings(batch_size=32).steps_for(1600) == 500 and Settings(accumulate=2).steps_for(1600) == 500
    assert Settings(steps=3).steps_for(1600) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"accumulate": True}, "accumulate"),
        ({"rate": 0.0}, "rate must be a number above 0"),
        ({"body_rate": math.nan}, "body_rate"),
        ({"omega": -1}, "omega"),
        ({"decay": -1.0}, "decay"),
        ({"regularise": -0.1}, "regularise"),
        ({"discretise": 1}, "discretise must be a whole number of at least 2"),
        ({"transport_width": -1}, "transport_width"),
        ({"distortion_steps": 0}, "distortion_steps must be a whole number from 1 to 40"),
        ({"distortion_steps": 9, "align_steps": 8}, "distortion_steps must be a whole number from 1 to 8"),
        ({"step": 3}, "adapt has no setting 'step'; it has .*steps"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        make_settings(options, samples=10)


@pytest.mark.parametrize(
    "name", ["predictor", "body", "optimiser", "schedule", "solver", "features", "start", "head_loss", "precision"]
)
def test_unknown_names_of_settings_are_refused(name):
    with pytest.raises(UnknownNameError, match="'telepathy'"):
        make_settings({name: "telepathy"}, samples=10)
