"""Steps: rates of groups, weight decay, schedules, and gradients of several batches in one step."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from interbasin.errors import DataError, UnknownNameError
from interbasin.training import ShuffledRows, train


def fit_line(batch_size: int, accumulate: int, *, count: int = 64, **options: object) -> torch.Tensor:
    """The weights after some steps of a regression in float64."""
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    labels = inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    train(
        [weight],
        ShuffledRows(count, batch_size, seed=1),
        lambda rows, _: (inputs[rows] @ weight - labels[rows]).square().mean(),
        accumulate=accumulate,
        rate=0.05,
        **options,
    )
    return weight.detach()


@given(
    size=st.integers(1, 8),
    accumulate=st.integers(1, 5),
    steps=st.integers(1, 7),
    optimiser=st.sampled_from(["adam", "adamw", "sgd"]),
)
def test_a_step_over_several_batches_is_a_step_over_one_large_batch(size, accumulate, steps, optimiser):
    # As many rows as fill their batches: means of unequal batches are no mean of rows.
    count = size * accumulate * 3
    options = {"count": count, "steps": steps, "optimiser": optimiser}
    small, large = fit_line(size, accumulate, **options), fit_line(size * accumulate, 1, **options)
    torch.testing.assert_close(small, large, rtol=1e-9, atol=1e-12)


def test_a_step_never_mixes_two_epochs():
    weight, sizes = torch.zeros(1, requires_grad=True), []
    training = train(
        [weight],
        [torch.ones(1)] * 5,
        lambda batch, index: weight.sum(),
        epochs=2,
        rate=0.1,
        accumulate=3,
        progress=lambda step, steps, loss: sizes.append((step, steps)),
    )
    assert training.steps == 4 and sizes == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_each_group_has_its_own_rate_and_decay():
    weights = [torch.ones(1, requires_grad=True) for _ in range(3)]
    groups = [
        {"params": [weights[0]], "rate": 0.1},
        {"params": [weights[1]], "rate": 0.01},
        {"params": [weights[2]], "decay": 0.5},
    ]
    train(groups, [0], lambda batch, _: sum(weights).sum(), epochs=1, rate=0.001, optimiser="adamw", decay=0.0)
    # The first step of Adam is as long as the rate.
    moved = [1 - float(weight.detach()) for weight in weights]
    assert moved == pytest.approx([0.1, 0.01, 0.001 + 0.001 * 0.5], rel=1e-3)


def test_every_group_follows_the_schedule_from_its_own_rate():
    weights = [torch.ones(1, requires_grad=True) for _ in range(2)]
    groups = [{"params": [weights[0]], "rate": 0.1}, {"params": [weights[1]], "rate": 0.02}]
    train(groups, [0], lambda batch, _: sum(weights).sum(), steps=10, schedule="one-cycle", optimiser="sgd")
    far, near = (1 - float(weight.detach()) for weight in weights)
    assert far == pytest.approx(5 * near, rel=1e-4)


def test_cosine_falls_as_torch_has_it():
    ours = fit_line(16, 1, steps=9, schedule="cosine")
    generator = torch.Generator().manual_seed(64)
    inputs = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    labels = inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimiser = torch.optim.Adam([weight], lr=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 9)
    shuffled = ShuffledRows(64, 16, seed=1)
    for rows in [*shuffled, *shuffled, *shuffled][:9]:
        optimiser.zero_grad()
        (inputs[rows] @ weight - labels[rows]).square().mean().backward()
        optimiser.step()
        schedule.step()
    assert torch.equal(ours, weight.detach())


def test_the_schedule_of_epochs_is_as_long_as_the_data_say():
    by_steps = fit_line(16, 2, steps=6, schedule="one-cycle", optimiser="adamw")
    assert torch.equal(by_steps, fit_line(16, 2, epochs=3, schedule="one-cycle", optimiser="adamw"))


@pytest.mark.parametrize(
    ("parameters", "options", "error", "words"),
    [
        ([], {"rate": 0.1}, DataError, "nothing to train"),
        ([{"params": []}], {"rate": 0.1}, DataError, "nothing to train"),
        ([{"params": [torch.ones(1)]}], {}, DataError, "has no learning rate; give it a 'rate'"),
        ([{"params": [torch.ones(1)], "lr": 0.1}], {}, DataError, "this one has 'lr'"),
        ([{"rate": 0.1}], {}, DataError, "this one has no 'params'"),
        ([torch.ones(1)], {"rate": math.nan}, DataError, "rate must be a finite number"),
        ([torch.ones(1)], {"rate": 0.1, "decay": -1.0}, DataError, "decay must be a number of at least 0"),
        ([torch.ones(1)], {"rate": 0.1, "optimiser": "adamx"}, UnknownNameError, "optimiser named 'adamx'; try one of"),
        ([torch.ones(1)], {"rate": 0.1, "schedule": "cosin"}, UnknownNameError, "schedule named 'cosin'; try one of"),
        ([torch.ones(1)], {"rate": 0.1, "accumulate": 0}, DataError, "accumulate must be a whole number"),
        ([torch.ones(1)], {"rate": 0.1, "precision": "int8"}, UnknownNameError, "precision named 'int8'"),
    ],
)
def test_what_cannot_be_trained_is_refused(parameters, options, error, words):
    with pytest.raises(error, match=words):
        train(parameters, [0], lambda batch, _: torch.zeros(()), epochs=1, **options)


def test_a_schedule_without_an_end_is_refused():
    weight = torch.zeros(1, requires_grad=True)

    class Endless:
        def __iter__(self):
            return iter([torch.ones(1)])

    with pytest.raises(DataError, match=r"schedule='cosine' needs the number of all steps.*give steps="):
        train([weight], Endless(), lambda batch, _: weight.sum(), epochs=1, rate=0.1, schedule="cosine")


LAYOUTS = {
    "in order": lambda: torch.randn(6, 4),
    "transposed": lambda: torch.randn(4, 6).T,
    "every second column": lambda: torch.randn(6, 8)[:, ::2],
    "doubles": lambda: torch.randn(6, 4, dtype=torch.float64),
}


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_gradient_transposed", [False, True])
def test_a_step_does_not_depend_on_how_tensors_lie_in_memory(optimiser, layout, is_gradient_transposed):
    torch.manual_seed(0)
    weight = LAYOUTS[layout]().requires_grad_()
    pull = torch.randn(4, 6, dtype=weight.dtype).T
    pull = pull if is_gradient_transposed else pull.contiguous()
    plain = weight.detach().contiguous().requires_grad_()
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimiser]([plain], lr=0.1, fused=False)

    class Pull(torch.autograd.Function):
        """Its gradient lies in memory as it was given."""

        @staticmethod
        def forward(ctx, tensor):
            return tensor.sum()

        @staticmethod
        def backward(ctx, scale):
            return pull

    train([weight], [None] * 4, lambda _, __: Pull.apply(weight), epochs=1, rate=0.1, optimiser=optimiser)
    for _ in range(4):
        plain.grad = pull.clone(memory_format=torch.contiguous_format)
        reference.step()
    torch.testing.assert_close(weight.detach(), plain.detach())
