"""LoRA: names, configuration, factors and dense updates, all compared with what PEFT makes of them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.laws.strategies import SEEDS, gaussian, generator
from tests.test_storage import left_in, refused
from torch import Tensor, nn

from interbasin.checkpoints import open_checkpoint
from interbasin.checkpoints.delta import LoraUpdate, add, difference
from interbasin.checkpoints.lora import (
    Factors,
    factor_of,
    factorise,
    name_in_file,
    parse_adapter,
    plain_name,
    product,
    write_adapter,
)
from interbasin.errors import CheckpointError, DataError, FileError, ShapeError
from interbasin.extras import import_extra

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 8)
        self.up, self.down, self.square = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 6, 3, padding=1)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.square(self.down(torch.relu(self.up(x))))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.head(self.conv(x.mT).mT)


def small() -> nn.Module:
    return Small().double().eval()


def tokens() -> Tensor:
    return torch.randint(0, 9, (2, 5), generator=generator(0))


def adapted(base: nn.Module, folder: Path, **settings: Any) -> Any:
    """``base`` with a LoRA of PEFT, whose numbers are drawn, and which is saved to ``folder``."""
    peft = import_extra("peft", "This test", "hf")

    settings = {"r": 2, "lora_alpha": 3, "target_modules": ["up", "down", "square"], **settings}
    network = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**settings)).double().eval()
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if tensor.requires_grad and not name.endswith("in_proj_bias"):  # which PEFT trains, and does not save
                tensor.normal_(generator=generator(1))
    network.save_pretrained(folder)
    return network


SETTINGS: dict[str, dict[str, Any]] = {
    "layers": {},
    "root of the rank": {"use_rslora": True},
    "ranks of their own": {"rank_pattern": {"up": 5, "^down": 1}, "alpha_pattern": {"square": 7, "up": 1}},
    "both": {"use_rslora": True, "rank_pattern": {"u.": 5}, "alpha_pattern": {"u.": 7}},
    "a table": {"target_modules": ["table", "up"]},
    "a convolution": {"target_modules": ["conv"]},
    "a bias behind B": {"lora_bias": True},
    "a head that is trained whole": {"modules_to_save": ["head"]},
    "all biases": {"bias": "all"},
    "all biases and a head that is trained whole": {"bias": "all", "modules_to_save": ["head"]},
    "biases of its layers": {"bias": "lora_only"},
    "one expression": {"target_modules": ".*(up|down)"},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.filterwarnings("ignore")
def test_base_plus_dense_update_is_what_peft_computes_and_merges(settings, tmp_path):
    base, updated = small(), small()
    network = adapted(base, tmp_path / "adapter", **SETTINGS[settings])
    answer, expected = network(tokens()), network.merge_and_unload().state_dict()
    for given_base in (base, dict(base.state_dict())):
        total = add(given_base, LoraUpdate(open_checkpoint(tmp_path / "adapter"), given_base))
        updated.load_state_dict(total)
        torch.testing.assert_close(updated(tokens()), answer, **CLOSE)
        for name, tensor in expected.items():
            torch.testing.assert_close(total[name], tensor, msg=name, **CLOSE)


@pytest.mark.filterwarnings("ignore")
def test_weights_stored_the_other_way_round_take_the_transpose(tmp_path):
    """As in GPT-2, where shapes tell it of some layers, and the class or the configuration of square ones."""
    transformers = import_extra("transformers", "This test", "hf")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=7)
    base = transformers.GPT2LMHeadModel(config).double().eval()
    network = adapted(base, tmp_path / "a", target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    expected = network.merge_and_unload().state_dict()
    for given_base in (base, dict(base.state_dict())):
        total = add(given_base, LoraUpdate(open_checkpoint(tmp_path / "a"), given_base))
        for name, tensor in expected.items():
            torch.testing.assert_close(total[name], tensor, msg=name, **CLOSE)
        assert set(total.ties) == {"lm_head.weight"}


@pytest.mark.filterwarnings("ignore")
def test_the_tensors_of_a_network_in_memory_will_do(tmp_path):
    peft = import_extra("peft", "This test", "hf")

    base = small()
    network = adapted(base, tmp_path / "adapter")
    tensors, config = peft.get_peft_model_state_dict(network), network.peft_config["default"].to_dict()
    update = LoraUpdate(tensors, base, parse_adapter(config, "the configuration"))
    on_disk = LoraUpdate(open_checkpoint(tmp_path / "adapter"), base)
    assert set(update) == set(on_disk) == {"up.weight", "down.weight", "square.weight"}
    assert all(torch.equal(update[name], on_disk[name]) for name in update)
    words = ("the adapter does not say its rank and scale", "adapter=")
    refused(lambda: LoraUpdate(tensors, base), DataError, words)


def test_the_factors_of_an_update_have_its_scaling_in_them(tmp_path):
    base = small()
    adapted(base, tmp_path / "a", target_modules=["table", "up"], use_rslora=True, bias="all")
    update = LoraUpdate(open_checkpoint(tmp_path / "a"), base)
    assert update.factors("head.bias") is None and not update.is_transposed("head.bias")
    for name, is_table in (("table.weight", True), ("up.weight", False)):
        pair = update.factors(name)
        assert pair is not None and update.is_table(name) == update.is_transposed(name) == is_table
        torch.testing.assert_close(product(pair.a, pair.b, transposed=is_table), update[name], **CLOSE)


# Factors


@given(seed=SEEDS, rows=st.integers(1, 6), columns=st.integers(1, 6), rank=st.integers(1, 7), turned=st.booleans())
def test_a_product_of_that_rank_is_found_again(seed, rows, columns, rank, turned):
    update = gaussian(seed, rows, rank) @ gaussian(seed + 1, rank, columns)
    pair = factorise(update, rank, transposed=turned)
    assert pair.a.shape[0] == pair.b.shape[1] == rank
    torch.testing.assert_close(product(pair.a, pair.b, transposed=turned), update, **CLOSE)
    assert pair.lost < 1e-7


@given(seed=SEEDS, rank=st.integers(1, 5), kernel=st.sampled_from(((), (3,), (2, 2))))
def test_what_is_lost_is_the_least_that_any_factors_lose(seed, rank, kernel):
    update = gaussian(seed, 5, 6, *kernel)
    pair = factorise(update, rank)
    values = torch.linalg.svdvals(update.flatten(1))
    assert pair.lost == pytest.approx(float(values[rank:].norm() / values.norm()), abs=1e-9)
    left = (update - product(pair.a, pair.b)).norm() / update.norm()
    assert float(left) == pytest.approx(pair.lost, abs=1e-9)
    assert pair.a.shape == (rank, 6, *kernel) and pair.b.shape == (5, rank, *[1] * len(kernel))


def test_factors_have_the_dtype_of_the_update_and_none_for_zero():
    pair = factorise(torch.zeros(3, 2, dtype=torch.bfloat16), 4)
    assert pair.a.dtype == pair.b.dtype == torch.bfloat16 and pair.lost == 0
    assert product(pair.a, pair.b).dtype == torch.float32 and not pair.a.any()


@pytest.mark.parametrize(
    ("update", "rank", "error", "words"),
    [
        (torch.ones(3), 1, ShapeError, "has no two factors"),
        (torch.ones(3, 2), 0, DataError, "rank must be a whole number of at least 1, got 0"),
        (torch.ones(3, 2), 2.0, DataError, "rank must be a whole number of at least 1, got 2.0"),
        (torch.full((2, 2), torch.nan), 1, DataError, "not finite"),
    ],
)
def test_what_has_no_factors_is_refused(update, rank, error, words):
    refused(lambda: factorise(update, rank), error, (words,))


# An adapter that PEFT loads


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("known", [True, False], ids=["modules known", "modules unknown"])
def test_an_adapter_that_is_written_is_one_that_peft_loads(tmp_path, known, recwarn):
    peft = import_extra("peft", "This test", "hf")

    base, tuned = small(), small()
    ranks = {"up": 3, "down": 2, "table": 2, "conv": 2, "square": 2}
    with torch.no_grad():
        for place, (layer, rank) in enumerate(ranks.items()):
            weight = getattr(tuned, layer).weight
            weight += (gaussian(place, len(weight), rank) @ gaussian(place + 9, rank, weight[0].numel())).reshape(
                weight.shape
            )
        tuned.head.weight.normal_(generator=generator(3))
    delta = difference(tuned, base)
    factors = {
        layer: factorise(delta[f"{layer}.weight"], rank, transposed=layer == "table") for layer, rank in ranks.items()
    }
    modules = [name for name, _ in base.named_modules()] if known else None
    whole = {name: tensor for name, tensor in tuned.state_dict().items() if name.startswith("head.")}
    write_adapter(tmp_path / "lora", factors, base="some/base", tables=["table"], whole=whole, modules=modules)
    assert left_in(tmp_path / "lora") == ["adapter_config.json", "adapter_model.safetensors"]
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "lora").eval()
    torch.testing.assert_close(loaded(tokens()), tuned(tokens()), **CLOSE)
    assert not [str(one.message) for one in recwarn if "missing" in str(one.message).lower()]
    update = LoraUpdate(open_checkpoint(tmp_path / "lora"), base)
    for name, tensor in tuned.state_dict().items():
        torch.testing.assert_close(add(base, update)[name], tensor, msg=name, **CLOSE)
    found = open_checkpoint(tmp_path / "lora").adapter
    assert found is not None and found.base == "some/base" and found.trained_whole == ("head",)
    assert found.targets == (tuple(sorted(ranks)) if known else "conv|down|square|table|up")
    assert (found.rank_of("up"), found.rank_of("down"), found.scaling_of("up"), found.scaling_of("down")) == (
        3,
        2,
        1,
        1,
    )


@pytest.mark.filterwarnings("ignore")
def test_only_the_layers_that_are_named_get_factors(tmp_path):
    """A short name would mean a layer of a block as well."""
    peft = import_extra("peft", "This test", "hf")

    base = nn.ModuleDict({"fc": nn.Linear(3, 3), "block": nn.ModuleDict({"fc": nn.Linear(3, 3)})})
    names = [name for name, _ in base.named_modules() if name]
    for layers, targets in ((["fc"], "fc"), (["block.fc"], ("block.fc",)), (["fc", "block.fc"], ("fc",))):
        folder = tmp_path / "-".join(layers)
        write_adapter(folder, {layer: factorise(torch.eye(3), 2) for layer in layers}, modules=names)
        assert open_checkpoint(folder).adapter.targets == targets
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder)
        wrapped = {name for name, _ in loaded.base_model.model.named_modules() if name.endswith("lora_A")}
        assert wrapped == {f"{layer}.lora_A" for layer in layers}


def test_nothing_is_overwritten_unasked_and_a_written_adapter_is_ours(tmp_path):
    pair = {"fc": Factors(torch.ones(1, 2), torch.ones(3, 1))}
    write_adapter(tmp_path / "lora", pair)
    refused(lambda: write_adapter(tmp_path / "lora", pair), FileError, ("exists already",))
    write_adapter(tmp_path / "lora", pair, settings={"task_type": "CAUSAL_LM"}, force=True)
    assert open_checkpoint(tmp_path / "lora").adapter.settings["task_type"] == "CAUSAL_LM"
    refused(lambda: write_adapter(tmp_path / "none", {}), DataError, ("one layer at least",))
    pair = {"fc": Factors(torch.ones(1, 2), torch.ones(3, 2))}
    refused(
        lambda: write_adapter(tmp_path / "none", pair), ShapeError, ("factors of fc have shapes (1, 2) and (3, 2)",)
    )
    assert left_in(tmp_path) == ["lora", "lora/adapter_config.json", "lora/adapter_model.safetensors"]


# What does not fit


def lora_folder(folder: Path, tensors: dict[str, Tensor], **settings: object) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    plain = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["up"]}
    (folder / "adapter_config.json").write_text(json.dumps(plain | settings), "utf-8")
    return folder


A, B = torch.ones(2, 8), torch.ones(12, 2)
UP = {"base_model.model.up.lora_A.weight": A, "base_model.model.up.lora_B.weight": B}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "is a DoRA"),
        ({"use_qalora": True}, "is a QALoRA"),
        ({"peft_type": "IA3"}, "is an adapter (IA3) and no LoRA"),
        ({"target_parameters": ["x"]}, "a LoRA of bare parameters"),
        ({"layer_replication": [[0, 2]]}, "whose layers are repeated"),
        ({"use_bdlora": {"nblocks": 2}}, "is a BD-LoRA"),
        ({"kasa_config": {"beta": 1}}, "is a KaSA"),
        ({"init_lora_weights": "pissa_niter_4"}, "begins as pissa_niter_4, for which PEFT changes the base"),
        ({"r": None}, "does not say its rank and scale"),
    ],
)
def test_what_is_no_plain_lora_is_refused_by_name(settings, words, tmp_path):
    adapter = open_checkpoint(lora_folder(tmp_path / "a", UP, **settings))
    refused(lambda: LoraUpdate(adapter, small()), CheckpointError, (str(tmp_path / "a"), words))


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({"x.lora_A.weight": A, "x.lora_B.weight": B}, DataError, "x.lora_A.weight updates x.weight, which the base"),
        ({"up.lora_A.weight": A}, DataError, "up.lora_A.weight has no partner to update up.weight"),
        ({"up.lora_A.weight": A, "up.lora_B.weight": B[:7]}, ShapeError, "an update of shape (7, 8), and up.weight"),
        ({"up.lora_A.weight": A, "up.lora_B.weight": B[:, :1]}, ShapeError, "rank 2 and up.lora_B.weight has rank 1"),
        (
            {"up.lora_A.weight": A, "up.lora_A.more.weight": A},
            DataError,
            "does; give the tensors of one adapter",
        ),
        ({**UP, "up.lora_magnitude_vector": A[0]}, DataError, "up.lora_magnitude_vector, which the base does not hold"),
        ({"attend.lora_A.weight": A, "attend.lora_B.weight": B}, DataError, "updates nn.MultiheadAttention"),
        ({**UP, "head.weight": A}, ShapeError, "of shape (2, 8), and head.weight of the base has shape (3, 6)"),
        ({**UP, "nothing.ia3_l": A}, DataError, "nothing.ia3_l updates nothing.ia3_l, which the base does not hold"),
        ({"up.lora_A.weight": A[0], "up.lora_B.weight": B}, ShapeError, "up.lora_A.weight has shape (8,), and such"),
        ({"up.lora_A.weight": A, "up.lora_B.weight": B[:, 0]}, ShapeError, "up.lora_B.weight has shape (12,), and"),
        (
            {"up.lora_A.weight": A, "up.lora_B.weight": B[:, :, None, None].expand(-1, -1, 3, 3)},
            ShapeError,
            "has shape (12, 2, 3, 3), and such a factor of a LoRA has (out, rank), and ones",
        ),
        ({"up.lora_A.weight": A.int(), "up.lora_B.weight": B}, DataError, "up.lora_A.weight of"),
        ({"up.lora_A.weight": A, "up.lora_B.weight": B.char()}, DataError, "is of int8, which has no arithmetic here"),
        ({**UP, "head.weight": torch.ones(3, 6, dtype=torch.int64)}, DataError, "head.weight of"),
        ({}, DataError, "holds no tensor at all, so that it changes nothing"),
    ],
)
def test_tensors_that_do_not_fit_the_base_are_refused_by_name(tensors, error, words, tmp_path):
    adapter = open_checkpoint(lora_folder(tmp_path / "a", {name: one.clone() for name, one in tensors.items()}))
    refused(lambda: LoraUpdate(adapter, small()), error, (words,))


@pytest.mark.parametrize(
    "settings",
    [
        {"rank_pattern": ["up"]},
        {"rank_pattern": {"2": math.nan}},
        {"rank_pattern": {"up": 1.5}},
        {"rank_pattern": {"up": 0}},
        {"rank_pattern": {"up": True}},
        {"alpha_pattern": {"up": "7"}},
        {"alpha_pattern": {"up": math.inf}},
        {"r": 1.5},
        {"r": -2},
        {"lora_alpha": math.nan},
        {"use_rslora": "yes"},
        {"use_rslora": 1},
        {"fan_in_fan_out": "no"},
        {"bias": "some"},
        {"modules_to_save": "head"},
        {"modules_to_save": 3},
        {"modules_to_save": [3]},
        {"target_modules": 3},
        {"target_modules": "("},
        {"exclude_modules": {"up": 1}},
    ],
)
def test_settings_that_are_none_are_refused(settings, tmp_path):
    folder = lora_folder(tmp_path / "a", UP, **settings)
    refused(
        lambda: open_checkpoint(folder), CheckpointError, ("does not describe an adapter of PEFT", next(iter(settings)))
    )


# What contradicts itself

HEAD = {"base_model.model.head.weight": torch.ones(3, 6), "base_model.model.head.bias": torch.ones(3)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target_modules": ["down"]}, ("up.lora_A.weight", "updates up", "target_modules is down")),
        ({"target_modules": ["p"]}, ("updates up", "target_modules is p")),
        ({"target_modules": "u"}, ("updates up", "target_modules is 'u'")),
        ({"exclude_modules": ["up"]}, ("updates up", "exclude_modules is up")),
        ({"exclude_modules": "u."}, ("updates up", "exclude_modules is 'u.'")),
        ({"modules_to_save": ["head"]}, ("head was trained whole", "no tensor of it")),
        ({"modules_to_save": ["conv", "norm"]}, ("conv was trained whole",)),
    ],
)
def test_a_configuration_that_is_of_other_tensors_is_refused(settings, words, tmp_path):
    adapter = open_checkpoint(lora_folder(tmp_path / "a", UP, **settings))
    refused(lambda: LoraUpdate(adapter, small()), CheckpointError, (str(tmp_path / "a"), *words))


@pytest.mark.parametrize(
    ("settings", "notes"),
    [
        ({"target_modules": "(.*[.])?u[pq]", "exclude_modules": ["down"]}, ()),
        ({"target_modules": None}, ()),
        ({"target_modules": "all-linear", "use_rslora": None}, ()),
        ({"rank_pattern": {"up": 2.0}}, ()),
        ({"modules_to_save": ["classifier", "score", "head"]}, ()),  # of which PEFT adds two by itself
        ({"modules_to_save": ["wte"]}, ("names wte in modules_to_save; the network has none",)),
        ({"layers_to_transform": [0]}, ("layers_to_transform alone was not looked at",)),
    ],
)
def test_a_configuration_that_says_it_otherwise_is_read(settings, notes, tmp_path):
    adapter = open_checkpoint(lora_folder(tmp_path / "a", UP | HEAD, **settings))
    update = LoraUpdate(adapter, small())
    assert set(update) == {"up.weight", "head.weight", "head.bias"} and len(update.notes) == len(notes)
    assert all(words in note for words, note in zip(notes, update.notes, strict=True))


def test_biases_that_were_trained_and_are_not_there_are_told(tmp_path):
    for place, bias in enumerate(("all", "lora_only")):
        adapter = open_checkpoint(lora_folder(tmp_path / str(place), UP, bias=bias))
        (note,) = LoraUpdate(adapter, small()).notes
        assert f"biases were trained (bias='{bias}'), and it holds none" in note
    without = {"up.weight": torch.ones(12, 8)}
    assert LoraUpdate(adapter, without).notes == ()


def test_all_linear_layers_are_no_tables(tmp_path):
    table = {"table.lora_embedding_A": torch.ones(2, 9), "table.lora_embedding_B": torch.ones(8, 2)}
    adapter = open_checkpoint(lora_folder(tmp_path / "a", table, target_modules="all-linear"))
    for base in (small(), small().state_dict()):
        refused(lambda base=base: LoraUpdate(adapter, base), CheckpointError, ("updates table", "'all-linear'"))


def test_names_are_read_back_to_those_of_the_network_beneath() -> None:
    assert plain_name("base_model.model.head.modules_to_save.default.bias") == "head.bias"
    assert plain_name("head.original_module.bias") == "head.bias"
    bias = factor_of("a.b.lora_B.default.bias")
    assert bias is not None and bias.is_bias and (bias.layer, bias.adapter) == ("a.b", "default")
    assert factor_of("a.b.lora_C.weight") is None


@pytest.mark.filterwarnings("ignore")
def test_names_in_memory_are_those_in_the_file(tmp_path) -> None:
    network = adapted(small(), tmp_path / "a", target_modules=["up", "table"], modules_to_save=["head"])
    stored = {name_in_file(name) for name in load_file(tmp_path / "a/adapter_model.safetensors")}
    assert stored <= {name_in_file(name) for name in network.state_dict()}
