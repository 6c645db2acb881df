"""Which networks and inputs a transport takes, whoever is asked for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.jobs.transport.examples import adapted
from tests.jobs.transport.small import Plain, inputs, ready, tuned
from tests.test_storage import refused

import interbasin as ib
from interbasin.errors import DataError
from interbasin.extras import import_extra
from interbasin.jobs.transport import PreparedTransport, plan_transport, prepare_transport, transport_on_disk

pytestmark = pytest.mark.filterwarnings("ignore")


def pair() -> tuple[Any, Any]:
    return ready(Plain(6)), ready(Plain(8, seed=1))


# Each is called with source, target and data.
CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    **{
        f"transport by {method}": lambda source, target, data, method=method: ib.transport(
            source, UPDATE, target, data, method=method
        )
        for method in ("auto", "theseus", "regression", "direct")
    },
    "prepare": lambda source, target, data: prepare_transport(source, target, data),
    "prepare by weights": lambda source, target, data: prepare_transport(source, target, data, variant="weights"),
    "plan": lambda source, target, data: plan_transport(source, UPDATE, target, data),
    "on disk": lambda source, target, data: transport_on_disk(source, UPDATE, target, data, dry_run=True),
}
UPDATE = {"down.bias": torch.ones(3, dtype=torch.float64)}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@each_call
def test_what_is_no_network_is_refused(call):
    source, target = pair()
    refused(lambda: call(None, target, inputs()), DataError, ("The source is a torch.nn.Module, found None",))
    refused(lambda: call(source, "gpt2", inputs()), DataError, ("The target is", "found 'gpt2'", "load_model"))
    refused(lambda: call(source, Plain, inputs()), DataError, ("The target is", "the class Plain itself"))


def test_what_was_prepared_and_training_ask_for_networks(tmp_path: Path):
    source, target = pair()
    prepare_transport(source, target, inputs()).save(tmp_path / "p")
    refused(lambda: PreparedTransport.load(tmp_path / "p", source, {}), DataError, ("The target", "found a dict"))  # type: ignore[arg-type]
    pairs = [(inputs()[0], torch.zeros(16, dtype=torch.int64))]
    refused(lambda: ib.finetune("net", pairs), DataError, ("The network to train", "found 'net'"))  # type: ignore[arg-type]


@each_call
def test_an_adapter_on_a_base_is_refused_and_says_of_which(call):
    source, target = pair()
    on_target = adapted(target, target_modules=["up"])
    refused(lambda: call(source, on_target, inputs()), DataError, ("The target has a LoRA on it", "up.lora_A"))
    refused(
        lambda: call(source, on_target.base_model.model, inputs()), DataError, ("The target has a LoRA on it", "up.lor")
    )
    refused(
        lambda: call(adapted(source, target_modules=["up"]), target, inputs()),
        DataError,
        ("The source has a LoRA", "unload()"),
    )


def test_other_adapters_are_refused_and_a_network_that_had_one_is_not():
    peft = import_extra("peft", "This test", "hf")
    source, target = pair()
    config = peft.IA3Config(target_modules=["up"], feedforward_modules=["up"])
    network = peft.get_peft_model(copy.deepcopy(target), config)
    refused(lambda: CALLS["prepare"](source, network, inputs()), DataError, ("The target has a LoRA on it", "of PEFT"))
    CALLS["prepare"](source, adapted(target, target_modules=["up"]).unload(), inputs())


@each_call
def test_tensors_without_numbers_are_refused(call):
    source, target = pair()
    nowhere = copy.deepcopy(target).to("meta")
    refused(lambda: call(source, nowhere, inputs()), DataError, ("up.weight of the target (Plain)", "device meta"))
    data = [batch.to("meta") for batch in inputs()]
    refused(lambda: call(source, target, data), DataError, ("The data hold a tensor", "device meta"))


@each_call
def test_tensors_of_eight_bits_are_refused(call):
    source, target = pair()
    small = copy.deepcopy(source).requires_grad_(False).to(torch.float8_e4m3fn)
    refused(lambda: call(small, target, inputs()), DataError, ("up.weight of the source", "float8", "bfloat16 or"))


def test_labels_and_further_data_without_numbers_are_refused():
    source, target = pair()
    for name in ("generic", "validate"):
        more = [(inputs()[0].to("meta"), torch.zeros(16, dtype=torch.int64))]
        with pytest.raises(DataError, match="device meta"):
            ib.transport(source, tuned(source), target, inputs(), method="theseus", **{name: more})
