"""The ridge of a layer: sums, and the ridge that cross-validation takes where rows are few."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from interbasin.jobs.transport.ridge import Sums


def rows(count, width=20, outputs=3, noise=0.5, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=drawn, dtype=torch.float64)
    truth = torch.randn(outputs, width, generator=drawn, dtype=torch.float64)
    return x, x @ truth.T + noise * torch.randn(count, outputs, generator=drawn, dtype=torch.float64)


def sums_of(x, y, weight=1.0):
    sums = Sums()
    sums.add(x, y, weight)
    return sums


@pytest.mark.parametrize("count", [8, 20, 21, 60])
@pytest.mark.parametrize("relative", [1e-3, 1.0])
def test_the_score_is_the_one_of_golub(count, relative, monkeypatch):
    # |(I - H) y|^2 / tr(I - H)^2 with the hat matrix, computed from the rows themselves.
    x, y = rows(count)
    zero = torch.zeros(3, 20, dtype=torch.float64)
    centred, goal = x - x.mean(0), y - y.mean(0)
    scale = float(torch.linalg.eigvalsh(centred.T @ centred).clamp(min=0).mean())

    def score(ridge):
        hat = centred @ torch.linalg.solve(centred.T @ centred + ridge * scale * torch.eye(20), centred.T)
        return float((goal - hat @ goal).square().sum() / (count - 1 - hat.trace()) ** 2)

    other = relative * 3
    monkeypatch.setattr("interbasin.jobs.transport.ridge.LADDER", (relative, other))
    found = sums_of(x, y).solve(zero, torch.zeros(3, dtype=torch.float64))
    assert found.ridge == (relative if score(relative) < score(other) else other)


@pytest.mark.parametrize("count", [8, 20])
def test_the_ridge_does_not_vanish_where_rows_are_fewer_than_inputs(count):
    x, y = rows(count, noise=4.0)
    found = sums_of(x, y).solve(torch.zeros(3, 20), torch.zeros(3))
    assert found.ridge > 1e-3 and found.explained < 0.999


def test_sums_of_two_kinds_add_up_with_a_weight():
    first, second = rows(9), rows(7, seed=1)
    joined = sums_of(*first).plus(sums_of(*second), 2.0)
    twice = sums_of(*(torch.cat([a, b, b]) for a, b in zip(first, second, strict=True)))
    for name in ("x", "y", "xx", "xy", "yy"):
        assert_close(getattr(joined, name), getattr(twice, name))
    assert joined.count == 23 and joined.rows == 16
    assert sums_of(*first).plus(Sums()).count == 9
