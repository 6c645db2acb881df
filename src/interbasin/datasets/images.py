"""A folder of images, a subfolder for each class. Needs Pillow, which comes with the ``timm`` extra."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interbasin.errors import DataError, FileError, MissingExtraError, ShapeError

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, eq=False)
class ImageSamples:
    """Images, decoded when they are read: ``(rows, channels, height, width)``, eight bit."""

    name: str
    paths: tuple[Path, ...]
    channels: int
    size: tuple[int, int] | None
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.paths)

    def read(self, rows: Sequence[int]) -> NDArray[Any]:
        images = [_decode(self.paths[row], self.channels, self.size) for row in rows]
        for row, image in zip(rows, images, strict=True):
            if image.shape != images[0].shape:
                raise ShapeError(
                    f"{self.paths[rows[0]]} has shape {images[0].shape} and {self.paths[row]} has {image.shape}; "
                    "images of one batch have one size: resize them before, or give the network's input shape."
                )
        return np.stack(images)


def open_images(folder: Path, shape: tuple[int, ...] | None) -> ImageSamples:
    """The images of a folder; subfolders are classes, in the order of their names.

    Args:
        folder: With images, or with subfolders of them.
        shape: Of the network's samples, if it is known: images are turned grey or coloured, and resized, to it.

    Raises:
        DataError: if there are no images, or some in the folder and some in subfolders.
    """
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    loose = _images(folder)
    inside = {path.name: images for path in subfolders if (images := _images(path))}
    if loose and inside:
        raise DataError(
            f"{folder} holds images and subfolders of images ({', '.join(inside)}), so which classes there are is not "
            "clear; move the loose ones into a subfolder."
        )
    if not loose and not inside:
        raise DataError(f"{folder} holds no images ({', '.join(ENDINGS)}), nor subfolders of them; check the path.")
    _pillow()
    first = loose[0] if loose else next(iter(inside.values()))[0]
    channels, size = _image_shape(shape, first)
    if loose:
        return ImageSamples(str(folder), tuple(loose), channels, size)
    labels = [place for place, paths in enumerate(inside.values()) for _ in paths]
    paths = tuple(path for images in inside.values() for path in images)
    return ImageSamples(str(folder), paths, channels, size, torch.tensor(labels), tuple(inside))


def _image_shape(shape: tuple[int, ...] | None, first: Path) -> tuple[int, tuple[int, int] | None]:
    """Channels, and height and width, that the network takes."""
    if shape is not None and len(shape) == 3 and shape[0] in (1, 3):
        return shape[0], (shape[1], shape[2])
    if shape is not None and len(shape) == 2:
        return 1, (shape[0], shape[1])
    if shape is not None and len(shape) == 1 and _decode(first, 1, None).size == shape[0]:
        return 1, None  # laid flat, as networks without convolutions take images
    return 3, None


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtraError(
            "Reading images needs Pillow, which is not installed; run: pip install pillow."
        ) from error


def _decode(path: Path, channels: int, size: tuple[int, int] | None) -> NDArray[Any]:
    pillow = _pillow()
    try:
        with pillow.open(path) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
            if size is not None and (image.height, image.width) != size:
                image = image.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
            array = np.asarray(image, dtype=np.uint8)
    # A damaged image makes Pillow raise many things.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise FileError(f"{path} could not be read as an image ({reason}); replace it or take it out.") from error
    return array[None] if channels == 1 else np.moveaxis(array, -1, 0)
