"""Updates that are written for PEFT: every tensor has its place, and what PEFT loads computes the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from tests.jobs.transport.examples import (
    CLOSE,
    PARTS,
    Bare,
    Tied,
    adapted,
    randomise,
    small,
    stemmed,
    tokens,
    transformers_base,
)
from tests.laws.strategies import gaussian
from tests.test_storage import left_in, refused
from torch import Tensor, nn

from interbasin.errors import DataError
from interbasin.extras import import_extra
from interbasin.jobs.transport.updates.adapter import kinds_of
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_factors_of_a_tied_table_are_written_whole_in_both_modules(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = Tied().double().eval()
    cut, _ = Update.of(randomise(base), base).truncated(2)
    assert cut.tables == {"table.weight"}
    (note,) = cut.write(tmp_path / "written", base=None, model=base)
    assert "table.weight cannot be stored as factors, and is stored whole" in note
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), cut.added_to(base)(tokens()), **CLOSE)
    torch.testing.assert_close(loaded.merge_and_unload()(tokens()), cut.added_to(base)(tokens()), **CLOSE)


def test_bare_parameters_are_written_with_the_module_around_them(tmp_path):
    """And another whose name ends alike is stored whole too, for PEFT takes it for the same."""
    peft = import_extra("peft", "This test", "hf")
    base = stemmed()
    cut, lost = Update.of(randomise(base), base).truncated(3)
    (note,) = cut.write(tmp_path / "written", base=None, model=base)
    assert "stem.patch.weight, overstem.weight cannot be stored as factors" in note
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    x = gaussian(5, 2, 4)
    torch.testing.assert_close(loaded(x), cut.added_to(base)(x), **CLOSE)
    assert set(lost) == {"stem.patch.weight", "mid.weight", "overstem.weight"}
    loaded.save_pretrained(tmp_path / "saved")
    torch.testing.assert_close(Update.of(tmp_path / "saved", base).added_to(base)(x), loaded(x), **CLOSE)


def test_parameters_of_the_network_itself_are_loaded_by_their_names(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = Bare()
    cut, _ = Update.of(randomise(base), base).truncated(2)
    (note,) = cut.write(tmp_path / "written", base=None, model=base)
    assert "PEFT loads scale into the network itself" in note
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    x = gaussian(5, 2, 3).float()
    torch.testing.assert_close(loaded(x), cut.added_to(base)(x))
    torch.testing.assert_close(Update.of(tmp_path / "written", base).added_to(base)(x), loaded(x))


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_full_fine_tunes_of_vision_transformers_become_loras(library, tmp_path):
    """Whose modules' names end alike, or whose positions belong to the network itself."""
    peft = import_extra("peft", "This test", "hf")
    package = import_extra(library, "This test", "hf")
    torch.manual_seed(0)
    if library == "timm":
        sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3}
        base = package.models.vision_transformer.VisionTransformer(**sizes).eval()
    else:
        sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
        base = package.ViTModel(package.ViTConfig(**sizes, image_size=8, patch_size=4)).eval()
    images = gaussian(3, 2, 3, 8, 8).float()

    def answer(network: nn.Module) -> Tensor:
        found = network(images)
        return found if isinstance(found, Tensor) else found.last_hidden_state

    cut, _ = Update.of(randomise(base, 0.1), base).truncated(3)
    notes = cut.write(tmp_path / "written", base=None, model=base)
    assert any("positions" in note or "pos" in note for note in notes)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(answer(loaded), answer(cut.added_to(base)), rtol=1e-4, atol=1e-4)


def test_attention_of_torch_is_written_whole(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = small()
    cut, lost = Update.of(randomise(base, 0.1), base).truncated(99)
    assert not any(name.startswith("attend") for name in lost)
    cut.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    torch.testing.assert_close(loaded(tokens()), cut.added_to(base)(tokens()), **CLOSE)


def test_what_peft_has_no_place_for_is_refused(tmp_path):
    base = Tied().double()
    cut, _ = Update.of(randomise(base), base).truncated(2)
    only = Update(factors={"table.weight": cut.factors["table.weight"]}, tables=frozenset({"table.weight"}))
    words = ("table.weight would have to be stored whole", "as_dense()")
    refused(lambda: only.write(tmp_path / "no", base=None, model=base), DataError, words)
    only.as_dense().write(tmp_path / "dense", base=None, model=base)
    torch.testing.assert_close(Update.of(tmp_path / "dense", base).tensor("table.weight"), only.tensor("table.weight"))
    assert left_in(tmp_path) == ["dense", "dense/update.safetensors"]


def test_a_written_adapter_says_whose_it_is(tmp_path: Path):
    base = small()
    Update.of(adapted(base), base).write(tmp_path / "a", base="some/base", model=base)
    settings = json.loads((tmp_path / "a/adapter_config.json").read_text("utf-8"))
    assert settings["base_model_name_or_path"] == "some/base" and settings["target_modules"] == sorted(PARTS)
    assert (settings["bias"], settings["modules_to_save"], settings["lora_alpha"]) == ("none", None, 2)


def test_the_fast_path_of_torch_that_passes_adapters_by_is_told(tmp_path):
    peft = import_extra("peft", "This test", "hf")
    base = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1).eval()
    cut, _ = Update.of(randomise(base, 0.1), base).truncated(2)
    (note,) = cut.write(tmp_path / "written", base=None, model=base)
    assert "layers.0.linear1.weight, layers.0.linear2.weight lie in nn.TransformerEncoderLayer" in note
    x = gaussian(3, 2, 5, 8).float()
    with torch.no_grad():
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
        torch.testing.assert_close(loaded.merge_and_unload()(x), cut.added_to(base)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["t5", "qwen2", "bert-mlm"])
def test_tied_tables_and_biases_of_transformers_are_written(family, tmp_path):
    """And what PEFT saves of what it loaded is read again."""
    peft, transformers = (import_extra(name, "This test", "hf") for name in ("peft", "transformers"))
    sizes = {"vocab_size": 11, "num_layers": 1, "num_heads": 2, "d_model": 8, "d_kv": 4, "d_ff": 12}
    others = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    others |= {"num_attention_heads": 2, "max_position_embeddings": 16}
    torch.manual_seed(0)
    if family == "t5":
        base = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    elif family == "qwen2":
        config = transformers.Qwen2Config(**others, num_key_value_heads=1, tie_word_embeddings=True)
        base = transformers.Qwen2ForCausalLM(config).eval()
    else:
        base = transformers.BertForMaskedLM(transformers.BertConfig(**others)).eval()
    inputs = {"input_ids": tokens()} | ({"decoder_input_ids": tokens()} if family == "t5" else {})
    cut, _ = Update.of(randomise(base, 0.1), base).truncated(2)
    cut.write(tmp_path / "written", base=None, model=base)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "written").eval()
    answer = cut.added_to(base)(**inputs).logits
    torch.testing.assert_close(loaded(**inputs).logits, answer, rtol=1e-4, atol=1e-4)
    loaded.save_pretrained(tmp_path / "saved")
    again = Update.of(tmp_path / "saved", base).added_to(base, untie=True)
    torch.testing.assert_close(again(**inputs).logits, answer, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loaded.merge_and_unload()(**inputs).logits, answer, rtol=1e-4, atol=1e-4)
