"""Misuses of outcomes and plots: numbers that are none, names that lead out of the folder, folders in the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tests.misuses.table import misuses, public, the
from tests.test_storage import TOO_LONG

from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.outcome import Draft, Outcome, new_outcome


def write(fill: Callable[[Draft], object] = lambda draft: None, folder: Any = "out", **options: Any) -> None:
    with new_outcome(folder, **{"job": "test", "request": {}, **options}) as draft:
        fill(draft)


def measure(value: Any, name: Any = "x") -> None:
    write(lambda draft: draft.metrics.update({name: value}))


def tabulate(columns: Any, name: str = "t") -> None:
    write(lambda draft: draft.table(name, columns))


@misuses(
    ("a metric in words", lambda: measure("1"), DataError, "'x'"),
    ("a metric that is nothing", lambda: measure(None), DataError, "None"),
    ("a metric that is true", lambda: measure(True), DataError, "True"),
    ("a metric of many numbers", lambda: measure(torch.ones(3)), DataError, "'x'"),
    ("a metric that is too large", lambda: measure(10**400), DataError, "'x'"),
    ("a metric without a name", lambda: measure(1.0, ""), DataError, "''"),
    ("a request of objects", lambda: write(request={"a": {"b": object()}}), DataError, "a.b"),
    ("a request of NaN", lambda: write(request={"a": [math.nan]}), DataError, "a[0]"),
    ("a request with a number for a key", lambda: write(request={1: 2}), DataError, "key 1"),
    ("a request that is a list", lambda: write(request=[1]), DataError, "mapping"),
    ("a job without a name", lambda: write(job=""), DataError, "''"),
    ("a job that is a number", lambda: write(job=3), DataError, "3"),
    ("a plot that is a page", lambda: write(lambda draft: draft.plot("p", "<html>")), DataError, "SVG"),
    ("a text that leads out", lambda: write(lambda draft: draft.text("../x", "")), DataError, "'../x'"),
    ("a text whose name is too long", lambda: write(lambda draft: draft.text(TOO_LONG, "")), DataError, "120"),
    ("a text for outcome.json", lambda: write(lambda draft: draft.text("outcome.json", "")), DataError, "outcome.json"),
    ("two texts of one name", lambda: write(lambda draft: [draft.text("a", "") for _ in "ab"]), DataError, "'a'"),
    (
        "an artefact that is not there",
        lambda: write(lambda draft: draft.add("a", "file", "nowhere")),
        FileError,
        "nowhere",
    ),
    ("an artefact above the folder", lambda: write(lambda draft: draft.add("a", "file", "..")), FileError, "'a'"),
    ("an artefact of an unknown kind", lambda: write(lambda draft: draft.add("a", "song", "a")), DataError, "'song'"),
    ("columns of two lengths", lambda: tabulate({"a": [1.0], "b": []}), DataError, "b has 0"),
    ("a table without columns", lambda: tabulate({}), DataError, "'t'"),
    ("a column of text and numbers", lambda: tabulate({"a": [1.0, "x"]}), DataError, "'a'"),
    ("a column of control characters", lambda: tabulate({"a": ["\r"]}), DataError, "control"),
    ("a column of nothing", lambda: tabulate({"a": [None]}), DataError, "'a'"),
    ("a checkpoint of numbers", lambda: write(lambda draft: draft.write_checkpoint({"a": 1})), DataError, "int"),
    ("an outcome before its end", lambda: write(lambda draft: draft.outcome), FileError, "with"),
    ("an outcome over another", lambda: write(folder=the.saved_outcome), FileError, "force"),
    ("an outcome over someone's folder", lambda: write(folder=the.someones_folder, force=True), FileError, "not write"),
    ("an outcome over a file", lambda: write(folder=the.letter, force=True), FileError, "file"),
    ("an outcome into the current folder", lambda: write(folder=".", force=True), FileError, "current"),
    ("an outcome into nothing", lambda: write(folder=None), FileError, "NoneType"),
    ("an outcome that is not there", lambda: Outcome.load("nowhere"), FileError, "nowhere"),
    ("nothing for an outcome", lambda: Outcome.load(None), TypeError, "NoneType"),
    ("an outcome that is a file", lambda: Outcome.load(the.letter), FileError, "file"),
    ("an outcome that is a map", lambda: Outcome.load(the.saved_map), FileError, "outcome.json"),
    (
        "an artefact that the outcome has not",
        lambda: Outcome.load(the.saved_outcome).path("pionts"),
        UnknownNameError,
        "points",
    ),
    (
        "a table that the outcome has not",
        lambda: Outcome.load(the.saved_outcome).table("curve"),
        UnknownNameError,
        "points",
    ),
    ("a line chart without curves", lambda: public.line_chart({}), DataError, "curves"),
    ("half a curve", lambda: public.line_chart({"a": ([1, 2], [1])}), DataError, "'a'"),
    ("a band of no curve", lambda: public.line_chart({"a": ([1], [1])}, bands={"b": ([1], [1])}), DataError, "'b'"),
    ("half a band", lambda: public.line_chart({"a": ([1], [1])}, bands={"a": ([1], [1, 2])}), DataError, "band"),
    ("a bar chart without rows", lambda: public.bar_chart({}), DataError, "rows"),
    ("bars of two kinds", lambda: public.bar_chart({"a": 1.0, "b": {"c": 1.0}}), DataError, "methods"),
    ("a baseline that is no row", lambda: public.bar_chart({"a": 1.0}, baseline="b"), DataError, "'b'"),
    ("a scatter chart without points", lambda: public.scatter_chart({}), DataError, "points"),
    ("points in space", lambda: public.scatter_chart({"a": [[1, 2, 3]]}), DataError, "'a'"),
    ("a heat map without cells", lambda: public.heat_map([]), DataError, "cells"),
    ("a heat map without columns", lambda: public.heat_map([[]]), DataError, "cells"),
    ("a ragged heat map", lambda: public.heat_map([[1], [1, 2]]), DataError, "lengths"),
    ("a heat map with too few names", lambda: public.heat_map([[1, 2]], columns=["a"]), DataError, "1 names"),
)
def test_what_cannot_be_kept_or_drawn_is_refused(misuse):
    misuse.check()
