"""What the fits say about what they could not do. Misuses of fits stand in tests/misuses."""

from __future__ import annotations

import errno
import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from tests.statistics.test_moments import rows
from tests.test_storage import left_in, refused

from interbasin import PairedMoments, fit, maps
from interbasin.errors import FileError, FitError
from interbasin.fit import STATUSES, Fit
from interbasin.fit.registry import SOLVERS
from interbasin.maps import Identity

X, Y = rows(30, 4), rows(30, 4, seed=1)
EVERY = pytest.mark.parametrize("name", fit.names())


def some(source: int = 4, target: int = 4, grams: bool = True) -> PairedMoments:
    return PairedMoments.of(rows(30, source), rows(30, target, seed=1), grams=grams)


def test_onto_a_narrower_space_the_residual_needs_gram_matrices():
    assert fit.procrustes(some(target=2), scale=True).map.kind == "linear"
    assert math.isnan(fit.procrustes(some(target=2, grams=False)).residual)


# Options


@EVERY
def test_an_option_of_another_fit_is_refused_by_name(name):
    solver = fit.describe(name)
    for option in {option for other in fit.names() for option in fit.describe(other).options}:
        if option in solver.options:
            SOLVERS.require_options(name, {option: 1})
            continue
        users = [other for other in fit.names() if option in fit.describe(other).options]
        words = (f"{name} has no option {option!r}", *users, *solver.options)
        refused(lambda option=option: SOLVERS.require_options(name, {option: 1}), FitError, words)
        with pytest.raises(TypeError, match=option):
            solver.function(X, Y, **{option: None})


@EVERY
def test_the_signature_shows_the_options(name):
    solver = fit.describe(name)
    parameters = inspect.signature(solver.function).parameters
    assert list(parameters) == ["source", "target", *solver.options]
    assert solver.summary and solver.reference


# Names


def test_underscores_do_for_hyphens():
    assert fit.get("least_squares") is fit.get("least-squares") is fit.least_squares


# The descent


def objective(gradient):
    return lambda q: (0.0, gradient)


TALL = torch.tensor([[1.0], [0.0]])


def test_an_objective_may_turn_bad_on_the_way():
    values = iter([1.0, math.nan])
    with_cliff = lambda q: (next(values), torch.tensor([[0.0], [1.0]], dtype=q.dtype))  # noqa: E731
    refused(lambda: fit.stiefel(objective=with_cliff, start=TALL), FitError, ("not finite",))


def test_without_data_nothing_is_known_about_the_residual():
    found = fit.stiefel(objective=objective(torch.zeros(2, 1)), start=TALL)
    assert math.isnan(found.residual) and math.isnan(found.explained)
    assert found.summary()["residual"] is None and found.summary()["explained"] is None


def test_a_descent_that_is_cut_short_says_so():
    found = fit.stiefel(X, Y, steps=1)
    assert found.status == "step-limit" and found.steps == 1
    refused(found.required, FitError, ("stiefel", "step-limit", "allow more steps"))


def test_a_descent_that_cannot_improve_says_so():
    # The gradient points one way and the objective falls in none.
    found = fit.stiefel(objective=lambda q: (float((q - TALL).abs().sum()), torch.tensor([[0.0], [1.0]])), start=TALL)
    assert found.status == "stalled"
    refused(found.required, FitError, ("stalled",))


# What comes back


def test_nothing_is_whitened_at_power_zero():
    assert torch.allclose(fit.cca(X, Y, power=0).map.matrix, fit.procrustes(X, Y).map.matrix)


def test_a_source_without_energy_has_a_factor_of_one():
    assert fit.procrustes(X * 0, Y, scale=True).details["scale"] == 1.0


def test_a_fit_that_converged_is_what_required_gives_back():
    found = fit.procrustes(X, Y)
    assert found.required() is found


def test_a_fit_that_saw_too_little_says_so():
    found = fit.procrustes(X[:3], Y[:3])
    assert found.message == STATUSES["rank-deficient"]
    refused(found.required, FitError, ("procrustes", "rank-deficient", "give more rows"))


@EVERY
def test_every_fit_survives_one_row_and_constant_rows(name):
    for x, y in ((X[:1], Y[:1]), (torch.full((9, 3), 0.1), torch.full((9, 3), 0.3)), (X * 0, Y * 0), (X, Y * 0)):
        found = fit.get(name)(x, y)
        assert found.status in STATUSES and bool(torch.isfinite(found.map.matrix).all())
        json.dumps(found.summary(), allow_nan=False)


@EVERY
@pytest.mark.parametrize("widths", [(1, 1), (1, 3), (3, 1)])
def test_every_fit_survives_a_width_of_one(name, widths):
    found = fit.get(name)(rows(9, widths[0]), rows(9, widths[1]))
    assert (found.map.source_width, found.map.target_width) == widths


@EVERY
def test_a_summary_is_json_and_what_is_not_known_is_null(name):
    found = fit.get(name)(X, Y)
    summary = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert summary["method"] == name and summary["status"] == found.status and summary["source_width"] == 4
    unknown = Fit(Identity(2), math.nan, -math.inf, "converged", 1, name, {"a": math.inf, "b": torch.eye(2), "c": "d"})
    summary = json.loads(json.dumps(unknown.summary(), allow_nan=False))
    assert (summary["residual"], summary["explained"], summary["details"]) == (None, None, {"a": None, "c": "d"})


@EVERY
@pytest.mark.parametrize("affine", [False, True])
def test_a_saved_fit_is_its_map_and_its_summary(name, affine, tmp_path):
    found = fit.get(name)(X, Y, affine=affine)
    found.save(tmp_path / "out", notes={"request": {"source": "a.npy"}})
    assert maps.load(tmp_path / "out") == found.map
    document = json.loads((tmp_path / "out" / "fit.json").read_text("utf-8"))
    assert document["request"] == {"source": "a.npy"} and document["residual"] == found.residual
    assert left_in(tmp_path) == ["out", "out/fit.json", "out/map.json", "out/map.safetensors"]


def test_nothing_is_overwritten_unasked(tmp_path):
    first, second = fit.procrustes(X, Y), fit.assignment(X, Y)
    first.save(tmp_path / "out")
    refused(lambda: second.save(tmp_path / "out"), FileError, (str(tmp_path / "out"), "exists already"))
    assert maps.load(tmp_path / "out") == first.map
    second.save(tmp_path / "out", force=True)
    assert maps.load(tmp_path / "out") == second.map


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_fit_that_cannot_be_written_leaves_the_earlier_one(fault, tmp_path, monkeypatch):
    first = fit.procrustes(X, Y)
    first.save(tmp_path / "out")
    before, write = left_in(tmp_path), Path.write_text

    def fail_at_the_last_file(path, *arguments, **keywords):
        if path.name == "fit.json":
            raise fault
        return write(path, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail_at_the_last_file)
        with pytest.raises((FileError, KeyboardInterrupt)):
            fit.assignment(X, Y).save(tmp_path / "out", force=True)
    assert maps.load(tmp_path / "out") == first.map and left_in(tmp_path) == before
