"""Modules and mappings of tensors."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.merge.networks import Tied, tensors
from tests.test_storage import refused
from torch import nn

from interbasin import merge
from interbasin.errors import DataError, ShapeError, WiringError


def mlp(seed: int, width: int = 6, depth: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def test_a_new_module_of_the_first_ones_class_comes_back():
    a, b = Tied(0), Tied(1)
    before = {name: value.clone() for name, value in a.state_dict().items() if isinstance(value, torch.Tensor)}
    made = merge([a, b], "lerp", t=0.25)
    assert type(made) is Tied and made is not a
    torch.testing.assert_close(made.embed.weight, 0.75 * a.embed.weight + 0.25 * b.embed.weight)
    made.embed.weight.data.zero_()
    assert all(torch.equal(value, a.state_dict()[name]) for name, value in before.items())


def test_what_is_tied_stays_tied_and_other_state_is_the_first_ones():
    made = merge([Tied(3), Tied(4), Tied(5)])
    assert made.head.weight is made.embed.weight
    assert made.seed == 3


def test_training_mode_and_gradients_are_those_of_the_first():
    a, b = mlp(0).eval(), mlp(1).train()
    a[0].weight.requires_grad_(False)
    made = merge([a, b])
    assert not made.training and not made[0].weight.requires_grad and made[2].weight.requires_grad
    assert made[2].weight.grad_fn is None


def test_counters_come_from_the_first_or_from_the_nearer_end():
    a, b = Tied(0), Tied(1)
    a.norm.num_batches_tracked.fill_(3)
    b.norm.num_batches_tracked.fill_(8)
    assert merge([a, b]).norm.num_batches_tracked.item() == 3
    assert merge([a, b], "lerp", t=0.4).norm.num_batches_tracked.item() == 3
    assert merge([a, b], "slerp", t=0.6).norm.num_batches_tracked.item() == 8


def test_a_base_works_on_modules():
    base, a = mlp(0), mlp(1)
    made = merge([a], "task-arithmetic", base=base, weights=[2.0])
    torch.testing.assert_close(made[0].weight, 2 * a[0].weight - base[0].weight)


def test_complex_numbers_are_merged_as_pairs():
    generator = torch.Generator().manual_seed(0)
    a, b = ({"x": torch.randn(3, 4, dtype=torch.complex64, generator=generator)} for _ in range(2))
    torch.testing.assert_close(merge([a, b], "lerp", t=0.25)["x"], 0.75 * a["x"] + 0.25 * b["x"])


def test_a_mapping_keeps_its_ties():
    table = torch.randn(3, 2)
    other = {"a": torch.randn(3, 2)}
    other["b"] = other["a"]
    found = merge([{"a": table, "b": table}, other])
    assert found["a"] is found["b"]


def test_the_dtypes_of_the_first_are_kept():
    found = merge([tensors(0, torch.bfloat16), tensors(1, torch.float32)])
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


def test_half_precision_is_rounded_once():
    a = {"x": torch.tensor([1.0], dtype=torch.bfloat16)}
    b = {"x": torch.tensor([1.0078125], dtype=torch.bfloat16)}
    found = merge([a, a, b, b], weights=[1, 1, 1, 1.01])["x"]
    exact = (1 + 1 + 1.0078125 + 1.01 * 1.0078125) / 4.01
    assert found.item() == torch.tensor(exact).to(torch.bfloat16).item()


def test_empty_and_scalar_tensors_are_merged():
    a, b = ({"none": torch.zeros(0, 3), "one": torch.tensor(value)} for value in (1.0, 3.0))
    found = merge([a, b])
    assert found["none"].shape == (0, 3) and found["one"].item() == 2.0
    assert merge([a, b], "ties", base=a)["none"].shape == (0, 3)


def test_what_is_not_finite_but_the_same_everywhere_is_kept():
    mask = torch.tensor([0.0, -torch.inf])
    a, b = ({"mask": mask.clone(), "x": torch.tensor([value])} for value in (1.0, 2.0))
    assert torch.equal(merge([a, b])["mask"], mask)
    assert torch.equal(merge([b], "task-arithmetic", base=a)["mask"], mask)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", ["average", "slerp", "ties"])
def test_a_network_with_numbers_that_are_not_finite_is_named(bad, method):
    a, b, base = tensors(0), tensors(1), tensors(2)
    b["norm.weight"][3] = bad
    keywords = {"base": base} if method == "ties" else {}
    refused(
        lambda: merge([a, b], method, **keywords), DataError, ("norm.weight in model 2 holds NaN or infinity", "repair")
    )


def test_a_result_that_the_dtype_cannot_hold_is_refused():
    base, model = ({"x": torch.tensor([value], dtype=torch.float16)} for value in (-6e4, 6e4))
    words = ("x comes out larger than float16 can hold (6.55e+04)", "bfloat16")
    refused(lambda: merge([model], "task-arithmetic", base=base, weights=[2]), DataError, words)
    wide = merge([model], "task-arithmetic", base=base, weights=[2], dtype="float32")
    assert wide["x"].item() == pytest.approx(1.8e5, rel=1e-3)
    large, nothing = {"x": torch.tensor([3e38])}, {"x": torch.tensor([0.0])}
    words = ("x comes out larger than float32 can hold (3.403e+38)", "choose smaller weights")
    refused(lambda: merge([large, large], "task-arithmetic", base=nothing), DataError, words)


def test_another_width_is_refused_with_the_tensor_and_the_way_out():
    words = ("0.weight has shape 6 x 6 in model 1 and 8 x 8 in model 2", "the job of transport")
    refused(lambda: merge([mlp(0), mlp(1, width=8)]), ShapeError, words)


def test_another_depth_is_refused():
    a, b = tensors(0, layers=12), tensors(1, layers=2)
    refused(
        lambda: merge([a, b]),
        WiringError,
        ("model 1 is deeper than model 2: it alone holds layers.2.down.weight", "equal depth"),
    )
    refused(lambda: merge([b, a]), WiringError, ("model 2 is deeper than model 1",))


def test_a_missing_tensor_is_named():
    a, b = tensors(0), tensors(1)
    del b["norm.weight"]
    words = ("one architecture", "model 1 holds norm.weight, which model 2 lacks")
    refused(lambda: merge([a, b]), WiringError, words)
    refused(lambda: merge([b, b], "ties", base=a), WiringError, ("the base holds norm.weight, which model 1 lacks",))


def test_another_architecture_is_refused_from_both_sides():
    words = ("model 1 holds embed.weight, norm.weight, which", "model 2 holds 0.bias, 0.weight and 2 more, which")
    refused(lambda: merge([tensors(0, layers=0), dict(mlp(0).state_dict())]), WiringError, words)


def test_ties_that_another_network_lacks_are_refused():
    table = torch.randn(3, 2)
    words = ("b is tied to a in model 1, and in model 2 they differ", "put the other one first")
    refused(lambda: merge([{"a": table, "b": table}, {"a": table, "b": table + 1}]), WiringError, words)
    found = merge([{"a": table, "b": table}, {"a": table + 1, "b": table + 1}])
    assert found["a"] is found["b"]


def test_lora_factors_are_refused_by_name():
    lora = tensors(0) | {"base.q_proj.lora_A.default.weight": torch.randn(2, 3)}
    words = ("model 2 holds a LoRA (base.q_proj.lora_A.default.weight)", "merge_and_unload")
    refused(lambda: merge([tensors(1), lora]), DataError, words)


def test_quantised_networks_are_refused():
    a, b = mlp(0), mlp(1)
    b[0].weight = nn.Parameter(torch.zeros(6, 6, dtype=torch.int8), requires_grad=False)
    refused(lambda: merge([a, b]), WiringError, ("model 2 (Sequential) is quantised: its parameter 0.weight",))
    eight = {"x": torch.zeros(3, dtype=torch.float8_e4m3fn)}
    refused(lambda: merge([eight, eight]), DataError, ("x in model 1 is of float8_e4m3fn", "convert it"))
    sparse = {"x": torch.eye(2).to_sparse()}
    refused(lambda: merge([sparse, sparse]), DataError, ("x of model 1 has no numbers to add", "sparse_coo"))


def test_numbers_against_counts_are_refused():
    words = ("x is of float32 in model 1 and of int64 in model 2",)
    refused(lambda: merge([{"x": torch.ones(2)}, {"x": torch.ones(2, dtype=torch.int64)}]), DataError, words)


def test_something_that_is_no_tensor_is_refused():
    refused(lambda: merge([{"x": 3}]), DataError, ("x of model 1 is a int, expected a tensor",))


def test_a_dtype_for_modules_is_refused():
    refused(lambda: merge([mlp(0), mlp(1)], dtype="float32"), DataError, ("for modules call .to(dtype)",))
