"""Words for people: counts with their nouns, lists of names, reasons on one line, and text without passwords.

Names come from files, data sets, servers and users, and may be anything: codes that command a terminal, HTML, markdown,
line breaks, marks that turn the direction of writing. They are escaped here and nowhere else, for the place where they
are shown: `printable` for a terminal or a plain text file, `for_markdown` for a README, `for_markup` for HTML and SVG.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What begins an address with a user's name and a colon. Paths lose one of two slashes, people all of them.
_SCHEME = r"(?:\b[a-z][a-z0-9+.-]*:/{1,3}|\bpostgres(?:ql)?:)"
_PATTERNS = (
    # Up to the last @ of the word: a password may hold one itself, and so may a user's name.
    (re.compile(rf"({_SCHEME}[^\s:/]*:)(?!//)\S*@", re.IGNORECASE), r"\1***@"),
    # A password may hold blanks; digits that end as a port does are one.
    (re.compile(rf"({_SCHEME}[^\s:/@]*:)(?!//|\*\*\*@|\d+(?:[/?#\s]|$))[^\n@]*@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"\b(\w*passw(?:or)?d\s*=\s*)(?!\*\*\*)(?:'(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE), r"\1***"),
)


def redact(text: str) -> str:
    """The text without what looks like a password in it.

    Example:
        >>> redact("no such file: postgresql:/me:hunter2@host/db?table=docs")
        'no such file: postgresql:/me:***@host/db?table=docs'
        >>> redact("host=h password=hunter2 dbname=x")
        'host=h password=*** dbname=x'
        >>> redact("write it as postgresql://USER@HOST:5432/DATABASE; timm:resnet18@weights")
        'write it as postgresql://USER@HOST:5432/DATABASE; timm:resnet18@weights'
    """
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return text


def printable(text: str, keep: str = "") -> str:
    """The text with what cannot be printed spelled out: control characters, line breaks, marks of direction.

    Args:
        text: Anything.
        keep: Characters that stay as they are, ``"\\n"`` for text of several lines.

    Example:
        >>> printable("a\\nb \\x1b[2J \\u202e")
        'a\\\\nb \\\\x1b[2J \\\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def for_markup(text: str) -> str:
    """The text as HTML and SVG show it, in an element or in an attribute.

    Example:
        >>> for_markup('<b title="x">')
        '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(printable(text))


def for_markdown(text: str) -> str:
    """The text as one line of markdown, in a paragraph, a heading or a cell of a table, where it makes nothing live.

    A lone underscore inside a word stays, as it means nothing there.

    Example:
        >>> print(for_markdown("model_one | [x](y) <b>"))
        model_one \\| \\[x\\](y) &lt;b&gt;
    """
    line = printable(text).strip()
    # Backslashes first among the signs, and entities last, so that nothing is escaped twice.
    line = re.sub(r"[\\`*\[\]|#~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # What makes a list, a rule or a heading of a line that begins with it.
    return re.sub(r"^[-+=]|^(\d+)([.)])(?=\s|$)", lambda sign: f"{sign[1] or ''}\\{sign[2] or sign[0]}", line)


def plural(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun, in the singular for one.

    Args:
        count: How many.
        one: The noun for one of them.
        many: The noun for any other number; by default ``one`` with an s.

    Example:
        >>> plural(1, "file"), plural(1_234, "file"), plural(0, "batch", "batches")
        ('1 file', '1,234 files', '0 batches')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def list_names(names: Iterable[str], most: int = 4) -> str:
    """Some of the names, and how many more there are.

    Example:
        >>> list_names("abcdef")
        'a, b, c, d and 2 more'
    """
    names = list(names)
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def one_line(cause: object) -> str:
    """A library's reason on one line, without the advice that often follows."""
    text = " ".join(str(cause).split()) or type(cause).__name__
    return (text if len(text) <= 200 else text[:200] + "...").rstrip(".")
