"""Names of a package that are imported when they are first used, for packages whose parts are heavy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, folders: Sequence[str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: Its name.
        folders: Modules below it that are public themselves.
        homes: Public name -> the module that defines it.
    """

    def find(name: str) -> Any:
        if name in folders:
            return importlib.import_module(f"{package}.{name}")
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*folders, *homes, *sys.modules[package].__all__})

    return find, listed
