"""Fine-tuning after alignment: two epochs of Adam at 1e-4 undo what approximate maps cost [adelfio:25, section 4]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from interbasin.batches import outputs_of, split_batch
from interbasin.evaluate.performance import Loss, mean_loss
from interbasin.training import train
from interbasin.wiring.trace.copying import copied

Model = TypeVar("Model", bound=nn.Module)


def finetune(
    model: Model,
    data: Any,
    loss: Loss | None = None,
    *,
    epochs: int = 2,
    rate: float = 1e-4,
    report: Callable[[str], object] | None = None,
) -> Model:
    """A copy of ``model`` after some epochs of Adam, in the order in which the data come.

    Batch norms and dropout stay in evaluation mode: only the weights are repaired, and the statistics are reset
    separately.

    Raises:
        DataError: if there are no labels and no loss that works without, or the loss is not finite.
    """
    network = copied(model).eval()
    network.requires_grad_(True)

    def batch_loss(batch: Any, index: int) -> Tensor:
        inputs, labels = split_batch(batch)
        return mean_loss(outputs_of(network, inputs, index), labels, inputs, index, loss)

    parameters = [parameter for parameter in network.parameters() if parameter.is_floating_point()]
    train(parameters, data, batch_loss, epochs=epochs, rate=rate, what="fine-tuning", report=report)
    required = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(required[name])
        parameter.grad = None
    for module, original in zip(network.modules(), model.modules(), strict=True):
        module.training = original.training
    return network
