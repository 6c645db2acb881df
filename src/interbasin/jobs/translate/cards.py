"""What vectors are: which model made them, how they are compared. Kept beside a translation and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from interbasin.errors import DataError

METRICS = ("cosine", "dot", "l2")


@dataclass(frozen=True)
class Card:
    """Everything is optional; what is None is not known, and not compared.

    Attributes:
        source_model, target_model: The encoders, by name.
        metric: How vectors are compared: ``"cosine"``, ``"dot"`` or ``"l2"``.
        role: What the vectors are of: ``"documents"`` or ``"queries"``.
        source_prefix, target_prefix: What each encoder puts before a text.
        chunking: How long texts were cut.
        note: Anything else.
    """

    source_model: str | None = None
    target_model: str | None = None
    metric: str | None = None
    role: str | None = None
    source_prefix: str | None = None
    target_prefix: str | None = None
    chunking: str | None = None
    note: str | None = None

    @classmethod
    def of(cls, given: Card | Mapping[str, Any] | None) -> Card:
        """A card from what a user gave.

        Raises:
            DataError: if there is an entry that cards do not have, or one that is no text.
        """
        if given is None or isinstance(given, Card):
            return given or cls()
        if not isinstance(given, Mapping):
            raise DataError(f"A card is a mapping of entries to texts, found {given!r:.80}.")
        known = {one.name for one in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise DataError(f"A card has no entry {name!r}; it has: {', '.join(sorted(known))}.")
            if value is not None and not isinstance(value, str):
                raise DataError(f"{name} of a card is a text, found {value!r}.")
        found = cls(**given)
        if found.metric is not None and found.metric not in METRICS:
            raise DataError(f"The metric of a card is one of {', '.join(METRICS)}, found {found.metric!r}.")
        return found

    def to_json(self) -> dict[str, str]:
        """What is known, in JSON's own types."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}

    def refuse_others(self, other: Card, what: str) -> None:
        """Refuse to be used for vectors that say that they are something else.

        Raises:
            DataError: names the entry, and whether the direction is the other one.
        """
        mine, theirs = self.to_json(), other.to_json()
        if mine.get("source_model") != mine.get("target_model") and theirs.get("source_model") == mine.get(
            "target_model", object()
        ):
            raise DataError(
                f"{what} come from {theirs['source_model']!r}, which this translation leads to, not from: it goes "
                f"{mine.get('source_model', 'an unnamed model')!r} to {mine['target_model']!r}. Fit one in the other "
                "direction."
            )
        for name in mine.keys() & theirs.keys() - {"note"}:
            if mine[name] != theirs[name]:
                raise DataError(
                    f"{what} say that their {name} is {theirs[name]!r}, and the translation was fitted for "
                    f"{mine[name]!r}; fit one for them."
                )
