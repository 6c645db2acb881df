"""Fine-tunes that change names of one tensor apart: a LoRA on a head that is also the table of tokens."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from tests.jobs.transport.examples import CLOSE, Tied, adapted, randomise, tokens

import interbasin as ib
from interbasin.errors import WiringError
from interbasin.extras import import_extra
from interbasin.jobs.transport import Update, plan_transport
from interbasin.jobs.transport.updates.fine_tunes import read_fine_tune
from interbasin.jobs.transport.updates.ties import copy_untied, names_apart

pytestmark = pytest.mark.filterwarnings("ignore")


def base() -> Tied:
    return Tied().double().eval().requires_grad_(False)


def batches() -> list[torch.Tensor]:
    return list(torch.randint(0, 9, (64, 5), generator=torch.Generator().manual_seed(0)).split(16))


def test_a_network_whose_names_are_apart_computes_the_same():
    network = base()
    other = copy_untied(network)
    assert other.head.weight is not other.table.weight and network.head.weight is network.table.weight
    torch.testing.assert_close(other(tokens()), network(tokens()), **CLOSE)


@pytest.mark.parametrize("method", ["direct", "theseus", "regression"])
def test_a_lora_of_a_tied_head_reaches_the_head_alone(method, tmp_path):
    peft = import_extra("peft", "This test", "hf")
    source = base()
    tuned = adapted(source, target_modules=["head"])
    target = ib.carry(source, ib.wire(source, batches()[0]).sample(seed=1, isometric=True))
    target = source if method == "direct" else target
    result = ib.transport(
        source, tuned, target, batches(), method=method, as_lora=None if method != "regression" else 8
    )
    assert torch.equal(result.model.table.weight, target.table.weight)
    assert names_apart(result.delta, target) == ["head.weight"]
    assert any("tied to another tensor" in note for note in result.notes)
    tolerance = {"rtol": 0, "atol": 0.3} if method == "regression" else CLOSE
    torch.testing.assert_close(result.model(tokens()), tuned(tokens()), **tolerance)
    # PEFT adds to the head of the target as it was, and the table stays.
    result.save(tmp_path / "out")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(target), tmp_path / "out" / "adapter").eval()
    torch.testing.assert_close(loaded(tokens()), result.model(tokens()), rtol=1e-6, atol=1e-6)
    assert target.head.weight is target.table.weight


def test_several_fine_tunes_of_which_one_takes_names_apart():
    source = base()
    tuned = adapted(source, target_modules=["head"])
    whole = randomise(source, 0.1)  # which has one update for the tied tensor
    both = read_fine_tune([tuned, whole], source)
    one, other = Update.of(tuned, source), Update.of(whole, source)
    torch.testing.assert_close(both.tensor("table.weight"), other.tensor("table.weight"), **CLOSE)
    expected = one.tensor("head.weight") + other.tensor("table.weight")
    torch.testing.assert_close(both.tensor("head.weight"), expected, **CLOSE)


def test_a_plan_takes_names_apart_and_what_was_prepared_says_that_it_cannot():
    source, target = base(), randomise(base())
    tuned = adapted(source, target_modules=["head"])
    plan = plan_transport(source, tuned, target, batches())
    assert [row.target for row in plan.moved if row.share > 0] == ["head.weight"]
    with pytest.raises(WiringError, match=r"head\.weight is tied .* call interbasin\.transport"):
        ib.prepare_transport(source, target, batches()).apply(tuned)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", pytest.param("t5", marks=pytest.mark.slow)])
def test_a_network_of_transformers_is_stored_with_its_head_apart(family, tmp_path):
    transformers = import_extra("transformers", "This test", "hf")
    peft = import_extra("peft", "This test", "hf")

    def network(width: int) -> torch.nn.Module:
        torch.manual_seed(width)
        if family == "gpt2":
            sizes = {"n_embd": width, "n_layer": 1, "n_head": 2, "vocab_size": 12, "n_positions": 16}
            config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
            return transformers.GPT2LMHeadModel(config).eval()
        sizes = {"d_model": width, "d_ff": width, "num_layers": 1, "num_heads": 2, "d_kv": 8, "vocab_size": 12}
        return transformers.T5ForConditionalGeneration(
            transformers.T5Config(**sizes, decoder_start_token_id=0, tie_word_embeddings=True)
        ).eval()

    source, target = network(16), network(24)
    target.save_pretrained(tmp_path / "new")
    settings = peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    tuned = peft.get_peft_model(copy.deepcopy(source), settings).eval()
    names = ("input_ids",) if family == "gpt2" else ("input_ids", "decoder_input_ids")
    ids = torch.randint(1, 12, (64, 6), generator=torch.Generator().manual_seed(0))
    data = [dict.fromkeys(names, rows) for rows in ids.split(16)]
    result = ib.transport(source, tuned, target, data, method="regression", as_lora=3)
    like = ib.checkpoints.open_checkpoint(tmp_path / "new")
    result.save(tmp_path / "out", model=True, like=like, base=str(tmp_path / "new"))
    assert json.loads((tmp_path / "out/model/config.json").read_text())["tie_word_embeddings"] is False
    wanted = result.model(**data[0]).logits
    again = ib.models.load_model(str(tmp_path / "out/model")).model
    assert torch.equal(again(**data[0]).logits, wanted)
    assert not torch.equal(again.lm_head.weight, again.get_input_embeddings().weight)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(target), tmp_path / "out/adapter").eval()
    torch.testing.assert_close(loaded(**data[0]).logits, wanted, rtol=1e-2, atol=1e-2)
