"""Merging on disk: from checkpoints to a checkpoint and its model card. Memory is needed for a chunk of each."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from interbasin._version import __version__
from interbasin.checkpoints.checkpoint import Checkpoint, LazyTensors, read_json
from interbasin.checkpoints.folded import describe_folder, is_folded
from interbasin.checkpoints.open import open_checkpoint
from interbasin.checkpoints.write import (
    is_our_file,
    notes_on_companions,
    require_shard_size,
    write_checkpoint,
    write_into,
)
from interbasin.errors import CheckpointError, DataError, FileError, WiringError
from interbasin.jobs.merge.kernel import MergedTensors
from interbasin.jobs.merge.methods import Recipe
from interbasin.outcome import new_outcome, refuse_outcome_in_the_way
from interbasin.outcome.hashes import InputFiles, files_of, narrowest_mode
from interbasin.storage import as_path, refuse_file_in_the_way, write_document
from interbasin.storage.digest import Following
from interbasin.text import for_markdown, list_names, plural, printable

CARD = "README.md"
CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)/snapshots/")  # a folder of the hub's cache
CONFIGURATION = "config.json"
# Settings that change nothing in what a network computes.
BESIDES = {
    *("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "_commit_hash"),
    *("finetuning_task", "id2label", "label2id", "task_specific_params"),
}
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class MergeResult:
    """What a merge left on disk.

    Attributes:
        path: The folder or file.
        method: How it was merged.
        request: What was asked, defaults filled in.
        metrics: ``tensors`` and ``parameters``, ``tensors_unchanged`` (the same in all networks), ``bytes``, ``files``.
        notes: Sentences that a user of the network should know.
        seconds: How long it took.
    """

    path: Path
    method: str
    request: Mapping[str, Any]
    metrics: Mapping[str, float]
    notes: tuple[str, ...]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """All of it, fit for JSON."""
        fields = {**vars(self), "output": str(self.path), "notes": list(self.notes), "metrics": dict(self.metrics)}
        del fields["path"]
        return fields


def open_model(model: str | os.PathLike[str] | Checkpoint) -> Checkpoint:
    """The weights of a MODEL: a folder, a file, ``NAME@weights``, or a checkpoint that is open already.

    Raises:
        CheckpointError: if there are none, or they are quantised or those of an adapter.
    """
    if isinstance(model, str) and "@" in model and not Path(model).exists():
        model = model.partition("@")[2]  # what names the architecture is of no use here
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
    if checkpoint.adapter is not None:
        kind = "a LoRA" if checkpoint.adapter.is_lora else f"an adapter ({checkpoint.adapter.method})"
        of = f" of {checkpoint.adapter.base}" if checkpoint.adapter.base else ""
        raise CheckpointError(
            f"{checkpoint.path} is {kind}{of} and not a network, and its factors cannot be merged one by one; merge it "
            "into its base first (PEFT: model.merge_and_unload(), then save_pretrained) and give that folder."
        )
    return checkpoint


def merge_on_disk(
    models: Sequence[Any],
    recipe: Recipe,
    output: str | os.PathLike[str],
    *,
    kind: str | None,
    align: tuple[str, Any, int] | None,
    reset: Any,
    max_shard_bytes: int,
    force: bool,
    progress: Callable[[int], None] | None,
) -> MergeResult:
    """Write the merged network; see `interbasin.merge`.

    Args:
        models: The MODELs and, for a recipe that needs one, the base behind them.
        align: The method of alignment, inputs to trace with, and a seed.
    """
    started = time.perf_counter()
    for model in models:
        if not isinstance(model, str | os.PathLike | Checkpoint):
            raise DataError(
                f"With an output, merge goes from disk to disk, and a {type(model).__name__} was given; give folders "
                "or files with weights, or merge in memory and use interbasin.checkpoints.write_checkpoint."
            )
    require_shard_size(max_shard_bytes)
    target, checkpoints = as_path(output), [open_model(model) for model in models]
    # All that can be refused is, before anything is read or written.
    _refuse_in_the_way(target, checkpoints, force)
    _refuse_mixed(checkpoints)
    notes = _compare_configurations([checkpoint.folder for checkpoint in checkpoints if checkpoint.folder is not None])
    if target.suffix != ".safetensors":
        notes += notes_on_companions(_template(checkpoints))
    request = _request(recipe, checkpoints, kind)
    tensors: list[LazyTensors] = [*checkpoints]
    if align is not None:
        from interbasin.jobs.merge.networks import align_checkpoints

        tensors, sentence = align_checkpoints(models, checkpoints, *align)
        request["align"] = align[0]
        notes.append(sentence)
    networks = [(checkpoint.label, network) for checkpoint, network in zip(checkpoints, tensors, strict=True)]
    merged = MergedTensors(networks, recipe, kind, progress)
    if reset is not None:
        from interbasin.jobs.merge.networks import reset_on_disk

        merged.replaced, request["reset"] = reset_on_disk(
            models[0], checkpoints[0], reset, MergedTensors(networks, recipe), merged.entries
        )
        notes.append(
            f"The running statistics of batch norms were estimated anew, on {request['reset']}: they are those of the "
            "merged network."
        )
    if target.suffix == ".safetensors":
        hashes = {label: files_of(label).sha256 for label, _ in networks}
        about = {"merge": json.dumps({**request, "sha256": hashes})}
        write_checkpoint(target, merged, metadata=about, force=force, mode=narrowest_mode(hashes))
        metrics = _metrics(merged, 1)
        if any(map(is_folded, checkpoints)):
            notes.append(
                "The models are folded networks, and so is the merged one, which a single file cannot say: merge them "
                "into a folder to load it with interbasin."
            )
    else:
        metrics = _write_folder(target, merged, checkpoints, notes, request, recipe, max_shard_bytes, force, started)
    return MergeResult(
        target,
        recipe.method.name,
        request,
        metrics,
        (*notes, *merged.notes),
        time.perf_counter() - started,
    )


def _write_folder(
    target: Path,
    merged: MergedTensors,
    checkpoints: Sequence[Checkpoint],
    notes: list[str],
    request: Mapping[str, Any],
    recipe: Recipe,
    max_shard_bytes: int,
    force: bool,
    started: float,
) -> dict[str, float]:
    """Write the outcome's folder; the metrics. Configuration and tokenizer are those of the first that is a folder.

    What is known only then is added to the notes.
    """
    names = [f"model {number + 1}" for number in range(len(checkpoints))]
    if recipe.has_base:
        names[-1] = "base"
    with (
        new_outcome(target, job="merge", request=request, force=force, elapsed=time.perf_counter() - started) as draft,
        ThreadPoolExecutor(1) as thread,
    ):
        # Hashing takes no lock of Python's: on a second core it costs no time.
        hashes = [
            thread.submit(draft.add_input, name, checkpoint.label)
            for name, checkpoint in zip(names, checkpoints, strict=True)
        ]
        following = Following()
        with draft.filled("model", "checkpoint", following) as folder, following, draft.timed("merge"):
            count = write_into(
                folder,
                merged,
                like=_template(checkpoints),
                max_shard_bytes=max_shard_bytes,
                destination=target,
                listener=following.reached,
            )
            if request["dtype"] is not None:
                _note_dtype(folder, request["dtype"])
        about = describe_folder(folder, "Like each of the models, the merged network")
        notes += [about] if about else []
        draft.metrics |= _metrics(merged, count)
        draft.notes += [*notes, *merged.notes]
        files = [future.result() for future in hashes]
        draft.text(CARD, _model_card(target.name, recipe, request, files, draft.metrics, draft.notes, folder))
        return draft.metrics


def _template(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The one whose configuration and tokenizer the merged network gets."""
    return next((checkpoint for checkpoint in checkpoints if checkpoint.folder is not None), None)


def _refuse_mixed(checkpoints: Sequence[Checkpoint]) -> None:
    """Refuse folded networks beside others: the numbers of the two mean different things."""
    folders = [checkpoint for checkpoint in checkpoints if checkpoint.folder is not None]
    folded = [checkpoint.label for checkpoint in folders if is_folded(checkpoint)]
    others = [checkpoint.label for checkpoint in folders if not is_folded(checkpoint)]
    if folded and others:
        raise WiringError(
            f"Asked to merge {folded[0]}, in which the gains of norms are folded into the layers that read them, with "
            f"{others[0]}, in which they are not; fold both, as interbasin rebasin --fold does, or neither."
        )


def _metrics(merged: MergedTensors, files: int) -> dict[str, float]:
    return {
        "tensors": len(merged.entries),
        "parameters": merged.numel,
        "tensors_unchanged": merged.unchanged,
        "bytes": merged.nbytes,
        "files": files,
    }


def _request(recipe: Recipe, checkpoints: Sequence[Checkpoint], kind: str | None) -> dict[str, Any]:
    labels = [checkpoint.label for checkpoint in checkpoints]
    options = {name: list(value) if name == "weights" else value for name, value in recipe.options.items()}
    base = labels.pop() if recipe.has_base else None
    return {"models": labels, "method": recipe.method.name, **options, "base": base, "dtype": kind}


def _refuse_in_the_way(target: Path, checkpoints: Sequence[Checkpoint], force: bool) -> None:
    """Refuse a destination that is taken, or that is one of the inputs, lies in one or holds one."""
    new = Path(os.path.realpath(target))
    for checkpoint in checkpoints:
        old = Path(os.path.realpath(checkpoint.path))
        if new == old or new.is_relative_to(old) or old.is_relative_to(new):
            raise FileError(
                f"Asked to write to {target}, where {checkpoint.label} is, which it is made from; choose another name."
            )
    if target.suffix == ".safetensors":
        refuse_file_in_the_way(target, force=force, ours=is_our_file)
    else:
        refuse_outcome_in_the_way(target, force=force)


# ---------------------------------------------------------------------- configurations and tokenizers


def _compare_configurations(folders: Sequence[Path]) -> list[str]:
    """What a user should know of configurations and tokenizers that differ; other architectures are refused."""
    configured = [
        (folder, read_json(folder / CONFIGURATION)) for folder in folders if (folder / CONFIGURATION).is_file()
    ]
    notes = []
    for folder, settings in configured[1:]:
        first, expected = configured[0]
        if settings.get("model_type") != expected.get("model_type"):
            raise WiringError(
                f"{first} is of the architecture {expected.get('model_type')} and {folder} of "
                f"{settings.get('model_type')}, which compute differently; to merge them, give the files themselves."
            )
        # A setting that is left out stands for a default that is not known here.
        shared = sorted((expected.keys() & settings.keys()) - BESIDES)
        differing = [key for key in shared if json.dumps(expected[key]) != json.dumps(settings[key])]
        if differing:
            notes.append(
                f"The configurations of {first} and {folder} differ in {list_names(differing)}; the merged network has "
                "the first one's."
            )
    for folder in folders[1:]:
        if any(_bytes(folder / name) != _bytes(folders[0] / name) for name in VOCABULARIES):
            notes.append(f"The tokenizers of {folders[0]} and {folder} differ; the merged network has the first one's.")
    return notes


def _note_dtype(folder: Path, kind: str) -> None:
    """Have the configuration in ``folder`` say which dtype the weights beside it are in; loaders go by that."""
    path = folder / CONFIGURATION
    if path.is_file():
        settings = read_json(path)
        keys = [key for key in ("dtype", "torch_dtype") if key in settings] or ["torch_dtype"]
        write_document(path, settings | dict.fromkeys(keys, kind))


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


# ---------------------------------------------------------------------- the model card


def _model_card(
    title: str,
    recipe: Recipe,
    request: Mapping[str, Any],
    inputs: Sequence[InputFiles],
    metrics: Mapping[str, Any],
    notes: Sequence[str],
    folder: Path,
) -> str:
    """A README.md for the merged network in ``folder``. It names input folders without their paths."""
    method, count = recipe.method, len(request["models"])
    names = [_hub_name(files) or Path(files.path or files.given).name or files.given for files in inputs]
    t = recipe.options.get("t", 0.0)
    shares = [*(f"{weight:.6g}" for weight in recipe.options.get("weights", (1 - t, t))), ""]
    shown = [for_markdown(name) for name in (*names[:count], *(f"{name} (the base)" for name in names[count:]))]
    lines = "\n".join(
        f"| {name} | {share} | `{files.sha256 or 'unknown'}` |"
        for name, share, files in zip(shown, shares, inputs, strict=False)
    )
    options = "".join(f"- {name}: {value:.6g}\n" for name, value in recipe.options.items() if name != "weights")
    paragraphs = "".join(f"\n{for_markdown(note)}\n" for note in notes)
    versions = f"interbasin {__version__}, Python {platform.python_version()}, NumPy {version('numpy')}"
    size = f"{plural(metrics['parameters'], 'number')} in {plural(metrics['tensors'], 'tensor')}"
    done = "Nothing was trained, and nothing was measured"
    if "reset" in request:
        done = f"Nothing was trained; the statistics of batch norms were estimated on {for_markdown(request['reset'])}"
    return f"""{_front_matter(inputs, folder)}
# {for_markdown(title)}

A merge of {plural(count, "model")}{" and a base" if recipe.has_base else ""} by {method.traits["title"]},
made with interbasin {__version__}. {done}.

| model | weight | SHA-256 |
| --- | ---: | --- |
{lines}

The hash of a folder is that of the lines which `sha256sum` prints for its files, sorted by name; outcome.json beside
this page has every file's.

- method: {method.name}, `{method.traits["formula"]}`
{options}- size: {size}, {request["dtype"] or "in the dtypes of the first model"}

{method.traits["paper"]}.
{paragraphs}
Made again by:

```sh
{_command(recipe, [printable(name) for name in names], request)}
```

Made with {versions}.
"""


def _front_matter(inputs: Sequence[InputFiles], folder: Path) -> str:
    # A name is a hub's only if the files came from there: a folder's own name may be that of someone else's model.
    known = dict.fromkeys(name for files in inputs if (name := _hub_name(files)))
    lines = ["---"]
    if known:
        lines += ["base_model:", *(f"- {json.dumps(name)}" for name in known), "base_model_relation: merge"]
    if (folder / "config.json").is_file():
        lines.append("library_name: transformers")
    return "\n".join([*lines, "tags:", "- merge", "- interbasin", "---"])


def _hub_name(files: InputFiles) -> str | None:
    cached = CACHED.search(Path(files.path or files.given).as_posix() + "/")
    return f"{cached['owner']}/{cached['name']}" if cached else None


def _command(recipe: Recipe, names: Sequence[str], request: Mapping[str, Any]) -> str:
    """The command that makes the network again, of folders that are called as the card calls them."""
    count = len(request["models"])
    words = ["interbasin", "merge", *names[:count], "-o", "OUT", "--method", recipe.method.name]
    for option, value in recipe.options.items():
        numbers = value if option == "weights" else [value]
        words += [f"--{option}", ",".join(repr(number).removesuffix(".0") for number in numbers)]
    for option, value in (
        ("--base", names[count:]),
        ("--dtype", [request["dtype"]]),
        ("--align", [request.get("align")]),
    ):
        words += [option, *value] if any(value) else []
    words += ["--data", "DATA", "--reset", "BATCHES"] if "reset" in request else []
    return shlex.join(words)
