"""Options that do not fit a method are refused before anything is read."""

from __future__ import annotations

import math

import pytest
from tests.jobs.merge.networks import tensors
from tests.test_storage import refused

from interbasin import merge
from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.merge.methods import resolve

A, B, C = tensors(1), tensors(2), tensors(3)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"models": [A, B, C], "method": "lerp"}, ("lerp goes from one model to another", "got 3;", "average")),
        ({"models": [A], "method": "slerp"}, ("slerp goes from one model to another", "got 1;")),
        ({"models": [A, B], "weights": [1]}, ("one weight per model, and was given 2 models", "and 1 weight (1)")),
        ({"models": [A, B], "weights": [1, math.nan]}, ("A weight must be a finite number", "nan")),
        ({"models": [A, B], "weights": [1, math.inf]}, ("A weight must be a finite number", "inf")),
        ({"models": [A, B], "weights": [1, True]}, ("A weight must be a number", "True")),
        ({"models": [A, B], "weights": [1, -1]}, ("weights of average need a sum above zero, got 0 (1, -1)",)),
        ({"models": [A, B], "weights": [0, 0]}, ("weights of average need a sum above zero, got 0",)),
        ({"models": [A, B], "weights": "11"}, ("weights must be a list with one number per model", "got")),
        ({"models": [A, B], "weights": [1e308, 1e308]}, ("weights of average add up to more than a number holds",)),
        ({"models": [A, B], "weights": 1}, ("weights must be a list with one number per model", "got")),
        ({"models": [A, B], "method": "ties", "base": C, "weights": [1, -1]}, ("weights of zero or more", "1, -1")),
        (
            {"models": [A, B], "method": "ties", "base": C, "weights": [0, 0]},
            ("ties need a sum above zero, got 0",),
        ),
        (
            {"models": [A, B], "method": "ties", "base": C, "density": 0},
            ("above 0 and at most 1, got 0",),
        ),
        (
            {"models": [A, B], "method": "ties", "base": C, "density": 1.5},
            ("above 0 and at most 1, got 1.5",),
        ),
        (
            {"models": [A, B], "method": "ties", "base": C, "density": math.nan},
            ("density must be a finite number", "nan"),
        ),
        ({"models": [A, B], "method": "ties", "base": C, "scale": math.inf}, ("scale must be a finite number", "inf")),
        ({"models": [A, B], "method": "lerp", "t": "half"}, ("t must be a number", "got 'half'")),
        ({"models": [A, B], "method": "ties"}, ("ties adds up", "no base was given", "(base=)")),
        ({"models": [A, B], "method": "task-arithmetic"}, ("task-arithmetic adds up", "no base was given")),
        ({"models": [A, B], "base": C}, ("average takes no base", "task-arithmetic or ties")),
        ({"models": [A, B], "t": 0.5}, ("average has no option 't'", "it takes weights", "lerp, slerp")),
        ({"models": [A, B], "method": "lerp", "weights": [1, 1]}, ("lerp has no option 'weights'", "average")),
        ({"models": [A, B], "method": "slerp", "density": 0.5}, ("slerp has no option 'density'", "ties")),
        ({"models": []}, ("no models",)),
        ({"models": A}, ("a list of models, found a dict",)),
        ({"models": "a"}, ("a list of models, found a str",)),
        ({"models": [A, 3]}, ("all of one sort, got dict, int",)),
        ({"models": [A, "folder"]}, ("all of one sort, got dict, str", "output=")),
        ({"models": [A, B], "output": "out"}, ("from disk to disk, and a dict was given",)),
        (
            {"models": ["a", "b"], "output": "out", "max_shard_bytes": 0},
            ("max_shard_bytes must be a whole number of at least 1, got 0",),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_what_does_not_fit_is_refused(asked, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: merge(**asked), DataError, words)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_dtype_is_refused():
    refused(lambda: merge([A, B], dtype="int8"), UnknownNameError, ("dtype to merge in named 'int8'", "bfloat16"))


def test_defaults_are_filled_in():
    assert resolve("average", 4, base=False).options == {"weights": (0.25,) * 4}
    assert resolve("lerp", 2, base=False).options == {"t": 0.5}
    assert resolve("ties", 2, base=True).options == {"weights": (1.0, 1.0), "density": 0.5, "scale": 1.0}


def test_weights_of_an_average_may_extrapolate():
    assert resolve("average", 2, base=False, weights=[3, -1]).options["weights"] == (1.5, -0.5)
