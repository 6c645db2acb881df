"""Each method against its formula, written as naively as the paper does, and against cases done by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.merge.networks import (
    naive_average,
    naive_lerp,
    naive_slerp,
    naive_task_arithmetic,
    naive_ties,
    tensors,
)
from tests.laws.strategies import SEEDS
from tests.test_storage import refused
from torch import Tensor

from interbasin import merge
from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.merge import METHODS, kernel, ties

T = st.floats(-0.5, 1.5)
WEIGHTS = st.lists(st.floats(0.0625, 4), min_size=1, max_size=4)
DENSITIES = st.floats(0.01, 1)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that tensors of a few numbers have several."""
    monkeypatch.setattr(kernel, "CHUNK", 50)


def several(seed: int, count: int) -> list[dict[str, Tensor]]:
    return [tensors((seed + one) % 2**32) for one in range(count)]


@given(seed=SEEDS, t=T)
def test_lerp_is_the_line(seed, t):
    a, b = several(seed, 2)
    found = merge([a, b], "lerp", t=t)
    for name, tensor in found.items():
        close(tensor, naive_lerp(a[name], b[name], t))


@given(seed=SEEDS, t=T)
def test_slerp_is_the_arc(seed, t):
    a, b = several(seed, 2)
    found = merge([a, b], "slerp", t=t)
    for name, tensor in found.items():
        close(tensor, naive_slerp(a[name], b[name], t))


@given(seed=SEEDS, weights=WEIGHTS)
def test_the_average_divides_its_weights_by_their_sum(seed, weights):
    models = several(seed, len(weights))
    found = merge(models, "average", weights=weights)
    for name, tensor in found.items():
        close(tensor, naive_average([model[name] for model in models], weights))


@given(seed=SEEDS, weights=st.lists(st.floats(-2, 2), min_size=1, max_size=4), scale=st.floats(-1, 2))
def test_task_arithmetic_adds_up_updates(seed, weights, scale):
    base, *models = several(seed, len(weights) + 1)
    found = merge(models, "task-arithmetic", base=base, weights=weights, scale=scale)
    for name, tensor in found.items():
        close(tensor, naive_task_arithmetic(base[name], [model[name] for model in models], weights, scale))


@given(seed=SEEDS, weights=WEIGHTS, density=DENSITIES, scale=st.floats(0.25, 2))
def test_ties_trims_elects_and_averages(seed, weights, density, scale):
    base, *models = several(seed, len(weights) + 1)
    found = merge(models, "ties", base=base, weights=weights, density=density, scale=scale)
    for name in ("norm.weight", "layers.0.down.weight"):
        expected = naive_ties(base[name], [model[name] for model in models], weights, density, scale)
        close(found[name], expected)


@given(seed=SEEDS, density=DENSITIES)
def test_ties_keeps_exactly_the_asked_share_where_many_entries_are_equally_large(seed, density):
    """Coarse values make ties at the border of the trim the rule."""
    base = {"x": torch.zeros(230)}
    generator = torch.Generator().manual_seed(seed)
    model = {"x": torch.randint(-3, 4, (230,), generator=generator) + 10.0}
    found = merge([model], "ties", base=base, density=density)["x"]
    assert int((found != 0).sum()) == max(1, int(density * 230))
    close(found, naive_ties(base["x"], [model["x"]], [1.0], density, 1.0))


SIZES = {
    "random": lambda draw: draw.normal(size=3000),
    "coarse": lambda draw: np.round(draw.normal(size=3000) * 2),
    "mostly zero": lambda draw: draw.normal(size=3000) * (draw.random(3000) < 0.1),
    "all equal": lambda draw: np.ones(3000),
    "sorted": lambda draw: np.sort(draw.normal(size=3000)),  # what a sample of the beginning would get wrong
    "one giant": lambda draw: np.where(np.arange(3000) == 7, 1e30, 1.0),
    "few": lambda draw: draw.normal(size=20),
}


@given(
    seed=SEEDS, share=st.floats(0, 1), dtype=st.sampled_from((np.float32, np.float64)), kind=st.sampled_from([*SIZES])
)
def test_the_border_of_a_trim_is_where_sorting_puts_it(seed, share, dtype, kind):
    sizes = np.abs(SIZES[kind](np.random.default_rng(seed))).astype(dtype)
    count = int(share * len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ties, "FEW", 400)
        patch.setattr(ties, "BLOCKS", 40)
        patch.setattr(ties, "BLOCK", 10)
        border, left = ties.nth_largest(sizes.__getitem__, len(sizes), count)
    wanted = max(1, count)
    assert border == np.sort(sizes)[::-1][wanted - 1]
    assert left == wanted - int((sizes > border).sum())


def test_a_misleading_sample_is_noticed(monkeypatch):
    """All that the sample sees is small, and all else is large."""
    monkeypatch.setattr(ties, "FEW", 400)
    monkeypatch.setattr(ties, "BLOCKS", 40)
    monkeypatch.setattr(ties, "BLOCK", 10)
    sizes = np.where(np.arange(4000) % 100 < 10, 0.0, np.arange(4000))
    assert ties.nth_largest(sizes.__getitem__, 4000, 100) == (float(np.sort(sizes)[-100]), 1)


def test_ties_by_hand():
    base = {"x": torch.tensor([1.0, 1.0, 1.0, 1.0])}
    first = {"x": torch.tensor([1.0 + 4, 1.0 + 3, 1.0 - 1, 1.0])}
    second = {"x": torch.tensor([1.0 - 1, 1.0 + 1, 1.0 - 3, 1.0 + 2])}
    # All is kept: the signs are +, +, -, +; the means 4, (3 + 1) / 2, -(1 + 3) / 2, 2.
    whole = merge([first, second], "ties", base=base, density=1.0)["x"]
    assert whole.tolist() == [5.0, 3.0, -1.0, 3.0]
    # Half of each: [4, 3, 0, 0] and [0, 0, -3, 2].
    half = merge([first, second], "ties", base=base, density=0.5)["x"]
    assert half.tolist() == [5.0, 4.0, -2.0, 3.0]
    scaled = merge([first, second], "ties", base=base, density=0.5, scale=0.5)["x"]
    assert scaled.tolist() == [3.0, 2.5, -0.5, 2.0]


def test_updates_that_cancel_leave_the_positive_one():
    found = merge(
        [{"x": torch.tensor([2.0])}, {"x": torch.tensor([-2.0])}], "ties", base={"x": torch.zeros(1)}, density=1.0
    )
    assert found["x"].item() == 2.0


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 1.0])
def test_opposite_tensors_under_slerp_go_along_the_line(t):
    a = {"x": torch.tensor([1.0, 2.0, 3.0])}
    b = {"x": -2 * a["x"]}
    close(merge([a, b], "slerp", t=t)["x"], naive_lerp(a["x"], b["x"], t))


def test_opposite_tensors_under_slerp_never_give_zeros():
    a = {"y": torch.ones(2), "x": torch.tensor([1.0, 2.0, 3.0])}
    b = {"y": torch.ones(2), "x": -a["x"]}
    for t in (0.46, 0.5, 0.54):
        with pytest.raises(DataError, match=r"x points opposite ways at the two ends .* the line passes through zero"):
            merge([a, b], "slerp", t=t)
    close(merge([a, b], "slerp", t=0.4)["x"], 0.2 * a["x"].double())


def test_slerp_from_a_zero_tensor_is_the_line():
    a, b = {"x": torch.zeros(3)}, {"x": torch.tensor([1.0, 2.0, 3.0])}
    close(merge([a, b], "slerp", t=0.25)["x"], 0.25 * b["x"].double())


def test_every_method_has_a_reference_and_a_paper():
    assert set(METHODS) == {"lerp", "slerp", "average", "task-arithmetic", "ties"}
    for name, method in METHODS.items():
        assert method.name == name and method.reference and method.summary and method.options
        assert all(method.traits[trait] for trait in ("title", "formula", "paper"))


def test_a_method_is_found_with_underscores_too():
    assert METHODS["task_arithmetic"] is METHODS["task-arithmetic"]


@pytest.mark.parametrize("name", ["tie", "", None, 3])
def test_an_unknown_method_is_refused_with_those_there_are(name):
    refused(lambda: merge([{}], name), UnknownNameError, ("no method of merging", "ties", "average"))


def test_a_wider_dtype_still_refuses_infinity():
    one = {"x": torch.tensor([1.0, 2.0])}
    assert merge([one, {"x": torch.tensor([3.0, 2.5])}], dtype="float64")["x"].tolist() == [2.0, 2.25]
    with pytest.raises(DataError, match="NaN or infinity"):
        merge([one, {"x": torch.tensor([1.0, torch.inf])}], dtype="float64")
