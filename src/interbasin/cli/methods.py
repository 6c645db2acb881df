"""The help of methods, made from the tables of methods.

Those tables import torch, for which help should not wait. So ``docs/generate.py`` writes what help needs of them to
``methods.json``, and a test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer import Option

_TABLES: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("methods.json").read_text("utf-8"))


def names(job: str) -> tuple[str, ...]:
    """The names of a job's methods."""
    return tuple(method["name"] for method in _TABLES[job])


def method_option(job: str, option: str, text: str, *spelling: str) -> Any:
    """An option that some methods take or need, with their names in its help.

    Example:
        >>> method_option("fit", "signed", "units may change their sign.").help
        'assignment: units may change their sign.'
    """
    users = [method["name"] for method in _TABLES[job] if option in (*method["options"], *method["needs"])]
    return Option(*spelling, help=f"{', '.join(users)}: {text}")


def describe_methods(job: str) -> str:
    """A paragraph for each method: its variants, what it needs, what it does, and the key of its paper."""
    paragraphs = []
    for method in _TABLES[job]:
        needs = [f"needs {', '.join(method['needs'])}"] if method["needs"] else []
        conditions = [", ".join(method["variants"]), *needs] if method["variants"] else needs
        name = f"{method['name']} ({'; '.join(conditions)})" if conditions else method["name"]
        paper = f" [{method['reference']}]" if method["reference"] else ""
        paragraphs.append(f"- {name}: {method['summary']}.{paper}")
    return "\n\n    ".join(paragraphs)
