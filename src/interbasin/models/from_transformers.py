"""Networks of transformers: a folder, or a hub id that the local cache has; and PEFT adapters put on networks."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.checkpoints import Checkpoint, open_checkpoint
from interbasin.checkpoints.checkpoint import read_json
from interbasin.checkpoints.folded import is_folded, without_refusal
from interbasin.checkpoints.lora import DEFAULT, name_in_file, read_adapter
from interbasin.errors import CheckpointError
from interbasin.extras import import_extra, is_transformers_model
from interbasin.models.base import LoadedModel, load_weights, map_checkpoint, refuse_mismatch, without_numbers
from interbasin.models.example_inputs import example_inputs
from interbasin.models.folding import read_folding
from interbasin.randomness import generator_of
from interbasin.text import one_line

DOWNLOADS = "INTERBASIN_DOWNLOADS"
CONFIGURATION, PREPROCESSOR = "config.json", "preprocessor_config.json"


def snapshot(name: str) -> Path:
    """The folder of the local cache that holds a hub id; downloaded first only if the environment allows it."""
    hub = import_extra("huggingface_hub", f"Loading {name} from the hub", "hf")
    allowed = os.environ.get(DOWNLOADS) == "1"
    try:
        return Path(hub.snapshot_download(name, local_files_only=not allowed))
    # The hub, the network and the cache each have their own errors.
    except Exception as error:
        where = "nor could it be downloaded" if allowed else "nor in the local cache of the hub"
        reason = f" ({one_line(error)})" if allowed else ""
        raise CheckpointError(
            f"The model {name!r} is neither a folder here {where}{reason}; check the spelling, or fetch it: "
            f"hf download {name}" + ("." if allowed else f" (or allow downloads with {DOWNLOADS}=1).")
        ) from error


def load_folder(
    text: str, folder: Path, *, strict: bool, trust_remote_code: bool, seed: int, in_files: bool = False
) -> LoadedModel:
    """The network that a folder's configuration names, with the folder's weights, or these left in their files."""
    if not (folder / CONFIGURATION).is_file():
        raise CheckpointError(
            f"{folder} has no {CONFIGURATION}, so that it does not say which network it holds; give a folder that "
            f"transformers saved, or package.module:factory@{folder}."
        )
    settings = read_json(folder / CONFIGURATION)
    checkpoint = open_checkpoint(folder)
    if is_folded(checkpoint):
        settings = without_refusal(settings)
    transformers = import_extra("transformers", f"Loading {folder}", "hf")
    kind, name, remote = _class_of(transformers, folder, settings, trust_remote_code)
    if is_folded(checkpoint):
        model, unused = _load_folded(transformers, kind, name, checkpoint, folder, strict)
    elif in_files and (mapped := _map_folder(transformers, kind, name, checkpoint, folder, remote)) is not None:
        model, unused = mapped, ()
    else:
        options: dict[str, Any] = {"trust_remote_code": True} if remote else {}
        try:
            with _quiet(transformers.utils.logging):
                model, report = kind.from_pretrained(
                    folder,
                    local_files_only=True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # so that the report names them
                    **_dtype_option(transformers.__version__, checkpoint),
                    **options,
                )
        # Each of a thousand architectures may object in its own way.
        except Exception as error:
            raise CheckpointError(
                f"transformers could not load {folder} as {name} ({type(error).__name__}: {one_line(error)}); does its "
                "own from_pretrained load it?"
            ) from error
        _check_report(checkpoint, name, report, strict)
        unused = tuple(sorted(report["unexpected_keys"]))
    preprocessor = read_json(folder / PREPROCESSOR) if (folder / PREPROCESSOR).is_file() else None
    inputs = example_inputs(model, generator_of(seed), preprocessor)
    return LoadedModel(model.eval(), inputs, checkpoint, text, str(model.config.model_type), unused)


def _load_folded(
    transformers: Any, kind: Any, name: str, checkpoint: Checkpoint, folder: Path, strict: bool
) -> tuple[Any, tuple[str, ...]]:
    """A network that was folded: transformers makes the one it was folded from, and the weights go into that."""
    try:
        with _quiet(transformers.utils.logging):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            config.architectures = [kind.__name__]
            model = kind(config)
    except Exception as error:
        raise CheckpointError(
            f"transformers could not make the {name} that {folder} was folded from ({type(error).__name__}: "
            f"{one_line(error)}); was its configuration changed?"
        ) from error
    try:
        return model, load_weights(model, checkpoint, f"the folded {name}", strict=strict)
    except CheckpointError as error:
        saved_with = read_folding(folder)[1]
        if saved_with in (None, transformers.__version__):
            raise
        raise CheckpointError(
            f"{error} It was saved with transformers {saved_with}, and this is {transformers.__version__}, which may "
            "name its tensors otherwise."
        ) from error


def load_plainly(kind: Any, folder: Path) -> nn.Module | None:
    """The network that transformers' own loader makes of a folder, if that has all its tensors and no other."""
    transformers = import_extra("transformers", f"Loading {folder}", "hf")
    checkpoint = open_checkpoint(folder)
    try:
        with _quiet(transformers.utils.logging):
            model, report = kind.from_pretrained(
                folder,
                local_files_only=True,
                output_loading_info=True,
                **_dtype_option(transformers.__version__, checkpoint),
            )
    except Exception:  # whatever it has against the folder, it does not load it
        return None
    network: nn.Module = model.eval()
    return None if any(report.values()) else network


def _map_folder(
    transformers: Any, kind: Any, name: str, checkpoint: Checkpoint, folder: Path, remote: bool
) -> Any | None:
    """A network whose weights stay in their files; None where its tensors are not stored by the names it has them by.

    Then transformers loads it, which renames tensors, and copies only those that it joins (from version 5 on).
    """
    options: dict[str, Any] = {"trust_remote_code": True} if remote else {}
    try:
        with _quiet(transformers.utils.logging), without_numbers():
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **options)
            model = kind.from_config(config, **options) if hasattr(kind, "from_config") else kind(config)
            model.tie_weights()
    # Each of a thousand architectures may object in its own way; and then it may load all the same.
    except Exception:
        return None
    own = model.state_dict(keep_vars=True)
    held = {id(tensor) for tensor_name, tensor in own.items() if tensor_name in checkpoint}
    if set(checkpoint) - set(own) or any(id(tensor) not in held for tensor in own.values()):
        return None
    map_checkpoint(model, checkpoint, f"its {name}")
    return model


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network by the names, and in the pieces, in which its checkpoint stores them.

    From version 5 on, transformers renames tensors as it loads them, and joins those of experts; what is written with
    the names in memory, only the same version reads. For any other network this is its ``state_dict()``.
    """
    own: dict[str, Tensor] = model.state_dict()
    loading: Any = sys.modules.get("transformers.core_model_loading")  # earlier versions have none and rename nothing
    if loading is None or not is_transformers_model(model):
        return own
    stored: dict[str, Tensor] = loading.revert_weight_conversion(model, own)
    return stored


def _class_of(transformers: Any, folder: Path, settings: dict[str, Any], trust: bool) -> tuple[Any, str, bool]:
    """The class to load, what to call it, and whether its code comes with the folder."""
    named = settings.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else None
    brought = settings.get("auto_map")
    brought = {str(key): str(value) for key, value in brought.items()} if isinstance(brought, dict) else {}
    networks = {key: value for key, value in brought.items() if key.startswith("AutoModel")}
    if networks and trust:
        fits = [key for key, value in networks.items() if name and value.rpartition(".")[2] == name]
        key = (fits or list(networks))[0]
        return getattr(transformers, key), name or key, True
    known = _class_named(transformers, name) if name else transformers.AutoModel
    if known is not None:
        return known, name or "AutoModel", False
    if networks:
        raise CheckpointError(
            f"{folder} is a network whose code comes with it ({', '.join(sorted(set(networks.values())))}), and such "
            "code is not run unasked; read it, and ask for it with trust_remote_code=True (--trust-remote-code)."
        )
    raise CheckpointError(
        f"{folder / CONFIGURATION} names the architecture {name}, which transformers {transformers.__version__} does "
        "not have; another version of transformers may."
    )


def _class_named(transformers: Any, name: str) -> Any:
    """The network class of that name; None if there is none."""
    try:
        kind = getattr(transformers, name, None)
    except (ImportError, RuntimeError) as error:
        raise CheckpointError(
            f"transformers knows {name} but cannot import it ({one_line(error)}); install what it asks for."
        ) from error
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None


def _check_report(checkpoint: Checkpoint, name: str, report: dict[str, Any], strict: bool) -> None:
    if report["mismatched_keys"]:
        tensor, stored, expected = sorted(report["mismatched_keys"])[0]
        raise CheckpointError(
            f"{tensor} has shape {tuple(stored)} in {checkpoint.path} and {tuple(expected)} in its {name}; "
            "configuration and weights are of different networks: copy them again, together."
        )
    unexpected = sorted(report["unexpected_keys"]) if strict else []
    refuse_mismatch(checkpoint, f"its {name}", sorted(report["missing_keys"]), unexpected)


def _dtype_option(version: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """The option of from_pretrained, by the name it has, that keeps the dtype in which most numbers are stored."""
    counts: Counter[torch.dtype] = Counter()
    for name in checkpoint.sources:
        entry = checkpoint.entry(name)
        if entry.dtype.is_floating_point and entry.dtype.itemsize > 1:
            counts[entry.dtype] += entry.numel
    dtype: Any = counts.most_common(1)[0][0] if counts else "auto"
    major, minor = (int(part) for part in version.split(".")[:2])
    return {"dtype" if (major, minor) >= (4, 56) else "torch_dtype": dtype}


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Neither bars nor tables from transformers: what they would tell, our errors tell."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


# ---------------------------------------------------------------------- adapters


def base_of(folder: Path, base: str | None = None) -> str:
    """The MODEL that an adapter belongs to: ``base`` where it is given, else the one it names.

    A folder may be named as seen from the current folder, or from the adapter's.
    """
    name = read_adapter(folder).base if base is None else base
    if not name or not isinstance(name, str):
        raise CheckpointError(
            f"{folder} holds an adapter that does not say of which network; name that with base= (--base MODEL)."
        )
    beside = folder / name
    if not Path(name).is_dir() and beside.is_dir():
        name = str(beside)
    if Path(name).is_dir() and Path(name).samefile(folder):
        raise CheckpointError(
            f"{folder} holds an adapter that names itself as its base; name that with base= (--base MODEL)."
        )
    return name


def load_adapter(text: str, folder: Path, base: LoadedModel) -> LoadedModel:
    """``base`` with the adapter in ``folder`` put on; it is changed."""
    checkpoint = open_checkpoint(folder)
    peft = import_extra("peft", f"Loading the adapter in {folder}", "hf")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names that do not fit, which are refused below
            model = peft.PeftModel.from_pretrained(base.model, folder, adapter_name=DEFAULT, is_trainable=False)
    # PEFT and each of its methods may object in their own ways.
    except Exception as error:
        raise CheckpointError(
            f"PEFT could not put the adapter in {folder} on {base.text} ({type(error).__name__}: {one_line(error)}); "
            "is that the network it was trained on?"
        ) from error
    if checkpoint.adapter is not None and checkpoint.adapter.is_lora:
        _refuse_strangers(checkpoint, base.text, list(model.state_dict()))
    return LoadedModel(model.eval(), base.inputs, checkpoint, text, base.family)


def _refuse_strangers(checkpoint: Checkpoint, base: str, names: list[str]) -> None:
    """PEFT loads what fits and only warns of the rest."""
    own = {name_in_file(name): name for name in names}
    stored = {name_in_file(name): name for name in checkpoint.names}
    missing = [name for plain, name in own.items() if f".{DEFAULT}" in name and plain not in stored]
    unexpected = [name for plain, name in stored.items() if plain not in own]
    refuse_mismatch(checkpoint, f"the adapter of {base}", missing, unexpected)
