"""A method by its name: the one kind of table that fits and jobs list their methods in.

Adding a method is one function and one row. The command line makes its help from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from interbasin.checks import require_choice
from interbasin.errors import DataError, InterbasinError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Method(Generic[Function]):
    """One way to do a job, as data.

    Attributes:
        name: As users write it.
        reference: The key of its paper in ``docs/references.bib``.
        summary: One line for tables and help.
        function: What does it.
        needs: What must be given: ``"data"``, ``"labels"``, ``"gradients"``, ``"base"``, ...
        options: The options that it takes, with their defaults.
        variants: Ways to do it; the first is the default.
        traits: What else the job must know about it, by name.
    """

    name: str
    reference: str
    summary: str
    function: Function
    needs: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    traits: Mapping[str, Any] = field(default_factory=dict)

    def variant(self, name: str | None) -> str:
        """The variant of that name, or the default one.

        Raises:
            UnknownNameError: if there is none.
        """
        return self.variants[0] if name is None else require_choice(f"variant of {self.name}", name, self.variants)


class MethodTable(Mapping[str, Method[Function]]):
    """Methods by name, in the order in which they are listed.

    Args:
        kind: How messages call one of them.
        methods: The rows.
        error: What options of other methods raise.

    Example:
        >>> table = MethodTable("method of counting", [Method("one-by-one", "peano:89", "count up", len)])
        >>> table["one_by_one"].function([1, 2])
        2
    """

    def __init__(
        self, kind: str, methods: list[Method[Function]] | None = None, error: type[InterbasinError] = DataError
    ) -> None:
        self.kind, self.error = kind, error
        self._methods: dict[str, Method[Function]] = {}
        for method in methods or ():
            self.add(method)

    def add(self, method: Method[Function]) -> None:
        """List one more method; a decorator may do so."""
        if method.name in self._methods:
            raise ValueError(f"There is already a {self.kind} named {method.name!r}.")
        self._methods[method.name] = method

    def __getitem__(self, name: str) -> Method[Function]:
        """The method of that name; underscores will do for hyphens.

        Raises:
            UnknownNameError: with the known names, nearest first.
        """
        try:
            return self._methods[name]
        except (KeyError, TypeError):
            return self._methods[require_choice(self.kind, name, self._methods)]

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all methods."""
        return tuple(self._methods)

    def require_options(self, name: str, given: Mapping[str, Any]) -> None:
        """Refuse options that were given (are not None) and belong to other methods.

        Raises:
            DataError: (or the table's own error) with the options that it takes, and the methods that take this one.
        """
        method = self[name]
        foreign = next((key for key, value in given.items() if value is not None and key not in method.options), None)
        if foreign is None:
            return
        users = [other.name for other in self.values() if foreign in other.options]
        takes = f"it takes {', '.join(method.options)}" if method.options else "it takes no options"
        hint = f"it belongs to {', '.join(users)}" if users else "no other method has it"
        raise self.error(f"{method.name} has no option {foreign!r} ({hint}); {takes}.")
