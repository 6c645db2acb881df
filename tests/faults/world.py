"""The inputs of all cases, small: networks with their factories, vectors, stores, data and what was fitted before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import nn

import interbasin as ib

FACTORIES = """
import torch
from torch import nn

def network(width):
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)), torch.ones(2, 6)

def small():
    return network(8)

def wide():
    return network(10)

def deep():
    layers = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers), torch.ones(2, 6)
"""


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))


def make_world(folder: Path) -> None:
    """Fill an empty folder."""
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    (folder / "nets.py").write_text(FACTORIES)
    _write_networks(folder)
    _write_data(folder, draw)
    _write_vectors(folder, draw)


def _write_networks(folder: Path) -> None:
    small, other, wide = network(8), network(8), network(10)
    deep = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():  # twelve units of the one are among the units of the other
        for ours, theirs in zip(wide.parameters(), small.parameters(), strict=True):
            ours.mul_(0.1)[tuple(map(slice, theirs.shape))].add_(theirs)
    for name, net in (("a", small), ("b", other), ("wide", wide), ("deep", deep)):
        save_file(dict(net.state_dict()), folder / f"{name}.safetensors")
    for number, name in enumerate(("tuned", "also")):
        torch.manual_seed(10 + number)
        changed = {key: tensor + 0.3 * torch.randn_like(tensor) for key, tensor in small.state_dict().items()}
        save_file(changed, folder / f"{name}.safetensors")
    for number, name in enumerate(("one", "two", "base")):
        _write_model(folder / name, number)


def _write_model(folder: Path, seed: int) -> None:
    """A folder as transformers leaves it, in two shards and with what comes along."""
    torch.manual_seed(seed)
    folder.mkdir()
    shards: list[Mapping[str, torch.Tensor]] = [
        {"embed.weight": torch.randn(20, 8)},
        {"layer.weight": torch.randn(8, 8), "layer.bias": torch.randn(8)},
    ]
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file(dict(tensors), folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps({"model_type": "small", "hidden_size": 8}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16}))
    (folder / "LICENSE.txt").write_text("Do as you like.\n" * 20)


def _write_data(folder: Path, draw: np.random.Generator) -> None:
    inputs = draw.normal(size=(48, 6)).astype("float32")
    np.savez(folder / "task.npz", x=inputs, y=np.arange(48) % 3)
    np.savez(folder / "valid.npz", x=draw.normal(size=(24, 6)).astype("float32"), y=np.arange(24) % 3)
    np.savez(folder / "proxy.npz", x=inputs[::-1].copy(), y=np.arange(48) % 3)
    labels = np.arange(40) % 2
    signals = draw.normal(size=(40, 1, 8)) + labels[:, None, None] * np.linspace(-2, 2, 8)
    np.savez(folder / "signals.npz", x=signals.astype("float32"), y=labels)


def _write_vectors(folder: Path, draw: np.random.Generator) -> None:
    turn = draw.normal(size=(6, 4))
    old = draw.normal(size=(60, 6)).astype("float32")
    new = (old @ turn + 0.01 * draw.normal(size=(60, 4))).astype("float32")
    np.save(folder / "old.npy", old)
    np.save(folder / "new.npy", new)
    np.savez(folder / "old.npz", v=old, note=np.arange(5))
    queries = old[::4] + 0.1 * draw.normal(size=(15, 6)).astype("float32")
    np.save(folder / "q-old.npy", queries)
    np.save(folder / "q-new.npy", (queries @ turn).astype("float32"))
    (folder / "labels.tsv").write_text("".join(f"{query}\t{4 * query}\n" for query in range(15)))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(old.reshape(-1)), 6)
    table = pa.table({"id": [f"key {row}" for row in range(60)], "v": lists})
    pq.write_table(table, folder / "plain.parquet", compression="none")
    pq.write_table(table, folder / "packed.parquet", compression="zstd")
    index = faiss.IndexFlatL2(6)
    index.add(old)
    faiss.write_index(index, str(folder / "old.index"))
    for name, method in (("map", "ridge"), ("other-map", "affine")):
        ib.Translator(method=method).fit(old, new).save(folder / name)
    ib.Translator(method="ridge").fit(new, old).save(folder / "back")


def write_lance(folder: Path) -> None:
    """Add a Lance table; apart, because lancedb starts threads when it is imported."""
    import lancedb

    lancedb.connect(str(folder / "store")).create_table("old", pq.read_table(folder / "plain.parquet"))
