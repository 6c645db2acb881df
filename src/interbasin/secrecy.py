"""Passwords struck out of what is told: an address that is not understood may hold one, wherever it was given."""

from __future__ import annotations

import re

__all__ = ["hide_secrets"]

# What begins an address with a user's name and a colon. Paths lose one of two slashes, people all of them.
_SCHEME = r"(?:\b[a-z][a-z0-9+.-]*:/{1,3}|\bpostgres(?:ql)?:)"
_PATTERNS = (
    # Up to the last @ of the word: a password may hold one itself, and so may a user's name.
    (re.compile(rf"({_SCHEME}[^\s:/]*:)(?!//)\S*@", re.IGNORECASE), r"\1***@"),
    # A password may hold blanks; digits that end as a port does are one.
    (re.compile(rf"({_SCHEME}[^\s:/@]*:)(?!//|\*\*\*@|\d+(?:[/?#\s]|$))[^\n@]*@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"\b(\w*passw(?:or)?d\s*=\s*)(?!\*\*\*)(?:'(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE), r"\1***"),
)


def hide_secrets(text: str) -> str:
    """The text without what looks like a password in it.

    Example:
        >>> hide_secrets("no such file: postgresql:/me:hunter2@host/db?table=docs")
        'no such file: postgresql:/me:***@host/db?table=docs'
        >>> hide_secrets("host=h password=hunter2 dbname=x")
        'host=h password=*** dbname=x'
        >>> hide_secrets("write it as postgresql://USER@HOST:5432/DATABASE; timm:resnet18@weights")
        'write it as postgresql://USER@HOST:5432/DATABASE; timm:resnet18@weights'
    """
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text
