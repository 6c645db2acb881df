"""Optional packages. Every module imports them from here, so that one error names the extra that brings them.

Importing timm, PEFT or most models of transformers imports torchvision. A torchvision that was built for another torch
(a CUDA wheel beside a CPU torch, most often) cannot load its compiled operators. Its own import then fails, and theirs
with it: "operator torchvision::nms does not exist". Only detection models call that operator, so it is enough to
declare its signature. Where the compiled operators load, nothing is declared.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from interbasin.errors import MissingExtraError

T = TypeVar("T")

IMPORT_TORCHVISION = ("peft", "timm", "torchvision", "transformers")
UNDECLARED = re.compile(r"operator torchvision::\w+ does not exist")

# The operators that torchvision describes while it is imported, whether they loaded or not, with their signatures.
OPERATORS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_extra(module: str, what: str, extra: str) -> Any:
    """The optional module, imported.

    Args:
        module: Its name, as an import statement has it: ``"timm"``, ``"ray.data"``.
        what: What needs it, as the beginning of a sentence: ``"Loading timm:resnet18"``.
        extra: The extra of interbasin that brings it.

    Raises:
        MissingExtraError: if it is not installed, or is installed and cannot be imported.
    """
    package = module.partition(".")[0]
    if package in IMPORT_TORCHVISION:
        declare_torchvision_operators()
    try:
        return importlib.import_module(module)
    # Compiled packages also raise RuntimeError, OSError and others when their parts do not fit together.
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise MissingExtraError.of(what, extra) from error
        remedy = (
            "install the torchvision that was built for this torch"
            if "torchvision" in str(error)
            else f"python -c 'import {module}' shows where it fails"
        )
        reason = " ".join(str(error).split()).rstrip(".")
        raise MissingExtraError(
            f"{what} needs {package}, which is installed but cannot be imported ({type(error).__name__}: {reason}); "
            f"{remedy}."
        ) from error


def declare_torchvision_operators() -> None:
    """Make torchvision importable beside a torch that its compiled operators were not built for.

    Nothing happens where torchvision imports, or is not installed. Otherwise it imports from now on, and so do timm,
    transformers and PEFT. Whatever calls one of the operators still fails, with an error of torchvision's own.
    """
    try:
        importlib.import_module("torchvision")
    except Exception as error:
        if not _lacks_operators(error):
            return  # not installed, or broken in another way: whatever imports it next will say how
    else:
        return
    import torch

    for name, schema in OPERATORS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # earlier versions warn that their library for images does not load either
        importlib.import_module("torchvision")


def retry_with_torchvision(call: Callable[[], T]) -> T:
    """What ``call`` returns. If it fails for want of torchvision's operators, they are declared and it runs again.

    For code of the user's, which may or may not import torchvision.
    """
    try:
        return call()
    except Exception as error:
        if not _lacks_operators(error):
            raise
    declare_torchvision_operators()
    return call()


def is_transformers_model(model: object) -> bool:
    """Whether this is a network of transformers. The library is not imported: whoever made such a network has."""
    modeling: Any = sys.modules.get("transformers.modeling_utils")
    return modeling is not None and isinstance(model, modeling.PreTrainedModel)


def _lacks_operators(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is about an operator of torchvision that nobody declared."""
    while error is not None:
        if UNDECLARED.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
