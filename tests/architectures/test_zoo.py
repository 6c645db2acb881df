"""The zoo holds what it must, and makes the same network again from the same seed."""

from __future__ import annotations

import re

import pytest
import torch
from tests.architectures.randomise import randomise
from tests.architectures.zoo import ARCHITECTURES

# The architectures that must be wired, in the order in which they were asked for.
LISTED = """
    ResNet, VGG, DenseNet, EfficientNet, MobileNetV2, MobileNetV3, ConvNeXt, RegNet, Mixer, ViT, DeiT, Swin, CLIP, BERT,
    RoBERTa, DistilBERT, ALBERT, ELECTRA, DeBERTa, DeBERTa-v2, T5, BART, GPT-2, GPT-NeoX, OPT, Llama, Mistral, Qwen2,
    Qwen3, Gemma, Gemma2, Gemma3, Phi, Falcon, Mamba, Whisper, Wav2Vec2
"""


def plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def test_the_listed_architectures_are_there_and_can_be_traced():
    listed = {plain(name.partition("/")[2]) for name, one in ARCHITECTURES.items() if one.listed and one.traceable}
    assert {plain(name) for name in LISTED.split(",")} <= listed


def test_there_are_many():
    assert len(ARCHITECTURES) >= 60


@pytest.mark.parametrize("name", ["torch/spectral-norm", "timm/resnet", "transformers/t5"])
def test_a_seed_makes_the_same_network_inputs_and_answers_again(name):
    architecture = ARCHITECTURES[name]
    (network, inputs), (again, inputs_again) = architecture(3), architecture(3)
    other, _ = architecture(4)
    assert not network.training
    torch.testing.assert_close(inputs, inputs_again, rtol=0, atol=0)
    for seed in (None, 5):
        if seed is not None:
            network, again, other = randomise(network, seed), randomise(again, seed), randomise(other, seed + 1)
        with torch.no_grad():
            answers = [architecture.run(one, inputs) for one in (network, again, other)]
        torch.testing.assert_close(answers[0], answers[1], rtol=0, atol=0)
        assert not torch.equal(answers[0][0], answers[2][0])


def test_randomised_weights_are_generic_and_shared_ones_stay_shared():
    network, _ = ARCHITECTURES["torch/tied"]()
    randomise(network, 0)
    assert network.head.weight is network.embed.weight
    assert all(value.std() > 0.01 for value in network.parameters())


def test_randomised_running_statistics_are_those_of_a_trained_network():
    network = randomise(ARCHITECTURES["timm/resnet"]()[0], 0)
    for name, value in network.named_buffers():
        if name.endswith("running_var"):
            assert 0.5 <= value.min() < value.max() <= 2
        if name.endswith("running_mean"):
            assert value.abs().min() > 0
