"""One door to all formats: `open_checkpoint` looks at what is there and hands it to the file that knows the format.

Quantised checkpoints are refused by name: their numbers are codes, on which no map can act.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from interbasin.checkpoints.checkpoint import Checkpoint, StoredFile, head_of, kind_of, read_json
from interbasin.checkpoints.folded import STEM as FOLDED_STEM
from interbasin.checkpoints.folded import without_fillers
from interbasin.checkpoints.links import require_inside
from interbasin.checkpoints.lora import CONFIGURATION, Adapter, read_adapter
from interbasin.checkpoints.safetensors_files import open_safetensors
from interbasin.errors import CheckpointError
from interbasin.storage import as_path
from interbasin.text import list_names, plural

INDEX = ".index.json"
SHARD = re.compile(r"-\d+-of-(\d+)\.safetensors$")  # how a file of several is called
# What a folder's weights are called, in the order in which transformers looks for them.
WEIGHTS = ("model.safetensors", "model.safetensors" + INDEX, "pytorch_model.bin", "pytorch_model.bin" + INDEX)
FOLDED_WEIGHTS = (f"{FOLDED_STEM}.safetensors", f"{FOLDED_STEM}.safetensors{INDEX}")
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Weights of other programs, to name them where there are no others.
FOREIGN = {
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".onnx": "ONNX",
    ".tflite": "TensorFlow Lite",
    ".mlmodel": "Core ML",
    ".npz": "NumPy",
}
# What quantisation methods call themselves in config.json -> their names for people.
PRETTY = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "hqq": "HQQ", "fp8": "FP8", "quanto": "quanto"}
# GGUF, and the three formats that came before it (their magic numbers are stored with the low byte first).
GGUF = (b"GGUF", b"lmgg", b"tjgg", b"algg")
# Ends of names -> the method whose tensors are called so; the first that fits is named.
NAMES = {
    "GPTQ": r"\.g_idx$",
    "AWQ": r"\.qzeros$",
    "bitsandbytes": r"\.(SCB|weight_format|absmax|quant_map|nested_absmax|nested_quant_map)$|\.quant_state\.",
    "HQQ": r"\.W_q$",
    "compressed-tensors": r"\.weight_packed$",
    "FP8": r"\.weight_scale_inv$",
}
ADVICE = (
    "give the network that it was made from, or dequantise it: load it with transformers, call model.dequantize() and "
    "save_pretrained"
)


def open_checkpoint(path: str | PathLike[str], *, part: str | None = None) -> Checkpoint:
    """The weights at ``path``, checked as far as can be without reading them.

    Names, dtypes and shapes are known at once, and the sizes of the files are compared with what their headers promise.
    Nothing that is loaded is ever executed.

    - A ``.safetensors`` file.
    - A file of ``torch.save``: a state dict, or what a training program saved around one (of timm, for one). A
      ``module.`` that all names begin with is taken off.
    - A folder as ``transformers`` saves it, with one file or with an index and shards; of torch, if there is no other.
    - A folder with a PEFT adapter.

    Args:
        path: A file or a folder.
        part: For a torch file that holds several state dicts: the name of the one to take. By default those are tried
            that timm tries, averaged weights (``state_dict_ema``) first.

    Raises:
        CheckpointError: If there are no weights, or they are damaged, incomplete, quantised or could run code.
        UnknownNameError: If there is no such part; lists those there are.

    Example:
        >>> import tempfile, torch
        >>> path = tempfile.mkdtemp() + "/weights.pt"
        >>> torch.save({"state_dict": {"up.weight": torch.ones(3, 2)}, "epoch": 7}, path)
        >>> checkpoint = open_checkpoint(path)
        >>> checkpoint.names, checkpoint.shape("up.weight"), checkpoint.part
        (('up.weight',), (3, 2), 'state_dict')
        >>> checkpoint["up.weight"].sum().item()
        6.0
    """
    path = as_path(path, "A checkpoint", CheckpointError)
    try:
        if path.is_file() and not path.name.endswith(INDEX):
            source, kind = _source(path, part)
            return _checkpoint(path, kind, [source])
        if part is not None and (path.is_file() or path.is_dir()):
            raise _no_parts(path, part, "an index of several files" if path.is_file() else "a folder")
        if path.is_dir():
            return _open_folder(path)
        if path.is_file():
            return _checkpoint(path, "sharded", _shards(path))
        problem = "that is a pipe or a device" if path.exists() else "there is nothing there"
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        problem = f"that could not be looked at ({error.strerror or error})"
    raise CheckpointError(f"Weights were to be read from {path}, but {problem}; give a file or a folder with weights.")


def _no_parts(path: Path, part: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"part={part!r} chooses among the state dicts of one torch file, and {path} is {what}; leave part= out."
    )


def weights_in(folder: Path) -> Path | None:
    """The file that a folder's weights are in, or the index of the files; None if it has none that are read here."""
    adapter = (folder / CONFIGURATION).is_file()
    for name in ADAPTER_WEIGHTS if adapter else (*WEIGHTS, *FOLDED_WEIGHTS):
        if (folder / name).is_file():
            return folder / name
    if adapter:
        return None
    for ending in (".safetensors" + INDEX, ".safetensors"):
        others = sorted(path for path in folder.iterdir() if path.name.endswith(ending) and path.is_file())
        if len(others) > 1:
            raise CheckpointError(
                f"{folder} holds {list_names(path.name for path in others)} and no {WEIGHTS[1]} that says how they "
                "belong together; copy the index as well, or name one of the files."
            )
        if others:
            if (shard := SHARD.search(others[0].name)) and int(shard[1]) > 1:
                raise CheckpointError(
                    f"{folder} holds {others[0].name}, one of {int(shard[1])} files, and no {WEIGHTS[1]} that says "
                    "what is in the others; copy all files and the index."
                )
            return others[0]
    return None


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / "config.json").is_file():
        _refuse_quantised_configuration(folder / "config.json", read_json(folder / "config.json"))
    adapter = read_adapter(folder) if (folder / CONFIGURATION).is_file() else None
    weights = weights_in(folder)
    if weights is None:
        raise _no_weights(folder, adapter)
    require_inside(weights, folder)
    if weights.name.endswith(INDEX):
        return without_fillers(_checkpoint(folder, "sharded", _shards(weights), folder))
    source, kind = _source(weights, None)
    return without_fillers(_checkpoint(folder, "adapter" if adapter else kind, [source], folder, adapter))


def _checkpoint(
    path: Path, kind: str, sources: list[StoredFile], folder: Path | None = None, adapter: Adapter | None = None
) -> Checkpoint:
    places, ties, metadata = gather(path, sources)
    _refuse_quantised_names(path, places)
    entries = {name: source.entries[name] for name, source in places.items()}
    checkpoint = Checkpoint(path, kind, places, entries, ties, metadata, folder, adapter)
    if len(sources) > 1:
        return checkpoint
    return replace(checkpoint, part=sources[0].part, prefix=sources[0].prefix, left_out=sources[0].left_out)


def gather(path: Path, sources: list[StoredFile]) -> tuple[dict[str, StoredFile], dict[str, str], dict[str, str]]:
    """The tensors, ties and notes of several files, as a checkpoint wants them."""
    places: dict[str, StoredFile] = {}
    for source in sources:
        twice = [name for name in source.entries if name in places]
        if twice:
            raise CheckpointError(
                f"{path} has {list_names(twice)} twice, in {places[twice[0]].path.name} and in {source.path.name}; "
                "remove the files that do not belong to it, or save it again."
            )
        places |= dict.fromkeys(source.entries, source)
    ties = {name: stored for source in sources for name, stored in source.ties.items()}
    lost = [name for name, stored in ties.items() if stored not in places or name in places]
    if lost:
        raise CheckpointError(
            f"{path} says that {list_names(lost)} is tied to {ties[lost[0]]}, which does not fit the tensors it holds; "
            "save it again with the program that wrote it."
        )
    return places, ties, {key: value for source in sources for key, value in source.metadata.items()}


def _source(path: Path, part: str | None) -> tuple[StoredFile, str]:
    head = head_of(path)
    if head.startswith(GGUF):
        raise _gguf_error(path)
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        if part is not None:
            raise _no_parts(path, part, "a safetensors file")
        return open_safetensors(path), "safetensors"
    if head.startswith((b"PK", b"\x80")):
        from interbasin.checkpoints.torch_files import open_torch  # with torch, which others do without

        return open_torch(path, part), "torch"
    raise CheckpointError(
        f"{path} is neither a safetensors file nor one of torch.save: it is {kind_of(head)}; give the weights."
    )


def _shards(index: Path) -> list[StoredFile]:
    """The files that an index names, after checking that they and it tell the same."""
    weight_map = read_json(index).get("weight_map")
    is_map = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    if not is_map or not weight_map:
        raise CheckpointError(
            f"{index} has no weight_map of tensors to files; copy or download it again, or save the checkpoint again."
        )
    files = sorted(set(weight_map.values()))
    outside = [name for name in files if _leaves(name)]
    if outside:
        raise CheckpointError(
            f"{index} names {list_names(map(json.dumps, outside))}, which is not inside its folder; such an index is "
            "not followed: put the shards beside it and name them alone."
        )
    missing = [name for name in files if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index} names {plural(len(files), 'file')} and not all are there: {list_names(missing)} missing."
        )
    for name in files:
        require_inside(index.parent / name, index.parent)
    sources = [_source(index.parent / name, None)[0] for name in files]
    gather(index, sources)
    for name, source in zip(files, sources, strict=True):
        present, promised = {*source.entries, *source.ties}, {key for key, file in weight_map.items() if file == name}
        if promised - present:
            elsewhere = [other.path.name for other in sources if {*other.entries, *other.ties} & (promised - present)]
            hint = f" (some are in {list_names(elsewhere)})" if elsewhere else ""
            raise CheckpointError(
                f"{index} says that {name} holds {list_names(sorted(promised - present))}, but it does not{hint}; "
                "copy index and shards again, together."
            )
        unlisted = {*source.entries} - promised
        if unlisted:
            raise CheckpointError(
                f"{name} holds {list_names(sorted(unlisted))}, which {index} does not list; copy both again, together."
            )
    return sources


def _leaves(name: str) -> bool:
    """Whether a file name in an index points out of the folder, on this system or another."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return not name or posix.is_absolute() or bool(windows.anchor) or ".." in (*posix.parts, *windows.parts)


def _no_weights(folder: Path, adapter: Adapter | None) -> CheckpointError:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        if path.suffix == ".gguf":
            return _gguf_error(path)
        if path.suffix in FOREIGN:
            return CheckpointError(
                f"{folder} holds weights of {FOREIGN[path.suffix]} only ({path.name}); convert them to safetensors."
            )
    expected = list_names(ADAPTER_WEIGHTS if adapter else WEIGHTS)
    present = list_names(path.name for path in files) or "no files"
    return CheckpointError(
        f"{folder} holds no weights: expected one of {expected}, found {present}; give the folder they were saved to."
    )


# ---------------------------------------------------------------------- quantised weights


def _refuse_quantised_configuration(path: Path, configuration: Mapping[str, Any]) -> None:
    """Refuse a ``config.json`` that says that weights are quantised."""
    settings = configuration.get("quantization_config")
    if settings is None:
        return
    settings = settings if isinstance(settings, dict) else {}
    method = str(settings.get("quant_method") or "")
    if not method and any(key.startswith(("load_in_", "_load_in_", "bnb_")) for key in settings):
        method = "bitsandbytes"
    name = PRETTY.get(method.lower(), method) or "a method it does not name"
    raise CheckpointError(f"{path} says that the weights are quantised with {name}, which cannot be carried; {ADVICE}.")


def _refuse_quantised_names(path: Path, names: Iterable[str]) -> None:
    """Refuse tensors whose names only a quantised network has."""
    names = list(names)
    for method, pattern in NAMES.items():
        tensor = next((name for name in names if re.search(pattern, name)), None)
        # GPTQ and AWQ call the codes themselves qweight; without them the other names could be anyone's.
        if tensor and (method not in ("GPTQ", "AWQ") or any(name.endswith(".qweight") for name in names)):
            raise CheckpointError(
                f"{path} is quantised with {method} (it holds {tensor}), which cannot be carried; {ADVICE}."
            )


def _gguf_error(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is a GGUF file of llama.cpp, whose weights are quantised or laid out for it alone; give the network "
        "it was made from, or load it with transformers (from_pretrained(folder, gguf_file=name)) and save."
    )
