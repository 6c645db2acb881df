"""What the fits refuse, and what they say about what they could not do."""

from __future__ import annotations

import errno
import inspect
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.statistics.test_moments import rows
from tests.test_storage import case, left_in, refused

from interbasin import PairedMoments, fit, maps
from interbasin.errors import DataError, FileError, FitError, MapError, MissingExtraError, ShapeError, UnknownNameError
from interbasin.fit import STATUSES, Fit
from interbasin.fit.registry import SOLVERS
from interbasin.maps import Identity

X, Y = rows(30, 4), rows(30, 4, seed=1)
WITH_GRAMS = [name for name in fit.names() if "grams" in fit.describe(name).needs]
EVERY = pytest.mark.parametrize("name", fit.names())


def some(source: int = 4, target: int = 4, grams: bool = True) -> PairedMoments:
    return PairedMoments.of(rows(30, source), rows(30, target, seed=1), grams=grams)


# What every fit refuses


@pytest.mark.parametrize(
    ("give", "error", "words"),
    [
        case("nothing", lambda: (), DataError, "two arrays", "found nothing"),
        case("one array", lambda: (X,), DataError, "two arrays", "only Tensor"),
        case("only a target", lambda: (None, Y), DataError, "found nothing"),
        case("moments and an array", lambda: (some(), Y), DataError, "PairedMoments alone", "a second argument"),
        case("an array and moments", lambda: (X, some()), DataError, "The target", "PairedMoments"),
        case("empty moments", lambda: (PairedMoments(grams=True),), DataError, "empty", "update(x, y)"),
        case("text", lambda: ("old.npy", "new.npy"), DataError, "The source", "str"),
        case("fewer rows", lambda: (X, Y[:9]), ShapeError, "not paired", "(30,)", "(9,)"),
        case("axes the other way", lambda: (X.reshape(5, 6, 4), Y.reshape(6, 5, 4)), ShapeError, "not paired"),
        case("vectors", lambda: (X[0], Y[0]), ShapeError, "two axes", "(4,)"),
        case("numbers", lambda: (1.0, 2.0), ShapeError, "two axes", "()"),
        case("no rows", lambda: (X[:0], Y[:0]), DataError, "empty"),
        case("no columns", lambda: (X[:, :0], Y), ShapeError, "(30, 0)"),
        case("whole numbers", lambda: (X.long(), Y), DataError, "torch.int64"),
        case("complex", lambda: (X, Y.to(torch.complex128)), DataError, "The target", "complex128"),
        case("NaN", lambda: (X, torch.where(Y > 1, math.nan, Y)), DataError, "NaN or infinity", "target"),
        case("infinity", lambda: (torch.where(X > 1, math.inf, X), Y), DataError, "NaN or infinity", "source"),
    ],
)
@EVERY
def test_data_that_cannot_be_fitted_are_refused(name, give, error, words):
    refused(lambda: fit.get(name)(*give()), error, words)


@pytest.mark.parametrize("name", WITH_GRAMS)
def test_fits_that_need_gram_matrices_ask_for_them(name):
    refused(lambda: fit.get(name)(some(grams=False)), DataError, (name, "grams=True"))


def test_onto_a_narrower_space_some_options_need_gram_matrices():
    refused(lambda: fit.stiefel(some(target=2, grams=False)), DataError, ("grams=True",))
    refused(lambda: fit.procrustes(some(target=2, grams=False), scale=True), DataError, ("grams=True",))
    assert fit.procrustes(some(target=2), scale=True).map.kind == "linear"
    assert math.isnan(fit.procrustes(some(target=2, grams=False)).residual)


# Options


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        case("ridge below zero", lambda: fit.least_squares(X, Y, ridge=-1.0), FitError, "at least 0", "-1.0"),
        case("ridge NaN", lambda: fit.least_squares(X, Y, ridge=math.nan), FitError, "finite", "nan"),
        case("ridge infinite", lambda: fit.least_squares(X, Y, ridge=math.inf), FitError, "finite", "inf"),
        case("ridge in words", lambda: fit.least_squares(X, Y, ridge="a lot"), FitError, "'a lot'"),
        case("no ridge at all", lambda: fit.least_squares(X, Y, ridge=None), FitError, "None"),
        case("ridge of orthogonalised", lambda: fit.orthogonalised(X, Y, ridge=-1.0), FitError, "-1.0"),
        case("ridge of cca", lambda: fit.cca(X, Y, ridge=-1.0), FitError, "at least 0", "-1.0"),
        case("ridge of cca NaN", lambda: fit.cca(X, Y, ridge=math.nan), FitError, "nan"),
        case("power below zero", lambda: fit.cca(X, Y, power=-0.1), FitError, "0 (Procrustes) to 0.5", "-0.1"),
        case("power above a half", lambda: fit.cca(X, Y, power=1), FitError, "0.5 (CCA)", "1"),
        case("power NaN", lambda: fit.cca(X, Y, power=math.nan), FitError, "nan"),
        case("power in words", lambda: fit.cca(X, Y, power="half"), FitError, "'half'"),
        case("unobserved", lambda: fit.procrustes(X, Y, unobserved="keep"), FitError, "'complete' or 'drop'", "'keep'"),
        case("unobserved of cca", lambda: fit.cca(X, Y, unobserved=None), FitError, "'complete' or 'drop'", "None"),
        case("unobserved again", lambda: fit.orthogonalised(X, Y, unobserved="x"), FitError, "'complete' or 'drop'"),
        case("rank tolerance of one", lambda: fit.procrustes(X, Y, rank_tolerance=1.0), FitError, "below 1", "1.0"),
        case("negative rank tolerance", lambda: fit.procrustes(X, Y, rank_tolerance=-0.1), FitError, "-0.1"),
        case("rank tolerance NaN", lambda: fit.procrustes(X, Y, rank_tolerance=math.nan), FitError, "nan"),
        case("rank tolerance in words", lambda: fit.procrustes(X, Y, rank_tolerance="low"), FitError, "'low'"),
        case(
            "match", lambda: fit.assignment(X, Y, match="cosine"), FitError, "'covariance' or 'correlation'", "cosine"
        ),
        case("match of sinkhorn", lambda: fit.sinkhorn(X, Y, match=None), FitError, "'covariance'", "None"),
        case("temperature zero", lambda: fit.sinkhorn(X, Y, temperature=0), FitError, "above 0", "0"),
        case("temperature below zero", lambda: fit.sinkhorn(X, Y, temperature=-1.0), FitError, "-1.0"),
        case("temperature infinite", lambda: fit.sinkhorn(X, Y, temperature=math.inf), FitError, "inf"),
        case("temperature in words", lambda: fit.sinkhorn(X, Y, temperature="warm"), FitError, "'warm'"),
        case("no steps of sinkhorn", lambda: fit.sinkhorn(X, Y, steps=0), FitError, "at least 1", "0"),
        case("half a step of sinkhorn", lambda: fit.sinkhorn(X, Y, steps=0.5), FitError, "whole number", "0.5"),
        case("negative tolerance of sinkhorn", lambda: fit.sinkhorn(X, Y, tolerance=-1.0), FitError, "-1.0"),
        case("tolerance NaN of sinkhorn", lambda: fit.sinkhorn(X, Y, tolerance=math.nan), FitError, "nan"),
        case("tolerance in words", lambda: fit.sinkhorn(X, Y, tolerance="low"), FitError, "'low'"),
        case("tolerance zero", lambda: fit.stiefel(X, Y, tolerance=0), FitError, "above 0 and below 1", "0"),
        case("tolerance one", lambda: fit.stiefel(X, Y, tolerance=1.0), FitError, "below 1", "1.0"),
        case("tolerance NaN", lambda: fit.stiefel(X, Y, tolerance=math.nan), FitError, "nan"),
        case("no steps", lambda: fit.stiefel(X, Y, steps=0), FitError, "at least 1", "0"),
        case("steps in words", lambda: fit.stiefel(X, Y, steps="ten"), FitError, "'ten'"),
        case("a seed in words", lambda: fit.stiefel(X, Y, seed="lucky"), DataError, "'lucky'"),
        case("a seed beyond all numbers", lambda: fit.stiefel(X, Y, seed=10**30), DataError, "seed"),
    ],
)
def test_a_bad_option_is_refused(action, error, words):
    refused(action, error, words)


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


def test_an_option_of_no_fit_is_refused():
    words = ("no option 'ridgid'", "no other method has it", "ridge")
    refused(lambda: SOLVERS.require_options("cca", {"ridge": 1, "ridgid": 1}), FitError, words)


@EVERY
def test_the_signature_shows_the_options(name):
    solver = fit.describe(name)
    parameters = inspect.signature(solver.function).parameters
    assert list(parameters) == ["source", "target", *solver.options]
    assert solver.summary and solver.reference


# Names


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [("procustes", "procrustes"), ("Sinkhorn", "sinkhorn"), ("leastsquares", "least-squares"), ("CCA", "cca"), (3, "")],
)
@pytest.mark.parametrize("find", [fit.get, fit.describe])
def test_an_unknown_fit_gets_the_known_ones_nearest_first(find, asked, nearest):
    message = refused(lambda: find(asked), UnknownNameError, (repr(asked), f"one of: {nearest}", *fit.names()))
    assert "\n" not in message


def test_underscores_do_for_hyphens():
    assert fit.get("least_squares") is fit.get("least-squares") is fit.least_squares


# The descent


def objective(gradient):
    return lambda q: (0.0, gradient)


TALL, WIDE = torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0, 0.0]])


@pytest.mark.parametrize(
    ("start", "error", "words"),
    [
        case("a vector", lambda: torch.ones(4), ShapeError, "(target, source)", "(4,)"),
        case("no rows", lambda: torch.ones(0, 4), ShapeError, "(0, 4)"),
        case("another shape", lambda: torch.eye(3), ShapeError, "(3, 3)", "(4, 4)"),
        case("not orthogonal", lambda: 2 * torch.eye(4), MapError, "orthonormal"),
        case("rows of zeros", lambda: torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0])), FitError, "zero"),
        case("NaN", lambda: torch.full((4, 4), math.nan), DataError, "finite"),
        case("complex", lambda: torch.eye(4, dtype=torch.complex64), DataError, "start of the descent", "complex64"),
        case("text", lambda: "identity", DataError, "start of the descent", "str"),
    ],
)
def test_a_start_that_is_not_on_the_manifold_is_refused(start, error, words):
    refused(lambda: fit.stiefel(X, Y, start=start()), error, words)


def test_an_objective_without_data_needs_a_start():
    refused(lambda: fit.stiefel(objective=objective(TALL)), FitError, ("needs a start", "(target, source)"))
    refused(lambda: fit.stiefel(start=TALL), DataError, ("found nothing",))


@pytest.mark.parametrize("start", [TALL, WIDE], ids=["tall", "wide"])
@pytest.mark.parametrize(
    "gradient",
    [1.0, None, "steep", torch.ones(2), torch.ones(2, 2), torch.ones(1, 1, 1), np.ones((2, 1))],
    ids=["number", "nothing", "text", "vector", "square", "three axes", "array"],
)
def test_a_gradient_of_another_shape_is_refused(start, gradient):
    words = ("gradient", f"of shape {tuple(start.shape)}")
    refused(lambda: fit.stiefel(objective=objective(gradient), start=start), ShapeError, words)


@pytest.mark.parametrize("start", [TALL, WIDE], ids=["tall", "wide"])
@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor(math.nan)], ids=repr)
def test_an_objective_that_is_not_finite_is_refused(start, value):
    refused(lambda: fit.stiefel(objective=lambda q: (value, q), start=start), FitError, ("not finite", "value"))
    words = ("gradient is not finite",)
    refused(lambda: fit.stiefel(objective=lambda q: (1.0, q * math.nan), start=start), FitError, words)


def test_an_objective_may_turn_bad_on_the_way():
    values = iter([1.0, math.nan])
    with_cliff = lambda q: (next(values), torch.tensor([[0.0], [1.0]], dtype=q.dtype))  # noqa: E731
    refused(lambda: fit.stiefel(objective=with_cliff, start=TALL), FitError, ("not finite",))


def test_an_offset_cannot_be_had_without_data():
    refused(lambda: fit.stiefel(objective=objective(TALL), start=TALL, affine=True), FitError, ("affine",))


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


def test_notes_that_are_no_json_leave_nothing_behind(tmp_path):
    with pytest.raises(FileError, match="cannot be written as JSON"):
        fit.procrustes(X, Y).save(tmp_path / "out", notes={"map": torch.eye(2)})
    assert left_in(tmp_path) == []


def test_the_soft_assignment_names_the_extra_it_lacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    words = ("sinkhorn", "'ot' extra", "pip install 'interbasin[ot]'")
    refused(lambda: fit.sinkhorn(X, Y), MissingExtraError, words)
    assert fit.assignment(X, Y).status == "converged"


def test_an_objective_that_returns_no_pair_is_refused():
    for start in (torch.eye(3), torch.eye(3)[:2]):
        with pytest.raises(FitError, match="value and its gradient, found Tensor"):
            fit.stiefel(objective=lambda q: q.sum(), start=start)


def test_an_affine_fit_without_data_is_refused():
    with pytest.raises(FitError, match="needs data, whose means it carries"):
        fit.stiefel(objective=lambda q: (q.sum(), torch.ones_like(q)), start=torch.eye(2), affine=True)
