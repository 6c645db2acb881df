"""Names of a package that are imported when they are first used, for packages whose parts are heavy."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, folders: Sequence[str], homes: Mapping[str, str], unlisted: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: Its name.
        folders: Modules below it that are public themselves.
        homes: Public name -> the module that defines it.
        unlisted: Modules below it that can be reached and are not listed: old names.
    """

    def find(name: str) -> Any:
        if name in folders or name in unlisted:
            return importlib.import_module(f"{package}.{name}")
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*folders, *homes, *sys.modules[package].__all__})

    return find, listed


def moved_names(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a module whose names live elsewhere now; using one warns.

    Args:
        module: Its name.
        homes: Old name -> the module that defines it now.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now {homes[name]}.{name}; the old name goes with the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(homes[name]), name)

    return find, lambda: sorted(homes)
