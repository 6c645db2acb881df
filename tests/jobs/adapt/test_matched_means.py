"""Means that are matched position by position: a planted kernel is found, and positions that do not pair are seen."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.adapt.examples import draw, make_setup, make_token_source, one_recalibration  # noqa: F401  (a fixture)
from torch import Tensor, nn

from interbasin.errors import FitError
from interbasin.jobs.adapt.embedders import MapEmbedder, SignalEmbedder, TokenEmbedder
from interbasin.jobs.adapt.feature_map import CORRESPONDING
from interbasin.jobs.adapt.matched_means import match_means
from interbasin.jobs.adapt.methods import align, trials_of
from interbasin.jobs.adapt.source import Fittings
from interbasin.jobs.adapt.validation import fit

POSITIONED = Fittings(prefix=torch.ones(1, 6), positions=torch.linspace(-1, 1, 10 * 6).reshape(10, 6))
# The shape of an input, and an embedder for it, which is made anew at every call.
CASES = {
    "signals as tokens": ((2, 36), lambda: TokenEmbedder((2, 36), 9, 6, Fittings())),
    "fields as tokens, behind a class token": ((1, 12, 12), lambda: TokenEmbedder((1, 12, 12), 10, 6, POSITIONED)),
    "fields as maps": ((1, 8, 8), lambda: MapEmbedder((1, 8, 8), 6, (8, 8), False, Fittings())),
    "fields as a grid": ((1, 12, 12), lambda: MapEmbedder((1, 12, 12), 6, (4, 4), True, Fittings())),
    "signals as maps": ((2, 32), lambda: MapEmbedder((2, 32), 6, (4, 4), False, Fittings())),
    "signals as signals": ((2, 24), lambda: SignalEmbedder((2, 24), 6, 24)),
    "rows as signals": ((24,), lambda: SignalEmbedder((24,), 6, 24)),
}


def draw_inputs(shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    """Inputs with a mean of their own at every point."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator) + 0.1 * torch.randn(count, *shape, generator=generator)


@pytest.mark.parametrize("case", CASES)
@given(seed=st.integers(0, 2**16))
def test_a_planted_kernel_is_found_without_labels(case, seed):
    shape, make = CASES[case]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        planted, embedder = make().double(), make().double()
    inputs = draw_inputs(shape, 60, seed).double()
    with torch.no_grad():
        body_inputs = planted(inputs)
    before = copy.deepcopy(embedder.state_dict())
    match = match_means(embedder, inputs, body_inputs)
    assert match is not None and all(torch.equal(before[name], each) for name, each in embedder.state_dict().items())
    match.put_into(embedder)
    with torch.no_grad():
        error = (embedder(inputs).mean(0) - body_inputs.mean(0)).norm()
        spread = (body_inputs.mean(0) - body_inputs.mean((0, 1))).norm() if body_inputs.ndim == 3 else error + 1
        start = (make().double()(inputs).mean(0) - body_inputs.mean(0)).norm()
    assert float(error) < 0.05 * float(start) and float(error) < float(spread)


def test_positions_that_correspond_are_told_from_those_that_do_not():
    torch.manual_seed(0)
    planted, embedder = (TokenEmbedder((1, 28, 28), 49, 16, Fittings()) for _ in range(2))
    inputs = draw_inputs((1, 28, 28), 200, 0)
    with torch.no_grad():
        body_inputs = planted(inputs)
    found = match_means(embedder, inputs, body_inputs)
    shuffled = match_means(embedder, inputs, body_inputs[:, torch.randperm(49)])
    assert found is not None and found.explained > 0.95
    assert shuffled is not None and shuffled.explained < CORRESPONDING / 2
    flat = match_means(embedder, inputs, torch.ones_like(body_inputs))
    assert flat is not None and flat.explained == 0


def test_directions_in_which_means_are_chance_move_less_than_least_squares_would_move_them():
    torch.manual_seed(0)
    planted, embedder = (TokenEmbedder((2, 40), 40, 6, Fittings()).requires_grad_(False) for _ in range(2))
    # The second channel has no mean at any position but by chance, which is another one in the source's sample.
    inputs, others = (torch.cat([draw_inputs((1, 40), 300, 0), torch.randn(300, 1, 40)], 1) for _ in range(2))
    body_inputs = planted(others)
    match = match_means(embedder, inputs, body_inputs)
    assert match is not None
    rows = torch.cat([inputs.mean(0), torch.ones(1, 40)]).mT
    plain = torch.linalg.lstsq(rows, body_inputs.mean(0)).solution  # (channels of the input and one, width)
    start = embedder.cut.weight[:, :, 0]
    assert float((match.weight[:, 1, 0] - start[:, 1]).norm()) < 0.7 * float((plain[1] - start[:, 1]).norm())
    torch.testing.assert_close(match.weight[:, 0], planted.cut.weight[:, 0], rtol=0.05, atol=0.02)


def test_inputs_in_parts_give_the_same_match(monkeypatch):
    torch.manual_seed(0)
    embedder, inputs = TokenEmbedder((2, 36), 9, 6, Fittings()), draw_inputs((2, 36), 30, 0)
    body_inputs = torch.randn(20, 9, 6)
    whole = match_means(embedder, inputs, body_inputs)
    monkeypatch.setattr("interbasin.jobs.adapt.matched_means.MOST_NUMBERS", 500)
    parts = match_means(embedder, inputs, body_inputs)
    assert whole is not None and parts is not None
    torch.testing.assert_close(whole.weight, parts.weight)
    assert whole.explained == pytest.approx(parts.explained)


def test_there_is_no_match_without_positions_behind_a_norm_or_of_one_sample():
    inputs, body_inputs = torch.randn(5, 2, 36), torch.randn(5, 9, 6)
    normed = TokenEmbedder((2, 36), 9, 6, Fittings(norm=nn.LayerNorm(6)))
    assert match_means(normed, inputs, body_inputs) is None
    assert match_means(nn.Linear(3, 4), inputs, body_inputs) is None
    assert match_means(TokenEmbedder((2, 36), 9, 6, Fittings()), inputs[:1], body_inputs) is None
    assert match_means(TokenEmbedder((7,), 9, 6, Fittings()), torch.randn(5, 7), body_inputs) is None


@pytest.mark.usefixtures("one_recalibration")
def test_means_is_a_method_with_both_predictors_and_no_step_of_its_own():
    inputs, labels = draw_inputs((1, 36), 40, 1), torch.arange(40) % 3
    setup = make_setup(make_token_source(36), proxy=(inputs, labels), target=(inputs.flip(2), labels))
    trials = {trial.name: fit(setup, "means", torch.arange(40), trial) for trial in trials_of("means", setup)}
    assert set(trials) == {"transport", "head"}
    assert trials["transport"].steps == 0 and trials["head"].steps == setup.settings.steps
    with pytest.raises(FitError, match="means needs an embedder in which one convolution"):
        vectors = make_setup()
        fit(vectors, "means", torch.arange(30), trials_of("means", vectors)[0])


@pytest.mark.usefixtures("one_recalibration")
@pytest.mark.parametrize(("start", "is_matched"), [("rule", False), ("means", True), ("auto", True)])
def test_stage_1_begins_where_it_is_told(start, is_matched):
    inputs, labels = draw_inputs((1, 36), 40, 1), torch.arange(40) % 3
    setup = make_setup(
        make_token_source(36),
        proxy=(inputs, labels),
        target=(5 * inputs, labels),
        start=start,
        align_steps=1,
        align_rate=1e-9,
    )
    rule = setup.new_map(own_body=False).embedder
    match = match_means(rule, setup.samples.inputs, setup.bank.body_inputs)
    assert match is not None and match.explained > CORRESPONDING
    aligned = align(setup, torch.arange(40), with_distortion=True).feature_map.embedder
    expected = match.weight if is_matched else rule.cut.weight
    torch.testing.assert_close(aligned.cut.weight, expected, rtol=1e-3, atol=1e-3)


def test_patches_too_large_for_their_equations_have_no_match():
    embedder = TokenEmbedder((1, 1031), 4, 6, Fittings())  # a prime: the whole signal is one patch
    assert match_means(embedder, draw(4, 1, 1031), draw(5, 1, 6)) is None
    assert match_means(TokenEmbedder((1, 16), 4, 6, Fittings()), draw(4, 1, 16), draw(5, 4, 6)) is not None
