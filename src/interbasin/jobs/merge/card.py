"""The model card: what was merged and how, for people and, at its head, for the programs of model hubs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interbasin._version import __version__
from interbasin.jobs.merge.methods import METHODS
from interbasin.jobs.merge.recipe import Recipe
from interbasin.outcome.hashes import InputFiles
from interbasin.text import plural

__all__ = ["model_card"]

CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)/snapshots/")


def model_card(
    title: str,
    recipe: Recipe,
    models: Sequence[InputFiles],
    base: InputFiles | None,
    *,
    kind: str | None,
    align: str | None,
    reset: str | None,
    metrics: Mapping[str, Any],
    remarks: Sequence[str],
    versions: Mapping[str, str],
    of_transformers: bool,
) -> str:
    """A README.md for the merged network. Folders are called by their own names, without where they lay."""
    method = METHODS[recipe.method]
    rows = [(_name(one), _number(weight), _hash(one)) for one, weight in zip(models, _weights(recipe), strict=True)]
    if base is not None:
        rows.append((f"{_name(base)} (the base)", "", _hash(base)))
    options = {option: getattr(recipe, option) for option in ("t", "density", "scale") if option in method.takes}
    told = "".join(f"- {option}: {_number(value)}\n" for option, value in options.items())
    lines = "\n".join(f"| {_cell(name)} | {weight} | `{sha256}` |" for name, weight, sha256 in rows)
    notes = "".join(f"\n{remark}\n" for remark in remarks)
    made_with = ", ".join(f"{name} {number}" for name, number in versions.items())
    size = f"{plural(metrics['parameters'], 'number')} in {plural(metrics['tensors'], 'tensor')}"
    done = "Nothing was trained, and nothing was measured"
    if reset is not None:
        done = f"Nothing was trained; the statistics of batch norms were estimated on {reset}"
    further = [*(["--align", align] if align else []), *(["--data", "DATA", "--reset", "BATCHES"] if reset else [])]
    return f"""{_front_matter(models, base, of_transformers)}
# {title}

A merge of {plural(len(models), "model")}{" and a base" if base else ""} by {method.title},
made with interbasin {__version__}. {done}.

| model | weight | SHA-256 |
| --- | ---: | --- |
{lines}

The hash of a folder is that of the lines which `sha256sum` prints for its files, sorted by name; outcome.json beside
this page has every file's.

- method: {method.name}, `{method.formula}`
{told}- size: {size}, {kind or "in the dtypes of the first model"}

{method.paper}.
{notes}
Made again by:

```sh
{_command(recipe, models, base, kind, further)}
```

Made with {made_with}.
"""


def _front_matter(models: Sequence[InputFiles], base: InputFiles | None, of_transformers: bool) -> str:
    # A name is a hub's only if the files came from there: a folder's own name may be that of someone else's model.
    known = [name for one in [*models, *([base] if base else [])] if (name := _hub_name(one))]
    lines = ["---"]
    if known:
        lines += [
            "base_model:",
            *(f"- {json.dumps(name)}" for name in dict.fromkeys(known)),
            "base_model_relation: merge",
        ]
    if of_transformers:
        lines.append("library_name: transformers")
    return "\n".join([*lines, "tags:", "- merge", "- interbasin", "---"])


def _hub_name(one: InputFiles) -> str | None:
    found = CACHED.search(Path(one.path or one.given).as_posix() + "/")
    return f"{found['owner']}/{found['name']}" if found else None


def _name(one: InputFiles) -> str:
    return _hub_name(one) or Path(one.path or one.given).name or one.given


def _hash(one: InputFiles) -> str:
    return one.sha256 or "unknown"


def _weights(recipe: Recipe) -> Sequence[float]:
    return (1 - recipe.t, recipe.t) if METHODS[recipe.method].pair else recipe.weights


def _command(
    recipe: Recipe,
    models: Sequence[InputFiles],
    base: InputFiles | None,
    kind: str | None,
    further: Sequence[str],
) -> str:
    takes = METHODS[recipe.method].takes
    words = ["interbasin", "merge", *map(_name, models), "-o", "OUT", "--method", recipe.method]
    if "weights" in takes:
        words += ["--weights", ",".join(_exact(weight) for weight in recipe.weights)]
    for option in ("t", "density", "scale"):
        if option in takes:
            words += [f"--{option}", _exact(getattr(recipe, option))]
    if base is not None:
        words += ["--base", _name(base)]
    if kind is not None:
        words += ["--dtype", kind]
    return shlex.join([*words, *further])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _exact(value: float) -> str:
    return repr(value).removesuffix(".0")


def _number(value: float) -> str:
    return f"{value:.6g}"
