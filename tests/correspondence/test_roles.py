"""Networks of different architectures, matched by what their spaces and tensors do."""

from __future__ import annotations

import pytest
import torch
from tests.correspondence.networks import (
    HEAD,
    STEM,
    Fused,
    Written,
    blocks,
    flat_attention,
    inputs,
    mlp,
    residual,
    traced,
    wiring,
)
from torch import Tensor, nn

from interbasin.correspondence import Correspondence, TensorPair
from interbasin.errors import WiringError
from interbasin.wiring import Wiring, wire


def tensors(found: Correspondence) -> dict[str, list[str]]:
    """Source -> targets."""
    pairs: dict[str, list[str]] = {}
    for pair in found.tensors:
        pairs.setdefault(str(pair.parts[0]), []).append(str(pair.parts[1]))
    return pairs


def spaces(found: Correspondence) -> dict[str, list[str]]:
    return {name: [pair.target for pair in found.space_pairs(source=name)] for name in found.source.spaces}


def reasons(found: Correspondence) -> dict[str, str]:
    return {str(one.part): one.reason for one in (*found.unmatched_source, *found.unmatched_target)}


def moved(found: Correspondence, source: dict[str, Tensor], target: dict[str, Tensor]) -> dict[str, Tensor]:
    """The target's tensors, with those of the source in the places of their partners."""
    tensors = dict(target)
    for pair in found.tensors:
        tensors[pair.target] = pair.paste(tensors[pair.target], pair.cut(source[pair.source]))
    return tensors


def test_weights_that_go_to_their_partners_compute_the_same_function() -> None:
    torch.manual_seed(0)
    fused, written = Fused(8, 2, 2, 12).double().eval(), Written(8, 2, 2, 12).double().eval()
    x = inputs().double()
    for source, target in ((fused, written), (written, fused)):
        found = Correspondence.by_role(traced(type(source)), traced(type(target)))
        assert found.is_one_to_one
        assert not found.unmatched_source and not found.unmatched_target
        assert not torch.allclose(source(x), target(x))
        target.load_state_dict(moved(found, source.state_dict(), target.state_dict()))
        assert torch.allclose(source(x), target(x), atol=1e-12)
        for parameter in source.parameters():
            nn.init.normal_(parameter)


def test_fused_and_separate_projections_correspond_by_segments() -> None:
    found = Correspondence.by_role(traced(Fused), traced(Written))
    pairs = tensors(found)
    name = "encoder.layers.1.self_attn.in_proj_weight"
    parts = {f"{name}[0:8]": "query", f"{name}[8:16]": "key", f"{name}[16:24]": "value"}
    assert {part: pairs[part] for part in parts} == {
        part: [f"trunk.1.attention.{partner}.weight"] for part, partner in parts.items()
    }


def test_axes_that_are_stored_in_another_order_are_told() -> None:
    found = Correspondence.by_role(traced(Fused), traced(Written))
    (up,) = found.tensor_pairs(source="encoder.layers.0.linear1.weight")
    assert (up.target, up.order) == ("trunk.0.up.weight", (1, 0))
    (positions,) = found.tensor_pairs(source="pos")
    assert (positions.target, positions.order) == ("positions", (1, 2))
    (back,) = found.inverse().tensor_pairs(target="pos")
    assert back.order == (None, 0, 1)


def test_queries_go_to_queries_though_the_space_is_called_after_the_keys() -> None:
    found = Correspondence.by_role(traced(Fused), traced(Written))
    assert spaces(found)["encoder.layers.0.self_attn.in_proj_weight.0"] == ["trunk.0.attention.key"]
    (query,) = found.tensor_pairs(target="trunk.0.attention.query.weight")
    assert str(query.parts[0]).endswith("[0:8]")


@pytest.mark.parametrize(("source", "target"), [(2, 2), (2, 5), (5, 2), (1, 4), (6, 4)])
def test_blocks_are_spread_evenly_whatever_they_are_called(source: int, target: int) -> None:
    found = Correspondence.by_role(residual(source), residual(target, "layers", "fc1", "fc2"))
    assert not found.unmatched_source and not found.unmatched_target
    pairs = tensors(found)
    for block in range(source):
        partners = [
            index for index in range(target) if f"layers.{index}.fc1.weight" in pairs[f"blocks.{block}.up.weight"]
        ]
        for ours, theirs in (("up", "fc1"), ("down", "fc2"), ("norm", "norm")):
            for kind in ("weight", "bias"):
                expected = [f"layers.{index}.{theirs}.{kind}" for index in partners]
                assert pairs[f"blocks.{block}.{ours}.{kind}"] == expected
        assert spaces(found)[f"blocks.{block}.up"] == [f"layers.{index}.fc1" for index in partners]


def test_what_the_partner_of_a_module_lacks_is_told() -> None:
    found = Correspondence.by_role(residual(2), residual(2, bias=False))
    assert reasons(found) == {
        f"blocks.{block}.{module}.bias": "the partner of its module has no 'bias'"
        for block in range(2)
        for module in ("up", "down")
    }


def test_the_hidden_layers_of_mlps_of_different_depth_are_one_chain() -> None:
    found = Correspondence.by_role(mlp(2), mlp(4, "linear"))
    assert spaces(found) == {
        "fc1": ["linear1", "linear2"],
        "input": ["input"],
        "fc2": ["linear3", "linear4"],
        "output": ["output"],
    }
    assert {name: pairs for name, pairs in tensors(found).items() if "weight" in name} == {
        "fc1.weight": ["linear1.weight"],
        "fc2.weight": ["linear3.weight"],
        "fc3.weight": ["linear5.weight"],
    }
    joined = "the spaces that it joins are one space in the other network"
    assert reasons(found) == {f"linear{layer}.{kind}": joined for layer in (2, 4) for kind in ("weight", "bias")}


def recurrent(kind: type[nn.RNNBase], layers: int) -> Wiring:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = kind(4, 6, layers, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    return wire(Recurrent(), torch.randn(2, 5, 4))


def test_what_leads_from_a_space_to_itself_has_such_a_partner() -> None:
    pairs = tensors(Correspondence.by_role(recurrent(nn.LSTM, 2), recurrent(nn.LSTM, 3)))
    assert pairs["rnn.weight_hh_l1"] == ["rnn.weight_hh_l1", "rnn.weight_hh_l2"]
    assert pairs["rnn.weight_ih_l1"] == ["rnn.weight_ih_l1"]


def test_the_gates_of_different_recurrent_layers_are_no_partners() -> None:
    found = Correspondence.by_role(recurrent(nn.LSTM, 1), recurrent(nn.GRU, 1))
    assert tensors(found) == {"head.weight": ["head.weight"], "head.bias": ["head.bias"]}


def test_stacks_are_paired_by_what_they_hold_and_the_rest_is_told() -> None:
    attention = {}
    for block in range(2):
        name = f"decoder.{block}"
        attention |= {f"{name}.q.weight": f"{name}.q <- stem", f"{name}.k.weight": f"~{name}.q <- stem"}
    both = wiring({**STEM, **attention, **blocks(2, "encoder"), **HEAD})
    found = Correspondence.by_role(both, residual(3))
    assert tensors(found)["encoder.0.up.weight"] == ["blocks.0.up.weight"]
    why = "the other network has no stack of blocks like 'decoder'"
    assert reasons(found) == {name: why for name in (*attention, "decoder.0.q", "decoder.1.q")}


def test_stages_are_matched_in_order_and_their_first_blocks_with_each_other() -> None:
    def network(*depths: int) -> Wiring:
        lines = {"conv.weight": "s0 <- input"}
        for stage, depth in enumerate(depths, start=1):
            for block in range(depth):
                name, before = f"stage{stage}.{block}", f"s{stage - 1}" if block == 0 else f"s{stage}"
                lines[f"{name}.conv1.weight"] = f"{name}.conv1 3 3 <- {before}"
                lines[f"{name}.conv2.weight"] = f"s{stage} 3 3 <- {name}.conv1"
                lines |= {f"{name}.shortcut.weight": f"s{stage} 1 1 <- {before}"} if block == 0 else {}
        return wiring(lines | {"head.weight": f"output <- s{len(depths)}"})

    found = Correspondence.by_role(network(2, 2), network(2, 4))
    assert not found.unmatched_source and not found.unmatched_target
    assert tensors(found)["stage2.0.conv1.weight"] == ["stage2.0.conv1.weight"]
    assert tensors(found)["stage2.1.conv1.weight"] == [f"stage2.{block}.conv1.weight" for block in (1, 2, 3)]
    assert spaces(found)["s1"] == ["s1"]


def test_a_stream_that_is_two_spaces_elsewhere_serves_both() -> None:
    one = wiring({**STEM, **blocks(2, "first"), **blocks(2, "second"), **HEAD})
    apart = {name: line.replace("stem", "late") for name, line in {**blocks(2, "second"), **HEAD}.items()}
    two = wiring({**STEM, **blocks(2, "first"), "widen.weight": "late <- stem", **apart})
    found = Correspondence.by_role(one, two)
    assert spaces(found)["stem"] == ["stem", "late"]
    assert tensors(found)["second.1.up.weight"] == ["second.1.up.weight"]
    assert reasons(found) == {"widen.weight": "the spaces that it joins are one space in the other network"}


@pytest.mark.parametrize(("source", "target"), [(True, False), (False, True)])
def test_values_that_are_written_and_read_apart_go_to_the_whole(source: bool, target: bool) -> None:
    found = Correspondence.by_role(flat_attention(3, grouped=source), flat_attention(2, grouped=target))
    assert not found.unmatched_source and not found.unmatched_target
    assert tensors(found)["layers.0.o.weight"] == ["layers.0.o.weight"]
    assert tensors(found)["layers.2.v.weight"] == ["layers.1.v.weight"]
    if source:
        assert spaces(found)["layers.0.v"] == spaces(found)["layers.0.o.input"] == ["layers.0.v"]


def test_a_block_around_one_stack_is_no_level_of_its_own() -> None:
    shared = residual(1, "encoder.groups.0.layers")
    assert tensors(Correspondence.by_role(residual(3), shared))["blocks.2.up.weight"] == [
        "encoder.groups.0.layers.0.up.weight"
    ]


def test_tables_are_told_apart_by_their_names() -> None:
    ours = {"word_embeddings.weight": "60 stem", "position_embeddings.weight": "64 stem", "types.weight": "2 stem"}
    theirs = {"wpe.weight": "32 stem", "cls_token": "1 1 stem", "wte.weight": "90 stem"}
    found = Correspondence.by_role(*(wiring({**lines, **blocks(1, "h"), **HEAD}) for lines in (ours, theirs)))
    assert tensors(found)["word_embeddings.weight"] == ["wte.weight"]
    assert tensors(found)["position_embeddings.weight"] == ["wpe.weight"]
    assert set(reasons(found)) == {"types.weight", "cls_token"}


def test_a_norm_of_the_embeddings_is_no_final_norm() -> None:
    ours = {"embeddings.LayerNorm.weight": "|stem|", **blocks(1, "h"), **HEAD}
    theirs = {**blocks(1, "h"), "ln_f.weight": "|stem|", **HEAD}
    found = Correspondence.by_role(*(wiring({**STEM, **lines}) for lines in (ours, theirs)))
    assert set(reasons(found)) == {"embeddings.LayerNorm.weight", "ln_f.weight"}


def test_each_name_of_a_tied_tensor_has_its_own_partner() -> None:
    body = {**blocks(2, "h"), "embed.weight": "60 stem"}
    tied = Wiring(
        *(getattr(wiring(body), name) for name in ("spaces", "tensors")), tied={"head.weight": "embed.weight"}
    )
    apart = wiring({**body, "lm_head.weight": "output <- stem"}, {"output": 60})
    found = Correspondence.by_role(tied, apart)
    assert found.tensor_pairs(source="head.weight") == [TensorPair("head.weight", "lm_head.weight")]
    assert tensors(found)["embed.weight"] == ["embed.weight"]
    back = Correspondence.by_role(apart, tied)
    assert reasons(back)["lm_head.weight"] == "the space that it writes has no partner"


def test_networks_that_have_nothing_in_common_are_refused() -> None:
    words = ["nothing in common", "'table'", "'fc1.weight'", "by_name"]
    with pytest.raises(WiringError) as caught:
        Correspondence.by_role(wiring({"table": "60 7 embed"}), mlp(2))
    assert all(word in str(caught.value) for word in words)


def test_a_gain_is_no_partner_of_a_shift_where_positions_stay() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.out = nn.Linear(4, 3, bias=False), nn.Linear(4, 2, bias=False)
            self.matrices = nn.Parameter(torch.randn(2, 2, 3))
            self.gain, self.shift = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.einsum("bnc,noc->bno", self.stem(x), self.matrices)
            return self.out(nn.functional.group_norm(hidden, 1, self.gain, self.shift).flatten(1))

    itself = wire(Positions(), torch.randn(3, 2, 4))
    assert Correspondence.by_role(itself, itself) == Correspondence.identity(itself)
