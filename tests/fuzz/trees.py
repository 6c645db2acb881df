"""A folder as a value: what its files hold, so that it can be damaged in memory and written as often as needed."""

from __future__ import annotations

import base64
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Other:
    """What stands where a file was: a ``folder``, a ``pipe``, or a ``link`` to ``target``."""

    kind: str
    target: str = ""


Tree: TypeAlias = dict[str, "bytes | Other"]  # path in the folder -> content
MOMENT = 1_700_000_000  # when all files were last written: some readers compare it


def read_tree(folder: Path) -> Tree:
    """What the files of a folder hold."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def write_tree(tree: Mapping[str, bytes | Other], folder: Path) -> None:
    """Make a folder that holds this, in place of what was there."""
    remove(folder)
    folder.mkdir(parents=True)
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
            os.utime(path, (MOMENT, MOMENT))
        elif content.kind == "folder":
            path.mkdir()
        elif content.kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(content.target)


def remove(folder: Path) -> None:
    """Remove a folder, whatever is in it."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def to_json(tree: Mapping[str, bytes | Other]) -> dict[str, Any]:
    """The same in JSON; bytes are compressed and written in base 85."""
    return {
        name: base64.b85encode(zlib.compress(content, 9)).decode()
        if isinstance(content, bytes)
        else {"kind": content.kind, "target": content.target}
        for name, content in tree.items()
    }


def from_json(document: Mapping[str, Any]) -> Tree:
    """What `to_json` made."""
    return {
        name: Other(**content) if isinstance(content, dict) else zlib.decompress(base64.b85decode(content))
        for name, content in document.items()
    }
