"""Fine-tuning after alignment trains a copy, and gives it back as the network was."""

from __future__ import annotations

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import generic, mlp
from torch import nn

import interbasin as ib
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


@pytest.mark.parametrize("made_inside", ["networks", "data", "both", "nothing"])
@pytest.mark.parametrize("method", ["straight-through", "procrustes-weights"])
def test_rebasin_and_its_fine_tuning_work_inside_inference_mode(method, made_inside):
    def networks():
        return generic(mlp(6, 12, 3), 0), generic(mlp(6, 12, 3), 1)

    source, target = networks()
    data = labelled()
    with torch.inference_mode():
        if made_inside in ("networks", "both"):
            source, target = networks()
        if made_inside in ("data", "both"):
            data = [(inputs.clone(), labels.clone()) for inputs, labels in data]
        found = [
            ib.rebasin(source, target, data[0][0], method=method, data=data, finetune=count, reset=False)
            for count in (0, 1)
        ]
    tuned = found[1].model.parameters()
    assert all(torch.isfinite(parameter.detach()).all() and not parameter.is_inference() for parameter in tuned)
    expected = ib.rebasin(*networks(), labelled()[0][0], method=method, data=labelled(), reset=False).model
    for parameter, wanted in zip(found[0].model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(parameter.detach(), wanted.detach())
