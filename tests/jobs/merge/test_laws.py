"""What is true of merging whatever is merged."""

from __future__ import annotations

import tempfile
from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.jobs.merge.networks import tensors
from tests.laws.strategies import SEEDS
from tests.profiles import at_most
from torch import Tensor

from interbasin import merge
from interbasin.checkpoints import open_checkpoint, write_checkpoint

METHODS = ("lerp", "slerp", "average", "task-arithmetic", "ties")
BASED = ("task-arithmetic", "ties")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def near(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        bar = TOLERANCE[tensor.dtype]
        torch.testing.assert_close(found[name], tensor, rtol=bar, atol=bar)


def drawn(seed: int, count: int, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    return [tensors((seed + one) % 2**32, dtype) for one in range(count)]


@given(seed=SEEDS, method=st.sampled_from(METHODS), dtype=st.sampled_from(DTYPES))
def test_merging_a_network_with_itself_gives_it_back_exactly(seed, method, dtype):
    model = tensors(seed, dtype)
    base = {"base": model} if method in BASED else {}
    assert same(merge([model, model], method, **base), model)


@given(seed=SEEDS, method=st.sampled_from(("lerp", "slerp")), dtype=st.sampled_from(DTYPES))
def test_the_ends_of_a_path_are_the_networks(seed, method, dtype):
    a, b = drawn(seed, 2, dtype)
    assert same(merge([a, b], method, t=0), a)
    assert same(merge([a, b], method, t=1), b)


@given(seed=SEEDS, dtype=st.sampled_from(DTYPES), weights=st.lists(st.floats(0.1, 2), min_size=3, max_size=3))
@at_most(20)
def test_the_order_of_an_average_does_not_matter(seed, dtype, weights):
    models = drawn(seed, 3, dtype)
    expected = merge(models, weights=weights)
    for order in permutations(range(3)):
        near(merge([models[one] for one in order], weights=[weights[one] for one in order]), expected)


@given(seed=SEEDS, dtype=st.sampled_from(DTYPES))
def test_one_update_with_weight_one_is_the_network(seed, dtype):
    base, model = drawn(seed, 2, dtype)
    near(merge([model], "task-arithmetic", base=base, weights=[1]), model)
    near(merge([model], "ties", base=base, density=1.0), model)


@given(seed=SEEDS, t=st.floats(0, 1))
def test_the_line_the_average_and_task_arithmetic_agree(seed, t):
    a, b = drawn(seed, 2, torch.float64)
    line = merge([a, b], "lerp", t=t)
    near(merge([a, b], "average", weights=[1 - t, t]), line)
    near(merge([b], "task-arithmetic", base=a, weights=[t]), line)


@given(seed=SEEDS, scale=st.floats(0.125, 4))
def test_slerp_scales_with_its_ends(seed, scale):
    a, b = drawn(seed, 2, torch.float64)
    larger = [{name: scale * tensor for name, tensor in model.items()} for model in (a, b)]
    expected = {name: scale * tensor for name, tensor in merge([a, b], "slerp", t=0.3).items()}
    near(merge(larger, "slerp", t=0.3), expected)


@given(
    seed=SEEDS,
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from(DTYPES),
    shard=st.sampled_from((200, 3000, 10**9)),
    result=st.sampled_from((None, "float32", "bfloat16")),
)
@at_most(40)
def test_disk_and_memory_give_the_same(seed, method, dtype, shard, result):
    base, a, b = drawn(seed, 3, dtype)
    with tempfile.TemporaryDirectory() as place:
        where = Path(place)
        for name, values in {"base": base, "a": a, "b": b}.items():
            write_checkpoint(where / name, values, max_shard_bytes=shard)
        based = method in BASED
        expected = merge([a, b], method, base=base if based else None, dtype=result)
        made = merge(
            [where / "a", where / "b"],
            method,
            base=where / "base" if based else None,
            output=where / "out",
            max_shard_bytes=shard,
            dtype=result,
        )
        found = open_checkpoint(where / "out").state_dict()
        assert same(found, expected)
        assert {tensor.dtype for tensor in found.values()} == {getattr(torch, result) if result else dtype}
        assert made.metrics["tensors"] == len(found)
        assert made.metrics["parameters"] == sum(tensor.numel() for tensor in found.values())


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_is_given_changes(method):
    base, a, b = drawn(7, 3, torch.float32)
    copies = [{name: tensor.clone() for name, tensor in model.items()} for model in (base, a, b)]
    found = merge([a, b], method, base=base if method in BASED else None)
    for tensor in found.values():
        tensor.fill_(9)
    assert all(same(model, copy) for model, copy in zip((base, a, b), copies, strict=True))
