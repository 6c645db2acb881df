"""What Python writes and no command does: one function each, which `tests.faults` runs in a process of its own."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import interbasin as ib
from interbasin.checkpoints.write import write_checkpoint
from interbasin.correspondence import Correspondence
from interbasin.training import Checkpoint, train


def network(seed: int, width: int = 8) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).eval()


def rows(seed: int, width: int = 6) -> torch.Tensor:
    return torch.randn(40, width, generator=torch.Generator().manual_seed(seed))


def save_map(output: str, force: bool, seed: int) -> None:
    ib.maps.Orthogonal(torch.linalg.qr(rows(seed)[:6]).Q).save(output, force=force)


def save_moments(output: str, force: bool, seed: int) -> None:
    ib.PairedMoments.of(rows(seed), rows(seed + 1, 4), grams=True).save(output, force=force)


def save_layerwise(output: str, force: bool, seed: int) -> None:
    moments = ib.LayerwiseMoments()
    moments.update({"one": rows(seed)}, {"two": rows(seed + 1, 4)})
    moments.save(output, force=force)


def save_wiring(output: str, force: bool, seed: int) -> None:
    ib.wire(network(seed, 8 + seed), rows(seed)).save(output, force=force)


def save_alignment(output: str, force: bool, seed: int) -> None:
    ib.wire(network(0), rows(0)).sample(seed=seed).save(output, force=force)


def save_recording(output: str, force: bool, seed: int) -> None:
    ib.record(network(seed), rows(seed), ["0:output", "1:output"]).save(output, force=force)


def record_with_state(output: str, force: bool, seed: int) -> None:
    ib.record(network(seed), rows(seed), ["0:output"], batch_size=8, every=1, state=output)


def save_correspondence(output: str, force: bool, seed: int) -> None:
    wirings = [ib.wire(network(0, width), rows(0)) for width in (8, 9 + seed)]
    Correspondence.by_role(*wirings).save(output, force=force)


def save_prepared_transport(output: str, force: bool, seed: int) -> None:
    ib.prepare_transport(network(seed), network(seed + 1, 10), rows(seed)).save(output, force=force)


def save_fit(output: str, force: bool, seed: int) -> None:
    ib.fit.least_squares(rows(seed), rows(seed + 1, 4)).save(output, force=force)


def save_encoder(output: str, force: bool, seed: int) -> None:
    ib.RelativeEncoder().fit(rows(seed).numpy()).save(output, force=force)


def save_decoder(output: str, force: bool, seed: int) -> None:
    ib.RelativeDecoder().fit(rows(seed).numpy()).save(output, force=force)


def save_translator(output: str, force: bool, seed: int) -> None:
    ib.Translator(method="ridge").fit(rows(seed).numpy(), rows(seed + 1, 4).numpy()).save(output, force=force)


def write_shards(output: str, force: bool, seed: int) -> None:
    changed = {name: tensor + seed for name, tensor in load_file("one/model-00002-of-00002.safetensors").items()}
    changed |= load_file("one/model-00001-of-00002.safetensors")
    write_checkpoint(output, changed, like="one", max_shard_bytes=700, force=force)


def train_with_checkpoint(output: str, force: bool, seed: int) -> None:
    """Two epochs with a checkpoint at every step; the folder of the checkpoint goes, and what was trained stays."""
    model, data = network(seed), [(rows(seed)[:20], torch.arange(20) % 3), (rows(seed)[20:], torch.arange(20) % 3)]

    def loss(batch: Any, number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    checkpoint = Checkpoint("checkpoint", "tests.faults", steps=1)
    train(model.parameters(), data, loss, epochs=2, rate=0.1, checkpoint=checkpoint)
    write_checkpoint(output, model.state_dict(), force=force)
    checkpoint.remove()
