"""Stage 1 as it goes on: the draws and figures that it always had, a bar, events, and the same bits after a kill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.jobs.adapt.examples import (
    QUICK,
    draw,
    make_mlp,
    make_proxy,
    make_setup,
    make_target,
    make_token_source,
    one_recalibration,  # noqa: F401  (a fixture)
    same_bits,
)
from tests.training.test_monitor import read_events
from torch import Tensor

import interbasin as ib
from interbasin.errors import FileError
from interbasin.jobs.adapt.feature_map import AlignmentStep
from interbasin.jobs.adapt.methods import align
from interbasin.jobs.adapt.rivals.mona import meta_learn
from interbasin.jobs.adapt.rivals.orca import align_embedder
from interbasin.jobs.adapt.setup import Setup, TrainingPlaces
from interbasin.jobs.adapt.stage_one import Places, take_steps
from interbasin.storage.records import read_record, write_record
from interbasin.training import Checkpoint, checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_recalibration")]
ROWS = torch.arange(30)

# Steps with FA and FLD, as they were before stage 1 had checkpoints (torch 2.13, one thread of a CPU). They hold the
# order of all that is drawn: cells of benchmarks were made with it.
RECORDED = {
    "joint": [(0, 0.10978, 1.19036), (10, 0.02386, 1.19252), (20, 0.02029, 1.19242), (25, 0.01988, 1.19241)],
    "sequential": [(0, 0.10978, 1.19036), (10, 0.02437, 1.19261), (20, 0.02109, 1.19244), (25, 0.02072, 1.19243)],
    "embedder": [(0, 0.24736, 1.05257), (10, 0.12857, 0.99079), (20, 0.13867, 0.96152), (25, 0.13908, 0.95771)],
    "unlabelled": [(0, 0.11692, 1.18623), (10, 0.04363, 1.18797), (20, 0.03639, 1.18692), (25, 0.03455, 1.18679)],
}


def far_target() -> tuple[Tensor, Tensor]:
    """A target whose features lie far from the source's, so that there is something to align."""
    inputs, labels = make_target(40)
    return 5 * inputs + 3, labels


def setup_of(case: str = "joint") -> Setup:
    if case == "unlabelled":
        proxy = draw(60, 1, 8, seed=7) + torch.linspace(-2, 2, 8)
        labels = (proxy[:, 0, 0] > -2).long() + (proxy[:, 0, 1] > -1).long()
        inputs = 4 * (draw(40, 1, 8, seed=9) + torch.linspace(2, -2, 8))
        setup = make_setup(
            make_token_source(), proxy=(proxy, labels), target=(inputs, torch.arange(40) % 3), align_steps=25
        )
        return replace(setup, unlabelled=2 * draw(30, 1, 8, seed=3))
    options: dict[str, Any] = {
        "joint": {},
        "sequential": {"schedule": "sequential"},
        "embedder": {"features": "embedder", "seed": 1},
    }[case]
    return make_setup(proxy=make_proxy(60), target=far_target(), align_steps=25, **options)


@pytest.mark.parametrize("case", RECORDED)
def test_stage_1_draws_and_finds_what_it_always_did(case):
    looks = align(setup_of(case), ROWS, with_distortion=True).looks
    for look, (step, alignment, distortion) in zip(looks, RECORDED[case], strict=True):
        assert look.step == step
        assert (look.alignment, look.distortion) == pytest.approx((alignment, distortion), rel=2e-3)


# ---------------------------------------------------------------------- killed


def recraft(setup: Setup) -> tuple[dict[str, Tensor], tuple[AlignmentStep, ...]]:
    alignment = align(replace(setup, alignments={}), ROWS, with_distortion=True)
    return alignment.feature_map.embedder.state_dict(), alignment.looks


def rival(train: Callable[..., Any]) -> Callable[[Setup], tuple[dict[str, Tensor], Any]]:
    def run(setup: Setup) -> tuple[dict[str, Tensor], Any]:
        feature_map = setup.new_map(own_body=False)
        for parameter in feature_map.embedder.parameters():
            parameter.requires_grad_(True)
        return feature_map.embedder.state_dict(), train(setup, ROWS, feature_map)

    return run


class Seen:
    """Which steps were seen, up to one at which the run is killed."""

    def __init__(self, last: int | None = None) -> None:
        self.steps: list[int] = []
        self.last = last

    def __call__(self, step: int, steps: int | None, loss: float) -> None:
        assert steps == 25 and loss == loss
        self.steps.append(step)
        if step == self.last:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["recraft", "orca", "mona"])
@pytest.mark.parametrize("case", ["joint", "unlabelled"])
def test_stage_1_that_was_killed_goes_on_to_the_same_bits(case, method, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)  # every step is kept
    setup = setup_of(case)
    run = {"recraft": recraft, "orca": rival(align_embedder), "mona": rival(meta_learn)}[method]
    whole, looks = run(setup)

    def run_in(folder: Path, seen: Seen) -> Any:
        torch.rand(3)  # whatever was drawn before
        return run(replace(setup, places=TrainingPlaces(folder, None, seen)))

    for stops in ([1], [12, 20], [25]):
        folder = tmp_path / str(stops[0])
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                run_in(folder, Seen(stop))
        rest = Seen()
        state, found = run_in(folder, rest)
        assert rest.steps == list(range(stops[-1], 26)), "the step that was cut short is the first"
        assert found == looks and all(torch.equal(whole[name], state[name]) for name in whole)
        again = Seen()
        state, found = run_in(folder, again)
        assert not again.steps, "what is done is not done again"
        assert found == looks and all(torch.equal(whole[name], state[name]) for name in whole)


def test_a_whole_adaptation_that_was_killed_in_stage_1_goes_on_to_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    asked: dict[str, Any] = {"method": "recraft", "predictor": "transport", **QUICK, "align_steps": 12}
    given = make_mlp(), make_proxy(60), far_target()
    whole = ib.adapt(*given, **asked)
    steps: list[tuple[int, int | None]] = []

    def stop(step: int, count: int | None, loss: float) -> None:
        steps.append((step, count))
        if steps.count((7, 12)) == 2:  # in stage 1 of the second fold
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ib.adapt(*given, state=tmp_path / "state", on_step=stop, **asked)
    before = len(steps)
    result = ib.adapt(*given, state=tmp_path / "state", on_step=lambda *step: steps.append(step[:2]), **asked)
    assert steps[before:].count((7, 12)) == 5 - 1 + 1  # three folds and all samples are left, and the step cut short
    assert steps[before:].count((6, 12)) == 4 and dict(result.metrics) == dict(whole.metrics)
    assert same_bits(result.model, whole.model.state_dict())


def test_a_checkpoint_of_another_stage_1_or_a_damaged_one_is_refused(tmp_path):
    weight = torch.zeros(2, requires_grad=True)

    def go(steps: int, weight: Tensor = weight) -> None:
        optimiser = torch.optim.Adam([weight])

        def step(number: int) -> float:
            weight.grad = torch.ones_like(weight)
            optimiser.step()
            return 1.0

        take_steps(
            step,
            steps,
            optimiser=optimiser,
            trained={"weight": weight.detach()},
            generator=torch.Generator(),
            places=Places(checkpoint=Checkpoint(tmp_path / "kept")),
        )

    go(3)
    with pytest.raises(FileError, match="of another run"):
        go(4)
    with pytest.raises(FileError, match="of another run"):
        go(3, torch.zeros(3, requires_grad=True))
    document, tensors = read_record(tmp_path / "kept", "training", "training", 1)
    del tensors["generator"]
    write_record(tmp_path / "kept", "training", "training", 1, document, tensors)
    with pytest.raises(FileError, match="remove that folder to start anew"):
        go(3)


def test_of_several_processes_the_first_is_seen_and_none_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, count in (("0", 25), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        seen = Seen()
        recraft(replace(setup_of(), places=TrainingPlaces(tmp_path / "state", None, seen)))
        assert len(seen.steps) == count and not (tmp_path / "state").exists()


# ---------------------------------------------------------------------- seen


def test_tensorboard_reads_loss_rate_and_gap_of_stage_1(tmp_path):
    looks = recraft(replace(setup_of(), places=TrainingPlaces(None, tmp_path / "events")))[1]
    (folder,) = (tmp_path / "events").iterdir()
    events = read_events(folder)
    assert [step for step, _ in events["loss"]] == [step for step, _ in events["rate"]] == list(range(1, 26))
    assert events["score"] == [(look.step, pytest.approx(look.gap, abs=1e-3)) for look in looks[1:]]


def test_stage_1_has_a_bar_with_loss_and_gap(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    recraft(replace(setup_of(), places=TrainingPlaces(progress=True)))
    output = capsys.readouterr()
    assert "stage 1: loss " in output.err and "score 1.2" in output.err and "25/25" in output.err


def test_each_step_of_each_method_is_told(monkeypatch):
    seen: list[tuple[int, int | None, float]] = []
    result = ib.adapt(
        make_mlp(),
        make_proxy(60),
        far_target(),
        method="recraft",
        predictor="head",
        on_step=lambda *step: seen.append(step),
        **QUICK | {"align_steps": 3},
    )
    assert {(step, steps) for step, steps, _ in seen} == {(1, 2), (2, 2), (1, 3), (2, 3), (3, 3)}
    assert result.method == "recraft" and all(loss == loss for *_, loss in seen)
