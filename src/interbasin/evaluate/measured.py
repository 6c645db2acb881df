"""What a measure gives back: figures by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from interbasin.errors import UnknownNameError


class Figures(dict[str, float]):
    """Numbers by name that stay as they are; a dict, so that JSON takes them. Joined with others it is a plain one."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("the figures of a measure cannot be changed; make a dict of them first: dict(result.metrics)")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[type[Figures], tuple[dict[str, float]]]:
        return Figures, (dict(self),)


@dataclass(frozen=True)
class Measured:
    """Figures by name.

    Attributes:
        metrics: A flat mapping of names to numbers. What could not be measured is absent; what was measured and is no
            number is NaN.

    Example:
        >>> Measured({"barrier": 0.5})["barrier"]
        0.5
    """

    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", Figures(self.metrics))

    def __getitem__(self, name: str) -> float:
        if name not in self.metrics:
            raise UnknownNameError.of("figure here", name, self.metrics)
        return self.metrics[name]
