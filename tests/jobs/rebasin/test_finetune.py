"""Fine-tuning after alignment trains a copy, and gives it back as the network was."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import generic, mlp
from torch import nn

from interbasin.errors import DataError
from interbasin.evaluate import performance
from interbasin.jobs.rebasin.job import finetune_model


def labelled() -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [(torch.randn(32, 6, generator=drawn), torch.randint(0, 3, (32,), generator=drawn)) for _ in range(3)]


def test_the_loss_falls_and_the_given_network_stays():
    network, data = generic(mlp(6, 12, 3), 0), labelled()
    before = [parameter.clone() for parameter in network.parameters()]
    lines: list[str] = []
    tuned = finetune_model(network, data, epochs=2, rate=1e-2, report=lines.append)
    assert performance(tuned, data).loss < performance(network, data).loss
    assert all(torch.equal(one, other) for one, other in zip(network.parameters(), before, strict=True))
    assert [line.partition(":")[0] for line in lines] == ["fine-tuning, epoch 1", "fine-tuning, epoch 2"]


def test_modes_gradients_and_statistics_come_back_as_they_were():
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).train()
    network[0].weight.requires_grad_(False)
    statistics = network[1].running_mean.clone()
    tuned = finetune_model(network, labelled())
    assert tuned.training and tuned[1].training and all(one.grad is None for one in tuned.parameters())
    assert not tuned[0].weight.requires_grad and tuned[0].bias.requires_grad
    assert torch.equal(tuned[1].running_mean, statistics)
    assert not torch.equal(tuned[0].weight, network[0].weight)


def test_batches_without_labels_need_a_loss_that_does_without():
    network = generic(mlp(6, 12, 3), 0)
    with pytest.raises(DataError, match="has no labels"):
        finetune_model(network, [torch.ones(2, 6)])
    finetune_model(network, [torch.ones(2, 6)], lambda outputs: outputs.square().mean(), epochs=1)
