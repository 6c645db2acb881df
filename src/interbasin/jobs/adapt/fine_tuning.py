"""Supervised training of a network for the target: everything, new parts alone, or new parts and a LoRA of the body."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from interbasin.errors import DataError
from interbasin.evaluate.transfer import conditional_entropy, joint_shares, wasserstein
from interbasin.extras import import_extra
from interbasin.jobs.adapt.network import TargetNetwork, in_chunks
from interbasin.jobs.adapt.setup import Setup
from interbasin.randomness import generator_of
from interbasin.training import ShuffledRows, Training, train

REGULARISED_WITH = 256  # features of the source in each step
LOOKS = 20  # at the validation loss of a training that may end early
MOMENTUM = 0.1  # of batch norms that are drawn anew; some sources switched theirs off


@torch.inference_mode(False)
def fine_tune(
    network: TargetNetwork,
    setup: Setup,
    rows: Tensor,
    *,
    steps: int,
    rate: float,
    body_rate: float,
    is_new_body: bool = False,
    body: str | None = None,
    extra: nn.Module | None = None,
    may_stop: bool = True,
) -> Training:
    """Train a network in place on the labelled samples of these numbers.

    Batch norms of a pre-trained body keep their statistics; those of a new one learn them. Where the setup says when to
    stop, the network is that of the look with the lowest loss on validation samples, each look at its best temperature.

    Args:
        network: Its head has begun already.
        setup: What all methods begin with.
        rows: Numbers of samples.
        steps, rate, body_rate: Of the training.
        is_new_body: Whether the body was drawn anew.
        body: ``"everything"``, ``"frozen"`` or ``"lora"``; by default what the settings say.
        extra: Added to the loss, given the network, the numbers of the step's samples and how far training is, from 0
            to 1; its parameters are trained as new parts are.
        may_stop: Whether the setup's early stop counts here.
    """
    settings = setup.settings
    mode = "everything" if is_new_body else body or settings.body
    inner = network.feature_map.body
    if mode == "lora":
        _add_lora(inner, settings.rank, setup.seed)
    for name, parameter in inner.named_parameters():
        is_trained = mode == "everything" or (mode == "lora" and "lora_" in name)
        parameter.requires_grad_(is_trained and parameter.is_floating_point())
    new = [*network.feature_map.embedder.parameters(), *network.head.parameters()]
    new += [] if extra is None else list(extra.parameters())
    for parameter in new:
        parameter.requires_grad_(parameter.is_floating_point())
    groups: list[dict[str, Any]] = [{"params": new, "rate": rate}]
    trained = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    if trained:
        groups.append({"params": trained, "rate": body_rate})
    network.train()
    for module in inner.modules():
        if isinstance(module, _BatchNorm):
            # One sample has no statistics; then norms keep those that they were given before.
            module.train(is_new_body and settings.batch_size > 1)
            module.momentum = MOMENTUM if is_new_body and not module.momentum else module.momentum
    order = ShuffledRows(len(rows), settings.batch_size, setup.seed, whole=True)

    def loss(places: Tensor, index: int) -> Tensor:
        chosen = rows[places]
        # Counted from the pass, so that a run that goes on from a checkpoint counts alike.
        batch = (order.epoch - 1) * len(order) + index
        read = network.head_inputs(setup.samples.inputs[chosen])
        value = setup.task.loss(network.read_out(read), setup.labels[chosen])
        if settings.regularise and not network.is_dense:
            value = value + settings.regularise * semantic_gap(
                setup, read, chosen, generator_of((setup.seed + batch) % 2**63)
            )
        if extra is not None:
            value = value + extra(network, chosen, min(1.0, batch / max(1, steps * settings.accumulate - 1)))
        return value

    stop = setup.stop if may_stop else None
    best: dict[str, Tensor] = {}

    def keep() -> None:
        best.update((name, tensor.detach().clone()) for name, tensor in network.state_dict().items())

    training = train(
        groups,
        order,
        loss,
        steps=steps,
        every=None if stop is None else max(1, steps // LOOKS),
        evaluate=None if stop is None else lambda: measure_loss(network, setup, stop.rows),
        keep=None if stop is None else keep,
        patience=None if stop is None else stop.patience,
        decay=settings.decay,
        optimiser=settings.optimiser,
        schedule="one-cycle",
        accumulate=settings.accumulate,
        seed=setup.seed,
        buffers=network.buffers(),
        precision=settings.precision,
        processes=True,
        what="fine-tuning",
        **setup.places.options(
            network,
            rows,
            steps=steps,
            rates=(rate, body_rate),
            body=mode,
            extra=type(extra).__name__,
            settings=settings,
            seed=setup.seed,
            validation=None if stop is None else stop.rows.tolist(),
        ),
    )
    if best:
        network.load_state_dict(best)
    if mode == "lora":
        _merge_lora(inner)
    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return training


@torch.no_grad()
def measure_loss(network: TargetNetwork, setup: Setup, rows: Tensor) -> float:
    """The loss on samples of these numbers, at its best temperature; modes of the network stay as they are."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        outputs = in_chunks(network, setup.samples.inputs[rows])
    finally:
        for module, mode in modes.items():
            module.training = mode
    return setup.task.tempered_loss(outputs.cpu(), setup.labels[rows].cpu())


def semantic_gap(setup: Setup, features: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """Alignment and distortion of a batch (equation 11), to be differentiated."""
    chosen = torch.randperm(len(setup.features), generator=generator)[:REGULARISED_WITH]
    near = setup.head.omega * wasserstein(features, setup.features[chosen], setup.settings.solver)
    joint = joint_shares(setup.head.probabilities(features), setup.classes[rows], setup.task.class_count)
    return near + conditional_entropy(joint)


def _add_lora(body: nn.Module, rank: int, seed: int) -> None:
    names = sorted(name for name, module in body.named_modules() if isinstance(module, nn.Linear) and name)
    if not names:
        raise DataError(
            f'body="lora" adds to linear layers, and the body ({type(body).__name__}) has none inside; use '
            'body="everything" or body="frozen".'
        )
    peft = import_extra("peft", "A LoRA on the body", "hf")
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, body)


def _merge_lora(body: nn.Module) -> None:
    """Put the LoRA into the weights, so that the body has the modules that it had."""
    for name, module in list(body.named_modules()):
        base = getattr(module, "base_layer", None)
        if isinstance(base, nn.Module) and hasattr(module, "merge"):
            module.merge()
            parent, _, last = name.rpartition(".")
            setattr(body.get_submodule(parent) if parent else body, last, base)
