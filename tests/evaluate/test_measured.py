"""Figures by name stay as they are, and go wherever a dict goes."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from interbasin.errors import UnknownNameError
from interbasin.evaluate import Measured

FOUND = {"barrier": 0.5, "barrier_accuracy": 0.25}


def test_figures_are_json_and_can_be_copied():
    found = Measured(FOUND)
    assert json.loads(json.dumps(found.metrics)) == FOUND
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert type({**found.metrics}) is dict and (found.metrics | {"more": 1.0})["more"] == 1


def test_they_are_not_those_that_were_given_and_cannot_be_changed():
    given = dict(FOUND)
    found = Measured(given)
    given["barrier"] = 7.0
    assert found["barrier"] == 0.5
    for change in (
        lambda figures: figures.__setitem__("barrier", 0.0),
        lambda figures: figures.__delitem__("barrier"),
        lambda figures: figures.update(barrier=0.0),
        lambda figures: figures.setdefault("other", 0.0),
        lambda figures: figures.pop("barrier"),
        lambda figures: figures.popitem(),
        lambda figures: figures.clear(),
        lambda figures: figures.__ior__({"barrier": 0.0}),
    ):
        with pytest.raises(TypeError, match="the figures of a measure cannot be changed; make a dict of them first"):
            change(found.metrics)
    assert found.metrics == FOUND


def test_a_figure_that_is_not_there_is_named():
    with pytest.raises(UnknownNameError, match="no figure here named 'barier'; try one of: barrier, barrier_accuracy"):
        _ = Measured(FOUND)["barier"]
