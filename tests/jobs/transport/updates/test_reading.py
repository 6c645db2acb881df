"""Where updates come from, and what is refused there."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from tests.jobs.transport.examples import CLOSE, adapted, randomise, small, stemmed, tokens, transformers_base
from tests.laws.strategies import gaussian
from tests.test_storage import left_in, refused
from torch import nn

from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.checkpoints.delta import difference
from interbasin.errors import CheckpointError, DataError, FileError, ShapeError, UnknownNameError, WiringError
from interbasin.extras import import_extra
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_a_part_of_the_weights_is_judged_by_the_names_that_are_given():
    base = small()
    weights = randomise(base, 0.01).state_dict()
    for name in ("up.bias", "up.weight"):
        part = {other: tensor for other, tensor in weights.items() if other != name}
        refused(lambda part=part: Update.of(part, base), DataError, ("parallel to the weights", "as a module"))
    refused(lambda: Update.of({"up.weight": weights["up.weight"]}, base), DataError, ("parallel to the weights",))
    smaller = {"up.weight": -0.3 * base.up.weight.detach(), "down.weight": 0.3 * base.down.weight.detach()}
    assert set(Update.of(smaller, base)) == {"up.weight", "down.weight"}
    assert set(Update.of({"head.bias": base.head.bias.detach()}, base)) == {"head.bias"}  # three numbers prove nothing


def test_an_adapter_of_another_rank_than_it_says_is_refused(tmp_path):
    base = small()
    adapted(base, r=2).save_pretrained(tmp_path / "a")
    document = tmp_path / "a" / "adapter_config.json"
    written = json.loads(document.read_text())
    document.write_text(json.dumps(written | {"r": 5}))
    refused(lambda: Update.of(tmp_path / "a", base), CheckpointError, ("rank 2", "says 5", "rank_pattern"))
    document.write_text(json.dumps(written | {"r": 5, "rank_pattern": {"up|down|square": 2}}))
    assert "up.weight" in Update.of(tmp_path / "a", base).factors
    document.write_text(json.dumps(written | {"alpha_pattern": {"[": 3}}))
    refused(lambda: Update.of(tmp_path / "a", base), CheckpointError, ("alpha_pattern", "'['"))


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
    base, _ = transformers_base("llama")
    network = peft.get_peft_model(base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    refused(lambda: Update.of(network, base), CheckpointError, ("PROMPT_TUNING",))


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
    refused(lambda: Update.of(base, dynamic), WiringError, ("quantised", "0 is a torch.ao.nn.quantized.dynamic.Linear"))


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_folder_of_transformers_is_read_with_its_ties(family, tmp_path):
    base, _ = transformers_base(family)
    tuned = randomise(base, 0.1)
    tuned.save_pretrained(tmp_path / "tuned")
    update = Update.of(tmp_path / "tuned", base)
    torch.testing.assert_close(update.added_to(base)(tokens()).logits, tuned(tokens()).logits, rtol=1e-5, atol=1e-5)


def test_a_lora_that_transformers_put_on_is_read(monkeypatch):
    peft = import_extra("peft", "This test", "hf")
    # transformers remembers that PEFT was missing, if that was so when it first looked: tests hide extras.
    monkeypatch.setattr("transformers.utils.peft_utils.is_peft_available", lambda: True)
    base, _ = transformers_base("llama")
    network = copy.deepcopy(base)
    network.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "lora_" in name:
                tensor.copy_(gaussian(len(name), *tensor.shape))
    update = Update.of(network, base)
    assert update.rank == 2 and len(update) == 2
    torch.testing.assert_close(update.added_to(base)(tokens()).logits, network(tokens()).logits, rtol=1e-5, atol=1e-5)


def test_running_statistics_of_a_module_that_is_trained_whole_are_read_and_written(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().eval()
    network = adapted(base, target_modules=["0"], modules_to_save=["1"])
    network.base_model.model[1].modules_to_save["default"].running_mean += 1
    update = Update.of(network, base)
    assert set(update) == {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"}
    x = gaussian(3, 5, 3)
    torch.testing.assert_close(update.added_to(base)(x), network(x), **CLOSE)
    update.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(x), network(x), **CLOSE)


def test_a_base_in_another_precision_is_still_the_base(tmp_path):
    """Trained in half precision, and carried in single: what was rounded is no other network."""
    base = small().float()
    network = adapted(copy.deepcopy(base).bfloat16(), target_modules=["up", "table"])
    update = Update.of(network, base)
    assert set(update.factors) == {"up.weight", "table.weight"} and not update.dense
    assert {pair.b.dtype for pair in update.factors.values()} == {torch.float32}
    network.save_pretrained(tmp_path / "a", save_embedding_layers=True)
    assert set(Update.of(tmp_path / "a", base).factors) == {"up.weight", "table.weight"}


def test_a_base_with_a_lora_on_it_is_refused():
    base = small()
    refused(lambda: Update.of(base, adapted(base)), DataError, ("The base has a LoRA on it", "unload()"))
