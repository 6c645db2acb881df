"""One small valid file or folder per format, the public functions that read it, and other readers to compare with.

A reading gives what a user would get, in a form that `digest` can compare. Its reference reads the same files with
plain libraries, checksums and all: where the damage left a valid file that says something else, both find the same.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import interbasin as ib
from interbasin.checkpoints import open_checkpoint
from interbasin.datasets import open_data
from interbasin.jobs.adapt.journal import Journal
from interbasin.jobs.adapt.validation import Answer
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.jobs.transport.updates.update import Update
from interbasin.outcome import Outcome, new_outcome
from interbasin.training.checkpoint import Checkpoint as TrainingCheckpoint
from interbasin.training.loop import train

ROWS, WIDTH = 10, 4


@dataclass(frozen=True)
class Reading:
    """A public function, and what it must give.

    Attributes:
        read: Called with the folder, and with one that does not exist yet for what it writes.
        reference: What another reader makes of the same folder; an exception if it refuses. None where whatever differs
            from the whole file is damage that must be noticed.
    """

    read: Callable[[Path, Path], Any]
    reference: Callable[[Path], Any] | None = None


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        makers: Name of a variant -> what fills a folder with it.
        readings: What every mutant is read by, in turn.
    """

    makers: Mapping[str, Callable[[Path], object]]
    readings: tuple[Reading, ...]


def digest(value: Any) -> str:
    """A hash of arrays, tensors, text and numbers in mappings and lists; equal for equal bits."""
    state = hashlib.sha256()
    _feed(state.update, value)
    return state.hexdigest()[:16]


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    if isinstance(value, Tensor):
        plain = value.detach().contiguous()
        update(f"{value.dtype}{tuple(value.shape)}".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        update(f"{value.dtype.newbyteorder('=')}{value.shape}".encode())
        update(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            update(repr(key).encode())
            _feed(update, value[key])
    elif isinstance(value, list | tuple):
        update(f"[{len(value)}".encode())
        for part in value:
            _feed(update, part)
    else:
        update(repr(value).encode())


# ---------------------------------------------------------------------- weights

LAYERS = {"up.weight": (6, 4), "up.bias": (6,), "down.weight": (3, 6), "down.bias": (3,)}


def tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {name: torch.randn(shape, generator=generator) for name, shape in LAYERS.items()}
    rest = {"half": torch.randn(5, generator=generator).bfloat16(), "steps": torch.tensor([seed, 3])}
    return {**made, **rest, "nothing": torch.empty(0, 3), "void": torch.empty(0)}


def read_checkpoint(folder: Path, scratch: Path) -> Any:
    checkpoint = open_checkpoint(_only(folder))
    return dict(sorted(checkpoint.state_dict().items()))


def merge_with_whole(folder: Path, scratch: Path) -> Any:
    scratch.mkdir()
    save_file(tensors(1), scratch / "whole.safetensors")
    ib.merge([_only(folder), scratch / "whole.safetensors"], output=scratch / "merged.safetensors")
    return dict(sorted(open_checkpoint(scratch / "merged.safetensors").state_dict().items()))


def merged(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """What merging makes of the tensors that another reader found."""
    return lambda folder: dict(sorted(ib.merge([read(folder), tensors(1)]).items()))


def _only(folder: Path) -> Path:
    """The file in a folder, or the folder where it is one as a whole."""
    names = [path.name for path in folder.iterdir()]
    return folder / names[0] if len(names) == 1 else folder


def plain_safetensors(folder: Path) -> Any:
    return dict(sorted(load_file(_only(folder)).items()))


def plain_torch(folder: Path) -> Any:
    if _only(folder).read_bytes()[8:9] == b"{":  # which says what it is, whatever its name
        return plain_safetensors(folder)
    if zipfile.is_zipfile(_only(folder)):
        with zipfile.ZipFile(_only(folder)) as archive:
            assert archive.testzip() is None
    content = torch.load(_only(folder), weights_only=True)
    weights = content.get("state_dict", content)
    return dict(sorted((name, value) for name, value in weights.items() if isinstance(value, Tensor)))


def plain_shards(folder: Path) -> Any:
    places = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))["weight_map"]
    shards = {name: load_file(folder / name) for name in set(places.values())}
    assert {key for shard in shards.values() for key in shard} == set(places)
    return dict(sorted((name, shards[place][name]) for name, place in places.items()))


def make_shards(folder: Path) -> None:
    whole = tensors(0)
    parts = [dict(list(whole.items())[:3]), dict(list(whole.items())[3:])]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name)
    index = {key: name for name, part in zip(names, parts, strict=True) for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}, indent=2))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


def make_adapter(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"0.lora_A": (2, 4), "0.lora_B": (6, 2), "2.lora_A": (2, 6), "2.lora_B": (3, 2)}
    factors = {f"base_model.model.{name}.weight": torch.randn(s, generator=generator) for name, s in shapes.items()}
    save_file(factors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["0", "2"], "bias": "none"}
    settings |= {"use_rslora": False, "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {"2": 3}}
    settings |= {"modules_to_save": None, "base_model_name_or_path": "base", "task_type": None}
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2))


def read_adapter_update(folder: Path, scratch: Path) -> Any:
    update = Update.of(folder, mlp())
    dense = {name: update.dense[name] for name in update.dense}
    return {name: (pair.a, pair.b) for name, pair in update.factors.items()} | dense


def plain_adapter(folder: Path) -> Any:
    """Factors with the scale in the second, as the format defines it."""
    settings = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    stored = load_file(folder / "adapter_model.safetensors")
    found = {}
    for layer in ("0", "2"):
        a, b = (stored[f"base_model.model.{layer}.lora_{letter}.weight"] for letter in "AB")
        alpha, rank = settings["lora_alpha"], settings["r"]
        for pattern, value in reversed((settings.get("alpha_pattern") or {}).items()):
            alpha = value if re.match(rf"(.*\.)?({pattern})$", layer) else alpha
        for pattern, value in reversed((settings.get("rank_pattern") or {}).items()):
            rank = value if re.match(rf"(.*\.)?({pattern})$", layer) else rank
        scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        found[f"{layer}.weight"] = (a, b * scale)
    return found


# ---------------------------------------------------------------------- rows of vectors


class Doubled:
    """A translator that gives every row twice, side by side: what comes out tells what was read."""

    source_width, target_width, carries_norms = WIDTH, 2 * WIDTH, True

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.done = stop_at, 0

    def transform(self, x: np.ndarray) -> np.ndarray:
        if len(x) != 64:  # a fingerprint is no work
            self.done += 1
        if self.stop_at is not None and self.done > self.stop_at:
            raise KeyboardInterrupt
        return np.concatenate([x, x], axis=1)


def matrix(seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(dtype)


def apply_to(name: str) -> Callable[[Path, Path], Any]:
    """Translate the file of that name, and read what comes out."""

    def read(folder: Path, scratch: Path) -> Any:
        scratch.mkdir()
        ending = name.rpartition(".")[2]
        translate_vectors(Doubled(), folder / name, scratch / f"new.{ending}", rows_per_batch=3)
        return read_rows(scratch / f"new.{ending}")

    return read


def read_rows(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".npz":
        return members_of(path)
    return columns_of(pq.read_table(path))


def members_of(path: Path, name: str = "x") -> dict[str, Any]:
    """The array of that name in an archive, and the bytes of all other members."""
    with zipfile.ZipFile(path) as archive:  # which compares checksums
        found: dict[str, Any] = {other: archive.read(other) for other in archive.namelist() if other != f"{name}.npy"}
    with np.load(path) as arrays:
        return {**found, name: arrays[name]}


def columns_of(table: pa.Table) -> dict[str, Any]:
    """The columns as lists; text as bytes, which may be none in a damaged file."""
    text = [pa.types.is_string(field.type) or pa.types.is_large_string(field.type) for field in table.schema]
    columns = [
        column.cast(pa.binary()) if is_text else column for column, is_text in zip(table.columns, text, strict=True)
    ]
    return {name: column.to_pylist() for name, column in zip(table.column_names, columns, strict=True)}


def doubled(x: np.ndarray) -> np.ndarray:
    x = x.reshape(-1, x.shape[-1])
    x = x.astype(np.float64 if x.dtype.itemsize > 8 else x.dtype.newbyteorder("="))
    return np.concatenate([x, x], axis=1)


def plain_npz(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "rows.npz") as arrays:
        return {name: arrays[name] for name in ("x", "y") if name in arrays.files}


def doubled_npz(folder: Path) -> Any:
    found = members_of(folder / "rows.npz")
    return {**found, "x": doubled(found["x"])}


def make_parquet(**options: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix().reshape(-1)), WIDTH)
        columns = {
            "id": [f"row {n}" for n in range(ROWS)],
            "vector": lists.cast(pa.list_(pa.float32())),
            "label": [n % 3 for n in range(ROWS)],
        }
        pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=4, **options)

    return make


def doubled_parquet(folder: Path) -> Any:
    columns = columns_of(pq.read_table(folder / "rows.parquet", page_checksum_verification=True))
    lists = [name for name, values in columns.items() if isinstance(values[0], list)]
    return {**columns, lists[0]: [[*row, *row] for row in columns[lists[0]]]}


def make_faiss(kind: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import faiss

        index = faiss.index_factory(WIDTH, kind)
        rows = np.tile(matrix(), (8, 1)) if "IVF" in kind else matrix()
        index.train(rows)
        if "IDMap" in kind:
            index.add_with_ids(rows, np.arange(len(rows), dtype=np.int64) * 7)
        else:
            index.add(rows)
        faiss.write_index(index, str(folder / "rows.faiss"))

    return make


def apply_to_faiss(folder: Path, scratch: Path) -> Any:
    import faiss

    scratch.mkdir()
    output = scratch / "new.faiss"
    translate_vectors(Doubled(), f"faiss://{folder / 'rows.faiss'}", f"faiss://{output}", rows_per_batch=3)
    index = faiss.read_index(str(output))
    return {"metric": index.metric_type, **faiss_rows(index)}


def faiss_rows(index: Any) -> dict[str, Any]:
    """The vectors and ids of an index; of cells, whose order means nothing, sorted by ids."""
    import faiss

    ids = faiss.vector_to_array(index.id_map) if isinstance(index, faiss.IndexIDMap) else None
    inner = faiss.downcast_index(index.index) if ids is not None else index
    if not isinstance(inner, faiss.IndexIVF):
        return {"rows": inner.reconstruct_n(0, inner.ntotal), "ids": ids}
    lists, found = inner.invlists, []
    for cell in range(lists.nlist):
        count = lists.list_size(cell)
        if count:
            codes = faiss.rev_swig_ptr(lists.get_codes(cell), count * inner.code_size).view(np.float32)
            names = faiss.rev_swig_ptr(lists.get_ids(cell), count).tolist()
            found += [*zip(names, codes.reshape(count, -1).tolist(), strict=True)]
    found.sort()
    return {"rows": np.array([row for _, row in found], dtype=np.float32), "ids": [name for name, _ in found]}


def plain_faiss(folder: Path) -> Any:
    import faiss

    index = faiss.read_index(str(folder / "rows.faiss"))
    found = faiss_rows(faiss.downcast_index(index))
    return {"metric": index.metric_type, **found, "rows": np.concatenate([found["rows"]] * 2, axis=1)}


# ---------------------------------------------------------------------- data


def read_data(name: str, **options: Any) -> Callable[[Path, Path], Any]:
    """Samples and labels of a data set, as a network gets them."""

    def read(folder: Path, scratch: Path) -> Any:
        batches = [*open_data(folder / name, batch_size=4, **options)]
        if not isinstance(batches[0], tuple):
            return torch.cat(batches), None
        inputs = [batch["input_ids"] if isinstance(batch, dict) else batch for batch, _ in batches]
        return torch.cat(inputs), torch.cat([labels for _, labels in batches])

    return read


def as_samples(x: np.ndarray, y: np.ndarray | None = None) -> Any:
    inputs = torch.from_numpy(x.astype(np.int64 if x.dtype.kind in "iu" and x.dtype != np.uint8 else np.float32))
    inputs = inputs / 255 if x.dtype == np.uint8 else inputs
    assert bool(inputs.isfinite().all())
    if y is None:
        return inputs, None
    y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
    return inputs, torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64))


def plain_csv(folder: Path) -> Any:
    with (folder / "rows.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    place = [name.strip().lower() for name in rows[0]].index("label")
    numbers = [[float(cell) for n, cell in enumerate(row) if n != place] for row in rows[1:]]
    assert len({len(row) for row in rows}) == 1
    return _with_float32(numbers), _as_labels([row[place] for row in rows[1:]])


def plain_tsv(folder: Path) -> Any:
    with (folder / "rows.tsv").open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if row]
    assert len({len(row) for row in rows}) == 1
    labels = _as_values([row[0] for row in rows])
    order = sorted(set(labels))
    return _with_float32([[float(cell) for cell in row[1:]] for row in rows])[:, None], torch.tensor(
        [order.index(label) for label in labels]
    )


def _with_float32(numbers: list[list[float]]) -> Tensor:
    rows = torch.from_numpy(np.array(numbers, dtype=np.float64).astype(np.float32))
    assert bool(rows.isfinite().all())
    return rows


def _as_values(cells: list[str]) -> list[Any]:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            values = [kind(cell) for cell in cells]
            assert all(abs(value) < math.inf for value in values)
            return values
    return cells


def _as_labels(cells: list[str]) -> Tensor:
    values = _as_values(cells)
    if values is not cells:
        return torch.tensor(values)
    names = sorted(set(cells))
    return torch.tensor([names.index(cell) for cell in cells])


def letters(texts: list[str], **options: Any) -> dict[str, Tensor]:
    """A tokenizer of which every letter is a token."""
    return {"input_ids": torch.tensor([([*map(ord, text)] + [0] * 200)[:200] for text in texts])}


def plain_jsonl(folder: Path) -> Any:
    text = (folder / "rows.jsonl").read_text("utf-8-sig")
    entries = [json.loads(line) for line in text.split("\n") if line.strip()]
    assert all(isinstance(entry["text"], str) for entry in entries)
    tokens = letters([entry["text"] for entry in entries])["input_ids"]
    labels = [entry.get("label") for entry in entries]
    if all(label is None for label in labels):
        return tokens, None
    assert None not in labels
    if all(isinstance(label, str) for label in labels):
        return tokens, _as_labels([f"'{label}" for label in labels])  # never as a number
    return tokens, torch.tensor([*map(int, labels)]) if all(
        isinstance(label, int) for label in labels
    ) else torch.tensor(labels)


def make_text(name: str, lines: Callable[[int], str], head: str = "") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(head + "".join(f"{lines(n)}\n" for n in range(ROWS)), "utf-8")


def _cells(n: int, between: str) -> str:
    return between.join(map(repr, matrix(dtype="float64")[n].round(4).tolist()))


# ---------------------------------------------------------------------- what this package saves


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def make_map(kind: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        square = torch.linalg.qr(torch.randn(4, 4, generator=_generator(), dtype=torch.float64)).Q
        maps = {
            "orthogonal": lambda: ib.maps.Orthogonal(square),
            "affine": lambda: ib.maps.Affine(ib.maps.Linear(square[:3]), square[3, :3]),
            "permutation": lambda: ib.maps.Permutation(torch.tensor([2, 0, 3, 1])),
            "blocks": lambda: ib.maps.Blocks([ib.maps.Orthogonal(square), ib.maps.Linear(square * 2)]),
        }
        maps[kind]().save(folder, force=True)

    return make


def read_map(folder: Path, scratch: Path) -> Any:
    found = ib.maps.load(folder)
    rows = torch.randn(5, found.source_width, generator=_generator(), dtype=torch.float64)
    return type(found).__name__, found(rows)


def make_alignment(folder: Path) -> None:
    wiring = ib.wire(mlp(), torch.ones(2, 4))
    wiring.sample(seed=0).save(folder, force=True)


def read_alignment(folder: Path, scratch: Path) -> Any:
    found = ib.Alignment.load(folder)
    return {name: mapping.matrix for name, mapping in found.maps.items()}, found.wiring.to_json()


def make_translator(method: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        x = np.random.default_rng(0).standard_normal((40, WIDTH))
        turn = np.linalg.qr(np.random.default_rng(1).standard_normal((WIDTH, WIDTH)))[0]
        y = x @ turn + 0.1 * np.random.default_rng(2).standard_normal(x.shape)
        ib.Translator(method=method).fit(x, y, card={"source_model": "old", "target_model": "new"}).save(
            folder, force=True
        )

    return make


def read_translator(folder: Path, scratch: Path) -> Any:
    found = ib.Translator.load(folder)
    told = [found.chosen_, found.details_, found.judged_, found.card_.to_json(), found.get_params()]
    return found.transform(matrix(dtype="float64")), json.dumps(told, sort_keys=True, default=str)


def make_moments(folder: Path) -> None:
    rows = torch.randn(20, 5, generator=_generator(), dtype=torch.float64)
    ib.PairedMoments.of(rows[:, :3], rows[:, 2:], grams=True).save(folder, force=True)


def read_moments(folder: Path, scratch: Path) -> Any:
    found = ib.PairedMoments.load(folder)
    return found.count, found.batches, found.cross(), ib.fit.procrustes(found).map.matrix


def make_outcome(folder: Path) -> None:
    with new_outcome(folder, job="test", request={"seed": 0}, force=True) as draft:
        draft.metrics["share"] = 0.5
        draft.table("points", {"x": [1.0, 2.0], "name": ["a", "b"]})
        draft.text("page", "some words\n")


def read_outcome(folder: Path, scratch: Path) -> Any:
    found = Outcome.load(folder)
    found.verify()
    return dict(found.metrics), found.table("points"), found.path("page").read_text("utf-8")


def plain_outcome(folder: Path) -> Any:
    """The metrics as they stand there, which have no checksum; and files that have the hashes which stand beside."""
    document = json.loads((folder / "outcome.json").read_text("utf-8"))
    files = {artefact["name"]: artefact["path"] for artefact in document["artefacts"]}
    for artefact in document["artefacts"]:
        for name, told in artefact["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == told["sha256"]
    rows = [*csv.reader(io.StringIO((folder / files["points"]).read_text("utf-8")))]
    columns = next(artefact["columns"] for artefact in document["artefacts"] if artefact["name"] == "points")
    table = {
        name: [float(row[n]) if columns[name] == "number" else row[n] for row in rows[1:]]
        for n, name in enumerate(rows[0])
    }
    return document["metrics"], table, (folder / files["page"]).read_text("utf-8")


# ---------------------------------------------------------------------- work that was stopped


def start_apply(ending: str) -> Callable[[Path], None]:
    """The source, and the folder of an unfinished output of which two batches are done."""

    def make(folder: Path) -> None:
        from tests.fuzz.trees import write_tree

        source = io.BytesIO()
        if ending == "parquet":
            pq.write_table(pa.table({"id": [*range(ROWS)], "vector": matrix().tolist()}), source)
        else:
            (np.save(source, matrix()) if ending == "npy" else np.savez(source, x=matrix(), other=np.arange(3)))
        write_tree({f"rows.{ending}": source.getvalue()}, folder)  # with the time that is part of its fingerprint
        try:
            translate_vectors(Doubled(stop_at=2), folder / f"rows.{ending}", folder / f"new.{ending}", rows_per_batch=3)
        except KeyboardInterrupt:
            return
        raise AssertionError("it should have been stopped")

    return make


def go_on_with_apply(folder: Path, scratch: Path) -> Any:
    source = next((path for path in folder.iterdir() if path.name.startswith("rows.")), folder / "rows.npy")
    output = folder / f"new{source.suffix}"
    translate_vectors(Doubled(), source, output, rows_per_batch=3)
    return read_rows(output)


def _train(folder: Path, stop_at: int | None = None) -> Any:
    weight = nn.Parameter(torch.zeros(4))
    rows = torch.randn(12, 4, generator=_generator())
    steps = 0

    def loss(batch: Tensor, number: int) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == stop_at:
            raise KeyboardInterrupt
        return (batch @ weight - batch.sum(1)).square().mean()

    checkpoint = TrainingCheckpoint(folder, "fuzz", steps=1)
    train([weight], [rows[:6], rows[6:]], loss, epochs=3, rate=0.1, seed=0, checkpoint=checkpoint)
    return weight.detach()


def start_training(folder: Path) -> None:
    try:
        _train(folder, stop_at=4)
    except KeyboardInterrupt:
        return
    raise AssertionError("it should have been stopped")


def _answer() -> Answer:
    outputs = torch.randn(5, 3, generator=_generator())
    return Answer(outputs, outputs.square(), {"training": 1.5}, 7)


def go_on_with_adapting(folder: Path, scratch: Path) -> Any:
    """An answer that is kept, or, where it is damaged, computed anew."""
    found = Journal(folder).recall("an answer", _answer)
    return found.outputs, found.features, dict(found.seconds), found.steps


def start_recording(folder: Path) -> None:
    ib.record(mlp(), [torch.ones(3, 4)], ["0:output"], state=folder)
    batches = torch.randn(4, 3, 4, generator=_generator())
    for path in folder.iterdir():
        path.unlink()

    def some() -> Any:
        for number, batch in enumerate(batches):
            if number == 2:
                raise KeyboardInterrupt
            yield batch

    try:
        ib.record(mlp(), _Again(some), ["0:output"], state=folder, every=1)
    except KeyboardInterrupt:
        return
    raise AssertionError("it should have been stopped")


class _Again:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Any:
        return self.make()


def go_on_with_recording(folder: Path, scratch: Path) -> Any:
    batches = [*torch.randn(4, 3, 4, generator=_generator())]
    found = ib.record(mlp(), batches, ["0:output"], state=folder, every=1)
    return found.batches, {repr(pair): moments.cross() for pair, moments in found.moments.items()}


FORMATS: dict[str, Format] = {
    "safetensors": Format(
        {"plain": lambda folder: save_file(tensors(0), folder / "weights.safetensors", metadata={"format": "pt"})},
        (Reading(read_checkpoint, plain_safetensors), Reading(merge_with_whole, merged(plain_safetensors))),
    ),
    "shards": Format({"two": make_shards}, (Reading(read_checkpoint, plain_shards),)),
    "pt": Format(
        {
            "plain": lambda folder: torch.save(tensors(0), folder / "weights.pt"),
            "of a training": lambda folder: torch.save({"state_dict": tensors(0), "epoch": 3}, folder / "weights.pt"),
            "tied": lambda folder: torch.save(
                (lambda t: {**t, "with half": t["half"]})(tensors(0)), folder / "weights.pt"
            ),
            "old": lambda folder: torch.save(tensors(0), folder / "weights.pt", _use_new_zipfile_serialization=False),
        },
        (Reading(read_checkpoint, plain_torch), Reading(merge_with_whole, merged(plain_torch))),
    ),
    "adapter": Format({"LoRA": make_adapter}, (Reading(read_adapter_update, plain_adapter),)),
    "npy": Format(
        {
            "float32": lambda folder: np.save(folder / "rows.npy", matrix()),
            "float16": lambda folder: np.save(folder / "rows.npy", matrix(dtype="float16")),
            "Fortran": lambda folder: np.save(folder / "rows.npy", np.asfortranarray(matrix())),
            "three axes": lambda folder: np.save(folder / "rows.npy", matrix().reshape(5, 2, WIDTH)),
        },
        (
            Reading(apply_to("rows.npy"), lambda folder: doubled(np.load(folder / "rows.npy"))),
            Reading(read_data("rows.npy"), lambda folder: as_samples(np.load(folder / "rows.npy"))),
        ),
    ),
    "npz": Format(
        {
            "stored": lambda folder: np.savez(folder / "rows.npz", x=matrix(), y=np.arange(ROWS)),
            "packed": lambda folder: np.savez_compressed(folder / "rows.npz", x=matrix(), y=np.arange(ROWS)),
            "Fortran": lambda folder: np.savez(folder / "rows.npz", x=np.asfortranarray(matrix()), y=np.arange(ROWS)),
        },
        (
            Reading(apply_to("rows.npz"), doubled_npz),
            Reading(
                read_data("rows.npz"), lambda folder: as_samples(*(lambda a: (a["x"], a.get("y")))(plain_npz(folder)))
            ),
        ),
    ),
    "parquet": Format(
        {
            "plain": make_parquet(compression="none", use_dictionary=False),
            "snappy": make_parquet(compression="snappy"),
            "zstd": make_parquet(compression="zstd", data_page_version="2.0"),
            "with checksums": make_parquet(compression="none", write_page_checksum=True),
        },
        (
            Reading(apply_to("rows.parquet"), doubled_parquet),
            Reading(
                read_data("rows.parquet"),
                lambda folder: (lambda t: as_samples(np.array(t["vector"], dtype=np.float32), np.array(t["label"])))(
                    columns_of(
                        pq.read_table(
                            folder / "rows.parquet", columns=["vector", "label"], page_checksum_verification=True
                        )
                    )
                ),
            ),
        ),
    ),
    "faiss": Format(
        {kind: make_faiss(kind) for kind in ("Flat", "IVF4,Flat", "HNSW8,Flat", "IDMap,Flat")},
        (Reading(apply_to_faiss, plain_faiss),),
    ),
    "csv": Format(
        {"plain": make_text("rows.csv", lambda n: f"{_cells(n, ',')},{n % 3}", "a,b,c,d,label\n")},
        (Reading(read_data("rows.csv"), plain_csv),),
    ),
    "tsv": Format(
        {"plain": make_text("rows.tsv", lambda n: "\t".join((str(n % 3 + 1), _cells(n, "\t"))))},
        (Reading(read_data("rows.tsv"), plain_tsv),),
    ),
    "jsonl": Format(
        {
            "numbers": make_text("rows.jsonl", lambda n: json.dumps({"text": f"text {n}", "label": n % 3})),
            "words": make_text("rows.jsonl", lambda n: json.dumps({"text": f"text {n}", "label": "abc"[n % 3]})),
        },
        (Reading(read_data("rows.jsonl", tokenizer=letters), plain_jsonl),),
    ),
    "map": Format(
        {kind: make_map(kind) for kind in ("orthogonal", "affine", "permutation", "blocks")}, (Reading(read_map),)
    ),
    "alignment": Format({"plain": make_alignment}, (Reading(read_alignment),)),
    "translator": Format(
        {method: make_translator(method) for method in ("procrustes", "ridge", "relative-projection")},
        (Reading(read_translator),),
    ),
    "statistics": Format({"plain": make_moments}, (Reading(read_moments),)),
    "outcome": Format({"plain": make_outcome}, (Reading(read_outcome, plain_outcome),)),
    "unfinished apply": Format(
        {ending: start_apply(ending) for ending in ("npy", "npz", "parquet")}, (Reading(go_on_with_apply),)
    ),
    "unfinished training": Format({"plain": start_training}, (Reading(lambda folder, scratch: _train(folder)),)),
    "unfinished adapting": Format(
        {"plain": lambda folder: Journal(folder).recall("an answer", _answer)}, (Reading(go_on_with_adapting),)
    ),
    "unfinished recording": Format({"plain": start_recording}, (Reading(go_on_with_recording),)),
}
