"""A tuned network that is more than the source with other weights is refused, and none that is no more than that."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from tests.jobs.transport.examples import randomise, tokens, transformers_base
from tests.test_storage import refused
from torch import Tensor, nn

import interbasin as ib
from interbasin.errors import DataError
from interbasin.extras import import_extra
from interbasin.jobs.transport import plan_transport
from interbasin.jobs.transport.updates.answers import refuse_other_answers

WORDS = ("answers the first batch otherwise", "of their size", "weights only")


def mlp(width: int = 8, bend: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(6, width), nn.BatchNorm1d(width), bend(), nn.Dropout(0.5), nn.Linear(width, 3)
        return nn.Sequential(*layers)


def rows(count: int = 64) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


def tuned_of(net: nn.Module) -> Any:
    return randomise(net, 0.1)


def test_another_function_is_refused_by_the_job_and_by_the_plan():
    source, target = mlp().eval(), mlp(12, seed=1).eval()
    other = mlp(bend=nn.Tanh).eval()
    other.load_state_dict(tuned_of(source).state_dict())
    for job in (ib.transport, plan_transport):
        refused(lambda job=job: job(source, other, target, rows()), DataError, ("tuned Sequential", *WORDS))
        refused(lambda job=job: job(source, [tuned_of(source), other], target, rows()), DataError, WORDS)


def test_hooks_and_wrong_shapes_are_refused():
    source = mlp().eval()
    hooked = tuned_of(source)
    hooked[2].register_forward_hook(lambda module, args, output: 2 * output)
    refused(lambda: refuse_other_answers(hooked, source, rows()), DataError, WORDS)
    shorter = tuned_of(source)
    shorter.register_forward_hook(lambda module, args, output: output[:, :2])
    refused(lambda: refuse_other_answers(shorter, source, rows(8)), DataError, ("(8, 2)", "(8, 3)", "weights only"))
    silent = tuned_of(source)
    silent.register_forward_hook(lambda module, args, output: "none")
    refused(lambda: refuse_other_answers(silent, source, rows(8)), DataError, ("no tensor", "(8, 3)"))
    broken = tuned_of(source)
    broken.register_forward_hook(lambda module, args, output: output * torch.nan)
    refused(lambda: refuse_other_answers(broken, source, rows(8)), DataError, ("by inf of",))


@pytest.mark.parametrize("training", [True, False])
def test_modes_dropout_and_running_statistics_are_no_difference(training):
    source = mlp()
    tuned = tuned_of(source).train()
    tuned(5 + 3 * rows())  # so that the running statistics are others
    source.train(training)
    kept = {name: tensor.clone() for name, tensor in tuned.state_dict().items()}
    drawn = torch.random.get_rng_state()
    assert refuse_other_answers(tuned, source, rows()) == []
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(module.training for module in tuned.modules())
    assert all(module.training == training for module in source.modules())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in tuned.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_another_precision_is_no_difference(dtype):
    source = mlp(64).eval()
    tuned = tuned_of(source).to(dtype)
    assert refuse_other_answers(tuned, source, rows()) == [] == refuse_other_answers(source, tuned, rows().to(dtype))
    assert {parameter.dtype for parameter in tuned.parameters()} == {dtype}


class Drawing(nn.Module):
    """A network that draws numbers in evaluation too, and excludes a class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer = self.layer(x) + torch.rand(3)
        return torch.cat([answer, torch.full_like(answer[:, :1], -torch.inf)], 1)


def test_numbers_that_are_drawn_are_the_same_for_both():
    source = Drawing()
    assert refuse_other_answers(tuned_of(source), source, rows()) == []


def test_what_cannot_be_copied_is_told():
    source = mlp().eval()
    tuned = tuned_of(source)
    tuned.lock = threading.Lock()
    result = ib.transport(source, tuned, mlp(12, seed=1).eval(), rows(), method="theseus")
    assert [note for note in result.notes if "was not compared" in note and "cannot be copied" in note]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_networks_of_transformers_are_run(family):
    source, _ = transformers_base(family)
    tuned: Any = randomise(source, 0.05)
    tuned.config.output_hidden_states = True
    assert refuse_other_answers(tuned, source, tokens()) == []
    for module in tuned.modules():
        if hasattr(module, "inv_freq"):  # as another base of the rotations leaves it, in no tensor that is stored
            module.inv_freq *= 0.5
        elif type(module).__name__ in ("NewGELUActivation", "GELUActivation"):
            module.forward = torch.tanh
    refused(lambda: refuse_other_answers(tuned, source, tokens()), DataError, WORDS)


def test_an_adapter_in_memory_is_left_to_peft():
    peft = import_extra("peft", "This test", "hf")
    source = mlp().eval()
    network = peft.get_peft_model(copy.deepcopy(source), peft.LoraConfig(r=2, target_modules=["0"]))
    network.register_forward_hook(lambda module, args, output: pytest.fail("it was run"))
    assert refuse_other_answers([network, {"0.bias": torch.ones(8)}], source, rows()) == []
