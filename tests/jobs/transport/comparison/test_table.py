"""The table of what transport is compared with: every row runs, says what it needs, and cites what exists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from tests.jobs.transport.small import Plain, inputs, ready, task_of

from interbasin.jobs.transport.comparison.table import COMPARED
from interbasin.jobs.transport.methods import METHODS

BIBLIOGRAPHY = (Path(__file__).parents[4] / "docs" / "references.bib").read_text("utf-8")
NEEDS = {"data", "tuned", "outputs", "gradients", "labels", "shapes"}


def task():
    drawn = torch.Generator().manual_seed(2)
    data = [(batch, torch.randint(3, (len(batch),), generator=drawn)) for batch in inputs()]
    return task_of(ready(Plain(6)), ready(Plain(6, seed=1)), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_every_row_runs_in_every_variant(name):
    row, given = COMPARED[name], task()
    quick = {"steps": 2} if "steps" in row.options else {}
    for variant in row.variants or ("",):
        found = row.function(given, variant, **quick)
        outputs = found.applied_to(given.bases.target)(given.data[0][0])
        assert outputs.shape == (16, 3) and bool(torch.isfinite(outputs).all())
        assert all(row.share >= 0 and row.reason for row in found.moved)


@pytest.mark.parametrize("name", COMPARED)
def test_every_row_says_what_it_is(name):
    row = COMPARED[name]
    assert row.summary and row.needs <= NEEDS and name not in METHODS
    assert row.reference == "interbasin" or re.search(rf"^@\w+\{{{row.reference},", BIBLIOGRAPHY, re.MULTILINE)
    takes = list(inspect.signature(row.function).parameters.values())[2:]
    assert {one.name: one.default for one in takes} == dict(row.options)
