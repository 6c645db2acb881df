"""Networks matched by names, equal ones and those given by hand."""

from __future__ import annotations

import pytest
from tests.correspondence.networks import Fused, Written, attention, blocks, mlp, residual, traced, wiring

from interbasin.correspondence import Correspondence, TensorPair
from interbasin.correspondence.names import Names
from interbasin.errors import InterbasinError, UnknownNameError, WiringError
from interbasin.wiring import Wiring

LAYERS = residual(3, "layers", "fc1", "fc2")


def targets(found: Correspondence) -> dict[str, list[str]]:
    return {name: [pair.target for pair in found.tensor_pairs(source=name)] for name in found.source.tensors}


def test_equal_names_are_partners_and_spaces_follow_from_them() -> None:
    renamed = wiring({name: line.replace("stem", "stream") for name, line in blocks(2, "blocks").items()})
    found = Correspondence.by_name(residual(3), renamed)
    assert targets(found)["blocks.1.up.weight"] == ["blocks.1.up.weight"]
    assert [pair.target for pair in found.space_pairs(source="stem")] == ["stream"]
    reasons = {one.name: one.reason for one in found.unmatched_source}
    assert reasons["blocks.2.up.weight"] == "no tensor of the other network has its name"
    assert reasons["blocks.2.up"] == "no tensor that lies in it has a partner"


def test_a_pattern_renames_all_that_lies_below_it() -> None:
    names = {"blocks.{i}.": "layers.{i}.", "blocks.{i}.up.": "layers.{i}.fc1.", "blocks.{i}.down.": "layers.{i}.fc2."}
    found = Correspondence.by_name(residual(3), LAYERS, names)
    assert not found.unmatched_source and not found.unmatched_target
    assert targets(found)["blocks.2.norm.bias"] == ["layers.2.norm.bias"]
    assert targets(found)["blocks.2.down.weight"] == ["layers.2.fc2.weight"]
    assert [pair.target for pair in found.space_pairs(source="blocks.2.up")] == ["layers.2.fc1"]
    assert found == Correspondence.by_role(residual(3), LAYERS)


def test_a_list_divides_a_source_and_none_leaves_it_out() -> None:
    names: Names = {"blocks.0.": ["blocks.0.", "blocks.1."], "blocks.1.": "blocks.2.", "head.": None}
    found = Correspondence.by_name(residual(2), residual(3), names)
    assert [(pair.target, pair.share) for pair in found.tensor_pairs(source="blocks.0.up.weight")] == [
        ("blocks.0.up.weight", 0.5),
        ("blocks.1.up.weight", 0.5),
    ]
    assert [(pair.target, pair.share) for pair in found.space_pairs(source="blocks.0.up")] == [
        ("blocks.0.up", 0.5),
        ("blocks.1.up", 0.5),
    ]
    assert [(one.name, one.reason) for one in found.unmatched_source if one.name.startswith("head")] == [
        ("head.weight", "names leaves it out"),
        ("head.bias", "names leaves it out"),
    ]


def test_an_exact_name_overrides_an_equal_one_and_a_pattern() -> None:
    names = {"fc1.weight": "fc2.weight", "fc{i}.": "fc{i}.", "fc1": "fc2"}
    found = Correspondence.by_name(mlp(2), mlp(2), names)
    assert targets(found)["fc1.weight"] == ["fc2.weight"] and targets(found)["fc1.bias"] == ["fc1.bias"]
    assert [pair.target for pair in found.space_pairs(source="fc1")] == ["fc2"]


def test_segments_are_named_as_slices() -> None:
    names = {
        "encoder.layers.{i}.self_attn.in_proj_weight[0:8]": "trunk.{i}.attention.query.weight",
        "encoder.layers.1.self_attn.in_proj_bias[0:3]": "trunk.1.attention.key.bias",
        "encoder.layers.{i}.linear1.": "trunk.{i}.up.",
    }
    found = Correspondence.by_name(traced(Fused), traced(Written), names)
    by_role = Correspondence.by_role(traced(Fused), traced(Written))
    name = "encoder.layers.1.self_attn.in_proj_weight"
    assert found.tensor_pairs(source=name) == by_role.tensor_pairs(name, "trunk.1.attention.query.weight")
    assert [str(one.part) for one in found.unmatched_source if one.name == name] == [f"{name}[8:16]", f"{name}[16:24]"]
    assert str(found.tensor_pairs(target="trunk.1.attention.key.bias")[0].parts[0]).endswith("in_proj_bias[0:3]")
    # Axes that are stored in another order are found by their roles.
    assert found.tensor_pairs(target="trunk.0.up.weight")[0].order == (1, 0)


def test_a_prefix_says_nothing_of_segments_and_their_spaces_follow() -> None:
    found = Correspondence.by_name(attention(2, fused=True), attention(3, fused=True), {"h.1.": "h.2."})
    assert found.tensor_pairs(source="h.1.qkv.weight") == [TensorPair("h.1.qkv.weight", "h.2.qkv.weight")]
    assert [found.space_pairs(source=f"h.1.{name}")[0].target for name in "qv"] == ["h.2.q", "h.2.v"]


def test_tied_names_are_known() -> None:
    body = {**blocks(1, "h"), "embed.weight": "60 stem"}
    plain, apart = wiring(body), wiring({**body, "head.weight": "60 stem"})
    tied = Wiring(plain.spaces, plain.tensors, tied={"head.weight": "embed.weight"})
    assert Correspondence.by_name(tied, apart).tensor_pairs(source="head.weight") == [
        TensorPair("head.weight", "head.weight")
    ]
    reasons = {one.name: one.reason for one in Correspondence.by_name(apart, tied).unmatched_source}
    assert reasons == {"head.weight": "the other network ties it to 'embed.weight'"}
    assert Correspondence.by_name(tied, tied) == Correspondence.identity(tied)


def test_tensors_of_equal_names_and_other_axes_are_told() -> None:
    ours, theirs = ({"proj.weight": line, "a": "stem", "b": "x <- stem"} for line in ("stem <- in", "stem 3 3 <- in"))
    found = Correspondence.by_name(wiring(ours), wiring(theirs))
    reasons = {one.name: one.reason for one in found.unmatched_source}
    assert reasons["proj.weight"] == "it has 2 axes, and 'proj.weight' of the other network has 4"


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ({"fc9.weight": "fc1.weight"}, UnknownNameError, ["of the source named 'fc9.weight'", "fc1.weight"]),
        ({"fc1.weight": "fc9.weight"}, UnknownNameError, ["of the target named 'fc9.weight'"]),
        ({"layer.{i}.": "fc{i}."}, UnknownNameError, ["of the source named 'layer.{i}.'"]),
        ({"fc{i}.": "fc{j}."}, WiringError, ["{j} stands on the right side alone"]),
        ({"fc1.": "fc1"}, WiringError, ["a prefix ends with a dot on both sides"]),
        ({"fc{i}.": "fc{i}.", "fc{k}.": ["fc1.", "fc2."]}, WiringError, ["'fc1.weight' both to", "keep one"]),
        ({"fc1.weight[0:9]": "fc1.weight"}, WiringError, ["no segment fc1.weight[0:9]", "(4, 4)"]),
        (dict.fromkeys([f"fc{layer}." for layer in (1, 2, 3)]), WiringError, ["nothing in common"]),
    ],
)
def test_names_that_mean_nothing_are_refused(names: Names, error: type[InterbasinError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        Correspondence.by_name(mlp(2), mlp(2), names)
    assert all(word in str(caught.value) for word in words)
