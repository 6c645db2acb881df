"""What the tables of misuses share: small arrays, networks and files, each made when a row first takes it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from tests.misuses.table import the
from torch import Tensor, nn

import interbasin as ib


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


# Files


def _write(name: str, content: bytes | str) -> Path:
    path = the.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


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
