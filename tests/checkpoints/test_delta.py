"""Differences and sums of networks: laws, ties, dtypes, and what does not fit."""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints.strategies import same
from tests.jobs.merge.networks import Tied
from tests.laws.strategies import SEEDS, gaussian
from tests.test_storage import refused
from torch import Tensor, nn

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.checkpoints.delta import add, difference
from interbasin.errors import DataError, InterbasinError, ShapeError, UnknownNameError, WiringError

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
# Of the larger of the two numbers that were subtracted: one rounding of the difference, one of the sum.
ROUNDING = {torch.float64: 2**-51, torch.float32: 2**-22, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def network(seed: int, dtype: torch.dtype = torch.float32, *, tied: bool = True) -> dict[str, Tensor]:
    """Tensors such as a state dict has: some tied, one of whole numbers."""
    shapes = {"embed": (5, 3), "norm": (3,), "scale": (), "none": (0, 2)}
    tensors = {
        name: gaussian(seed + place, math.prod(shape), dtype=dtype).reshape(shape)
        for place, (name, shape) in enumerate(shapes.items())
    }
    tensors["count"] = torch.arange(3)
    return tensors | {"head": tensors["embed"] if tied else gaussian(seed + 9, 5, 3, dtype=dtype)}


def as_form(form: str, tensors: dict[str, Tensor], folder: Path):
    """The same tensors in another of the forms that `difference` and `add` take."""
    if form == "mapping":
        return tensors
    write_checkpoint(folder / form, tensors, max_shard_bytes=40)
    return open_checkpoint(folder / form)


# Laws


@given(seed=SEEDS, dtype=st.sampled_from((torch.float32, torch.float16, torch.bfloat16)), tied=st.booleans())
def test_base_plus_difference_is_tuned_exactly_where_float64_holds_the_difference(seed, dtype, tied):
    base, tuned = network(seed, dtype, tied=tied), network(seed + 100, dtype, tied=tied)
    total = add(base, difference(tuned, base, dtype=torch.float64))
    assert all(same(total[name], tuned[name]) for name in tuned)


@given(seed=SEEDS, dtype=st.sampled_from(tuple(ROUNDING)))
def test_base_plus_difference_is_tuned_to_rounding_by_default(seed, dtype):
    base, tuned = network(seed, dtype), network(seed + 100, dtype)
    total = add(base, difference(tuned, base))
    for name, expected in tuned.items():
        assert total[name].dtype == expected.dtype
        largest = torch.maximum(base[name].abs(), expected.abs()).double()
        assert bool(((total[name].double() - expected.double()).abs() <= ROUNDING[dtype] * largest).all())


@given(seed=SEEDS, dtype=st.sampled_from(DTYPES), tied=st.booleans())
def test_nothing_of_an_update_is_the_base(seed, dtype, tied):
    base, tuned = network(seed, dtype, tied=tied), network(seed + 100, dtype, tied=tied)
    total = add(base, difference(tuned, base), alpha=0)
    assert set(total) == set(base) and all(same(total[name], base[name]) for name in base)


@given(seed=SEEDS, one=st.floats(-2, 2), two=st.floats(-2, 2))
def test_a_sum_is_linear_in_alpha(seed, one, two):
    base, tuned = network(seed, torch.float64), network(seed + 100, torch.float64)
    delta = difference(tuned, base)
    together, stepwise = add(base, delta, one + two), add(add(base, delta, one), delta, two)
    for name in base:
        torch.testing.assert_close(together[name], stepwise[name], rtol=1e-12, atol=1e-12)


@given(seed=SEEDS, form=st.sampled_from(("mapping", "checkpoint")), other=st.sampled_from(("mapping", "checkpoint")))
def test_the_form_of_what_is_given_does_not_matter(seed, form, other):
    base, tuned = network(seed), network(seed + 100)
    expected = add(base, difference(tuned, base), 0.5)
    with tempfile.TemporaryDirectory() as place:
        folders = Path(place, "a"), Path(place, "b")
        for folder in folders:
            folder.mkdir()
        on_disk = as_form(form, base, folders[0])
        total = add(on_disk, difference(as_form(other, tuned, folders[1]), on_disk), 0.5)
        assert dict(total.ties) == dict(expected.ties) == {"head": "embed"}
        assert set(total) == set(base) and all(same(total[name], expected[name]) for name in base)


# Ties


def test_a_tied_tensor_is_updated_once_and_stays_tied(tmp_path):
    base, tuned = network(0), network(1)
    delta = difference(tuned, base)
    assert dict(delta.ties) == {"head": "embed"}
    total = add(base, delta, 2.0)
    expected = base["embed"] + 2 * (tuned["embed"] - base["embed"])
    torch.testing.assert_close(total["head"], expected)
    state = total.state_dict()
    assert state["head"] is state["embed"]
    write_checkpoint(tmp_path / "m", total)
    assert dict(open_checkpoint(tmp_path / "m").ties) == {"head": "embed"}


def test_a_network_gives_its_ties_and_takes_the_sum(tmp_path):
    base, tuned = Tied(0), Tied(1)
    tuned.norm.num_batches_tracked.fill_(7)
    before = {name: value.clone() for name, value in base.state_dict().items() if isinstance(value, Tensor)}
    delta = difference(tuned, base)
    assert delta.left_out == ("norm.num_batches_tracked",) and "norm.running_mean" in delta
    other = copy.deepcopy(base)
    other.load_state_dict(base.state_dict() | add(base, delta).state_dict())
    assert other.head.weight is other.embed.weight and other.norm.num_batches_tracked.item() == 0
    torch.testing.assert_close(other.embed.weight, tuned.embed.weight)
    assert all(torch.equal(value, base.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize("names", [("embed",), ("head",), ("embed", "head")])
def test_an_update_of_a_tied_tensor_may_come_under_any_of_its_names(names):
    base, update = network(0), torch.ones(5, 3)
    total = add(base, {name: update.clone() for name in names})
    assert torch.equal(total["embed"], base["embed"] + 1) and torch.equal(total["head"], base["embed"] + 1)


def test_different_updates_of_one_tensor_are_refused():
    base, tuned = network(0), network(1, tied=False)
    words = ("embed and head are one tensor in the base", "their updates differ", "untie")
    refused(lambda: add(base, difference(tuned, base)), WiringError, words)
    refused(lambda: add(base, {"embed": torch.ones(5, 3), "head": torch.zeros(5, 3)}), WiringError, words)
    # In a base that is not tied, they are two updates of two tensors.
    untied = network(0, tied=False)
    total = add(untied, difference(tuned, untied))
    torch.testing.assert_close(total["head"], tuned["head"])


def test_ties_can_be_named_where_tensors_are_copies():
    base = network(0)
    copies = {name: tensor.clone() for name, tensor in base.items()}
    update = {"head": torch.ones(5, 3)}
    assert torch.equal(add(copies, update)["embed"], base["embed"])
    total = add(copies, update, ties={"head": "embed"})
    assert torch.equal(total["embed"], base["embed"] + 1) and dict(total.ties) == {"head": "embed"}
    assert dict(add(base, update, ties={"head": "embed"}).ties) == {"head": "embed"}
    words = ("norm is said to be tied to embed", "they differ in the base")
    refused(lambda: add(base, update, ties={"norm": "embed"}), WiringError, words)
    refused(lambda: add(base, update, ties={"nose": "embed"}), UnknownNameError, ("'nose'",))
    three = {name: torch.ones(2) for name in "abc"}
    refused(lambda: add(three, {}, ties={"a": "b", "b": "c"}), WiringError, ("tied itself",))
    assert dict(add(three, {}, ties={"a": "c", "b": "c"}).ties) == {"a": "c", "b": "c"}


def test_a_second_name_that_a_checkpoint_leaves_out_is_no_difference(tmp_path):
    """Transformers stores a tied head under one name only."""
    base, tuned = network(0), network(1)
    tuned.pop("head")
    delta = difference(tuned, base)
    assert dict(delta.ties) == {"head": "embed"}
    torch.testing.assert_close(add(base, delta)["head"], tuned["embed"])
    assert "head" not in difference(base, tuned)


# Dtypes and numbers


def test_an_update_is_kept_in_float32_at_least_and_a_sum_in_the_dtype_of_the_base():
    half, double = {"x": torch.ones(2, dtype=torch.bfloat16)}, {"x": torch.ones(2, dtype=torch.float64)}
    assert difference(half, half).dtype("x") == difference(half, half)["x"].dtype == torch.float32
    assert (
        difference(half, double).dtype("x") == difference(half, half, dtype=torch.float64).dtype("x") == torch.float64
    )
    assert add(half, double)["x"].dtype == torch.bfloat16


def test_a_sum_is_rounded_once():
    """In bfloat16 each of the two halves would be lost by itself."""
    base, update = torch.tensor([256.0], dtype=torch.bfloat16), torch.tensor([1.5])
    assert add({"x": base}, {"x": update})["x"].item() == 258.0
    assert (base + update.bfloat16() / 2 + update.bfloat16() / 2).item() == 256.0


def test_what_is_not_finite_in_both_has_no_update_and_stays():
    base = {"mask": torch.tensor([0.0, -torch.inf, torch.nan])}
    tuned = {"mask": torch.tensor([1.0, -torch.inf, torch.nan])}
    delta = difference(tuned, base)
    assert torch.equal(delta["mask"], torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(add(base, delta)["mask"], tuned["mask"], equal_nan=True)


def test_what_is_not_finite_in_one_is_refused_by_name():
    base, tuned = {"x": torch.tensor([1.0])}, {"x": torch.tensor([torch.nan])}
    refused(lambda: difference(tuned, base)["x"], DataError, ("The update of x is not finite", "the tuned network"))
    refused(lambda: add(base, tuned)["x"], DataError, ("x is not finite once 1 times its update",))
    large = {"x": torch.tensor([6e4], dtype=torch.float16)}
    refused(lambda: add(large, large, 0.5)["x"], DataError, ("float16 cannot hold the sum",))
    assert add(large, large, -0.5)["x"].item() == pytest.approx(3e4, rel=1e-3)


def test_nothing_that_is_given_is_shared_with_what_comes_back():
    base = network(0)
    copies = {name: tensor.clone() for name, tensor in base.items()}
    for tensor in add(base, {"norm": torch.ones(3)}).state_dict().values():
        tensor.fill_(9)
    assert all(torch.equal(base[name], copies[name]) for name in base)


# What does not fit


BASE = network(0)
EIGHT = {"x": torch.zeros(3, dtype=torch.float8_e4m3fn)}


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        (
            lambda: difference({**BASE, "more": torch.ones(3)}, BASE),
            WiringError,
            "network holds more, which the base lacks",
        ),
        (lambda: difference({"x": torch.ones(2)}, {"x": torch.ones(3)}), ShapeError, "x has shape 2 in the tuned"),
        (lambda: difference({"x": torch.ones(2)}, {"x": torch.arange(2)}), DataError, "x is of float32 in the tuned"),
        (lambda: difference(EIGHT, EIGHT), DataError, "x in the tuned network is of float8_e4m3fn"),
        (lambda: difference("a folder", BASE), DataError, "found a str; open what lies on disk"),
        (lambda: difference({"x": 3}, {"x": 3}), DataError, "x of the tuned network is a int"),
        (lambda: difference({1: BASE["norm"]}, BASE), DataError, "has the key 1"),
        (lambda: difference(BASE, BASE, dtype=torch.float16), DataError, "torch.float32 or torch.float64"),
        (lambda: add(BASE, {"norms": BASE["norm"]}), UnknownNameError, "'norms'; try one of: norm"),
        (lambda: add(BASE, {"norm": torch.ones(4)}), ShapeError, "update of norm has shape (4,)"),
        (lambda: add(BASE, {"count": torch.ones(3)}), DataError, "count is of int64 and its update of float32"),
        (lambda: add(BASE, {"norm": torch.ones(3).bool()}), DataError, "its update of bool"),
        (lambda: add(BASE, {"norm": torch.ones(3) * 1j}), DataError, "norm holds real numbers"),
        (lambda: add(BASE, {}, alpha=float("nan")), DataError, "alpha must be a finite number, got nan"),
        (lambda: add(BASE, {}, alpha="1"), DataError, "alpha must be a number, got '1'"),
        (lambda: add(BASE, {"norm": BASE["norm"].to("meta")}), DataError, "norm of the update has no numbers"),
        (lambda: add(BASE, {"norm": BASE["norm"]})["nose"], UnknownNameError, "'nose'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(action, error, words):
    with pytest.raises(InterbasinError) as caught:
        action()
    assert isinstance(caught.value, error) and words in str(caught.value)


def test_codes_of_a_quantised_network_are_refused():
    base = nn.Linear(2, 2)
    tuned = nn.Linear(2, 2)
    tuned.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    refused(lambda: difference(tuned, base), WiringError, ("quantised: its parameter weight holds torch.int8 codes",))
