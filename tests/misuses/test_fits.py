"""Misuses of ``ib.fit``: data that cannot be fitted, options out of their range, names that no fit has."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.misuses.table import misuses, the

import interbasin as ib
from interbasin import PairedMoments, fit
from interbasin.errors import DataError, FileError, FitError, MapError, ShapeError, UnknownNameError
from interbasin.fit.registry import SOLVERS

NO_DATA = [
    ("nothing", lambda: (), DataError, "nothing"),
    ("one array", lambda: (the.x,), DataError, "Tensor"),
    ("only a target", lambda: (None, the.y), DataError, "nothing"),
    ("moments and an array", lambda: (the.moments, the.y), DataError, "PairedMoments"),
    ("an array and moments", lambda: (the.x, the.moments), DataError, "target"),
    ("empty moments", lambda: (the.empty_moments,), DataError, "empty"),
    ("names of files", lambda: ("old.npy", "new.npy"), DataError, "str"),
    ("fewer rows of the target", lambda: (the.x, the.y[:9]), ShapeError, "(9,)"),
    ("axes the other way", lambda: (the.x.view(5, 6, 4), the.y.view(6, 5, 4)), ShapeError, "(6, 5)"),
    ("vectors", lambda: (the.x[0], the.y[0]), ShapeError, "(4,)"),
    ("numbers", lambda: (1.0, 2.0), ShapeError, "()"),
    ("no rows", lambda: (the.x[:0], the.y[:0]), DataError, "empty"),
    ("rows of no width", lambda: (the.x[:, :0], the.y), ShapeError, "(30, 0)"),
    ("whole numbers", lambda: (the.x.long(), the.y), DataError, "int64"),
    ("complex numbers", lambda: (the.x, the.y.to(torch.complex128)), DataError, "complex128"),
    ("NaN in the target", lambda: (the.x, torch.where(the.y > 1, math.nan, the.y)), DataError, "target"),
    ("infinity in the source", lambda: (torch.where(the.x > 1, math.inf, the.x), the.y), DataError, "source"),
]


@misuses(
    *(
        (f"{name} of {what}", lambda name=name, give=give: fit.get(name)(*give()), error, word)
        for name in fit.names()
        for what, give, error, word in NO_DATA
    ),
    *(
        (f"{name} without Gram matrices", lambda n=name: fit.get(n)(the.moments_without_grams), DataError, "grams=True")
        for name in fit.names()
        if "grams" in fit.describe(name).needs
    ),
    ("stiefel onto a narrower space without them", lambda: fit.stiefel(narrowing()), DataError, "grams=True"),
    (
        "a scale onto a narrower space without them",
        lambda: fit.procrustes(narrowing(), scale=True),
        DataError,
        "grams=True",
    ),
)
def test_data_that_cannot_be_fitted_are_refused(misuse):
    misuse.check()


def narrowing() -> PairedMoments:
    return PairedMoments.of(the.x, the.y[:, :2], grams=False)


def solve(name: str, **options: object) -> fit.Fit:
    return fit.get(name)(the.x, the.y, **options)


@misuses(
    ("a ridge below zero", lambda: solve("least-squares", ridge=-1.0), FitError, "ridge"),
    ("a ridge of NaN", lambda: solve("least-squares", ridge=math.nan), FitError, "nan"),
    ("a ridge of infinity", lambda: solve("least-squares", ridge=math.inf), FitError, "inf"),
    ("a ridge in words", lambda: solve("least-squares", ridge="a lot"), FitError, "'a lot'"),
    ("no ridge at all", lambda: solve("least-squares", ridge=None), FitError, "None"),
    ("a ridge below zero before the polar factor", lambda: solve("orthogonalised", ridge=-1.0), FitError, "ridge"),
    ("a ridge of cca below zero", lambda: solve("cca", ridge=-1.0), FitError, "ridge"),
    ("a ridge of cca of NaN", lambda: solve("cca", ridge=math.nan), FitError, "nan"),
    ("a power below zero", lambda: solve("cca", power=-0.1), FitError, "power"),
    ("a power above a half", lambda: solve("cca", power=1), FitError, "power"),
    ("a power of NaN", lambda: solve("cca", power=math.nan), FitError, "nan"),
    ("a power in words", lambda: solve("cca", power="half"), FitError, "'half'"),
    ("an unknown treatment of the unobserved", lambda: solve("procrustes", unobserved="keep"), FitError, "'drop'"),
    ("none for cca", lambda: solve("cca", unobserved=None), FitError, "'drop'"),
    ("another for the polar factor", lambda: solve("orthogonalised", unobserved="x"), FitError, "'drop'"),
    ("a rank tolerance of one", lambda: solve("procrustes", rank_tolerance=1.0), FitError, "rank_tolerance"),
    ("a negative rank tolerance", lambda: solve("procrustes", rank_tolerance=-0.1), FitError, "-0.1"),
    ("a rank tolerance of NaN", lambda: solve("procrustes", rank_tolerance=math.nan), FitError, "nan"),
    ("a rank tolerance in words", lambda: solve("procrustes", rank_tolerance="low"), FitError, "'low'"),
    ("an unknown match", lambda: solve("assignment", match="cosine"), FitError, "'correlation'"),
    ("no match for sinkhorn", lambda: solve("sinkhorn", match=None), FitError, "'covariance'"),
    ("a temperature of zero", lambda: solve("sinkhorn", temperature=0), FitError, "temperature"),
    ("a temperature below zero", lambda: solve("sinkhorn", temperature=-1.0), FitError, "-1.0"),
    ("an infinite temperature", lambda: solve("sinkhorn", temperature=math.inf), FitError, "inf"),
    ("a temperature in words", lambda: solve("sinkhorn", temperature="warm"), FitError, "'warm'"),
    ("no steps of sinkhorn", lambda: solve("sinkhorn", steps=0), FitError, "steps"),
    ("half a step of sinkhorn", lambda: solve("sinkhorn", steps=0.5), FitError, "0.5"),
    ("a negative tolerance of sinkhorn", lambda: solve("sinkhorn", tolerance=-1.0), FitError, "tolerance"),
    ("a tolerance of NaN of sinkhorn", lambda: solve("sinkhorn", tolerance=math.nan), FitError, "nan"),
    ("a tolerance in words of sinkhorn", lambda: solve("sinkhorn", tolerance="low"), FitError, "'low'"),
    ("a tolerance of zero", lambda: solve("stiefel", tolerance=0), FitError, "tolerance"),
    ("a tolerance of one", lambda: solve("stiefel", tolerance=1.0), FitError, "1.0"),
    ("a tolerance of NaN", lambda: solve("stiefel", tolerance=math.nan), FitError, "nan"),
    ("no steps", lambda: solve("stiefel", steps=0), FitError, "steps"),
    ("steps in words", lambda: solve("stiefel", steps="ten"), FitError, "'ten'"),
    ("a seed in words", lambda: solve("stiefel", seed="lucky"), DataError, "'lucky'"),
    ("a seed below zero", lambda: solve("stiefel", seed=-1), DataError, "seed"),
    ("a seed beyond all numbers", lambda: solve("stiefel", seed=10**30), DataError, "seed"),
    ("an option that no fit has", lambda: solve("procrustes", ridgid=1), TypeError, "ridgid"),
    ("an option of another fit", lambda: solve("procrustes", temperature=1.0), TypeError, "temperature"),
    (
        "an option of another fit by its name",
        lambda: SOLVERS.require_options("procrustes", {"ridge": 1}),
        FitError,
        "'ridge'",
    ),
    ("an unknown fit, nearly right", lambda: fit.get("procustes"), UnknownNameError, "procrustes"),
    ("an unknown fit in capitals", lambda: fit.get("CCA"), UnknownNameError, "cca"),
    ("a fit by its number", lambda: fit.get(3), UnknownNameError, "procrustes"),
    ("the description of an unknown fit", lambda: fit.describe("leastsquares"), UnknownNameError, "least-squares"),
    (
        "a fit that must have converged and saw too little",
        lambda: fit.procrustes(the.x[:3], the.y[:3]).required(),
        FitError,
        "rank-deficient",
    ),
    (
        "a fit that must have converged in one step",
        lambda: solve("stiefel", steps=1).required(),
        FitError,
        "step-limit",
    ),
    ("a fit over a saved map", lambda: solve("procrustes").save(the.saved_map), FileError, "force"),
    (
        "a fit with notes that are no JSON",
        lambda: solve("procrustes").save("out", notes={"map": np}),
        FileError,
        "JSON",
    ),
)
def test_a_bad_option_or_name_is_refused(misuse):
    misuse.check()


TALL, WIDE = [[1.0], [0.0]], [[1.0, 0.0]]


def descend(objective: object, start: object = TALL, **options: object) -> fit.Fit:
    return fit.stiefel(objective=objective, start=torch.tensor(start), **options)


@misuses(
    ("a start that is a vector", lambda: solve("stiefel", start=torch.ones(4)), ShapeError, "(4,)"),
    ("a start without rows", lambda: solve("stiefel", start=torch.ones(0, 4)), ShapeError, "(0, 4)"),
    ("a start of another shape", lambda: solve("stiefel", start=torch.eye(3)), ShapeError, "(3, 3)"),
    ("a start that is not orthogonal", lambda: solve("stiefel", start=2 * torch.eye(4)), MapError, "orthonormal"),
    ("a start with rows of zeros", lambda: solve("stiefel", start=np.diag([1.0, 1, 1, 0])), FitError, "zero"),
    ("a start of NaN", lambda: solve("stiefel", start=torch.full((4, 4), math.nan)), DataError, "finite"),
    ("a start of complex numbers", lambda: solve("stiefel", start=np.eye(4, dtype=complex)), DataError, "complex128"),
    ("a start in words", lambda: solve("stiefel", start="identity"), DataError, "str"),
    ("an objective without a start", lambda: fit.stiefel(objective=lambda q: (0.0, q)), FitError, "start"),
    ("a start without an objective", lambda: fit.stiefel(start=torch.tensor(TALL)), DataError, "nothing"),
    ("an objective without data for an offset", lambda: descend(lambda q: (0.0, q), affine=True), FitError, "affine"),
    *(
        (f"{what} on {how}", lambda answer=answer, start=start: descend(answer, start), error, word or shape)
        for how, start, shape in (("a tall map", TALL, "(2, 1)"), ("a wide map", WIDE, "(1, 2)"))
        for what, answer, error, word in [
            ("an objective that returns no pair", lambda q: q.sum(), FitError, "Tensor"),
            ("an objective that returns nothing", lambda q: None, FitError, "NoneType"),
            ("an objective of NaN", lambda q: (math.nan, q), FitError, "value nan"),
            ("an objective of infinity", lambda q: (math.inf, q), FitError, "value inf"),
            ("a gradient of NaN", lambda q: (1.0, q * math.nan), FitError, "gradient"),
            ("a gradient that is a number", lambda q: (0.0, 1.0), ShapeError, ""),
            ("a gradient that is nothing", lambda q: (0.0, None), ShapeError, ""),
            ("a gradient that is text", lambda q: (0.0, "steep"), ShapeError, ""),
            ("a gradient that is a vector", lambda q: (0.0, torch.ones(2)), ShapeError, ""),
            ("a gradient that is square", lambda q: (0.0, torch.ones(2, 2)), ShapeError, ""),
            ("a gradient of three axes", lambda q: (0.0, torch.ones(1, 1, 1)), ShapeError, ""),
            ("a gradient that is an array", lambda q: (0.0, np.ones((2, 1))), ShapeError, ""),
        ]
    ),
)
def test_a_descent_that_cannot_be_made_is_refused(misuse):
    misuse.check()


@misuses(
    *(
        (
            f"the polar factor of shape {shape}",
            lambda shape=shape: fit.polar(torch.zeros(shape)),
            ShapeError,
            str(shape),
        )
        for shape in [(), (3,), (0, 3), (3, 0), (0, 3, 3)]
    ),
    *(
        (f"the polar factor of {dtype}", lambda d=dtype: fit.polar(torch.ones(2, 2, dtype=d)), DataError, str(dtype))
        for dtype in (torch.int64, torch.bool, torch.complex64)
    ),
    *(
        (f"the polar factor of {value}", lambda v=value: fit.polar(torch.full((3, 4), v)), DataError, "12 of the 12")
        for value in (math.nan, math.inf, -math.inf)
    ),
    *(
        (f"a tolerance of {value}", lambda v=value: fit.polar(torch.eye(2), rank_tolerance=v), DataError, repr(value))
        for value in (-0.1, 1.0, math.nan, "low")
    ),
    ("an unknown path", lambda: fit.polar(torch.eye(2), path="qr"), UnknownNameError, "qdwh"),
    ("an unknown treatment", lambda: fit.polar(torch.eye(2), unobserved="fill"), UnknownNameError, "complete"),
    ("the polar factor of nothing", lambda: fit.polar(None), DataError, "NoneType"),
    ("the polar factor of statistics", lambda: ib.fit.polar(the.moments), DataError, "PairedMoments"),
)
def test_what_has_no_polar_factor_is_refused(misuse):
    misuse.check()
