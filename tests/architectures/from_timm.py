"""How networks of timm are made."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.architectures.architecture import CLASSES, Architecture, image
from torch import nn

from interbasin.extras import import_extra

Configure = Callable[[ModuleType], dict[str, Any]]


def timm(
    path: str, size: int = 32, *, configure: Configure | None = None, listed: bool = False, **options: Any
) -> Architecture:
    """The class or function ``module:name`` below ``timm.models``, for images of ``size``.

    It is called with ``options``, and with those that ``configure`` makes out of what stands in the module.
    """
    module_name, name = path.split(":")

    def network() -> nn.Module:
        module = import_extra(f"timm.models.{module_name}", f"The architecture {path}", "timm")
        more = configure(module) if configure else {}
        return getattr(module, name)(num_classes=CLASSES, **options, **more)

    return Architecture(network, image(size), listed=listed)
