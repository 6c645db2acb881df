"""What a VECTORS string says: a file, or a table of a vector store. Passwords never leave `StoreURI.secret`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from interbasin.errors import FileError
from interbasin.text import redact

FILES = ("npy", "npz", "parquet")
INDEXES = (".index", ".faiss", ".ivf", ".hnsw", ".idx")  # as indexes of FAISS are often named
PLACES = "Vectors are in a .npy, .npz or .parquet file, or at lance://, faiss:// or postgresql://"
OWN = ("table", "column", "key", "type")  # what of a PostgreSQL address is ours and not the server's


@dataclass(frozen=True)
class StoreURI:
    """Where vectors are.

    Attributes:
        kind: ``"npy"``, ``"npz"``, ``"parquet"``, ``"lance"``, ``"faiss"`` or ``"postgresql"``.
        shown: For people; without a password.
        path: The file, or the folder of a Lance database.
        table: The table.
        column: The column.
        key: The column that tells rows apart (PostgreSQL).
        type: What to store as (PostgreSQL, output): ``"vector"`` or ``"halfvec"``; None for the source's.
        secret: The connection string (PostgreSQL); may hold a password, so it is never shown.
    """

    kind: str
    shown: str
    path: Path = Path()
    table: str | None = None
    column: str | None = None
    key: str | None = None
    type: str | None = None
    secret: str = field(default="", repr=False)


def parse_uri(text: str, *, column: str | None = None, table: str | None = None, key: str | None = None) -> StoreURI:
    """What a VECTORS string says; options say what it leaves open.

    Raises:
        FileError: if it cannot be understood.

    Example:
        >>> address = parse_uri("lance://stores/docs#embedding")
        >>> address.path, address.table, address.column
        (PosixPath('stores'), 'docs', 'embedding')
        >>> parse_uri("postgresql://me:secret@host/db?table=docs&column=embedding").shown
        'postgresql://me@host/db?table=docs&column=embedding'
    """
    scheme, separator, rest = text.partition("://")
    if text.startswith(("postgresql:?", "postgres:?")):
        scheme, separator, rest = "postgresql", "://", "/" + text[text.index("?") :]
    if not separator:
        return _file(text, column)
    if scheme in ("lance", "faiss"):
        _refuse_credentials(scheme, text)
    if scheme == "lance":
        return _lance(text, rest, column, table)
    if scheme == "faiss":
        if not rest:
            raise FileError("A FAISS index is named as faiss://FILE, found faiss:// alone; name the file.")
        return StoreURI("faiss", f"faiss://{rest}", Path(rest))
    if scheme in ("postgresql", "postgres"):
        return _postgresql(f"postgresql://{rest}", column, table, key)
    # What follows may hold a password, whatever it is.
    raise FileError(f"{PLACES}; found {scheme}://. Write them to one of these.")


def _refuse_credentials(scheme: str, text: str) -> None:
    """Refuse the address of a server where a local path stands: as a path, its password would be shown everywhere."""
    shown = redact(text)
    if shown != text:
        raise FileError(
            f"{scheme}:// names a local path, but this address has a password, as that of a server: {shown}. Copy what "
            f"it holds here first, and give that path; a path that really looks so is written as {scheme}://./PATH."
        )


def _file(text: str, column: str | None) -> StoreURI:
    path = Path(text)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FILES:
        extension = f"the extension {path.suffix!r}" if path.suffix else "no extension"
        raise FileError(f"{PLACES}; {text} has {extension}. {_remedy(text, path)}")
    return StoreURI(kind, text, path, column=column)


def _remedy(text: str, path: Path) -> str:
    """What to write instead of a path that names a store without saying of which kind."""
    if path.suffix.lower() in INDEXES:
        return f"If it is a FAISS index, write faiss://{text}."
    if path.suffix.lower() == ".lance":
        return f"If it is a Lance table, write lance://{text.rstrip('/')}."
    if path.is_dir():
        return f"If it is a folder of Lance tables, write lance://{text.rstrip('/')}/TABLE."
    return "Convert or rename it."


def _lance(text: str, rest: str, column: str | None, table: str | None) -> StoreURI:
    place, _, named = rest.partition("#")
    folder, separator, last = place.rstrip("/").rpartition("/")
    if table is not None:
        folder, last = place, table
    elif not separator:
        folder, last = ".", last
    if not last or "/" in last or last in (".", ".."):
        raise FileError(f"A Lance table is named as lance://FOLDER/TABLE[#COLUMN], found {text}; name the table.")
    chosen = column or named or None
    return StoreURI(
        "lance",
        f"lance://{place}{f'#{chosen}' if chosen else ''}",
        Path(folder or "/"),
        last.removesuffix(".lance"),
        chosen,
    )


def _postgresql(text: str, column: str | None, table: str | None, key: str | None) -> StoreURI:
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        # A password with a bare /, ? or # in it would end the address early, and its rest would look like a place.
        if "@" in parts.path or not all(re.fullmatch(r"[a-z_]+", name) for name, _ in options):
            raise ValueError
        _ = parts.port
    except ValueError:
        raise FileError(
            "The postgresql:// address cannot be read (and is not repeated here, as it may hold a password); write it "
            "as postgresql://USER@HOST:PORT/DATABASE?table=TABLE&column=COLUMN and percent-encode special characters."
        ) from None
    own = {name: value for name, value in options if name in OWN}
    theirs = [(name, value) for name, value in options if name not in OWN]
    table, column, key = table or own.get("table"), column or own.get("column"), key or own.get("key")
    if parts.fragment:
        raise FileError("A postgresql:// address names its column as ?column=NAME, not behind a #; write it so.")
    if not table:
        raise FileError(
            "A postgresql:// address needs a table: add ?table=NAME to it (and &column=NAME, if the table has several "
            "columns of vectors)."
        )
    login, at, host = parts.netloc.rpartition("@")
    user, colon, password = (unquote(part) for part in login.partition(":"))
    # Only the user's name, the host and the database are for other eyes.
    plain = [(name, value) for name, value in (("table", table), ("column", column), ("key", key)) if value]
    shown = f"postgresql://{user + '@' if user else ''}{host}{parts.path}?{urlencode(plain)}"
    query = f"?{urlencode(theirs)}" if theirs else ""
    # Encoded anew: of a bare @ in a password the driver would take the rest for a host, and repeat it.
    secret = f"postgresql://{quote(user, safe='')}{colon}{quote(password, safe='')}{at}{host}{parts.path}{query}"
    return StoreURI("postgresql", shown, table=table, column=column, key=key, type=own.get("type"), secret=secret)
