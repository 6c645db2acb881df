"""What the demonstration shows of transport: a fine-tune of the first network, for a wider one, without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from interbasin.demo import networks
from interbasin.demo.networks import Pair
from interbasin.jobs.transport import METHODS, transport

WIDTH = 96  # of the network that gets the fine-tune
TWINS = ("theseus", "regression")  # methods for networks of different widths


@dataclass(frozen=True)
class Skilled:
    """One network, on held-out images of the task and on those that it was trained on."""

    network: str
    method: str
    task: float  # accuracy on transposed images
    original: float  # accuracy on images as they are


@dataclass(frozen=True)
class FineTune:
    """A fine-tune and what became of it in another network."""

    widths: tuple[int, int]
    inputs: int  # images without labels, of the task; and as many as they are
    rows: tuple[Skilled, ...]
    method: str  # what was chosen
    choice: str  # the verdict in one word
    verdict: str


def count_epochs() -> int:
    """How many epochs `move_fine_tune` trains for."""
    return 2 * networks.EPOCHS


def move_fine_tune(pair: Pair, seed: int, report: Callable[[int], object]) -> FineTune:
    """Tune the first network to read transposed digits, and give that to a wider one, which never sees a label of them.

    The wider network is given transposed images, and images as they are to keep its own answers on.
    """
    task, held_out = _transposed(pair.train), _transposed(pair.test)
    wide = networks.train_network(pair.train, pair.train_labels, seed + 2, report, WIDTH)
    tuned = networks.tune_network(
        pair.source, task, pair.train_labels, seed, lambda done: report(networks.EPOCHS + done)
    )
    moved = {
        method: transport(pair.source, tuned, wide, task, method=method, generic=pair.train, readout=_logits, seed=seed)
        for method in ("auto", *(name for name in METHODS.names if name in TWINS))
    }

    def row(network: str, method: str, model: nn.Module) -> Skilled:
        return Skilled(network, method, pair.accuracy(model(held_out)), pair.accuracy(model(pair.test)))

    best = moved.pop("auto")
    return FineTune(
        widths=(networks.WIDTH, WIDTH),
        inputs=len(task),
        rows=(
            row("the wide network", "", wide),
            row("the first network, tuned", "", tuned),
            *(row("the wide network", method, result.model.requires_grad_(False)) for method, result in moved.items()),
        ),
        method=best.method,
        choice=best.verdict.choice,
        verdict=str(best.verdict),
    )


def _transposed(images: Tensor) -> Tensor:
    return images.reshape(-1, 8, 8).mT.flatten(1)


def _logits(outputs: Tensor) -> Tensor:
    return outputs
