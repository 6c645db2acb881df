"""What can be seen of a training: a function that is called, a bar on stderr, events that TensorBoard reads."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch

from interbasin.errors import FileError, MissingExtraError
from interbasin.training import Checkpoint, train


def fit(**options: object) -> None:
    weight = torch.zeros(1, requires_grad=True)
    train(
        [weight],
        [torch.tensor([1.0])] * 2,
        lambda batch, _: (weight - batch).square().sum(),
        steps=4,
        every=2,
        rate=0.1,
        evaluate=lambda: 0.25,
        **options,
    )


def test_a_function_hears_of_each_step_with_its_loss():
    heard = []
    fit(progress=lambda step, steps, loss: heard.append((step, steps, round(loss, 2))))
    assert heard == [(1, 4, 1.0), (2, 4, 0.81), (3, 4, 0.64), (4, 4, 0.49)]


def test_a_bar_on_stderr_shows_what_is_trained_with_loss_and_score(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    fit(progress=True, what="fitting")
    output = capsys.readouterr()
    assert "fitting: loss 0.4" in output.err and "score 0.25" in output.err and "4/4" in output.err
    assert output.out == ""


def test_in_a_file_there_is_no_bar(monkeypatch, capsys):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    fit(progress=True)
    assert capsys.readouterr().err.strip() == ""


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, round(event.value, 3)) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_loss_score_and_rate_by_step(tmp_path):
    fit(tensorboard=tmp_path / "events")
    events = read_events(tmp_path / "events")
    assert [step for step, _ in events["loss"]] == [1, 2, 3, 4] and events["loss"][0] == (1, 1.0)
    assert events["score"] == [(2, 0.25), (4, 0.25)]
    assert events["rate"] == [(step, 0.1) for step in (1, 2, 3, 4)]


def test_events_of_a_run_that_goes_on_have_each_step_once(tmp_path):
    def stop(step, steps, loss):
        if step == 3:
            raise KeyboardInterrupt

    options = {"tensorboard": tmp_path / "events", "schedule": "cosine"}
    with contextlib.suppress(KeyboardInterrupt):
        fit(checkpoint=Checkpoint(tmp_path / "c", steps=2), progress=stop, **options)
    fit(checkpoint=Checkpoint(tmp_path / "c", steps=2), **options)
    events = read_events(tmp_path / "events")
    assert [step for step, _ in events["loss"]] == [1, 2, 3, 4]
    assert [rate for _, rate in events["rate"]] == [0.1, 0.085, 0.05, 0.015]


def test_tensorboard_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match="Writing files for TensorBoard needs"):
        fit(tensorboard=tmp_path / "events")


def test_events_are_not_written_over_a_file(tmp_path):
    (tmp_path / "events").write_text("mine", "utf-8")
    with pytest.raises(FileError, match="but that is a file; choose another folder"):
        fit(tensorboard=tmp_path / "events")
