"""Fine-tuning after alignment: two epochs of Adam at 1e-4 undo what approximate maps cost [adelfio:25, section 4]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from interbasin.batches import BATCH_SIZE, as_batches, call_arguments, device_of, split_batch
from interbasin.errors import DataError
from interbasin.evaluate.scores import Loss, mean_loss
from interbasin.wiring.trace.copying import copied

__all__ = ["finetuned"]

Model = TypeVar("Model", bound=nn.Module)


def finetuned(
    model: Model,
    data: Any,
    loss: Loss | None = None,
    *,
    epochs: int = 2,
    rate: float = 1e-4,
    report: Callable[[str], object] | None = None,
) -> Model:
    """A copy of ``model`` after some epochs of Adam, in the order in which the data come.

    Batch norms and dropout are in evaluation mode all the while: what is repaired is the weights, and the statistics
    are reset apart from this.

    Raises:
        DataError: if there are no labels and no loss that does without, or the loss is not finite.
    """
    network = copied(model).eval()
    network.requires_grad_(True)
    trained = [one for one in network.parameters() if one.is_floating_point()]
    optimiser = torch.optim.Adam(trained, lr=rate)
    for epoch in range(epochs):
        total, count = 0.0, 0
        for index, batch in enumerate(as_batches(data, BATCH_SIZE)):
            inputs, labels = split_batch(batch)
            args, kwargs = call_arguments(network, inputs, device_of(network))
            value = mean_loss(network(*args, **kwargs), labels, inputs, index, loss)
            if not bool(torch.isfinite(value)):
                raise DataError(
                    f"Fine-tuning met a loss of {value.item()} in batch {index} of epoch {epoch + 1}; check the data "
                    "and the networks, or leave finetune= out."
                )
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total, count = total + float(value.detach()), count + 1
        if report is not None:
            report(f"fine-tuning, epoch {epoch + 1}: loss {total / max(count, 1):.4g}")
    kept = {name: one.requires_grad for name, one in model.named_parameters()}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(kept[name])
        parameter.grad = None
    for module, own in zip(network.modules(), model.modules(), strict=True):
        module.training = own.training
    return network
