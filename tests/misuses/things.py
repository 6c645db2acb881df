"""What the tables of misuses share: small arrays, networks and files, each made when a row first takes it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from tests.misuses.table import public, the, write_file
from torch import Tensor, nn

import interbasin as ib
from interbasin.extras import import_extra


@the.keeps
def x() -> Tensor:
    return torch.randn(30, 4, dtype=torch.float64)


@the.keeps
def y() -> Tensor:
    return torch.randn(30, 4, dtype=torch.float64)


@the.keeps
def rounded_turn() -> Tensor:
    return torch.tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]])


@the.keeps
def moments() -> ib.PairedMoments:
    return ib.PairedMoments.of(the.x[:, :3], the.y[:, :3], grams=True)


@the.keeps
def moments_without_grams() -> ib.PairedMoments:
    return ib.PairedMoments.of(the.x[:, :3], the.y[:, :3], grams=False)


@the.keeps
def empty_moments() -> ib.PairedMoments:
    return ib.PairedMoments(grams=True)


@the.keeps
def still_moments() -> ib.PairedMoments:
    return ib.PairedMoments.of(the.x[:, :3], torch.full((30, 3), 0.1), grams=True)


@the.keeps
def far_moments() -> ib.PairedMoments:
    return ib.PairedMoments.of(the.x + 1e200, the.y + 1e200, grams=True)


@the.keeps
def layers() -> ib.LayerwiseMoments:
    made = ib.LayerwiseMoments()
    made.update({"embed": the.x, "hidden": the.x[:, :2]}, {"hidden": the.y, "out": the.y[:, :3]})
    return made


@the.keeps
def translator() -> ib.Translator:
    """From four numbers to three."""
    return ib.Translator(method="ridge").fit(the.x.numpy(), the.y[:, :3].numpy())


@the.keeps
def queries() -> np.ndarray:
    return torch.randn(20, 4).numpy()


@the.keeps
def documents() -> np.ndarray:
    return torch.randn(60, 4).numpy()


# Networks


class Net(nn.Module):
    """A network whose forward is a function of itself and its inputs."""

    def __init__(self, run: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.run(self, *inputs, **named)


def make_mlp(hidden: int = 8, layers: int = 1, *, bias: bool = True) -> nn.Sequential:
    widths = [4, *[hidden] * layers, 3]
    linear = [nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*(part for one in linear for part in (one, nn.ReLU())))[:-1].eval()


@the.keeps
def batch() -> Tensor:
    return torch.randn(6, 4)


@the.keeps
def labels() -> Tensor:
    return torch.tensor([0, 1, 2, 0, 1, 2])


@the.keeps
def labelled() -> list[tuple[Tensor, Tensor]]:
    return [(the.batch, the.labels), (the.batch + 1, the.labels)]


@the.keeps
def mlp() -> nn.Sequential:
    return make_mlp()


@the.keeps
def other_mlp() -> nn.Sequential:
    return make_mlp()


@the.keeps
def wider_mlp() -> nn.Sequential:
    return make_mlp(hidden=9)


@the.keeps
def deeper_mlp() -> nn.Sequential:
    return make_mlp(layers=2)


@the.keeps
def broken_mlp() -> nn.Sequential:
    network = make_mlp()
    with torch.no_grad():
        network[2].weight[1, 2] = math.nan
    return network


@the.keeps
def mlp_without_biases() -> nn.Sequential:
    return make_mlp(bias=False)


@the.keeps
def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


@the.keeps
def other_normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


@the.keeps
def attention() -> Net:
    def run(self: Net, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.heads(x, x, x, need_weights=False)[0])

    heads = nn.MultiheadAttention(8, 2, batch_first=True)
    return Net(run, embed=nn.Linear(4, 8), heads=heads, head=nn.Linear(8, 2)).eval()


@the.keeps
def tokens() -> Tensor:
    return torch.randn(2, 3, 4)


@the.keeps
def halves() -> Net:
    """A layer whose two halves read different spaces."""

    def run(self: Net, x: Tensor) -> Tensor:
        first, second = self.fused.weight.chunk(2)
        return self.c(torch.tanh(self.a(x) @ first.t()) + torch.tanh(self.b(x) @ second.t()))

    fused = nn.Linear(6, 10, bias=False)
    return Net(run, a=nn.Linear(4, 6), b=nn.Linear(4, 6), fused=fused, c=nn.Linear(5, 2)).eval()


@the.keeps
def grouped() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(4, 2, 1)).eval()


@the.keeps
def images() -> Tensor:
    return torch.randn(2, 3, 4, 4)


@the.keeps
def prenorm() -> Net:
    def run(self: Net, x: Tensor) -> Tensor:
        stream = self.embed(x)
        return self.head(self.last(stream + self.down(torch.relu(self.up(self.norm(stream))))))

    return Net(run, **_prenorm_parts()).eval()


def _prenorm_parts() -> dict[str, nn.Module]:
    parts = {"embed": nn.Linear(4, 8), "norm": nn.LayerNorm(8), "up": nn.Linear(8, 6), "down": nn.Linear(6, 8)}
    parts |= {"last": nn.LayerNorm(8), "head": nn.Linear(8, 3)}
    for norm in (parts["norm"], parts["last"]):
        nn.init.normal_(norm.weight, 1.0, 0.1)
        nn.init.normal_(norm.bias)
    return parts


@the.keeps
def bare() -> Net:
    """A stream that is read through a norm and also without one."""

    def run(self: Net, x: Tensor) -> Tensor:
        stream = self.embed(x)
        return self.head(stream + self.down(torch.relu(self.up(self.norm(stream)))))

    return Net(run, **_prenorm_parts()).eval()


@the.keeps
def reading() -> Net:
    """A network that reads the gain of a norm outside of that norm."""

    def run(self: Net, x: Tensor) -> Tensor:
        stream = self.embed(x)
        stream = stream + self.down(torch.relu(self.up(self.norm(stream))))
        return self.head(self.last(stream)) * self.norm.weight.square().mean()

    return Net(run, **_prenorm_parts()).eval()


@the.keeps
def bypassing() -> Net:
    """A layer whose weight is used without calling the layer."""

    def run(self: Net, x: Tensor) -> Tensor:
        stream = self.embed(x)
        hidden = nn.functional.linear(self.norm(stream), self.up.weight)
        return self.head(self.last(stream + self.down(torch.relu(hidden))))

    return Net(run, **_prenorm_parts()).eval()


@the.keeps
def convolving() -> Net:
    """A norm that is read by a convolution without a bias."""

    def run(self: Net, x: Tensor) -> Tensor:
        stream = self.embed(x)
        hidden = self.up(self.norm(stream)[..., None])[..., 0]
        return self.head(self.last(stream + self.down(torch.relu(hidden))))

    return Net(run, **_prenorm_parts() | {"up": nn.Conv1d(8, 6, 1, bias=False)}).eval()


@the.keeps
def uneven() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).eval()


@the.keeps
def texts() -> dict[str, Tensor]:
    return {"x": the.tokens, "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])}


@the.keeps
def masked() -> Net:
    """A network that takes a mask beside its inputs."""

    def run(self: Net, x: Tensor, attention_mask: Tensor | None = None, **others: object) -> Tensor:
        return self.out(torch.relu(self.first(x)))

    return Net(run, first=nn.Linear(4, 8), out=nn.Linear(8, 3)).eval()


@the.keeps
def folded() -> nn.Module:
    return ib.fold_norms(the.prenorm, the.batch)


@the.keeps
def wiring() -> ib.Wiring:
    return ib.wire(the.mlp, the.batch)


@the.keeps
def alignment() -> ib.Alignment:
    return the.wiring.sample()


@the.keeps
def attention_wiring() -> ib.Wiring:
    return ib.wire(the.attention, the.tokens)


def semi(target: int, source: int) -> ib.maps.Orthogonal:
    return ib.maps.Orthogonal(
        torch.linalg.qr(torch.ones(target, source, dtype=torch.float64) + torch.eye(target, source)).Q
    )


def tied_square() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False)).eval()
    network[2].weight = network[0].weight
    return network


def untied_square() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False)).eval()


def uneven_halves() -> ib.Alignment:
    return ib.Alignment(ib.wire(the.halves, the.batch), {"a": semi(9, 6)})


# Files


def _write(name: str, content: Any) -> Path:
    write_file(the.folder / name, content)
    return the.folder / name


@the.keeps
def letter() -> Path:
    return _write("letter.txt", "dear")


@the.keeps
def someones_folder() -> Path:
    return _write("someones/notes.md", "mine").parent


@the.keeps
def saved_map() -> Path:
    ib.maps.Identity(3).save(the.folder / "saved_map")
    return the.folder / "saved_map"


@the.keeps
def saved_moments() -> Path:
    ib.PairedMoments.of(np.ones((3, 2)), np.ones((3, 2)), grams=False).save(the.folder / "saved_moments")
    return the.folder / "saved_moments"


@the.keeps
def saved_layers() -> Path:
    the.layers.save(the.folder / "saved_layers")
    return the.folder / "saved_layers"


@the.keeps
def saved_wiring() -> Path:
    the.wiring.save(the.folder / "saved_wiring")
    return the.folder / "saved_wiring"


@the.keeps
def saved_alignment() -> Path:
    the.alignment.save(the.folder / "saved_alignment")
    return the.folder / "saved_alignment"


@the.keeps
def saved_recording() -> Path:
    ib.record(the.mlp, the.batch, ["0:output"]).save(the.folder / "saved_recording")
    return the.folder / "saved_recording"


@the.keeps
def recording_state() -> Path:
    ib.record(the.mlp, the.batch, ["0:output"], state=the.folder / "recording_state")
    return the.folder / "recording_state"


def make_gpt2(folder: Path) -> Path:
    transformers = import_extra("transformers", "This table", "hf")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@the.keeps
def gpt2() -> Path:
    return make_gpt2(the.folder / "gpt2")


@the.keeps
def saved_outcome() -> Path:
    with ib.outcome.new_outcome(the.folder / "saved_outcome", job="test", request={"seed": 0}) as draft:
        draft.metrics["share"] = 0.5
        draft.table("points", {"x": [1.0, 2.0]})
    return the.folder / "saved_outcome"


@the.keeps
def weights() -> Path:
    """The weights of `factories.mlp`."""
    return _write("weights.safetensors", dict(make_mlp().state_dict()))


@the.keeps
def saved_translator() -> Path:
    the.translator.save(the.folder / "saved_translator")
    return the.folder / "saved_translator"


# Vectors and data on disk


@the.keeps
def old_npy() -> Path:
    return _write("old.npy", torch.randn(30, 4).numpy())


@the.keeps
def new_npy() -> Path:
    return _write("new.npy", torch.randn(30, 3).numpy())


@the.keeps
def old_parquet() -> Path:
    return _write("old.parquet", {"id": range(30), "v": np.load(the.old_npy).tolist()})


@the.keeps
def kept_statistics() -> Path:
    """The statistics of `old_npy` and `new_npy`, without Gram matrices."""
    old, new = public.open_vectors(the.old_npy), public.open_vectors(the.new_npy)
    public.moments_of_files(old, new, grams=False, keep=the.folder / "kept_statistics")
    return the.folder / "kept_statistics"


@the.keeps
def lance() -> Path:
    import lancedb

    rows = pyarrow.table({"id": range(30), "v": np.load(the.old_npy).tolist()})
    lists = rows.set_column(1, "v", rows["v"].cast(pyarrow.list_(pyarrow.float32(), 4)))
    database = lancedb.connect(str(the.folder / "lance"))
    database.create_table("old", lists)
    database.create_table("empty", schema=lists.schema)
    return the.folder / "lance"


def _write_index(name: str, kind: str, rows: np.ndarray) -> Path:
    import faiss

    index = faiss.index_factory(4, kind)
    index.train(np.load(the.old_npy))
    if len(rows):
        index.add(rows)
    faiss.write_index(index, str(the.folder / name))
    return the.folder / name


@the.keeps
def faiss_index() -> Path:
    return _write_index("old.index", "Flat", np.load(the.old_npy))


@the.keeps
def empty_index() -> Path:
    return _write_index("empty.index", "Flat", np.load(the.old_npy)[:0])


@the.keeps
def broken_index() -> Path:
    rows = np.load(the.old_npy)
    rows[3] = math.nan
    return _write_index("broken.index", "Flat", rows)


@the.keeps
def rounded_index() -> Path:
    return _write_index("rounded.index", "SQ8", np.load(the.old_npy))


@the.keeps
def saved_encoder() -> Path:
    ib.RelativeEncoder().fit(the.x).save(the.folder / "saved_encoder")
    return the.folder / "saved_encoder"


@the.keeps
def named_translator() -> Path:
    """A translator that knows the models it goes between."""
    card = {"source_model": "old", "target_model": "new", "metric": "cosine"}
    fitted = ib.Translator(method="ridge").fit(np.load(the.old_npy), np.load(the.new_npy), card=card)
    fitted.save(the.folder / "named_translator")
    return the.folder / "named_translator"
