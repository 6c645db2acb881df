"""How far does a translation reach: to another decoder, another language, another modality; and does scale matter?

- **decoders**: latents of CIFAR-10 autoencoders (64 to 384 dimensions, trained by others) translated and decoded by
  another one's decoder: error beside its own latents and beside an affine map, and a picture of rows of images;
- **languages**: Multi30k, an encoder for English and one for German (LSA of each language alone): cosine of translated
  captions with the German ones beside untranslated, joint (one LSA of both) and random pairs, and retrieval both ways
  (Table 1 of the paper);
- **modalities**: the same digits as images (CNNs) and as sequences of rows (a recurrent network, one with attention),
  1,000 anchors, omega 16, delta .8: every encoder with every head, and the marginal means (figure 7);
- **scale**: accuracy with the rows of each layer set to one length (figure 2), of ReLU, tanh and cosine MLPs on
  rescaled inputs (figure 4), and the distribution of the encodings' lengths (figure 5).

    python benchmarks/crossing.py                     everything; writes results/crossing.json, plots and a picture
    python benchmarks/crossing.py --only languages    one part again, merged into the results

The data and autoencoders lie in the folder that INTERBASIN_DATA names.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import os
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import frame
import interbasin as ib
import stitching
from interbasin.evaluate import norms, rescaled
from interbasin.outcome.plots import bar_chart, heat_map, line_chart

SEED = 0


def data_folder() -> Path:
    folder = os.environ.get("INTERBASIN_DATA")
    if not folder:
        raise SystemExit("These data are not embedded: set INTERBASIN_DATA to the folder that holds them.")
    return Path(folder)


# ---------------------------------------------------------------------- decoders


class Autoencoder(nn.Module):
    """As its tensors are named; latents of any width, images of 32 by 32."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        c = 32
        self.encoder = nn.Module()
        self.encoder.net = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.GELU(), nn.Conv2d(c, c, 3, 1, 1), nn.GELU(), nn.Conv2d(c, 2 * c, 3, 2, 1),
            nn.GELU(), nn.Conv2d(2 * c, 2 * c, 3, 1, 1), nn.GELU(), nn.Conv2d(2 * c, 2 * c, 3, 2, 1), nn.GELU(),
            nn.Flatten(), nn.Linear(2 * 16 * c, latent),
        )  # fmt: skip
        self.decoder = nn.Module()
        self.decoder.linear = nn.Sequential(nn.Linear(latent, 2 * 16 * c), nn.GELU())
        self.decoder.net = nn.Sequential(
            nn.ConvTranspose2d(2 * c, 2 * c, 3, 2, 1, 1), nn.GELU(), nn.Conv2d(2 * c, 2 * c, 3, 1, 1), nn.GELU(),
            nn.ConvTranspose2d(2 * c, c, 3, 2, 1, 1), nn.GELU(), nn.Conv2d(c, c, 3, 1, 1), nn.GELU(),
            nn.ConvTranspose2d(c, 3, 3, 2, 1, 1), nn.Tanh(),
        )  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        return self.encoder.net(x)

    def decode(self, z: Tensor) -> Tensor:
        rows = self.decoder.linear(z)
        return self.decoder.net(rows.reshape(len(rows), -1, 4, 4))


WIDTHS = (64, 128, 256, 384)
DECODER_METHODS = {
    "IRP regularised": {},
    "IRP regularised, with lengths": {"lengths": True},
    "IRP of the paper": {"variant": "pruned", "delta": 0.65, "completion": None},
    "IRP of the paper, polar": {"variant": "pruned", "delta": 0.65},
    "Procrustes": {"method": "procrustes"},
    "ridge": {"method": "ridge"},
    "affine": {"method": "affine"},
    "auto": {"method": "auto", "criterion": "error"},
}


def decoders(folder: Path) -> dict[str, Any]:
    held = np.load(data_folder() / "cifar10" / "test-first-3000.npz")
    pixels = next(held[key] for key in held.files if held[key].ndim == 4)
    images = torch.from_numpy(pixels).float()
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    images = (images / 255 if float(images.max()) > 2 else images) * 2 - 1
    seen, test = images[:2000], images[2000:]
    networks: dict[int, Autoencoder] = {}
    for width in WIDTHS:
        networks[width] = Autoencoder(width).eval()
        networks[width].load_state_dict(
            load_file(data_folder() / "models" / "uvadlc" / f"torch_tutorial9_cifar10_{width}.safetensors")
        )

    def error(found: Tensor, wanted: Tensor) -> float:
        """Squared, summed over an image: what these autoencoders were trained on."""
        return float((found - wanted).square().flatten(1).sum(1).mean())

    with torch.inference_mode():
        latents = {width: (one.encode(seen), one.encode(test)) for width, one in networks.items()}
        own = {width: networks[width].decode(latents[width][1]) for width in WIDTHS}
        native = {str(width): error(own[width], test) for width in WIDTHS}
        table = {}
        shown: list[tuple[str, Tensor]] = [("images", test[:12]), ("128, its own decoder", own[128][:12])]
        for source in WIDTHS:
            for target in WIDTHS:
                if source == target:
                    continue
                row = {}
                for name, options in DECODER_METHODS.items():
                    translator = ib.Translator(**options).fit(latents[source][0], latents[target][0])
                    decoded = networks[target].decode(translator.transform(latents[source][1]))
                    row[name] = error(decoded, test)
                    if (source, target) == (128, 256) and name in (
                        "IRP regularised",
                        "IRP of the paper",
                        "affine",
                        "auto",
                    ):
                        shown.append((f"128 -> 256, {name}", decoded[:12]))
                table[f"{source} -> {target}"] = row
                print(f"latents {source} -> {target}: {row}", flush=True)
        shown.append(("256, its own decoder", own[256][:12]))
    (folder / "crossing-decoders.svg").write_text(rows_of_images(shown), "utf-8")
    return {"native": native, "pairs": table, "images": len(test), "anchors": len(seen)}


def png(pixels: np.ndarray) -> bytes:
    """Eight-bit RGB pixels as a PNG."""
    height, width, _ = pixels.shape
    raw = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def rows_of_images(rows: list[tuple[str, Tensor]]) -> str:
    """Rows of images with their names, as one SVG."""
    size, left = 56, 210
    width, height = left + size * len(rows[0][1]), size * len(rows)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for place, (name, images) in enumerate(rows):
        strip = torch.cat(list(((images.clamp(-1, 1) + 1) * 127.5).byte()), 2).permute(1, 2, 0).contiguous().numpy()
        held = base64.b64encode(png(strip)).decode()
        top = place * size
        parts.append(f'<text x="8" y="{top + size / 2 + 4}" font-size="13">{name}</text>')
        parts.append(
            f'<image x="{left}" y="{top}" width="{width - left}" height="{size}" preserveAspectRatio="none" '
            f'href="data:image/png;base64,{held}"/>'
        )
    return "\n".join([*parts, "</svg>"])


# ---------------------------------------------------------------------- languages


def captions(name: str) -> list[str]:
    with gzip.open(data_folder() / "text" / name) as file:
        return io.TextIOWrapper(file, "utf-8").read().splitlines()


def centred_cosine(a: np.ndarray, b: np.ndarray, mean: np.ndarray) -> float:
    a, b = a - mean, b - mean
    return float(((a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)).mean())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return centred_cosine(a, b, np.zeros(a.shape[1]))


def top1(found: np.ndarray, wanted: np.ndarray) -> float:
    unit = [one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-12) for one in (found, wanted)]
    return float(((unit[0] @ unit[1].T).argmax(1) == np.arange(len(found))).mean())


def languages(folder: Path) -> dict[str, Any]:
    from text_encoders import Lsa

    english, german = captions("train.en.gz"), captions("train.de.gz")
    test = {"en": captions("test_2016_flickr.en.gz"), "de": captions("test_2016_flickr.de.gz")}
    # Each language's encoder sees other captions than those that serve as anchors.
    cut, anchors = 20_000, 4_000
    fitted = {"en": Lsa(256, 0).fit(english[:cut]), "de": Lsa(256, 1).fit(german[:cut])}
    joint = Lsa(256, 2).fit([f"{a} {b}" for a, b in zip(english[:cut], german[:cut], strict=True)])
    texts = {"en": english[cut : cut + anchors], "de": german[cut : cut + anchors]}
    rows = {name: (fitted[name](texts[name]), fitted[name](test[name])) for name in fitted}
    both = {name: joint(test[name]) for name in fitted}
    shuffled = np.random.default_rng(SEED).permutation(len(test["en"]))
    result: dict[str, Any] = {"anchors": anchors, "captions": len(shuffled), "ways": {}}
    for source, target in (("en", "de"), ("de", "en"), ("en", "en"), ("de", "de")):
        wanted = rows[target][1]
        row = {
            "absolute": {"cosine": cosine(rows[source][1], wanted), "top1": top1(rows[source][1], wanted)},
            "joint": {"cosine": cosine(both[source], both[target]), "top1": top1(both[source], both[target])},
            "random pairs": {"cosine": cosine(wanted[shuffled], wanted)},
            "random pairs, joint": {"cosine": cosine(both[target][shuffled], both[target])},
        }
        for name, options in {
            "IRP of the paper": {"variant": "pruned", "delta": 0.65, "completion": None},
            "IRP regularised": {},
            "Procrustes": {"method": "procrustes"},
            "ridge": {"method": "ridge"},
            "auto": {"method": "auto", "criterion": "retrieval"},
        }.items():
            found = ib.Translator(**options).fit(rows[source][0], rows[target][0]).transform(rows[source][1])
            row[name] = {
                "cosine": cosine(found, wanted),
                "centred": centred_cosine(found, wanted, rows[target][0].mean(0)),
                "top1": top1(found, wanted),
            }
        result["ways"][f"{source} -> {target}"] = row
        print(
            f"{source} -> {target}: " + ", ".join(f"{name} {one['cosine']:.3f}" for name, one in row.items()),
            flush=True,
        )
    return result


# ---------------------------------------------------------------------- modalities


class Recurrent(nn.Module):
    """An image as a sequence of its rows."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.side, self.rows = side, nn.GRU(side, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x.reshape(len(x), self.side, self.side))[1][-1]


class Attending(nn.Module):
    """An image as a sequence of its rows, all at once."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.side = side
        self.into, self.places = nn.Linear(side, width), nn.Parameter(0.02 * torch.randn(side, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.into(x.reshape(len(x), self.side, self.side)) + self.places).mean(1)


def modal_encoders(side: int) -> dict[str, Callable[[], nn.Module]]:
    return {
        "image: GELU CNN 96": lambda: stitching.Encoder(side, 96, nn.GELU, True),
        "image: ReLU CNN 64": lambda: stitching.Encoder(side, 64, nn.ReLU, True),
        "sequence: GRU 80": lambda: Recurrent(side, 80),
        "sequence: attention 64": lambda: Attending(side, 64),
    }


MODAL_METHODS: Mapping[str, dict[str, Any]] = {
    "IRP of the paper": {"variant": "pruned", "delta": 0.8, "omega": 16, "completion": None},
    "IRP regularised": {},
    "auto": {"method": "auto"},
}
MODAL_SEEDS = 3


def trained(make: Callable[[], nn.Module], x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, nn.Linear]:
    """An encoder and its head after three epochs."""
    torch.manual_seed(seed)
    encoder = make()
    head = nn.Linear(encoder(x[:2]).shape[1], 10)
    optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(128):
            loss = nn.functional.cross_entropy(head(encoder(x[rows])), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return encoder.eval(), head


def modal_tables(seed: int) -> dict[str, list[list[float]]]:
    """By method, the accuracy of every encoder (rows) with every head (columns)."""
    parts = stitching.images("MNIST")
    (x, y), (held, labels) = parts["train"], parts["test"]
    taken = np.random.default_rng(seed).permutation(len(x))[:1000]
    networks: list[tuple[Tensor, Tensor, nn.Linear]] = []
    for number, (name, make) in enumerate(modal_encoders(round(x.shape[1] ** 0.5)).items()):
        encoder, head = trained(make, x, y, 100 * seed + number)
        with torch.inference_mode():
            networks.append((encoder(x[taken]), torch.cat([encoder(one) for one in held.split(1000)]), head))
        print(f"trained {name}, seed {seed}", flush=True)

    def stitched(source: int, target: int, options: Mapping[str, Any]) -> float:
        found, head = networks[source][1], networks[target][2]
        if source != target:
            found = ib.Translator(**options).fit(networks[source][0], networks[target][0]).transform(found)
        with torch.inference_mode():
            return float((head(found).argmax(1) == labels).float().mean())

    every = range(len(networks))
    return {
        label: [[stitched(source, target, options) for target in every] for source in every]
        for label, options in MODAL_METHODS.items()
    }


def modalities(folder: Path) -> dict[str, Any]:
    names = list(modal_encoders(28))
    each = [modal_tables(seed) for seed in range(MODAL_SEEDS)]
    stacks = {label: np.array([tables[label] for tables in each]) for label in MODAL_METHODS}
    apart = ~np.eye(len(names), dtype=bool)
    marginals = {
        label: {
            "encoding from": {name: float(stack[:, place, apart[place]].mean()) for place, name in enumerate(names)},
            "decoding into": {name: float(stack[:, apart[place], place].mean()) for place, name in enumerate(names)},
        }
        for label, stack in stacks.items()
    }
    found = {
        "encoders": names,
        "anchors": 1000,
        "seeds": MODAL_SEEDS,
        "tables": {label: stack.mean(0).tolist() for label, stack in stacks.items()},
        "deviations": {label: stack.std(0, ddof=1).tolist() for label, stack in stacks.items()},
        "marginal_means": marginals,
    }
    draw_modalities(found, folder)
    return found


def draw_modalities(found: Mapping[str, Any], folder: Path) -> None:
    names = found["encoders"]
    for label, means in found["tables"].items():
        drawn = heat_map(
            means, rows=names, columns=names, title=f"Across modalities, {label}", note="rows: encoder, columns: head",
        )  # fmt: skip
        (folder / f"crossing-modalities-{label.lower().replace(' ', '-')}.svg").write_text(drawn, "utf-8")


# ---------------------------------------------------------------------- scale


class Cosine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x)


def scale(folder: Path) -> dict[str, Any]:
    task = stitching.of_images("MNIST")
    parts = stitching.images("MNIST")
    result: dict[str, Any] = {}
    # Figure 2: inside a deep network. Norms and residual branches as in a transformer.
    x, y = parts["train"]
    torch.manual_seed(0)
    encoder = Attending(28, 64)
    network = nn.Sequential(encoder, nn.Linear(64, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(2):
        for rows in torch.randperm(len(x)).split(128):
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    network.eval()
    held = [
        (one, two) for one, two in zip(parts["test"][0].split(500)[:8], parts["test"][1].split(500)[:8], strict=True)
    ]
    factors = [0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0]
    modules = ["0.into", "0.body.layers.0", "0.body.layers.1", "0.body.norm", "0"]
    inside = rescaled(network, held, modules, factors, relative=True)
    result["layers"] = {
        "modules": modules, "factors": factors, "accuracy": inside.accuracies.tolist(),
        "untouched": inside.untouched.accuracy, "mean_norms": list(inside.mean_norms),
    }  # fmt: skip
    # Figure 4: MLPs of three activations on the rows of an encoder, their inputs rescaled.
    one = task.seen(0)[2]
    rows, classes = torch.from_numpy(one.train), y
    curves: dict[str, list[float]] = {}
    for name, activation in (("ReLU", nn.ReLU), ("tanh", nn.Tanh), ("cosine", Cosine)):
        torch.manual_seed(1)
        head = nn.Sequential(
            nn.Linear(rows.shape[1], 64), activation(), nn.Linear(64, 64), activation(), nn.Linear(64, 10)
        )
        optimiser = torch.optim.Adam(head.parameters(), lr=2e-3)
        for _ in range(3):
            for index in torch.randperm(len(rows)).split(128):
                loss = nn.functional.cross_entropy(head(rows[index]), classes[index])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        batches = [(torch.from_numpy(one.test), parts["test"][1])]
        found = rescaled(head.eval(), batches, "", factors, relative=True)
        curves[name] = found.accuracies[0].tolist()
        result.setdefault("mean_norm", found.mean_norms[0])
    result["activations"] = {"factors": factors, "accuracy": curves}
    # Figure 5: how long the encodings are.
    result["norms"] = {
        seen.name: {"mean": found.mean, "deviation": found.deviation, "skewness": found.skewness}
        for seen in task.seen(0)
        for found in [norms(seen.test)]
    }
    series = {name: ([float(np.log10(one)) for one in factors], values) for name, values in curves.items()}
    drawn = line_chart(
        series, title="Accuracy with inputs set to one length", x_label="length over the mean length, log 10",
        y_label="accuracy", note="MLPs on the encodings of a CNN, MNIST",
    )  # fmt: skip
    (folder / "crossing-scale-activations.svg").write_text(drawn, "utf-8")
    drawn = line_chart(
        {
            module: ([float(np.log10(one)) for one in factors], values)
            for module, values in zip(modules, inside.accuracies.tolist(), strict=True)
        },
        title="Accuracy with one layer's rows set to one length",
        x_label="length over the layer's mean length, log 10",
        y_label="accuracy",
        note="A small transformer over rows of pixels, MNIST",
    )
    (folder / "crossing-scale-layers.svg").write_text(drawn, "utf-8")
    drawn = bar_chart(
        {name: {"deviation over mean": one["deviation"] / one["mean"]} for name, one in result["norms"].items()},
        title="How unequal the lengths of encodings are",
        x_label="standard deviation over mean",
    )
    (folder / "crossing-scale-norms.svg").write_text(drawn, "utf-8")
    return result


PARTS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "decoders": decoders,
    "languages": languages,
    "modalities": modalities,
    "scale": scale,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    path = frame.RESULTS / "crossing.json"
    content = json.loads(path.read_text("utf-8")) if arguments.only and path.exists() else {}
    for name, part in PARTS.items():
        if arguments.only and name not in arguments.only:
            continue
        content[name] = part(path.parent)
        content |= {"question": "crossing", "environment": frame.environment(seed=SEED, threads=arguments.threads)}
        frame.save(path, content)


if __name__ == "__main__":
    main()
