"""Laws of adapt that hold for whatever is drawn: pieces of fields, folds and verdicts, and what never changes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.jobs.adapt.examples import draw

from interbasin.jobs.adapt.network import fit_ridge
from interbasin.jobs.adapt.simple_models import Nearest
from interbasin.jobs.adapt.task import TargetTask
from interbasin.jobs.adapt.verdict import Candidate, judge

SEEDS = st.integers(0, 2**16)
GROUPS = ("simple", "scratch", "transfer", "align")


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 60), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_a_verdict_does_not_depend_on_the_order_of_methods_and_is_one_sentence(seed, count, shares):
    generator = torch.Generator().manual_seed(seed)
    methods = [
        Candidate(group, group, (torch.rand(count, generator=generator) < share).double())
        for group, share in zip(GROUPS, shares, strict=True)
    ]
    verdict = judge(methods, seed)
    assert judge(methods[::-1], seed) == verdict
    assert str(verdict).count("\n") == 0 and str(verdict).endswith(".")
    if count < 30:
        assert verdict.choice == "too-few"
    if verdict.choice in ("transfer", "align"):
        assert verdict.figures["scratch_minus_pretrained"].low > 0 and verdict.figures["simple_minus_network"].low > 0


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 12), st.integers(1, 15), st.floats(-3, 3))
def test_a_ridge_follows_shifts_of_its_rows_and_values(seed, count, width, shift):
    rows, values = draw(count, width, seed=seed).double(), draw(count, 2, seed=seed + 1).double()
    weight, bias = fit_ridge(rows, values, 0.1)
    moved, ends = fit_ridge(rows + shift, values - shift, 0.1)
    torch.testing.assert_close(moved, weight, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close((rows + shift) @ moved.mT + ends, rows @ weight.mT + bias - shift, rtol=1e-6, atol=1e-8)


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 20), st.integers(1, 6))
def test_the_nearest_of_known_samples_is_the_sample_itself_under_any_rotation(seed, count, width):
    inputs, labels = draw(count, width, seed=seed), torch.arange(count) % 2
    task = TargetTask.of("classification", labels)
    turn = torch.linalg.qr(draw(width, width, seed=seed + 1))[0]
    for rows in (inputs, inputs @ turn, inputs + 1000):
        assert Nearest(rows, labels, task)(rows).argmax(1).tolist() == labels.tolist()


@settings(max_examples=5)  # labels are made into classes each time
@given(SEEDS, st.floats(0.5, 20), st.floats(-10, 10))
def test_the_loss_of_numbers_does_not_depend_on_their_units(seed, scale, shift):
    labels, outputs = draw(12, 2, seed=seed).double(), draw(12, 2, seed=seed + 1).double()
    one = TargetTask.of("regression", labels)
    other = TargetTask.of("regression", labels * scale + shift)
    torch.testing.assert_close(
        other.losses(outputs * scale + shift, labels * scale + shift),
        one.losses(outputs, labels),
        rtol=1e-4,
        atol=1e-6,
    )
