"""Tuned A written into B computes what tuned A does, to what the epsilon of norms weighs."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.jobs.transport.small import Attending, Plain, inputs, ready, task_of, tuned
from tests.laws.strategies import generator
from torch import nn
from torch.testing import assert_close

from interbasin.errors import WiringError
from interbasin.extras import import_extra
from interbasin.jobs.transport.comparison.written_in import written_in

WIDER = {
    "width": Attending(9, seed=1),
    "heads": Attending(9, heads=3, seed=1),
    "head size": Attending(9, size=5, seed=1),
    "everything": Attending(11, heads=4, size=4, seed=1),
    "nothing": Attending(6, seed=1),
}


def without_epsilon(model):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.0
    return ready(model)


@pytest.mark.slow
@pytest.mark.parametrize("wider", WIDER)
def test_a_wider_transformer_computes_what_tuned_a_does(wider):
    data = inputs(width=4, tokens=3)
    task = task_of(without_epsilon(Attending(6)), without_epsilon(WIDER[wider]), data)
    found = written_in(task, "")
    assert_close(found.applied_to(task.bases.target)(data[1]), task.tuned(data[1]), rtol=1e-9, atol=1e-9)
    assert "nothing of the target is left" in found.notes[0]


def test_projections_may_be_fused():
    data = inputs(width=4, tokens=3)
    source, target = Attending(6, fused=True), Attending(9, heads=3, size=4, fused=True, seed=1)
    task = task_of(without_epsilon(source), without_epsilon(target), data)
    found = written_in(task, "").applied_to(task.bases.target)
    assert_close(found(data[1]), task.tuned(data[1]), rtol=1e-9, atol=1e-9)


def without_biases(model):
    """Readers of norms that have no place for a norm's bias."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name != "stem":
            module.bias = None
    return without_epsilon(model)


@pytest.mark.slow
@pytest.mark.parametrize("wider", WIDER)
def test_biases_of_norms_that_no_reader_has_a_place_for_stay_with_the_norms(wider):
    data = inputs(width=4, tokens=3)
    task = task_of(without_biases(Attending(6)), without_biases(copy.deepcopy(WIDER[wider])), data)
    assert any(module.bias.any() for module in task.tuned.modules() if isinstance(module, nn.LayerNorm))
    found = written_in(task, "")
    assert_close(found.applied_to(task.bases.target)(data[1]), task.tuned(data[1]), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_an_untied_gpt2_is_written_into_a_wider_one():
    transformers = import_extra("transformers", "This test", "hf")
    tokens = [{"input_ids": torch.randint(0, 20, (8, 7), generator=generator(seed))} for seed in range(4)]

    def network(width, heads, seed):
        shape = {"n_embd": width, "n_head": heads, "n_layer": 2, "n_positions": 16, "vocab_size": 20}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False, "layer_norm_epsilon": 0.0}
        torch.manual_seed(seed)
        return tuned(ready(transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **ends))))

    task = task_of(network(8, 2, 0), network(12, 3, 1), tokens)
    found = written_in(task, "").applied_to(task.bases.target)
    assert_close(found(**tokens[1]).logits, task.tuned(**tokens[1]).logits, rtol=1e-8, atol=1e-8)


def test_a_bias_behind_a_gain_of_zero_is_refused():
    task = task_of(without_biases(Attending(6)), without_biases(Attending(9, seed=1)), inputs(width=4, tokens=3))
    with torch.no_grad():
        for module in task.tuned.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight[0] = 0
    with pytest.raises(WiringError, match="some of A has no place there"):
        written_in(task, "")


def test_a_network_without_norms_is_padded():
    task = task_of(ready(Plain(6)), ready(Plain(9, seed=1)), inputs())
    found = written_in(task, "").applied_to(task.bases.target)
    x = torch.cat(task.data)
    assert_close(found(x), task.tuned(x))
    assert not found.up.weight[6:].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        (Attending(9), Attending(6, seed=1), "9 units, and 'stem' only 6"),
        (Attending(6, heads=3), Attending(9, heads=2, seed=1), "only 2"),
        (Attending(6, size=4), Attending(9, size=3, seed=1), "only 2 x 3"),
    ],
)
def test_a_network_without_room_is_refused(source, target, reason):
    data = inputs(width=4, tokens=3)
    with pytest.raises(WiringError, match=reason):
        written_in(task_of(ready(source), ready(target), data), "")


def test_outputs_must_be_shared():
    with pytest.raises(WiringError, match="their own"):
        written_in(task_of(ready(Plain(6)), ready(Plain(9, seed=1)), inputs(), outputs="own"), "")


def test_a_norm_that_cannot_be_folded_is_refused_with_the_reason():
    class Post(nn.Module):
        def __init__(self, width, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.stem, self.mid, self.norm = nn.Linear(5, width), nn.Linear(width, width), nn.LayerNorm(width)
            self.again, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

        def forward(self, x):
            stream = self.norm(self.stem(x))
            return self.head(self.again(stream + torch.tanh(self.mid(stream))))

    with pytest.raises(WiringError, match="Tuned A cannot be written into the target"):
        written_in(task_of(ready(Post(6, 0)), ready(Post(9, 1)), inputs()), "")
