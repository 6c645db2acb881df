"""Sequential regression: what it does, what it leaves alone, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import generic, mlp
from tests.jobs.transport.small import Attending
from tests.laws.strategies import gaussian
from tests.laws.transported import (
    CASES,
    DECODER,
    ENCODER,
    VISION,
    WIDER,
    Pair,
    PlainEncoder,
    ResidualMLP,
    distance,
    made,
    pair_of,
    tuned_by,
    wider,
)
from torch import nn

import interbasin as ib
from interbasin.activations import Tokens
from interbasin.errors import DataError, InterbasinError, ShapeError, UnknownNameError, WiringError
from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.methods import regression, theseus
from interbasin.jobs.transport.regression.sequence import Recipe, Regressed, regress

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
X, FRESH = gaussian(0, 400, 10), gaussian(1, 200, 10)


def pair(source: nn.Module, target: nn.Module, data: list[Any]) -> Pair:
    source, target = generic(source, 0).double().eval(), generic(target, 1).double().eval()
    return Pair(source, target, tuned_by(source, 3), data)


SMALL = pair(mlp(10, 16, 16, 5), mlp(10, 24, 24, 5), [X])


def fitted(one: Pair = SMALL, data: Any = None, **options: Any) -> Regressed:
    return regress(one.bases, one.tuned, one.data if data is None else data, **options)


def states(*networks: nn.Module) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor.clone() for name, tensor in network.state_dict().items()} for network in networks]


def same(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


# ---------------------------------------------------------------------- what it does


def test_it_comes_nearer_to_the_tuned_network_than_carrying() -> None:
    before = distance(SMALL.tuned, SMALL.target, FRESH)
    carried = SMALL.error(theseus(SMALL.task, "spaces").update, FRESH)
    found = SMALL.error(regression(SMALL.task, "tuned").update, FRESH)
    assert found < 0.3 * min(before, carried)


@pytest.mark.parametrize("name", [WIDER[0], *(pytest.param(name, marks=pytest.mark.slow) for name in WIDER[1:])])
def test_a_wider_network_becomes_the_tuned_one(name: str) -> None:
    source, target, data = wider(name)
    one = Pair(source, target, tuned_by(source, 9), data)
    start = theseus(one.task, "spaces").update.added_to(target)
    # Heads as the wirings have them, also where there are more in the target.
    headed = ib.Correspondence.by_role(*(ib.wire(network, data[0]) for network in (source, target)))
    bases = relate(source, target, data, correspondence=headed)
    found = regress(bases, one.tuned, data, start=start)
    assert not found.left_out
    assert distance(one.tuned, found.model, data[1]) < 1e-6


@pytest.mark.parametrize("prior", ["base", "zero"])
def test_with_rows_enough_it_needs_no_prior(prior: str) -> None:
    one = pair_of("residual mlp")
    start = theseus(one.task, "spaces").update.added_to(one.target)
    found = fitted(one, start=start, recipe=Recipe(prior=prior))
    assert distance(one.tuned, found.model, CASES["residual mlp"].inputs(9)) < 1e-6


def test_what_no_layer_fits_is_carried_or_stays() -> None:
    one = pair_of("residual mlp")
    start = theseus(one.task, "spaces").update.added_to(one.target)
    carried, base = (fitted(one, start=start, recipe=Recipe(rest=rest)).model for rest in ("carried", "base"))
    assert torch.equal(carried.state_dict()["norm.weight"], start.state_dict()["norm.weight"])
    assert torch.equal(base.state_dict()["norm.weight"], one.target.state_dict()["norm.weight"])


def attending(fused: bool = False) -> Pair:
    source, target = (Attending(*sizes, fused=fused) for sizes in ((8, 2, 3), (12, 2, 4)))
    return pair(source, target, [gaussian(5, 400 * 6, 4).reshape(400, 6, 4)])


def test_queries_and_keys_are_fitted_or_carried_or_stay() -> None:
    one = attending()
    start = theseus(one.task, "spaces").update.added_to(one.target)
    found = {
        way: fitted(one, start=start, recipe=Recipe(attention=way)) for way in ("heads", "full", "carried", "base")
    }
    weights = {way: each.model.state_dict() for way, each in found.items()}
    for name in ("q", "k"):
        for kind in ("weight", "bias"):
            which = f"{name}.{kind}"
            assert torch.equal(weights["carried"][which], start.state_dict()[which])
            assert torch.equal(weights["base"][which], one.target.state_dict()[which])
            assert not torch.equal(weights["heads"][which], weights["full"][which])
        assert "attention='carried'" in found["carried"].left_out[f"{name}.weight"]
    assert not torch.equal(weights["base"]["v.weight"], start.state_dict()["v.weight"])
    errors = {way: distance(one.tuned, each.model, one.data[0]) for way, each in found.items()}
    assert min(errors, key=errors.__getitem__) == "heads"


def test_queries_that_lie_in_one_tensor_with_values_cannot_be_left_out() -> None:
    with pytest.raises(WiringError, match="take attention='heads' or 'full'"):
        fitted(attending(fused=True), recipe=Recipe(attention="base"))


def test_generic_inputs_keep_what_the_target_does_there() -> None:
    others = gaussian(7, 400, 10) + 4
    alone, kept = fitted().model, fitted(generic=[others]).model
    assert distance(SMALL.target, kept, others) < 0.7 * distance(SMALL.target, alone, others)
    nothing = fitted(generic=[others], recipe=Recipe(generic_weight=0.0)).model
    assert distance(alone, nothing, FRESH) < 0.05
    taught = fitted(generic=[others], recipe=Recipe(generic_target="tuned")).model
    assert distance(SMALL.tuned, taught, others) < distance(SMALL.tuned, alone, others)


def test_batches_are_one_sum() -> None:
    one, several = fitted(), fitted(data=list(X.split(64)))
    assert distance(one.model, several.model, FRESH) < 1e-6


def test_it_is_the_same_every_time_and_changes_nothing_it_was_given() -> None:
    one = pair(ResidualMLP(), ResidualMLP(24, 40), [X])
    start = theseus(one.task, "spaces").update.added_to(one.target)
    given = (one.source, one.target, one.tuned, start)
    before = states(*given)
    first, second = (fitted(one, start=start, generic=[FRESH]) for _ in range(2))
    assert same(first.model, second.model)
    for network, held in zip(given, before, strict=True):
        assert all(torch.equal(tensor, held[name]) for name, tensor in network.state_dict().items())
        assert not any(module._forward_hooks for module in network.modules())


def test_one_row_is_enough_to_run() -> None:
    assert all(bool(tensor.isfinite().all()) for tensor in fitted(data=[X[:1]]).model.state_dict().values())


def test_networks_of_float32_stay_so() -> None:
    one = pair(mlp(10, 16, 5), mlp(10, 24, 5), [X.float()])
    for network in (one.source, one.target, one.tuned):
        network.float()
    found = fitted(one)
    assert {tensor.dtype for tensor in found.model.state_dict().values()} == {torch.float32}
    assert distance(one.tuned, found.model, FRESH.float()) < 0.5


@pytest.mark.slow
def test_rows_of_padding_do_not_count() -> None:
    ids = CASES["bert"].inputs(0)["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    options = {**ENCODER, "num_hidden_layers": 1, "num_labels": 3}
    source, target = (made("BertForSequenceClassification", **options)() for _ in range(2))
    models = []
    for filler in (5, 9):
        padded = {"input_ids": torch.where(mask == 1, ids, filler), "attention_mask": mask}
        models.append(fitted(pair(source, target, [padded])).model)
    theirs = models[1].state_dict()
    for name, tensor in models[0].state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_account_says_that_positions_and_attention_are_fitted() -> None:
    one = pair_of("encoder")
    found = regression(one.task, "tuned")
    reasons = {row.target: row.reason for row in found.moved}
    fitted = {name for name, reason in reasons.items() if name and reason.startswith("fitted; explains")}
    assert {"first", "positions", "blocks.layers.0.self_attn.out_proj.bias"} <= fitted
    assert {name.partition("[")[0] for name in fitted} >= {
        f"blocks.layers.1.self_attn.in_proj_{kind}" for kind in ("weight", "bias")
    }
    assert not any("norm" in name for name in fitted)
    assert not found.notes


def test_an_adapter_gets_no_positions_and_nothing_inside_attention() -> None:
    one = pair_of("encoder")
    start = theseus(one.task, "spaces").update.added_to(one.target)
    found = fitted(one, start=start, recipe=Recipe(rank=3))
    assert {name.rpartition("blocks.layers.")[2] for name in found.left_out} == {
        "first",
        "positions",
        *(f"{block}.self_attn.{name}_weight" for block in (0, 1) for name in ("in_proj",)),
        *(f"{block}.self_attn.out_proj.weight" for block in (0, 1)),
    }
    assert {*found.left_out.values()} == {"an adapter has no factors for it"}
    state, given = found.model.state_dict(), start.state_dict()
    assert all(torch.equal(state[name], given[name]) for name in found.left_out)
    assert set(found.factors) == {fit.layer.tensors[1] for fit in found.layers}
    assert all(factors.a.shape[0] == 3 for factors in found.factors.values())


@pytest.mark.slow
def test_shifts_are_asked_for_before_the_last_layer() -> None:
    """Where A's fine-tune changes only its last layer, nothing else of B moves."""
    tuned = copy.deepcopy(SMALL.source)
    with torch.no_grad():
        next(reversed(list(tuned.parameters()))).add_(1.0)
    found = regress(SMALL.bases, tuned, [X], recipe=Recipe(aim="shift", prior="base")).model
    change = {
        name: float((tensor - SMALL.target.state_dict()[name]).norm()) for name, tensor in found.state_dict().items()
    }
    *others, last = [name for name in change if name.endswith("weight")]
    assert change[last] > 0.1 and all(change[name] < 1e-6 for name in others)
    assert not same(found, fitted().model)


@pytest.mark.slow
def test_generic_inputs_keep_positions_and_attention_too() -> None:
    one = pair(PlainEncoder(), PlainEncoder(24, 40), [CASES["encoder"].inputs(seed) for seed in range(4)])
    others = [CASES["encoder"].inputs(seed) + 2 for seed in range(4, 8)]
    alone, kept = fitted(one).model, fitted(one, generic=others).model
    assert distance(one.target, kept, others[0]) < 0.7 * distance(one.target, alone, others[0])
    assert distance(one.tuned, kept, one.data[0]) < 0.7 * distance(one.tuned, one.target, one.data[0])


def test_positions_of_a_finer_grid_are_fitted_on_a_coarser_one() -> None:
    source, target = (
        made("ViTForImageClassification", **{**VISION, "num_hidden_layers": 1, "patch_size": size})() for size in (2, 4)
    )
    one = pair(source, target, [CASES["vit"].inputs(seed) for seed in range(3)])
    found = fitted(one, tokens="interpolate2d")
    names = {fit.layer.tensors[1].rpartition(".")[2] for fit in found.layers if fit.layer.is_table}
    assert names == {"position_embeddings", "cls_token"}
    # Where tokens are averaged, nothing tells positions apart: all move alike, and the class token not at all.
    averaged = fitted(one, tokens="mean")
    change, still = (
        averaged.model.get_parameter(f"vit.embeddings.{name}") - one.target.get_parameter(f"vit.embeddings.{name}")
        for name in ("position_embeddings", "cls_token")
    )
    torch.testing.assert_close(change, change[:, :1].expand_as(change))
    assert not still.any()
    assert "apart from others" in averaged.left_out["vit.embeddings.cls_token"]
    assert distance(one.tuned, averaged.model, one.data[0]) < distance(one.tuned, one.target, one.data[0])


@pytest.mark.slow
def test_rotary_heads_that_are_not_alike_are_fitted_all_the_same() -> None:
    inputs = CASES["llama"].inputs(0)
    narrow, wide = (
        made("LlamaForCausalLM", **{**DECODER, "num_hidden_layers": 1, "hidden_size": width, "head_dim": size})()
        for width, size in ((16, 8), (24, 12))
    )
    one = pair(narrow, wide, [inputs])
    headed = ib.Correspondence.by_role(*(ib.wire(network, inputs) for network in (one.source, one.target)))
    found = regress(relate(one.source, one.target, one.data, correspondence=headed), one.tuned, one.data)
    assert not found.left_out
    assert distance(one.tuned, found.model, inputs) < 0.8 * distance(one.tuned, one.target, inputs)


# ---------------------------------------------------------------------- what it refuses


def test_numbers_that_are_none_are_refused_by_name() -> None:
    bad = X.clone()
    bad[3, 2] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        fitted(data=[X, bad])
    with pytest.raises(DataError, match="NaN"):
        fitted(generic=[bad])
    broken = copy.deepcopy(SMALL.tuned)
    with torch.no_grad():
        broken[2].weight[0, 0] = torch.inf
    with pytest.raises(DataError, match="tuned source shows NaN or infinity at '2'"):
        regress(SMALL.bases, broken, [X])


@pytest.mark.parametrize("data", [[], [X[:0]], iter([X, X])])
def test_data_that_are_not_there_are_refused(data: Any) -> None:
    with pytest.raises(DataError):
        fitted(data=data)
    with pytest.raises(InterbasinError):
        fitted(generic=data)


def test_networks_of_other_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"tuned network is not of the source's shapes: 0.weight is \(16, 10\)"):
        regress(SMALL.bases, SMALL.target, [X])
    with pytest.raises(ShapeError, match="has no such tensor"):
        regress(SMALL.bases, ResidualMLP().double(), [X])
    with pytest.raises(ShapeError, match="start is not of the target's shapes"):
        fitted(start=SMALL.source)
    with pytest.raises(DataError, match=r"\(4, 9\)"):
        fitted(data=[gaussian(0, 4, 9)])


@pytest.mark.parametrize("option", ["generic_target", "stream", "hidden", "attention", "prior", "aim", "rest"])
def test_unknown_ways_are_refused(option: str) -> None:
    wrong: dict[str, Any] = {option: "sideways"}
    with pytest.raises(UnknownNameError, match="sideways"):
        fitted(recipe=Recipe(**wrong))


@pytest.mark.parametrize("option", ["generic_weight", "ridge"])
def test_negative_weights_are_refused(option: str) -> None:
    wrong: dict[str, Any] = {option: -1.0}
    with pytest.raises(DataError, match=option):
        fitted(recipe=Recipe(**wrong))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
def test_tokens_that_do_not_pair_are_refused_unless_told_how(sizes: tuple[int, int]) -> None:
    source, target = (
        made("ViTForImageClassification", **{**VISION, "num_hidden_layers": 1, "patch_size": size})() for size in sizes
    )
    one = pair(source, target, [CASES["vit"].inputs(0)])
    with pytest.raises(ShapeError, match="tokens="):
        fitted(one)
    for tokens in ("interpolate2d", "interpolate", Tokens("interpolate2d", prefix=(1, 1))):
        found = fitted(one, tokens=tokens)
        assert distance(one.tuned, found.model, one.data[0]) < distance(one.tuned, one.target, one.data[0])
    # Each network's patches stand behind its own class token, and there are as many as it has.
    counts = [(VISION["image_size"] // size) ** 2 for size in sizes]
    positions = [fit.layer.positions for fit in found.layers if fit.layer.positions is not None]
    assert positions == [tuple(tuple(range(1, count + 1)) for count in counts)]


def test_networks_without_a_layer_to_fit_are_refused() -> None:
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Conv1d(3, 4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.only(x)

    one = pair(Convolved(), Convolved(), [gaussian(0, 6, 3, 5)])
    with pytest.raises(WiringError, match="No linear layer"):
        fitted(one)
