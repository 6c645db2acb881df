"""The model card: what was merged and how, for people and, at its head, for the programs of model hubs."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from interbasin._version import __version__
from interbasin.jobs.merge.methods import Recipe
from interbasin.outcome.hashes import InputFiles
from interbasin.text import plural

CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)/snapshots/")


def model_card(
    title: str,
    recipe: Recipe,
    request: Mapping[str, Any],
    inputs: Sequence[InputFiles],
    metrics: Mapping[str, Any],
    notes: Sequence[str],
    folder: Path,
) -> str:
    """A README.md for the merged network. Folders are called by their own names, without where they lay.

    Args:
        title: What the network is called.
        recipe: How it was merged.
        request: What was asked; see `MergeResult`.
        inputs: The models and, if there is one, the base behind them.
        metrics: How many tensors and parameters it has.
        notes: Sentences that a user of the network should know.
        folder: Where it is.
    """
    method, count = recipe.method, len(request["models"])
    names = [_hub_name(files) or Path(files.path or files.given).name or files.given for files in inputs]
    t = recipe.options.get("t", 0.0)
    shares = [*(f"{weight:.6g}" for weight in recipe.options.get("weights", (1 - t, t))), ""]
    shown = [name.replace("|", "\\|") for name in (*names[:count], *(f"{name} (the base)" for name in names[count:]))]
    lines = "\n".join(
        f"| {name} | {share} | `{files.sha256 or 'unknown'}` |"
        for name, share, files in zip(shown, shares, inputs, strict=False)
    )
    options = "".join(f"- {name}: {value:.6g}\n" for name, value in recipe.options.items() if name != "weights")
    paragraphs = "".join(f"\n{note}\n" for note in notes)
    versions = f"interbasin {__version__}, Python {platform.python_version()}, NumPy {version('numpy')}"
    size = f"{plural(metrics['parameters'], 'number')} in {plural(metrics['tensors'], 'tensor')}"
    done = "Nothing was trained, and nothing was measured"
    if "reset" in request:
        done = f"Nothing was trained; the statistics of batch norms were estimated on {request['reset']}"
    return f"""{_front_matter(inputs, folder)}
# {title}

A merge of {plural(count, "model")}{" and a base" if method.needs_base else ""} by {method.title},
made with interbasin {__version__}. {done}.

| model | weight | SHA-256 |
| --- | ---: | --- |
{lines}

The hash of a folder is that of the lines which `sha256sum` prints for its files, sorted by name; outcome.json beside
this page has every file's.

- method: {method.name}, `{method.formula}`
{options}- size: {size}, {request["dtype"] or "in the dtypes of the first model"}

{method.paper}.
{paragraphs}
Made again by:

```sh
{_command(recipe, names, request)}
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
