"""Configurations of a fine-tune and its base: what makes them other networks, and what does not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.transport.examples import randomise, tokens, transformers_base
from tests.test_storage import refused

from interbasin.checkpoints import open_checkpoint
from interbasin.errors import DataError
from interbasin.jobs.transport import prepare_transport, transport_on_disk
from interbasin.jobs.transport.updates.settings import refuse_other_settings
from interbasin.jobs.transport.updates.update import Update

pytestmark = pytest.mark.filterwarnings("ignore")


def saved(base: Any, folder: Path, **settings: Any) -> Path:
    randomise(base, 0.1).save_pretrained(folder)
    document = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(document | settings), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu' and 'silu'"),
        ("llama", {"rms_norm_eps": 0.1}, "rms_norm_eps is 0.1 and 1e-06"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}},
            "rope_parameters.rope_theta is 5.0 and 10000.0",
        ),
        ("gpt2", {"activation_function": "relu"}, "activation_function is 'relu' and 'gelu_new'"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False and True"),
        ("bert", {"layer_norm_eps": 1e-3}, "layer_norm_eps is 0.001 and 1e-12"),
        ("bert", {"model_type": "roberta"}, "model_type is 'roberta' and 'bert'"),
    ],
)
def test_settings_that_change_what_is_computed_are_refused(family, settings, words, tmp_path):
    base, _ = transformers_base(family)
    folder = saved(base, tmp_path / "tuned", **settings)
    for tuned in (folder, open_checkpoint(folder)):
        refused(lambda tuned=tuned: Update.of(tuned, base), DataError, (str(folder), words, "weights only"))


def test_settings_that_do_not_are_read(tmp_path):
    base, _ = transformers_base("llama")
    settings = {
        "architectures": ["Other"],
        "use_cache": False,
        "pad_token_id": 3,
        "eos_token_id": [4, 5],
        "attention_dropout": 0.3,
        "initializer_range": 7.0,
        "id2label": {"0": "a"},
        "max_position_embeddings": 8,
        "output_attentions": True,
        "tie_word_embeddings": False,
        "trained_with": "care",
    }
    folder = saved(base, tmp_path / "tuned", **settings)
    assert "model.norm.weight" in Update.of(folder, base)
    short = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}}
    by_length = copy.deepcopy(base)
    by_length.config = type(base.config).from_dict(base.config.to_dict() | short)
    folder = saved(base, tmp_path / "by-length", **short, max_position_embeddings=8)
    refused(lambda: Update.of(folder, by_length), DataError, ("max_position_embeddings is 8 and 16",))


def test_nothing_is_known_without_a_configuration(tmp_path):
    base, _ = transformers_base("gpt2")
    folder = saved(base, tmp_path / "tuned", activation_function="relu")
    (folder / "config.json").unlink()
    refuse_other_settings(folder, base, "it")
    plain = copy.deepcopy(base)
    plain.config = {"activation_function": "relu"}
    refuse_other_settings(plain, base, "it")
    refuse_other_settings(base, plain, "it")


def test_all_who_read_a_fine_tune_look(tmp_path):
    base, _ = transformers_base("gpt2")
    target, _ = transformers_base("gpt2")
    folder = saved(base, tmp_path / "tuned", activation_function="relu")
    module = randomise(base, 0.1)
    module.config.activation_function = "relu"
    prepared = prepare_transport(base, target, [{"input_ids": tokens()}], variant="weights")
    for tuned in (folder, module):
        refused(lambda tuned=tuned: prepared.apply(tuned), DataError, ("activation_function is 'relu'",))
        refused(
            lambda tuned=tuned: transport_on_disk(base, tuned, target, [{"input_ids": tokens()}], dry_run=True),
            DataError,
            ("activation_function is 'relu'",),
        )
