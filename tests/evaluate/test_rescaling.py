"""Rescale injection and the distribution of norms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from interbasin.evaluate import norms, rescaled


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=generator)
    return [(x[:40], x[:40, :3].argmax(1)), (x[40:], x[40:, :3].argmax(1))]


def network(head_bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=head_bias)).eval()


def test_behind_a_linear_head_without_bias_scale_is_temperature_alone() -> None:
    found = rescaled(network(), data(), ["1"], [0.01, 1.0, 100.0])
    assert found.untouched.accuracy is not None
    assert found.accuracies.tolist() == [pytest.approx([found.untouched.accuracy] * 3)]
    losses = [one.loss for one in found.performances[0]]
    assert len({round(one, 6) for one in losses}) == 3  # the temperature does change


def test_the_rows_are_set_to_the_length_that_was_asked() -> None:
    model = network(head_bias=True)
    lengths = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.body[1](self.body[0](x))
            lengths.append(torch.linalg.vector_norm(hidden, dim=1))
            return self.body[2](hidden)

    looking = Looking().eval()
    before = {name: one.clone() for name, one in looking.state_dict().items()}
    found = rescaled(looking, data(), "body.1", [3.0])
    assert torch.allclose(torch.cat(lengths[-2:]), torch.tensor(3.0))
    plain = torch.cat(lengths[:2])
    assert found.mean_norms[0] == pytest.approx(float(plain.mean()))
    lengths.clear()
    rescaled(looking, data(), "body.1", [2.0], relative=True)
    assert torch.allclose(torch.cat(lengths[-2:]), 2 * plain.mean())
    lengths.clear()
    looking(data()[0][0])
    assert not torch.allclose(lengths[0], lengths[0][0])  # nothing stays behind
    assert all(torch.equal(one, before[name]) for name, one in looking.state_dict().items())


def test_the_inputs_are_rescaled_by_the_empty_name() -> None:
    model = nn.Sequential(nn.Linear(6, 3, bias=False)).eval()
    found = rescaled(model, data(), "", [1.0, 50.0])
    assert found.accuracies[0].tolist() == pytest.approx([found.untouched.accuracy] * 2)


def test_a_module_that_gives_a_tuple_has_its_first_tensor_rescaled() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x[:, None])[0][:, -1])

    found = rescaled(Last().eval(), data(), "rnn", [1.0])
    assert len(found.performances[0]) == 1


def test_norms_are_told() -> None:
    rows = torch.diag(torch.arange(1.0, 6.0))
    found = norms(rows, bins=4)
    assert (found.mean, found.quantiles[0.0], found.quantiles[0.5], found.quantiles[1.0]) == (3, 1, 3, 5)
    assert found.deviation == pytest.approx(2**0.5) and found.skewness == pytest.approx(0)
    assert found.counts == (1, 1, 1, 2) and found.edges == (1, 2, 3, 4, 5)
    assert norms(rows + 100, centered=True).mean == pytest.approx(norms(rows, centered=True).mean)
    assert norms(torch.ones(4, 2)).deviation == pytest.approx(0)
