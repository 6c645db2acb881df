"""Networks that a function of the user's makes: ``package.module:factory``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from interbasin.checkpoints import open_checkpoint
from interbasin.errors import DataError, InterbasinError, UnknownNameError
from interbasin.extras import retry_with_torchvision
from interbasin.models.base import LoadedModel, load_weights, map_checkpoint, without_numbers
from interbasin.text import one_line


def load_factory(
    text: str, name: str, weights: Path | None, *, strict: bool = True, in_files: bool = False
) -> LoadedModel:
    """The network that the factory returns, with the weights put in, or left in their files."""
    checkpoint = None if weights is None else open_checkpoint(weights)
    with _current_folder_importable(), without_numbers(wanted=in_files and checkpoint is not None):
        result = retry_with_torchvision(lambda: _call(name))
    model, inputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if callable(whole := getattr(model, "as_module", None)):  # a network in parts, as adapt has them
        model = whole()
    if not isinstance(model, nn.Module):
        raise DataError(
            f"The factory {name} should return a torch.nn.Module, or one and its inputs, got a {type(model).__name__}."
        )
    put_in = map_checkpoint if in_files else load_weights
    unused = () if checkpoint is None else put_in(model, checkpoint, f"the network of {name}", strict=strict)
    training = any(module.training for module in model.modules())
    model.eval()
    return LoadedModel(model, inputs, checkpoint, text, type(model).__name__, unused, training)


def import_function(name: str, what: str) -> Callable[..., Any]:
    """The function ``package.module:function``; the module is looked for in the current folder too.

    Args:
        name: The function.
        what: What it is to be, for messages: ``"readout"``.

    Raises:
        UnknownNameError: if there is no such module or function; lists those of the module.
        DataError: if the name has another form, or the module cannot be imported.

    Example:
        >>> import_function("math:sqrt", "readout")(4)
        2.0
    """
    where, colon, function = name.partition(":")
    if not (where and colon and function):
        raise DataError(f"A {what} is named as package.module:function, found {name!r}.")
    with _current_folder_importable():
        return _find(where, function, name, what)


def _call(name: str) -> Any:
    where, _, function = name.partition(":")
    factory = _find(where, function, name, "model", "factory")
    try:
        return factory()
    except InterbasinError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"The factory {name} was called without arguments and failed ({_describe(error)}).") from error


def _find(where: str, function: str, name: str, what: str, kind: str = "function") -> Callable[..., Any]:
    """A function of a module; messages call it a ``kind``, and what it is for a ``what``."""
    module = _import(where, name, what)
    found = getattr(module, function, None)
    if not callable(found):
        # What it imported is callable too, and no function of its own.
        public = [
            label
            for label, value in vars(module).items()
            if callable(value) and label[0] != "_" and _package(getattr(value, "__module__", "")) == _package(where)
        ]
        raise UnknownNameError.of(f"{kind} in {where}", function, public[:20])
    return cast(Callable[..., Any], found)


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _import(where: str, name: str, what: str) -> ModuleType:
    """The module that a function is in, imported."""
    try:
        return importlib.import_module(where)
    except InterbasinError:
        raise
    except SyntaxError as error:
        line = "" if error.lineno is None else f", line {error.lineno}"
        raise DataError(
            f"The {what} {name} was to be made, but {error.filename or where}{line} is not Python ({error.msg})."
        ) from error
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (where + ".").startswith(missing + "."):
            raise UnknownNameError(
                f"There is no module named {missing!r}, of which the {what} {name} was to be made; check the spelling, "
                "run from the folder that holds it, or install it."
            ) from error
        raise DataError(
            f"The module {where} of the {what} {name} could not be imported ({_describe(error)})."
        ) from error


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it left the program, as sys.exit({error.code!r}) does"
    return f"{type(error).__name__}: {one_line(error)}"


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """The current folder as the last place to import from, so that it hides nothing that is installed."""
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
