"""Updates: read from every form, added, cut and written; each compared with what PEFT itself makes of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws.strategies import gaussian, generator
from tests.test_storage import left_in, refused
from torch import Tensor, nn

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.checkpoints.delta import difference
from interbasin.checkpoints.lora import Factors, product
from interbasin.errors import CheckpointError, DataError, FileError, ShapeError, UnknownNameError, WiringError
from interbasin.extras import import_extra
from interbasin.jobs.transport.adapter import kinds_of
from interbasin.jobs.transport.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
PARTS = ("up", "down", "square")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 8)
        self.up, self.down, self.square = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.conv = nn.Conv2d(8, 6, (1, 3), padding=(0, 1))
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = self.norm(x + self.square(self.down(torch.relu(self.up(x)))))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.head(self.conv(x.mT[:, :, None])[:, :, 0].mT)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mid, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.table(ids))))


def small() -> Small:
    return Small().double().eval()


def tokens() -> Tensor:
    return torch.randint(0, 9, (2, 5), generator=generator(0))


def randomise(network: nn.Module, scale: float = 1.0) -> nn.Module:
    """Another network like this one: every parameter moved."""
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for place, parameter in enumerate(moved.parameters()):
            parameter += scale * gaussian(place, *parameter.shape).to(parameter)
    return moved


def adapted(base: nn.Module, **settings: Any) -> Any:
    """``base`` with a LoRA of PEFT, whose numbers are drawn."""
    peft = import_extra("peft", "This test", "hf")
    settings = {"r": 2, "lora_alpha": 3, "target_modules": [*PARTS], **settings}
    dtype = next(base.parameters()).dtype
    network = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**settings)).to(dtype).eval()
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if tensor.requires_grad and not name.endswith("in_proj_bias"):  # which PEFT trains, and does not save
                tensor.copy_(0.3 * gaussian(len(name), *tensor.shape))
    return network


SETTINGS: dict[str, dict[str, Any]] = {
    "layers": {},
    "root of the rank": {"use_rslora": True},
    "ranks of their own": {"rank_pattern": {"up": 5, "^down": 1}, "alpha_pattern": {"square": 7, "up": 1}},
    "both": {"use_rslora": True, "rank_pattern": {"u.": 5}, "alpha_pattern": {"u.": 7}},
    "a table": {"target_modules": ["table", "up"]},
    "a convolution": {"target_modules": ["conv", "up"]},
    "a bias behind B": {"lora_bias": True},
    "a head that is trained whole": {"modules_to_save": ["head"]},
    "a norm and a head": {"modules_to_save": ["head", "norm"]},
    "all biases": {"bias": "all"},
    "biases of its layers": {"bias": "lora_only"},
    "one expression": {"target_modules": ".*(up|down)"},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_form_of_lora_is_what_peft_merges_and_comes_back_from_a_folder(settings, tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = small()
    network = adapted(base, **SETTINGS[settings])
    network.save_pretrained(tmp_path / "adapter")
    before = copy.deepcopy(base.state_dict())
    answer = network(tokens())
    in_memory, on_disk = Update.of(network, base), Update.of(tmp_path / "adapter", base)
    expected = network.merge_and_unload().state_dict()
    for update in (in_memory, on_disk, Update.of(str(tmp_path / "adapter"), base)):
        assert update.is_low_rank and not update.does_nothing and not update.notes
        total = update.added_to(base)
        for name, tensor in expected.items():
            torch.testing.assert_close(total.state_dict()[name], tensor, msg=name, **CLOSE)
        torch.testing.assert_close(total(tokens()), answer, **CLOSE)
    assert all(torch.equal(before[name], tensor) for name, tensor in base.state_dict().items())
    notes = on_disk.write(tmp_path / "written", base="some/base", model=base)
    assert notes == ()
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), answer, **CLOSE)
    again = Update.of(tmp_path / "written", base)
    assert set(again.factors) == set(on_disk.factors) and again.rank == on_disk.rank
    for name in on_disk:
        torch.testing.assert_close(again.tensor(name), on_disk.tensor(name), msg=name, **CLOSE)
    # What PEFT saves of what it loaded says the same.
    loaded.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(Update.of(tmp_path / "saved", base).added_to(base)(tokens()), answer, **CLOSE)
    torch.testing.assert_close(loaded.merge_and_unload()(tokens()), answer, **CLOSE)


def transformers_base(family: str) -> tuple[nn.Module, dict[str, Any]]:
    transformers = import_extra("transformers", "This test", "hf")
    torch.manual_seed(0)
    if family == "llama":
        config = transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=11,
            max_position_embeddings=16,
        )
        settings = {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head", "norm"]}
        return transformers.LlamaForCausalLM(config).eval(), settings
    if family == "gpt2":
        config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=16)
        settings = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "bias": "all"}
        return transformers.GPT2LMHeadModel(config).eval(), settings
    config = transformers.BertConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=11,
        max_position_embeddings=16,
    )
    settings = {"target_modules": ["query", "word_embeddings", "dense"], "modules_to_save": ["classifier"]}
    return transformers.BertForSequenceClassification(config).eval(), settings | {"bias": "lora_only"}


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_loras_of_transformers_come_back_from_a_folder(family, tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base, settings = transformers_base(family)
    network = adapted(base, **settings)
    answer = network(tokens()).logits
    update = Update.of(network, base)
    torch.testing.assert_close(update.added_to(base)(tokens()).logits, answer, rtol=1e-5, atol=1e-5)
    assert update.write(tmp_path / "written", base=None, model=base) == ()
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()).logits, answer, rtol=1e-5, atol=1e-5)
    merged = loaded.merge_and_unload()
    torch.testing.assert_close(merged(tokens()).logits, answer, rtol=1e-5, atol=1e-5)
    if family == "gpt2":
        assert update.transposed == set(update.factors) and not update.tables
    if family == "bert":
        assert update.tables == {"bert.embeddings.word_embeddings.weight"} == update.transposed


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_a_full_fine_tune_of_transformers_becomes_a_lora(family, tmp_path):
    """Norms, positions, tied tables and biases included: at full rank nothing is lost."""
    peft = import_extra("peft", "This test", "hf")
    base, _ = transformers_base(family)
    tuned = randomise(base, 0.1)
    answer = tuned(tokens()).logits
    update = Update.of(tuned, base)
    torch.testing.assert_close(update.added_to(base)(tokens()).logits, answer, rtol=1e-5, atol=1e-5)
    cut, lost = update.truncated(99)
    assert max(lost.values()) < 1e-6 and set(lost) == set(cut.factors) == set(kinds_of(base)) & set(update)
    cut.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()).logits, answer, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loaded.merge_and_unload()(tokens()).logits, answer, rtol=1e-4, atol=1e-4)


# Networks, updates by name, and files


def test_a_tuned_network_is_found_again_from_every_form(tmp_path):
    base = small()
    tuned = randomise(base)
    answer = tuned(tokens())
    write_checkpoint(tmp_path / "weights.safetensors", tuned.state_dict())
    write_checkpoint(tmp_path / "model", tuned.state_dict())
    update = Update.of(tuned, base)
    update.write(tmp_path / "outcome", base="some/base", model=base)
    assert left_in(tmp_path / "outcome") == ["update.safetensors"]
    delta = difference(tuned, base)
    forms: list[Any] = [tuned, delta, delta.state_dict(), open_checkpoint(tmp_path / "model")]
    forms += [tmp_path / name for name in ("weights.safetensors", "model", "outcome", "outcome/update.safetensors")]
    for form in forms:
        found = Update.of(form, base)
        assert not found.is_low_rank and found.rank is None and set(found) == set(base.state_dict())
        torch.testing.assert_close(found.added_to(base)(tokens()), answer, **CLOSE)
        assert found.norm() == pytest.approx(update.norm())
    half = update.added_to(base, 0.5).state_dict()
    torch.testing.assert_close(half["up.weight"], (base.up.weight + tuned.up.weight) / 2, **CLOSE)
    refused(lambda: update.write(tmp_path / "outcome", model=base), FileError, ("update.safetensors", "exists"))
    update.write(tmp_path / "outcome", model=base, force=True)


def test_an_outcome_with_an_adapter_is_read(tmp_path):
    base = small()
    update = Update.of(adapted(base), base)
    update.write(tmp_path / "outcome/adapter", base=None, model=base)
    assert set(Update.of(tmp_path / "outcome", base).factors) == set(update.factors)


def test_counters_are_left_out_and_dtypes_are_those_of_the_network():
    base = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).bfloat16()
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        tuned[1].num_batches_tracked += 7
        tuned[1].running_mean += 1
    update = Update.of(tuned, base)
    assert "1.num_batches_tracked" not in update and "1.running_mean" in update
    total = update.added_to(base)
    assert all(
        torch.equal(total.state_dict()[name], tensor) for name, tensor in tuned.state_dict().items() if name in update
    )
    assert total[0].weight.dtype == torch.bfloat16 and int(total[1].num_batches_tracked) == 0


# Tied tensors


def test_a_tied_tensor_is_updated_once():
    base = Tied().double()
    tuned = randomise(base)
    update = Update.of(tuned, base)
    assert set(update) == {"table.weight", "mid.weight", "mid.bias"}
    total = update.added_to(base)
    assert total.head.weight is total.table.weight
    torch.testing.assert_close(total(tokens()), tuned(tokens()), **CLOSE)
    both = {"table.weight": update.tensor("table.weight"), "head.weight": update.tensor("table.weight").clone()}
    assert set(Update.of(both, base)) == {"table.weight"} == set(Update.of({"head.weight": both["head.weight"]}, base))


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["table"]},
        {"target_modules": ["head"]},
        {"target_modules": ["mid"], "modules_to_save": ["head"]},
    ],
    ids=["a table", "a head", "a head trained whole"],
)
def test_what_peft_trains_apart_stays_apart(settings, tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = Tied().double().eval()
    network = adapted(base, **settings)
    update = Update.of(network, base)
    assert {"table.weight", "head.weight"} <= set(update) and "one tensor in the base" in update.notes[0]
    refused(lambda: update.added_to(base), WiringError, ("table.weight", "head.weight", "untie=True"))
    total = update.added_to(base, untie=True)
    torch.testing.assert_close(total(tokens()), network(tokens()), **CLOSE)
    assert base.head.weight is base.table.weight
    update.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), network(tokens()), **CLOSE)


def test_factors_of_a_tied_table_are_written_whole_in_both_modules(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = Tied().double().eval()
    cut, _ = Update.of(randomise(base), base).truncated(2)
    assert cut.tables == {"table.weight"}
    (note,) = cut.write(tmp_path / "written", base=None, model=base)
    assert "table.weight of low rank is stored whole" in note
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), cut.added_to(base)(tokens()), **CLOSE)
    torch.testing.assert_close(loaded.merge_and_unload()(tokens()), cut.added_to(base)(tokens()), **CLOSE)


# Adapters that PEFT loads


class Stem(nn.Module):
    """Tensors that belong to a module with layers in it, as those of a vision transformer do."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Linear(4, 6), nn.Parameter(torch.zeros(6))
        self.list = nn.ParameterList([nn.Parameter(torch.zeros(6))])

    def forward(self, x: Tensor) -> Tensor:
        return self.patch(x) + self.token + self.list[0]


def stemmed() -> nn.Module:
    torch.manual_seed(0)
    parts = {"stem": Stem(), "mid": nn.Linear(6, 6), "overstem": nn.Linear(6, 6), "norm": nn.LayerNorm(6)}
    return _Named(parts).double().eval()


class _Named(nn.Module):
    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, module in parts.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


def test_bare_parameters_are_written_with_the_module_around_them(tmp_path):
    """And a name that another one ends with means that module alone."""
    peft = import_extra("peft", "This test", "hf")
    base = stemmed()
    cut, lost = Update.of(randomise(base), base).truncated(3)
    (note,) = cut.write(tmp_path / "written", base=None, model=base)
    assert "stem.patch.weight of low rank is stored whole, in norm, stem (" in note
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    x = gaussian(5, 2, 4)
    torch.testing.assert_close(loaded(x), cut.added_to(base)(x), **CLOSE)
    assert set(lost) == {"stem.patch.weight", "mid.weight", "overstem.weight"}
    loaded.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(Update.of(tmp_path / "saved", base).added_to(base)(x), loaded(x), **CLOSE)


def test_attention_of_torch_is_written_whole(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = small()
    cut, lost = Update.of(randomise(base, 0.1), base).truncated(99)
    assert not any(name.startswith("attend") for name in lost)
    cut.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), cut.added_to(base)(tokens()), **CLOSE)


def test_what_peft_has_no_place_for_is_refused_by_name(tmp_path):
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.fc = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    base = Bare()
    cut, _ = Update.of(randomise(base), base).truncated(2)
    refused(
        lambda: cut.write(tmp_path / "written", base=None, model=base),
        DataError,
        ("scale belongs to the network itself", "as_dense()"),
    )
    cut.as_dense().write(tmp_path / "dense", base=None, model=base)
    again = Update.of(tmp_path / "dense", base)
    torch.testing.assert_close(again.tensor("fc.weight"), cut.tensor("fc.weight"))
    only = Update.of(randomise(stemmed()), stemmed()).truncated(1)[0]
    only = Update({"stem.token": only.tensor("stem.token")}, {"stem.patch.weight": only.factors["stem.patch.weight"]})
    refused(lambda: only.write(tmp_path / "no", base=None, model=stemmed()), DataError, ("stem", "stored whole"))
    assert left_in(tmp_path) == ["dense", "dense/update.safetensors"]


# Rank


def test_rank_and_loss_of_a_truncation():
    base = small()
    update = Update.of(randomise(base), base)
    cut, lost = update.truncated(2)
    assert cut.rank == 2 and set(lost) == set(cut.factors) == set(kinds_of(base))
    assert cut.transposed == cut.tables == {"table.weight"}
    for name, share in lost.items():
        left = (update.tensor(name) - cut.tensor(name)).norm() / update.tensor(name).norm()
        assert float(left) == pytest.approx(share, abs=1e-9) and share > 0
    again, more = cut.truncated(1)
    directly, _ = update.truncated(1)
    for name in again.factors:
        assert again.factors[name].a.shape[0] == 1 and again.factors[name].a.dtype == torch.float64
        torch.testing.assert_close(again.tensor(name), directly.tensor(name), msg=name, **CLOSE)
        left = (again.tensor(name) - cut.tensor(name)).norm() / cut.tensor(name).norm()
        assert float(left) == pytest.approx(more[name], abs=1e-9)
    same, none = cut.truncated(5)
    assert all(same.factors[name] is pair for name, pair in cut.factors.items()) and not any(none.values())
    refused(lambda: update.truncated(0), DataError, ("rank must be a whole number of at least 1",))
    bare = Update({"up.weight": torch.ones(12, 8)})
    refused(lambda: bare.truncated(1), DataError, ("give the network as model=",))
    assert bare.truncated(1, base)[0].rank == 1


def test_what_did_not_change_gets_no_factors():
    base = small()
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        tuned.up.weight += 1
    assert set(Update.of(tuned, base).truncated(3)[0].factors) == {"up.weight"}


# Sums


def test_sums_keep_factors_where_all_have_them():
    base = small()
    first, second = Update.of(adapted(base), base), Update.of(adapted(base, r=3, target_modules=["up", "table"]), base)
    third = Update.of(randomise(base), base)
    total = Update.combined([first, second], [2.0, -1.0])
    assert total.rank == 5 and set(total.factors) == {f"{one}.weight" for one in (*PARTS, "table")} and not total.dense
    expected = 2 * first.tensor("up.weight") - second.tensor("up.weight")
    torch.testing.assert_close(total.tensor("up.weight"), expected, **CLOSE)
    mixed = Update.combined([first, third])
    assert not mixed.factors and mixed.label == f"{first.label}, {third.label}"
    torch.testing.assert_close(
        mixed.tensor("up.weight"), first.tensor("up.weight") + third.tensor("up.weight"), **CLOSE
    )
    torch.testing.assert_close(mixed.tensor("norm.bias"), third.tensor("norm.bias"), **CLOSE)
    assert third.scaled(-2).norm() == pytest.approx(2 * third.norm())
    refused(lambda: Update.combined([]), DataError, ("takes updates and a weight for each",))
    refused(lambda: Update.combined([first], [1, 2]), DataError, ("found 1 and 2",))
    other = Update({"up.weight": torch.ones(3, 3)}, label="another")
    refused(lambda: Update.combined([first, other]), ShapeError, ("up.weight", "(3, 3) in another"))


# What does nothing


def test_an_adapter_that_was_never_trained_does_nothing():
    peft = import_extra("peft", "This test", "hf")
    base = small()
    network = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(target_modules=[*PARTS])).double()
    assert Update.of(network, base).does_nothing and Update.of(network, base).norm() == 0
    assert Update.of(copy.deepcopy(base), base).does_nothing and Update().does_nothing
    a, b = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert Update(factors={"up.weight": Factors(a, b)}).does_nothing
    assert not Update(factors={"up.weight": Factors(a, b + 1)}).does_nothing


# What is refused


def test_other_networks_are_refused_by_name():
    base = small()
    other = small()
    other.up = nn.Linear(8, 13).double()
    refused(lambda: Update.of(other, base), ShapeError, ("up.", "(13", "(12"))
    refused(lambda: Update.of(nn.Linear(2, 2), base), WiringError, ("weight", "the base"))
    broken = randomise(base)
    with torch.no_grad():
        broken.down.weight[0, 0] = torch.nan
    refused(lambda: Update.of(broken, base), DataError, ("down.weight", "NaN"))
    refused(lambda: Update.of(3, base), DataError, ("found a int",))  # type: ignore[arg-type]
    refused(lambda: Update.of(base, dict(base.state_dict())), WiringError, ("found a dict",))  # type: ignore[arg-type]


def test_mappings_that_are_no_updates_are_refused(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = small()
    refused(lambda: Update.of({"x": torch.ones(2)}, base), UnknownNameError, ("'x'",))
    refused(lambda: Update.of({"up.bias": torch.ones(2)}, base), ShapeError, ("up.bias", "(2,)", "(12,)"))
    refused(lambda: Update.of({"up.bias": torch.full((12,), torch.inf)}, base), DataError, ("up.bias", "infinity"))
    refused(lambda: Update.of({"up.bias": 3}, base), DataError, ("up.bias", "int"))  # type: ignore[dict-item]
    tensors = peft.get_peft_model_state_dict(adapted(base))
    refused(lambda: Update.of(tensors, base), DataError, ("state dict of an adapter", "peft.PeftModel"))
    weights = randomise(base, 0.01).state_dict()
    refused(lambda: Update.of(weights, base), DataError, ("parallel to the weights", "as a module"))
    refused(lambda: Update.of(tmp_path / "none", base), CheckpointError, ("none",))


def test_adapters_of_other_networks_are_refused(tmp_path):
    base = small()
    adapted(base).save_pretrained(tmp_path / "a")
    refused(lambda: Update.of(tmp_path / "a", stemmed()), DataError, ("would do nothing", "up.weight", "stem"))
    wide = small()
    wide.up = nn.Linear(8, 13).double()
    refused(lambda: Update.of(tmp_path / "a", wide), ShapeError, ("up.weight", "(12, 8)", "(13, 8)"))
    refused(lambda: Update.of(adapted(base), randomise(base)), DataError, ("is not that of the base",))


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"use_dora": True}, "is a DoRA"), ({"init_lora_weights": "olora"}, "PEFT changes the base as well")],
)
def test_relatives_of_lora_are_refused_by_name(settings, words, tmp_path):
    base = small().float()
    network = adapted(base, **settings)
    refused(lambda: Update.of(network, base), CheckpointError, (words,))
    network.save_pretrained(tmp_path / "a")
    refused(lambda: Update.of(tmp_path / "a", base), CheckpointError, (words, str(tmp_path / "a")))


def test_other_methods_of_peft_are_refused_by_name():
    peft = import_extra("peft", "This test", "hf")
    base = small()
    config = peft.IA3Config(target_modules=["up"], feedforward_modules=["up"])
    network = peft.get_peft_model(copy.deepcopy(base), config)
    refused(lambda: Update.of(network, base), CheckpointError, ("IA3", "merge_and_unload"))


def test_states_of_a_network_in_which_the_adapter_is_not_what_it_says_are_refused():
    peft = import_extra("peft", "This test", "hf")
    base = small()
    network = adapted(base)
    network.merge_adapter()
    refused(lambda: Update.of(network, base), DataError, ("merged into its base", "unmerge_adapter()"))
    network.unmerge_adapter()
    network.base_model.disable_adapter_layers()
    refused(lambda: Update.of(network, base), DataError, ("switched off",))
    network = adapted(base)
    network.base_model.model.up.set_scale("default", 7.0)
    refused(lambda: Update.of(network, base), DataError, ("up has its LoRA scaled by 10.5",))
    network = adapted(base)
    network.add_adapter("more", peft.LoraConfig(target_modules=["up"], r=4))
    first = Update.of(network, base)
    network.set_adapter("more")
    assert Update.of(network, base).rank == 4 and first.rank == 2
    network.base_model.set_adapter(["default", "more"])
    refused(lambda: Update.of(network, base), DataError, ("has 2 (default, more)", "set_adapter"))
    plain = network.base_model.model
    del plain.peft_config
    refused(lambda: Update.of(plain, base), DataError, ("holds a LoRA", "does not say its scale"))


def test_biases_that_peft_trains_and_does_not_save_are_not_lost():
    base = small()
    network = adapted(base, bias="all")
    with torch.no_grad():
        network.base_model.model.attend.in_proj_bias += 1
    refused(lambda: Update.of(network, base), DataError, ("attend.in_proj_bias is not that of the base",))


def test_attention_of_torch_and_odd_convolutions_are_refused():
    base = small()
    refused(lambda: Update.of(adapted(base, target_modules=["attend"]), base), DataError, ("nn.MultiheadAttention",))
    for options in ({"groups": 2}, {"dilation": 2, "padding": (0, 2)}):
        base.conv = nn.Conv2d(8, 6, (1, 3), **options).double()  # type: ignore[arg-type]
        network = adapted(base, target_modules=["conv"])
        refused(lambda network=network: Update.of(network, base), DataError, ("conv, a convolution with groups",))


def test_quantised_bases_are_refused():
    base = nn.Sequential(nn.Linear(4, 4))
    codes = nn.Sequential(nn.Linear(4, 4))
    codes[0].weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    refused(lambda: Update.of(base, codes), WiringError, ("quantised", "0.weight"))
    dynamic = torch.ao.quantization.quantize_dynamic(base, {nn.Linear})
    refused(lambda: Update.of(base, dynamic), WiringError, ("quantised", "0 is a Linear"))


def test_factors_that_are_none_are_refused(tmp_path):
    pair = Factors(torch.ones(2, 3), torch.ones(4, 2))
    refused(lambda: Update({"w": torch.ones(4, 3)}, {"w": pair}), DataError, ("w of the update has factors and",))
    refused(lambda: Update(factors={"w": Factors(pair.a, pair.a)}), ShapeError, ("factors of w", "(2, 3)"))
    refused(lambda: Update(factors={"w": Factors(pair.a * torch.nan, pair.b)}), DataError, ("w", "NaN"))
    refused(lambda: Update(factors={"w": pair}).tensor("v"), UnknownNameError, ("'v'",))
    missing = Update(factors={"fc.weight": pair})
    refused(lambda: missing.write(tmp_path / "a", base=None, model=small()), UnknownNameError, ("fc.weight",))
    assert left_in(tmp_path) == []
    assert repr(missing) == "Update(the update: 1 tensors, 1 of rank up to 2)"
    assert torch.equal(missing.tensor("fc.weight"), product(pair.a, pair.b)) and missing.shape("fc.weight") == (4, 3)


def test_a_written_adapter_says_whose_it_is(tmp_path: Path):
    base = small()
    Update.of(adapted(base), base).write(tmp_path / "a", base="some/base", model=base)
    settings = json.loads((tmp_path / "a/adapter_config.json").read_text("utf-8"))
    assert settings["base_model_name_or_path"] == "some/base" and settings["target_modules"] == sorted(PARTS)
    assert (settings["bias"], settings["modules_to_save"], settings["lora_alpha"]) == ("none", None, 2)
